"""Pass 1 alone: scatters inputs into a kept pile store, and finds out what the records are as a table."""

from __future__ import annotations

import secrets
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import (
    BadRecordError,
    ConversionError,
    InputError,
    UsageError,
)
from recshuf.formats import list_formats, load_format
from recshuf.formats.stored import TableForm, pack_source
from recshuf.job.plan import Costs, Cut, Plan, sum_known
from recshuf.job.planner import make_plan
from recshuf.job.report import DownloadReport, FileReport, ScatterReport
from recshuf.job.sizing import assign_sets, choose_kept_set_bytes, count_piles, divide_kept, naming_memory
from recshuf.piles.kept.snapshots import Snapshot
from recshuf.piles.kept.stored import open_new_sets
from recshuf.piles.layout import StorePlan
from recshuf.piles.regions import CutStore, SplitStore
from recshuf.records.arrays import find_nulls
from recshuf.records.key_makers import PositionKeys
from recshuf.records.provenance import PROVENANCE_BYTES, extend_schema, pack_provenance
from recshuf.run.open_run import open_quarantine
from recshuf.run.resolve import find_limits, plan_in_group
from recshuf.run.scatter import Scatter, ScatterTask
from recshuf.storage.reading.objects import list_requests
from recshuf.system.paths import real_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.interfaces import BadRecords, Decoder, Source
    from recshuf.job.job import Job
    from recshuf.job.report import Progress
    from recshuf.output.quarantine import Quarantine
    from recshuf.piles.kept.place import StorePlace
    from recshuf.piles.layout import SealedSet
    from recshuf.records.digests import InputCounts
    from recshuf.records.value_keys import PartFinder
    from recshuf.run.inputs import Inputs


class FormObserver:
    """An `Observer`: the decoder of a source sees all records, also behind those that show that together they have no table form.

    A record that has none by itself is an error, wherever it is, or is set aside if the decoder does that. Then types that cannot
    be reconciled are an error, too.
    """

    def __init__(self, source: Source, *, sets_bad_aside: bool) -> None:
        self._inner: Decoder | None = None
        self._sets_bad_aside = sets_bad_aside
        self._failed: tuple[int, int, TableForm] | None = None
        """Where the first records lie of which an error is known, and that: each error holds a batch by its traceback."""
        self._nulls: set[str] = set()
        self._lock = threading.Lock()
        try:
            self._inner = source.decoder()
        except ConversionError as error:
            self._failed = (-1, 0, TableForm(None, error))

    @property
    def schema(self) -> pa.Schema | None:
        return self._inner.schema if self._inner else None

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        """Observe records; types that cannot be reconciled are no error."""
        if self._inner is None:
            return None
        self._nulls |= find_nulls(batch)
        try:
            return self._inner.observe(batch, input_index, first_row)
        except BadRecordError as error:
            if error.remedy is not None:
                raise
            raise BadRecordError(error.name, error.problem, place=error.place, remedy=_ASIDE) from error
        except (InputError, ConversionError) as error:
            if self._sets_bad_aside:
                raise
            with self._lock:
                if self._failed is None or (input_index, first_row) < self._failed[:2]:
                    self._failed = (input_index, first_row, TableForm(None, error))
            return None

    def find_nulls(self, is_table: bool) -> tuple[str, ...] | None:
        """Return the columns with nulls; None if they are not known. `is_table`: whether native records have the columns."""
        if is_table:
            return tuple(sorted(self._nulls))
        with suppress(InputError, ConversionError):  # which `finish_form` tells
            if self._inner is not None and (known := self._inner.null_columns) is not None:
                return tuple(sorted(known))
        return None

    def finish_form(self, progress: Progress) -> TableForm:
        """Return the table form of all records; warn if they have none."""
        form = self._failed[2] if self._failed else self._finish()
        if form.schema is None:
            progress.warn(
                f"loaders cannot read the records of this store, and gather writes their own format: {form.error}"
            )
        return form

    def _finish(self) -> TableForm:
        assert self._inner is not None  # noqa: S101 - else it has failed
        try:
            return TableForm(self._inner.finish())
        except (InputError, ConversionError) as error:
            return TableForm(None, error)


_ASIDE = "correct it, or set such lines aside with --on-bad-record quarantine:FILE"
SCATTER_NAME = "scatter"
"""Name of the sets of the first scatter, whose keys are those of an ordinary run."""


