"""The second pass: where shards are cut, those that an earlier attempt or tasks have finished, and what writes the others."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from itertools import accumulate, pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import xxhash

from recshuf.errors import DamagedSetError, MemoryLimitError, OutputError, PileError, UsageError
from recshuf.formats import load_format
from recshuf.interfaces import Sink, SupportsBatches, SupportsStream, Target
from recshuf.job.features import Dedup, SplitFiles
from recshuf.job.plan import count_shards, cut_parts, shard_bounds
from recshuf.job.sizing import find_least
from recshuf.output.entries import FinishedShard, find_sets, find_shards, read_entries
from recshuf.output.manifest import WrittenFile, name_companion, name_shard
from recshuf.output.run_log import name_result
from recshuf.piles.epochs import EpochOrder, StoredOrder
from recshuf.piles.groups import Content, Groups
from recshuf.piles.regions import FilledRegions
from recshuf.run.features import find_counts, find_part_sizes
from recshuf.run.gather import Gather, Shards, settle_edges
from recshuf.run.open_run import open_task_store
from recshuf.run.resolve import plan_again
from recshuf.run.scatter_pass import adopt_set, check_own_sizes, find_largest_pile, open_filled
from recshuf.system.paths import naming_errors
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence

    import pyarrow as pa

    from recshuf.output import ShardPlace, ShardWriter
    from recshuf.piles.layout import SealedSet
    from recshuf.records.digests import InputCounts
    from recshuf.run.resolve import Run


class Bounds(NamedTuple):
    """Where the shuffled order is cut into shards."""

    edges: list[int]
    """First record of each shard, and the end of the last."""
    byte_count: int
    """Bytes of all records in it, about."""
    parts: tuple[tuple[str, int], ...] = ()
    """Name and number of shards of each part of a split; none if it has no parts."""
    basis: str = ""
    """Tells the records that are counted, if other attempts of the run may have more or fewer in their piles."""

    @property
    def shard_count(self) -> int:
        return len(self.edges) - 1

    @property
    def record_count(self) -> int:
        return self.edges[-1]

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest shard, about."""
        return self.byte_count * max(self.sizes, default=0) // max(1, self.record_count)

    @property
    def sizes(self) -> list[int]:
        return [stop - start for start, stop in pairwise(self.edges)]

    def list_empty_parts(self) -> list[str]:
        """Return the names of the parts without records."""
        ends = list(accumulate(count for _, count in self.parts))
        return [
            part
            for (part, count), end in zip(self.parts, ends, strict=True)
            if self.edges[end] == self.edges[end - count]
        ]

    def name_shards(self, place: ShardPlace, suffix: str) -> list[str]:
        names = [
            f"{part}/{name_shard(number, suffix)}" for part, count in self.parts for number in range(count)
        ] or [name_shard(number, suffix) for number in range(self.shard_count)]
        return [place.name_of(name) for name in names]


