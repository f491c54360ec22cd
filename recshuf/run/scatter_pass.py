"""The first pass: a function of a run and numbers of pile sets. What it has finished is adopted here, too.

The filled store, in the order of its keys, tells of the values that give them how many there are, and whether they fit.

The process that writes the output calls it once, with all numbers that lack; what fits stays in memory. A task calls it with
one number, and writes a set of a name of its own.
"""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from recshuf.errors import MemoryLimitError, PileError, UsageError
from recshuf.job.features import find_fields
from recshuf.job.planner import ORDERING
from recshuf.job.sizing import count_whole, find_least, naming_memory
from recshuf.output.entries import find_rows, read_entries
from recshuf.output.manifest import find_checksum
from recshuf.piles.epochs import StoredOrder
from recshuf.piles.groups import Groups
from recshuf.piles.layout import SET_SUFFIX, SealedSet
from recshuf.piles.regions import FilledRegions
from recshuf.piles.store import Store, name_set
from recshuf.run.features import choose_keys, count_missing, count_read, find_counts, find_duplicates
from recshuf.run.open_run import make_quarantine, open_task_store
from recshuf.run.resolve import Run, plan_again
from recshuf.run.scatter import Scatter, ScatterTask
from recshuf.system.files import drop_file_pages
from recshuf.system.memory import release_freed
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from recshuf.output.quarantine import Quarantine
    from recshuf.piles.set_folder import SetFolder
    from recshuf.records.digests import InputCounts
    from recshuf.records.key_makers import ValueSize
    from recshuf.records.reader import InputPart


def adopt_set(run: Run, store: Store, entry: SealedSet) -> None:
    """Let a store read a sealed set."""
    # One of an attempt that died is read whole at once; others are verified when they are loaded.
    store.adopt(entry, reads_all=run.results is None and run.inputs.stored is None)


def check_set(run: Run, store: Store, entry: SealedSet, quarantine: Quarantine | None = None) -> None:
    """Adopt a sealed set, and check its bad records, which a quarantine takes over; a `PileError` if one is missing or damaged."""
    bad = entry.bad
    checked: AbstractContextManager[Path | None] = (
        nullcontext() if bad is None else _fetch_bad(store.folder, bad)
    )
    with checked as path:
        adopt_set(run, store, entry)
        if bad is not None and path is not None and quarantine is not None:
            quarantine.take(path, bad["counts"])


def scatter(run: Run, numbers: Collection[int]) -> list[SealedSet]:
    """Fill the store of a run with the sets of these numbers, all that it lacks, and return those that are on disk."""
    wanted, sealed = set(numbers), list[SealedSet]()

    def note(entry: SealedSet) -> None:
        sealed.append(entry)
        if run.stage is not None:
            run.stage.log.note(entry.to_json())

    _read_inputs(
        run, {index for index, number in enumerate(run.plan.set_of_input) if number not in wanted}, note
    )
    return sealed


def spill(run: Run) -> None:
    """Move all piles of a run to disk, and note their sets for a later attempt."""
    run.store.spill()
    while (entry := run.store.seal_next()) is not None:
        if run.stage is not None:
            run.stage.log.note(entry.to_json())


def observe(run: Run) -> None:
    """Read all inputs again for the decoder alone."""
    run.progress.start("observe", run.plan.record_count, run.plan.byte_count)
    _read_inputs(run, range(len(run.inputs.files)), lambda _: None)


def _read_inputs(run: Run, finished: Collection[int], note: Callable[[SealedSet], None]) -> None:
    """Scatter the records of all inputs not finished, and let the decoder observe those it must."""
    files, quarantine = run.inputs.files, run.quarantine

    def drop_input(index: int) -> None:
        file = files[index]
        if file.path is not None and file.stamp is not None:
            drop_file_pages(file.path)

    counts = find_counts(run)
    task = ScatterTask(
        run.inputs.source,
        run.plan,
        run.seed,
        choose_keys(run),
        {index: counts[index] for index in finished},
        count_read(run, counts),
        run.job.options["provenance"],
        on_bad=quarantine.put if quarantine else None,
        on_input=drop_input if run.inputs.drop_page_cache else None,
        on_set=note,
        on_records=None if run.hashing is None else run.hashing.add,
    )
    if run.decoding.inner is not None:
        run.decoding.inner.on_note = run.progress.warn
    job = run.job

    def find_longest(memory_bytes: int) -> int:
        return plan_again(run, memory_bytes).max_record_bytes

    with naming_memory(job.memory_bytes, job.read.max_record_bytes, find_longest):
        Scatter(task, run.store, run.decoder, run.progress).run(files)
    _release_freed(run)