@dataclass(frozen=True, slots=True)
class ScatteredSets:
    """Pile sets on disk that no snapshot refers to yet."""

    entries: tuple[SealedSet, ...]
    store: CutStore | SplitStore
    """That of all parts, closed."""
    counts: InputCounts
    inputs: Inputs
    table: TableForm
    quarantine: Quarantine | None = None
    """What was set aside, in place and withdrawn on an error."""
    deviation: int | None = None
    """See `ScatterReport.deviation`."""

    @property
    def schema(self) -> pa.Schema:
        return self.store.codec.schema

    def settle(self) -> None:
        """Keep what was set aside: the sets are committed."""
        if self.quarantine is not None:
            self.quarantine.settle()


def fill_snapshot(first: Snapshot, made: ScatteredSets, job: Job) -> Snapshot:
    """Return the first snapshot of a store, with its sets and how the inputs were read."""
    source = made.inputs.source
    origin = pack_source(source, made.inputs.format, job.read, made.table)
    names = {"names": [one.name for one in source.inputs]}
    return replace(first.add(made.entries, made.schema), origin=origin | names)


def describe_scatter(path: str, snapshot: Snapshot, made: ScatteredSets, seconds: float) -> ScatterReport:
    """Return the report of a scatter that is committed."""
    records, summaries = made.counts.records.tolist(), made.inputs.source.inputs
    bad_counts = made.quarantine.counts if made.quarantine else [0] * len(records)
    return ScatterReport(
        path,
        snapshot.store,
        snapshot.number,
        snapshot.seed,
        made.counts.record_count,
        made.counts.byte_count,
        snapshot.pile_count,
        len(made.entries),
        seconds,
        tuple(
            FileReport(one.name, count + bad, one.file_bytes, bad)
            for one, count, bad in zip(summaries, records, bad_counts, strict=True)
        ),
        quarantined=sum(bad_counts),
        quarantine=None if made.quarantine is None else str(made.quarantine.path),
        deviation=made.deviation,
        downloads=DownloadReport.of(list_requests(made.inputs.files)),
    )


@dataclass(frozen=True, slots=True)
class Part:
    """A store that gets the records, or of a split its share of them."""

    place: StorePlace
    snapshot: Snapshot
    share: float = 1


def make_part(job: Job, inputs: Inputs, seed: int | None, place: StorePlace, share: float = 1) -> Part:
    """Return a new store that gets about a part of the records of some inputs."""
    byte_count = inputs.sizes.byte_count
    expected = None if byte_count is None else int(byte_count * share)
    kept_bytes = divide_kept(expected, are_objects=_reads_by_requests(job, place))
    pile_count = job.options["piles"] or count_piles(expected, kept_bytes)
    return Part(place, Snapshot.new(seed, pile_count), share)


def scatter_sets(
    job: Job,
    inputs: Inputs,
    parts: Sequence[Part],
    name: str,
    stream: tuple[int, ...],
    progress: Progress,
    cleanup: ExitStack,
    finder: PartFinder | None = None,
) -> list[ScatteredSets]:
    """Write the records of some inputs to pile sets of a name in each part, synced to disk.

    `cleanup` withdraws the quarantine unless it is settled. `finder` tells the part of records, if there are several.
    """
    if job.quarantine is not None and not load_format(inputs.format).traits.sets_bad_aside:
        formats = " or ".join(list_formats(lambda traits: traits.sets_bad_aside))
        raise UsageError(f"--on-bad-record: for inputs of {formats} only; leave it out")
    are_requests = _reads_by_requests(job, parts[0].place)
    largest = max(parts, key=lambda part: part.share)
    pile_count = largest.snapshot.pile_count if finder is None or are_requests else 1

    def plan_for(own: Job) -> Plan:
        return _plan_scatter(own, inputs, pile_count, largest.share, are_requests=are_requests)

    limited, plan = plan_in_group(job, plan_for, progress)
    seed = largest.snapshot.seed
    observer = FormObserver(inputs.source, sets_bad_aside=job.quarantine is not None)
    sealed: list[SealedSet] = []
    beside = Path() if job.quarantine is None else real_path(job.quarantine).parent
    quarantine = open_quarantine(
        job,
        inputs,
        parts[0].place.local_path,
        beside,
        secrets.token_hex(8),
        cleanup,
        may_replace=job.options["overwrite"],
    )
    with ExitStack() as inner:
        opened = [_open_piles(plan, inputs, part, name, inner, are_requests=are_requests) for part in parts]
        store = opened[0] if finder is None else SplitStore(opened, finder, len(inputs.source.inputs))
        task = ScatterTask(
            inputs.source,
            plan,
            seed,
            PositionKeys(seed, stream),
            adds_provenance=True,
            stream=stream,
            on_bad=quarantine.put if quarantine else None,
            on_set=sealed.append,
        )
        progress.start("scatter", plan.record_count, plan.byte_count)

        def find_longest(memory_bytes: int) -> int:
            return plan_for(replace(job, memory_bytes=memory_bytes)).max_record_bytes

        with naming_memory(limited.memory_bytes, job.read.max_record_bytes, find_longest):
            counts = Scatter(task, store, observer, progress).run(inputs.files)
    if quarantine is not None:
        quarantine.finish()
    form = observer.finish_form(progress)
    nulls = observer.find_nulls(load_format(inputs.format).traits.native_is_table)
    found = (
        zip(store.sealed, store.counts, strict=True) if isinstance(store, SplitStore) else [(sealed, counts)]
    )
    return [
        ScatteredSets(
            tuple(replace(one, nulls=nulls) for one in sets),
            store,
            own,
            inputs,
            form,
            quarantine,
        )
        for sets, own in found
    ]


