"""Pass 1, scatter: reads all inputs and appends each record to the pile of its key."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import field
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

import numpy as np

from recshuf.dataclass import dataclass
from recshuf.errors import CheckError, InputError
from recshuf.piles.footer import SetDescription, SetSource
from recshuf.piles.slices import Origin
from recshuf.piles.store import Store
from recshuf.records.arrays import take_rows
from recshuf.records.batch import Records, split_ranges
from recshuf.records.digests import Digests, InputCount, InputCounts
from recshuf.records.key_makers import KeyedRows, KeyMaker, cut_rows, remove_rows
from recshuf.records.keys import KEY_BYTES
from recshuf.records.provenance import add_provenance
from recshuf.records.reader import InputPart, InputReader, ReadingPlan, whole_inputs
from recshuf.storage.reading import check_unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.interfaces import BadRecords, InputFile, Source
    from recshuf.job.plan import Plan
    from recshuf.job.report import Progress
    from recshuf.piles.layout import SealedSet
    from recshuf.piles.regions import CutStore, SplitStore
    from recshuf.records.keys import RowRange


@dataclass(frozen=True, slots=True)
class ScatterTask:
    """Inputs to read, and the plan."""

    source: Source
    plan: Plan
    seed: int
    """Seed of the keys, for the description of sets."""
    keys: KeyMaker
    finished: Mapping[int, InputCount] = field(default_factory=dict)
    """Counts of the inputs in adopted pile sets. They are not read, unless the decoder must observe every record."""
    finished_rows: Sequence[int] = ()
    """Rows of each input that are no bad records; of those that are not finished any number."""
    adds_provenance: bool = False
    """Whether batches in the store have provenance as their last column."""
    stream: tuple[int, ...] = ()
    """First numbers of the spawn keys of all keys, for the description of sets; see `draw_keys`."""
    parts: Sequence[InputPart] | None = None
    """What to read; at most one part of each input. Default: all inputs."""
    on_bad: Callable[[int, int, BadRecords, pa.RecordBatch], None] | None = None
    """Gets bad records: input, first row of the batch, their positions, and the batch; as the others, in many threads. None if
    the decoder raises an error instead."""
    on_input: Callable[[int], None] | None = None
    """Gets the index of each finished input."""
    on_set: Callable[[SealedSet], None] | None = None
    """Gets the entry of each pile set once it is sealed."""
    on_records: Callable[[pa.RecordBatch, Sequence[RowRange]], None] | None = None
    """Gets the records that are to be added, in their native form; as the others, in many threads."""


class Observer(Protocol):
    """Sees the records that are scattered, as a `Decoder` does."""

    @property
    def schema(self) -> pa.Schema | None: ...

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None: ...


class Scatter:
    """Reads all inputs of a source into a pile store."""

    def __init__(
        self,
        task: ScatterTask,
        store: Store | CutStore | SplitStore,
        observer: Observer | None,
        progress: Progress,
    ) -> None:
        self._task = task
        self._plan = plan = task.plan
        self._store = store
        self._observer = observer
        self._progress = progress
        inputs = range(len(task.source.inputs))
        self._left_out = [0] * len(inputs)
        """Rows of each input that are bad or get no key, less those that get several."""
        self._counts = InputCounts(len(inputs))
        for index, count in task.finished.items():
            self._counts.put(index, count)
            self._left_out[index] = task.finished_rows[index] - count.digest.records - count.dropped.records
        parts = whole_inputs(task.source) if task.parts is None else task.parts
        self._own_inputs: dict[int, list[int]] = {}
        """Inputs of each pile set that are read."""
        for part in parts:
            if part.input_index not in task.finished:
                self._own_inputs.setdefault(plan.set_of_input[part.input_index], []).append(part.input_index)
        self._inputs_left = Counter({set_index: len(own) for set_index, own in self._own_inputs.items()})
        self._lock = threading.Lock()
        """Guards the counts; no other lock is taken under it."""
        must_see = observer is not None and (observer.schema is None or task.on_bad is not None)
        chosen = [part for part in parts if must_see or part.input_index not in task.finished]
        reading = ReadingPlan(plan.scatter_workers, plan.block_bytes, plan.max_record_bytes)
        self._reading = InputReader(task.source, reading, chosen, self._scatter, self._finish_inputs)

    def run(self, files: Sequence[InputFile]) -> InputCounts:
        """Read everything and return the counts of each input, of which these are the files: none may have changed."""
        parts = self._task.parts
        read = files if parts is None else [files[part.input_index] for part in parts]
        try:
            self._reading.run("scatter")
            self._check_rows()
        except (InputError, CheckError):
            check_unchanged(read)
            raise
        check_unchanged(read)
        return self._counts

    def _check_rows(self) -> None:
        """Check that every row was added to the store, as often as it has keys, or is bad."""
        counts = self._counts
        for index, count in enumerate((counts.records + counts.dropped).tolist()):
            done, rows = count + self._left_out[index], self._reading.rows_of(index)
            if done != rows and (index not in self._task.finished or rows):
                raise CheckError(
                    f"scatter: {self._task.source.inputs[index].name}: {done:,} records passed on, {rows:,} read; "
                    "run again, and report this as a fault"
                )

    def _finish_inputs(self, inputs: Sequence[int]) -> None:
        """Complete the pile sets that have no inputs left."""
        if self._task.on_input is not None:
            for index in inputs:
                self._task.on_input(index)
        ended = Counter(
            self._plan.set_of_input[index] for index in inputs if index not in self._task.finished
        )
        with self._lock:
            self._inputs_left.subtract(ended)
            complete = [set_index for set_index in ended if not self._inputs_left[set_index]]
        for set_index in complete:
            own = self._own_inputs[set_index]
            self._store.complete(set_index, self._counts.digest(own), self._describe(own))
            self._seal_sets()

    def _describe(self, inputs: Sequence[int]) -> SetDescription:
        """Return the description of a pile set; the counts of its inputs are final."""
        names = [self._task.source.inputs[index].name for index in inputs]
        sources = map(SetSource, inputs, names, self._counts.take(inputs))
        return SetDescription(self._task.seed, tuple(sources), self._task.stream)

    def _seal_sets(self) -> None:
        while (entry := self._store.seal_next()) is not None:
            if self._task.on_set is not None:
                self._task.on_set(entry)

    def _scatter(self, batch: pa.RecordBatch, ranges: list[RowRange]) -> None:
        """Let consecutive rows be observed, and add those that are good to the store."""
        bad = self._observe(batch, ranges)
        rows = batch.num_rows
        byte_count = int(self._store.codec.count_bytes(batch, np.array([0, rows]))[0])
        if bad.size:
            batch = take_rows(batch, np.delete(np.arange(rows), bad))
            ranges = remove_rows(ranges, bad)
        if self._task.on_records is not None:
            self._task.on_records(batch, ranges)
        copies, block = self._task.keys.most_copies, self._plan.block_bytes
        # With its copies, a piece is no larger than a block, and nor are its keys.
        count = max(min(copies, -(-copies * byte_count // block)), -(-KEY_BYTES * rows // block))
        for part, own in [(batch, ranges)] if count <= 1 else cut_rows(batch, ranges, count):
            if own:
                self._draw(part, own)
        self._progress.advance(rows, byte_count)

    def _draw(self, batch: pa.RecordBatch, ranges: list[RowRange]) -> None:
        """Give rows their keys, and add them to the store, those of one pile set together."""
        rows = np.cumsum([0, *(one.rows for one in ranges)])
        keyed = self._task.keys.draw(batch, ranges)
        batch = add_provenance(batch, ranges) if self._task.adds_provenance else batch
        if keyed.rows is None:
            self._pass_on(keyed, batch, ranges, rows, rows)
            return
        self._count_left_out(ranges, rows, np.searchsorted(keyed.rows, rows))
        block, most = self._plan.block_bytes, len(keyed.rows)
        if self._task.keys.most_copies * batch.nbytes > 2 * block:  # those of a long row, which cannot be cut
            most = block // batch.nbytes
        for start in range(0, len(keyed.rows), max(1, most)):
            chosen = slice(start, start + max(1, most))
            part = KeyedRows(tuple(word[chosen] for word in keyed.words), keyed.rows[chosen])
            self._pass_on(part, batch, ranges, rows, np.searchsorted(keyed.rows[chosen], rows))

    def _pass_on(
        self,
        keyed: KeyedRows,
        batch: pa.RecordBatch,
        ranges: list[RowRange],
        rows: NDArray[np.int64],
        edges: NDArray[np.int64],
    ) -> None:
        """Add rows with keys to the store; range k has rows ``rows[k]:rows[k + 1]``, and ``edges[k]:edges[k + 1]`` of the keys."""
        records = keyed.join(batch)
        set_of_input = self._plan.set_of_input
        for set_index, group in groupby(
            range(len(ranges)), key=lambda k: set_of_input[ranges[k].input_index]
        ):
            chosen = list(group)
            part = edges[chosen[0] : chosen[-1] + 2]
            if part[0] < part[-1]:
                inside = [ranges[index] for index in chosen]
                if keyed.values is not None and isinstance(self._store, Store):
                    self._store.note_values(set_index, keyed.values[rows[chosen[0]] : rows[chosen[-1] + 1]])
                if keyed.missing is not None and isinstance(self._store, Store):
                    missing = keyed.missing[:, rows[chosen[0]] : rows[chosen[-1] + 1]]
                    self._store.note_missing(set_index, [int(missing.all(0).sum()), *missing.sum(1).tolist()])
                repeats = None if keyed.repeats is None else _cut_places(keyed.repeats, part[0], part[-1])
                self._add(set_index, inside, records.slice(part[0], part[-1]), part - part[0], repeats)

    def _count_left_out(
        self, ranges: list[RowRange], before: NDArray[np.int64], after: NDArray[np.int64]
    ) -> None:
        """Note how many rows of each range get no key, less those that get several."""
        with self._lock:
            for span, count in zip(ranges, (np.diff(before) - np.diff(after)).tolist(), strict=True):
                self._left_out[span.input_index] += count

    def _observe(self, batch: pa.RecordBatch, ranges: list[RowRange]) -> NDArray[np.int64]:
        """Return the ascending positions of records not to add: bad ones, and those of finished inputs."""
        finished = self._task.finished
        if self._observer is None and not finished:
            return np.zeros(0, np.int64)
        found, start = [], 0
        for part, input_index, first_row in split_ranges(batch, ranges):
            bad = self._judge(part, input_index, first_row)
            found.append(start + (np.arange(part.num_rows) if input_index in finished else bad))
            start += part.num_rows
        return np.concatenate(found)

    def _judge(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> NDArray[np.int64]:
        """Let records be observed, and return the positions of bad ones."""
        bad = None
        if self._observer is not None and batch.num_rows:
            bad = self._observer.observe(batch, input_index, first_row)
        if bad is None:
            return np.zeros(0, np.int64)
        assert self._task.on_bad is not None  # noqa: S101 - observers return bad records only if they are asked to
        self._task.on_bad(input_index, first_row, bad, batch)
        with self._lock:
            self._left_out[input_index] += len(bad.index)
        return bad.index

    def _add(
        self,
        set_index: int,
        ranges: list[RowRange],
        records: Records,
        edges: NDArray[np.int64],
        repeats: NDArray[np.intp] | None,
    ) -> None:
        """Add records to a pile set, but those at `repeats`; range k of `ranges` has records ``edges[k]:edges[k + 1]``."""
        inputs = [one.input_index for one in ranges]
        digests = Digests.find(records, edges)
        own = len(self._task.source.schema) + self._task.adds_provenance  # words of keys follow
        sizes = self._store.codec.count_bytes(records.select(own).batch, edges, is_lasting=True)
        if repeats is not None and repeats.size:
            dropped = Digests.find(records.take(repeats), np.searchsorted(repeats, edges))
            # So the set is complete if its digest and that of what is dropped are that of all.
            digests.subtract(dropped)
            records = records.take(np.delete(np.arange(len(records)), repeats))
            with self._lock:
                self._counts.add_dropped(inputs, dropped)
        if len(records):
            self._store.add(set_index, Origin(ranges[0].input_index, ranges[0].first_row), records)
        with self._lock:
            self._counts.add(inputs, sizes, digests)
        self._seal_sets()


def _cut_places(places: NDArray[np.intp], start: int, stop: int) -> NDArray[np.intp]:
    """Return the ascending places from `start` to `stop`, counted from `start`."""
    first, end = np.searchsorted(places, [start, stop])
    return places[first:end] - start