def cut_shards(run: Run, counts: InputCounts, groups: Groups) -> Bounds:
    """Return the bounds of the shards, independent of the plan, given the records in the order of the output; see `settle`."""
    if isinstance(run.job.feature, Dedup):
        return _cut_by_key(run, counts, groups)
    records = counts.record_count
    head_count = run.job.count_sample(records)
    wanted = records if head_count is None else min(records, head_count)
    file_bytes = run.inputs.sizes.file_bytes
    if file_bytes is None or not run.keeps_size:
        file_bytes = counts.byte_count
    if isinstance(feature := run.job.feature, SplitFiles):
        parts = cut_parts(run.output.cut, find_part_sizes(run, feature, counts, groups), file_bytes)
        edges = [0, *(edge for part in parts for edge in part[1:])]
        shard_counts = (len(part) - 1 for part in parts)
        return Bounds(edges, counts.byte_count, tuple(zip(feature.shares, shard_counts, strict=True)))
    edges = shard_bounds(run.output.cut, wanted, file_bytes * wanted // max(1, records))
    return Bounds(edges, counts.byte_count * wanted // max(1, records))


def _cut_by_key(run: Run, counts: InputCounts, groups: Groups) -> Bounds:
    """Return the bounds of shards that are ranges of keys of one size.

    How many repeats piles hold depends on the plan. Ranges do not, and as keys are random, nearly as many records are kept of
    each.
    """
    count = count_shards(run.output.cut, None, None) or 1
    first_keys = [(shard << 64) // count for shard in range(1, count)]
    held = groups.digest(range(len(groups.sizes)))
    edges = [0, *groups.count_before(first_keys), held.records]
    byte_count = counts.byte_count * held.records // max(1, counts.read_count)
    return Bounds(edges, byte_count, basis=f"{held.records}:{held.fingerprint:016x}")


def settle(run: Run, bounds: Bounds, groups: Groups, shards: range) -> Bounds:
    """Return bounds of which those of some shards are where values begin, if records of a value stay together."""
    if not run.job.keeps_keys_together or not shards:
        return bounds
    own, edges = slice(shards.start, shards.stop + 1), list(bounds.edges)
    edges[own] = settle_edges(groups, edges[own], find_largest_pile(run))
    return bounds._replace(edges=edges)


class _KeptShards:
    """Shards as local files, or as streams of a keeper, which takes them over once they are closed."""

    def __init__(
        self, run: Run, place: ShardPlace, target: Target, keeper: ShardWriter, bounds: Bounds
    ) -> None:
        self._place, self._target, self._keeper = place, target, keeper
        self._names = bounds.name_shards(place, target.suffix)
        self._shard_bytes, self._basis = bounds.largest_bytes, bounds.basis
        self._threads = run.plan.sink_threads
        self._schema = sum_schema(run.find_table_schema())
        self._companions = load_format(run.output.format).traits.companion_suffixes

    def open(self, shard: int) -> Sink:
        name = self._names[shard]
        if isinstance(self._target, SupportsStream):
            stream = self._keeper.open_stream(name, self._shard_bytes)
            if stream is not None:
                return self._target.open_stream(stream, self._threads)
        return self._target.open(self._place.path_of(name), self._threads)

    def finish(self, shard: int, content: Content) -> None:
        name = self._names[shard]
        companions = tuple(WrittenFile(name_companion(name, suffix)) for suffix in self._companions)
        finished = FinishedShard(
            shard,
            name,
            content.digest,
            self._schema,
            companions=companions,
            values=content.values,
            dropped=content.dropped,
            basis=self._basis,
        )
        self._keeper.add(self._place.path_of(name), finished)


class _StreamedShard:
    """The only shard, in a stream."""

    def __init__(self, run: Run, stream: BinaryIO | None, target: Target) -> None:
        if stream is None or not isinstance(target, SupportsStream):
            raise UsageError(f"{run.output.format} cannot be written to a stream; give a file with -o")
        self._stream, self._target = stream, target
        self._threads = run.plan.sink_threads

    def open(self, shard: int) -> Sink:  # noqa: ARG002 - there is one
        return self._target.open_stream(self._stream, self._threads)

    def finish(self, shard: int, content: Content) -> None:
        pass


@contextmanager
def _open_shards(
    run: Run,
    place: ShardPlace | None,
    target: Target,
    bounds: Bounds,
    on_kept: Callable[[FinishedShard], None],
) -> Iterator[Shards]:
    """Give what opens shards; at the end all are durable, and `on_kept` has been called with each."""
    if place is None:
        yield _StreamedShard(run, run.stream, target)
        return
    keeper = place.open_writer(on_kept, drop_page_cache=run.inputs.drop_page_cache)
    try:
        yield _KeptShards(run, place, target, keeper, bounds)
        keeper.finish()
    finally:
        # Only when no thread writes entries is it known whether finished parts are left for a later run.
        keeper.close()


def _open_gather(run: Run, groups: Groups, bounds: Bounds) -> Gather:
    return Gather(run.plan, bounds.edges, find_largest_pile(run), groups, run.decoder, run.progress)


def write_shards(
    run: Run,
    place: ShardPlace | None,
    groups: Groups,
    bounds: Bounds,
    numbers: Collection[int],
    on_kept: Callable[[FinishedShard], None],
) -> dict[int, Content]:
    """Write the shards of these numbers, without a place the only one to the stream of the run, and return what is in each.

    `on_kept` is called with each shard once it is durable.
    """
    target = run.open_target()
    others = set(range(bounds.shard_count)) - set(numbers)
    with _open_shards(run, place, target, bounds, on_kept) as shards:
        written = _open_gather(run, groups, bounds).run(shards, others)
        target.check_shards()
        return written


def iterate_records(run: Run, bounds: Bounds) -> tuple[pa.Schema, Generator[pa.RecordBatch]]:
    """Return the schema of the records of a run, and its only shard as batches, loaded when they are asked for."""
    target = run.open_target()
    if not isinstance(target, SupportsBatches):
        raise TypeError(f"{run.output.format} is no format of batches")
    return target.declared, _encode(run, target, _open_gather(run, open_groups(run), bounds))


def _encode(run: Run, target: SupportsBatches, gather: Gather) -> Generator[pa.RecordBatch]:
    with name_output(run, None), closing(gather.iterate()) as batches:
        for batch in batches:
            yield target.encode(batch)


def open_groups(run: Run) -> Groups:
    """Return the records of the store of a run in the order of the output."""
    stored, epoch = run.inputs.stored, run.job.epoch
    if stored is None or epoch is None:
        return open_filled(run, run.store)
    column_count = None if run.job.options["provenance"] else len(run.inputs.source.schema)
    order = EpochOrder(stored.seed, epoch.number, epoch.reshuffle, stored.seed, epoch.mix)
    if order.is_stored:
        return Groups(FilledRegions(run.store), StoredOrder(), column_count=column_count)
    groups = Groups(stored, order, column_count)
    largest, limit = int(groups.byte_counts.max(initial=0)), run.job.memory_bytes
    if largest > run.plan.value_bytes:  # groups of an epoch are not split
        needed = find_least(lambda tried: largest <= plan_again(run, tried).value_bytes, limit)
        raise MemoryLimitError(
            f"{stored.path}: ordering a group of piles needs {format_size(needed)} of memory, and the limit is "
            f"{format_size(limit)}; raise --memory, lower --mix, or scatter into more --piles"
        )
    return groups


def gather(run: Run, numbers: Collection[int], bounds: Bounds) -> dict[int, FinishedShard]:
    """Write the shards of these numbers, all that the stage lacks, and return them by number."""
    stage, kept = run.stage, dict[int, FinishedShard]()

    def note(shard: FinishedShard) -> None:
        kept[shard.number] = shard
        if stage is not None:
            stage.log.note(shard.to_json())

    with name_output(run, None if stage is None else stage.path):
        written = write_shards(run, stage, open_groups(run), bounds, numbers, note)
    # A stream and a single local file are not in the log: the run ends with them.
    return {
        number: kept.get(
            number,
            FinishedShard(number, "", content.digest, None, values=content.values, dropped=content.dropped),
        )
        for number, content in written.items()
    }


def find_unchanged(run: Run, bounds: Bounds) -> dict[int, FinishedShard]:
    """Return the shards of an attempt that died which are as they were written; delete all others."""
    stage = run.stage
    if stage is None or not stage.log.entries:
        return {}
    target = run.open_target()
    if target.sees_all and not stage.is_committed:
        stage.keep_only(set())
        return {}
    names = bounds.name_shards(stage, target.suffix)
    # A later record required the schema; shards of another one are written again.
    schema = sum_schema(run.find_table_schema())
    known = {
        number: shard for number, shard in find_shards(stage.log.entries).items() if shard.schema == schema
    }
    planned = set(zip(range(bounds.shard_count), names, bounds.sizes, strict=True))
    fitting = [
        shard
        for shard in known.values()
        if (shard.number, shard.name, shard.total.records) in planned and shard.basis == bounds.basis
    ]
    unchanged = stage.find_unchanged(fitting)
    damaged = [shard.name for number, shard in known.items() if number not in unchanged]
    if damaged and stage.is_committed:
        raise OutputError(
            f"{run.output.name}: is complete, but {damaged[0]} has changed since; delete {stage.name} to start anew"
        )
    for name in damaged:
        run.progress.warn(f"{name}: has changed since it was written; it is written again")
    stage.keep_only({file.name for number in unchanged for file in known[number].files})
    return {number: known[number] for number in unchanged}


def sum_schema(schema: pa.Schema | None) -> str | None:
    """Return the checksum of a schema."""
    return None if schema is None else f"{xxhash.xxh3_64_intdigest(schema.serialize()):016x}"


def name_output(run: Run, folder: Path | None) -> AbstractContextManager[None]:
    """Have errors of the operating system name the output, and the folder where shards are written; None for a stream."""
    return naming_errors(run.output.name, folder, run.plan.peak_disk_bytes)


def learn(run: Run, sets: Iterable[SealedSet]) -> None:
    """Let the decoder of a run learn what those of its tasks have learned."""
    for entry in sets:
        if run.decoder is not None and entry.state is not None:
            run.decoder.merge(entry.state)


def gather_range(run: Run, number: int, cleanup: ExitStack) -> list[FinishedShard]:
    """Write the shards of a task to a place of its own, and return them; `cleanup` deletes them."""
    results, destination = run.results, run.output.destination
    assert results is not None  # noqa: S101 - it is a task
    assert destination is not None  # noqa: S101 - tasks do not write to a stream
    sets = find_sets(read_entries(results, run.header.id, run.tasks.scatter))
    run = run.scan_fully()
    learn(run, sets)
    place = destination.begin_task(run.header.id)
    cleanup.callback(place.discard)
    shards: list[FinishedShard] = []
    with name_output(run, place.folder), open_task_store(run) as store:
        first = run.tasks.scatter.start
        for entry in sets:
            try:
                adopt_set(run, store, entry)
            except PileError as error:
                raise PileError(
                    f"{error}; share its folder between all machines; if it is lost, give --resume, or run recshuf task "
                    f"{first + entry.number} again"
                ) from error
        groups = open_filled(run, store)
        with _forget_damaged(run, sets):
            bounds = cut_shards(run, find_counts(run, store), groups)
            own = run.tasks.choose_shards(number, bounds.shard_count)
            check_own_sizes(run, store, bounds.edges[own.start], bounds.edges[own.stop])
            bounds = settle(run, bounds, groups, own)
            write_shards(run, place, groups, bounds, own, shards.append)
    place.finish()
    return shards


@contextmanager
def _forget_damaged(run: Run, sets: Sequence[SealedSet]) -> Iterator[None]:
    """Delete the result of a task whose pile set turns out to be damaged, so that it runs again.

    Only the gather reads whole sets: adoption reads their ends.
    """
    try:
        yield
    except DamagedSetError as error:
        name = PurePath(error.name).name
        number = run.tasks.scatter.start + next(one.number for one in sets if one.file_name == name)
        if run.results is not None:
            run.results.remove(name_result(run.header.id, number))
        remedy = f"give --resume, or run recshuf task {number} again"
        raise DamagedSetError(error.name, error.problem, remedy) from error