def _release_freed(run: Run) -> None:
    if run.decoding.converts:
        # Readers and writers use different allocators, and both would keep their memory.
        release_freed()


def count_part(run: Run, number: int) -> dict[str, int]:
    """Return the entry of a part of an input, whose rows number those of the next part."""
    part, plan = run.tasks.counted[number], run.plan
    fragments = run.inputs.source.fragments(part.input_index, plan.block_bytes, plan.max_record_bytes)
    rows = sum(batch.num_rows for one in part.choose(fragments) for batch in one.batches())
    return {"count": number, "rows": rows}


def scatter_set(run: Run, number: int, cleanup: ExitStack) -> SealedSet:
    """Write a pile set with a name of its own, and return its entry; `cleanup` deletes it."""
    parts = _number_rows(run, run.tasks.sets[number])
    decoder = run.scan_fully().decoder
    prefix, sealed = f"set-{number:05d}-{secrets.token_hex(8)}", list[SealedSet]()
    with open_task_store(run, prefix, _estimate(run, parts)) as store, ExitStack() as inner:
        folder = store.folder
        cleanup.callback(folder.discard, f"{name_set(prefix, 0)}{SET_SUFFIX}")
        quarantine = _open_quarantine(run, folder, inner)
        task = ScatterTask(
            run.inputs.source,
            replace(run.plan, set_of_input=(0,) * len(run.inputs.files)),
            run.seed,
            choose_keys(run),
            adds_provenance=run.job.options["provenance"],
            parts=parts,
            on_bad=quarantine.put if quarantine else None,
            on_set=sealed.append,
        )
        counts = Scatter(task, store, decoder, run.progress).run(run.inputs.files)
        _release_freed(run)
        return replace(
            sealed[0] if sealed else _describe_dropped(parts, counts),
            number=number,
            spilled_bytes=store.spilled_bytes,
            state=None if decoder is None else decoder.state(),
            bad=None if quarantine is None else _keep_bad(folder, quarantine, cleanup),
        )


def _describe_dropped(parts: Sequence[InputPart], counts: InputCounts) -> SealedSet:
    """Return the entry of a set without a file."""
    own = [(part.input_index, counts[part.input_index]) for part in parts]
    packed = tuple((index, *count.pack()) for index, count in own)
    return SealedSet("", counts.record_count, counts.byte_count, 0, counts=packed)


def _number_rows(run: Run, parts: Sequence[InputPart]) -> list[InputPart]:
    """Return parts with their first rows, which other tasks have counted if need be."""
    if all(part.first_row >= 0 for part in parts):
        return list(parts)
    assert run.results is not None  # noqa: S101 - it is a task
    counted = run.tasks.counted
    rows = find_rows(read_entries(run.results, run.header.id, range(len(counted))))
    ends: dict[tuple[int, int | None], int] = {}
    for number, part in enumerate(counted):
        first_row = part.first_row if part.first_row >= 0 else ends[part.input_index, part.start]
        ends[part.input_index, part.stop] = first_row + rows[number]
    return [
        part if part.first_row >= 0 else part._replace(first_row=ends[part.input_index, part.start])
        for part in parts
    ]


def _estimate(run: Run, parts: Sequence[InputPart]) -> float | None:
    """Return the number of records to expect in parts; None if it is not known."""
    counts = [run.inputs.sizes[part.input_index].record_count for part in parts]
    if None in counts:
        return None
    # The parts of an input are about equally large.
    shares = [1 if part.is_whole else run.tasks.count_parts(part.input_index) for part in parts]
    return sum((count or 0) / share for count, share in zip(counts, shares, strict=True))


def _open_quarantine(run: Run, sets: SetFolder, cleanup: ExitStack) -> Quarantine | None:
    """Return a quarantine for the bad records of one task, in a folder of pile sets; None if they are errors."""
    if run.job.quarantine is None:
        return None
    token, folder = secrets.token_hex(8), sets.make_kept()
    return make_quarantine(run.inputs, folder / f"bad-{token}.jsonl", folder, token, cleanup)


# The bad records of one task, in a file beside its pile set


def _keep_bad(sets: SetFolder, quarantine: Quarantine, cleanup: ExitStack) -> dict[str, Any] | None:
    """Write the bad records of a task to their file, and describe it; None if there are none. `cleanup` deletes it."""
    counts = [(index, count) for index, count in enumerate(quarantine.counts) if count]
    if not counts:
        return None
    quarantine.finish()
    quarantine.settle()
    name = quarantine.path.name
    cleanup.callback(sets.discard, name)
    described = {
        "name": name,
        "counts": counts,
        "bytes": quarantine.path.stat().st_size,
        "xxh3": find_checksum(quarantine.path),
    }
    sets.keep(name)
    return described