def _open_piles(
    plan: Plan, inputs: Inputs, part: Part, name: str, cleanup: ExitStack, *, are_requests: bool
) -> CutStore:
    """Return the piles of new sets in a store, open until `cleanup`; see `_reads_by_requests`."""
    pile_count, share = part.snapshot.pile_count, part.share
    plan = replace(plan, pile_count=pile_count)
    schema = extend_schema(inputs.source.schema)
    set_bytes = _choose_set_bytes(inputs, pile_count, share, are_requests=are_requests)
    begins, firsts, sizes = _cut_sets(plan, inputs, set_bytes)
    shares = tuple(None if size is None else size * share for size in sizes)
    planned = StorePlan(
        pile_count, shares, resident_bytes=0, compression=plan.spill_compression, set_prefix=name
    )
    store = open_new_sets(part.place, planned, schema, cleanup, plan.spilled_bytes)
    return CutStore(store, begins, firsts)


def _reads_by_requests(job: Job, place: StorePlace) -> bool:
    """Tell whether records are divided so that reading a region is worth a request.

    With a number of piles, they are divided as on a disk: then the order of all epochs is that of a store there.
    """
    return place.are_objects and not job.options["piles"]


def _plan_scatter(job: Job, inputs: Inputs, pile_count: int, share: float, *, are_requests: bool) -> Plan:
    """Return the plan of a scatter into a store that gets about a part of the records."""
    source = inputs.source
    costs = Costs(source.reading_bytes, lambda _: 0, added_bytes=PROVENANCE_BYTES)
    limits = replace(find_limits(job), pile_count=pile_count)
    plan = replace(make_plan(inputs.sizes, limits, costs, Cut(shards=1)), resident_bytes=0)
    if not are_requests:
        return plan
    set_bytes = _choose_set_bytes(inputs, pile_count, share, are_requests=True)
    return replace(plan, set_of_input=assign_sets(inputs.sizes.byte_counts, set_bytes))


def _choose_set_bytes(inputs: Inputs, pile_count: int, share: float, *, are_requests: bool) -> int:
    """Return how many bytes of the inputs a set gets a part of."""
    share = share if are_requests else 1
    byte_count = int(inputs.sizes.byte_counts.sum() * share)
    return int(choose_kept_set_bytes(byte_count, pile_count, are_objects=are_requests) / share)


def _cut_sets(
    plan: Plan, inputs: Inputs, set_bytes: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64], list[float | None]]:
    """Return how `CutStore` divides the planned sets, and the number of records to expect in each of its sets.

    A planned set becomes as many as would be large enough: with few sets, later epochs would mix little. One of records that
    nobody has counted stays whole.
    """
    sizes = inputs.sizes
    begins, firsts, expected = list[int](), [0], list[float | None]()
    edges = np.searchsorted(plan.set_of_input, np.arange(plan.set_count + 1)).tolist()
    for own in map(range, edges, edges[1:]):
        known = sum_known([sizes[index].record_count for index in own])
        large = sum(sizes[index].byte_count or 0 for index in own) // set_bytes
        count = 1 if plan.pile_count == 1 or not known else max(1, min(large, known))
        rows = [sizes[index].record_count or 0 for index in own] if count > 1 else [0]
        starts = np.cumsum([0, *rows[:-1]])
        for part in range(count):
            place = (known or 0) * part // count
            member = int(np.searchsorted(starts, place, side="right")) - 1
            begins.append(int(pack_provenance(np.int64(own[member]), place - starts[member])))
        firsts.append(firsts[-1] + count)
        expected += [known if known is None else known / count] * count
    return np.array(begins, np.uint64), np.array(firsts), expected