@contextmanager
def _fetch_bad(sets: SetFolder, bad: dict[str, Any]) -> Iterator[Path]:
    """Give a file that `_keep_bad` has described, if it is whole."""
    shown = sets.show(bad["name"])
    with sets.fetch(bad["name"]) as path:
        try:
            is_whole = path.stat().st_size == bad["bytes"] and find_checksum(path) == bad["xxh3"]
        except OSError as error:
            raise PileError(f"{shown}: bad records set aside cannot be read: {error.strerror}") from error
        if not is_whole:
            raise PileError(f"{shown}: bad records set aside are not as they were written")
        yield path


# What a filled store tells


_FULL = 0.9
"""Share of the largest pile that is ordered alone which the records of a value may fill; they share a pile with others."""


def check_fields(run: Run, record_count: int) -> None:
    """Refuse to tell records apart by a field that none of them has, which nothing but the records tells."""
    named = find_fields(run.job.feature)
    if named is None or run.values is None or not record_count:
        return
    flag, fields = named
    _, *missing = count_missing(run.store, len(fields))
    empty = [name for name, count in zip(fields, missing, strict=True) if count == record_count]
    for name in empty:
        problem = f"{flag}: no record has a value of {name!r}"
        if not run.values.knows_fields:
            raise UsageError(f"{problem}; name a field that some have")
        run.progress.warn(problem)


def open_filled(run: Run, store: Store) -> Groups:
    """Return the records of a filled store of a run by their keys, without the further words of these."""
    word_count = run.job.key_words
    column_count = None if word_count == 1 else len(run.loaded_schema)
    return Groups(
        FilledRegions(store),
        StoredOrder(word_count, of_values=run.job.keeps_keys_together),
        column_count,
        find_duplicates(run),
    )


def find_largest_pile(run: Run) -> int:
    """Return the size above which a pile of a run is split. Records of one value are not, so that theirs may be larger."""
    if not run.job.keeps_keys_together:
        return run.plan.pile_bytes
    held_bytes = run.store.held_bytes if run.results is None else 0  # tasks hold no piles
    return max(run.plan.pile_bytes, run.plan.value_bytes - int(held_bytes / ORDERING))


def check_sizes(run: Run) -> None:
    """Check that the records of each value can be ordered in memory; piles are moved to disk if that helps, and kept if not."""
    if not run.job.keeps_keys_together:
        return
    store = run.store
    if _find_too_large(run, store) is None:
        return
    spill(run)
    if (found := _find_too_large(run, store)) is not None:
        can_resume = store.keeps_sets or run.results is not None
        raise _explain(run, found, "continue with --resume and" if can_resume else "run again and")


def check_own_sizes(run: Run, store: Store, first: int, stop: int) -> None:
    """Do what `check_sizes` does in a task, for records ``first`` to ``stop`` of the order."""
    if run.job.keeps_keys_together and (found := _find_too_large(run, store, first, stop)) is not None:
        remedy = "make the plan again and" if run.header.is_plan else "continue with --resume and"
        raise _explain(run, found, remedy)


class _Need(NamedTuple):
    """The largest value, and the size of a pile that takes as much memory."""

    pile_bytes: int
    size: ValueSize

    def fits(self, most_bytes: int) -> bool:
        """Tell whether the value can be ordered with others of its pile, which may be so large."""
        return self.pile_bytes <= _FULL * most_bytes


def _find_too_large(run: Run, store: Store, first: int = 0, stop: int | None = None) -> _Need | None:
    """Return the largest value that cannot be ordered; None if all can."""
    groups, most_bytes = open_filled(run, store), find_largest_pile(run)
    wanted = groups.list_larger(most_bytes, first, int(groups.sizes.sum()) if stop is None else stop)
    sizes = map(groups.find_largest, wanted)
    needs = (_Need(size.byte_count + groups.sorting_bytes * size.records, size) for size in sizes)
    largest = max(needs, default=None)
    return None if largest is None or largest.fits(most_bytes) else largest


def _explain(run: Run, need: _Need, remedy: str) -> MemoryLimitError:
    """Return the error for a value whose records do not fit, with a limit under which they do."""
    least = find_least(lambda tried: need.fits(plan_again(run, tried).value_bytes), run.job.memory_bytes)
    size = need.size
    needed, given = (
        format_size(count_whole(limit, run.job.processes)) for limit in (least, run.job.memory_bytes)
    )
    return MemoryLimitError(
        f"a group of {size.records:,} records ({format_size(size.byte_count)}) needs {needed} of memory, and the limit is "
        f"{given}; {remedy} give --memory {needed.replace(' ', '')}, or group by more fields"
    )
