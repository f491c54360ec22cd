"""Pass 1: reads every fragment and throws its records onto piles by their keys."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import CheckError
from recshuf.records.batch import Records
from recshuf.records.digests import Digests
from recshuf.records.input_counts import InputCounts
from recshuf.records.keys import draw_keys, find_piles, sort_by_pile
from recshuf.records.provenance import add_places
from recshuf.records.reader import InputReader
from recshuf.records.reading_plan import ReadingPlan
from recshuf.records.rows import split_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.interfaces import BadRecords, Decoder, Source
    from recshuf.job.plan import Plan
    from recshuf.job.progress import Progress
    from recshuf.piles.store import PileStore
    from recshuf.records.input_counts import InputCount
    from recshuf.records.rows import RowRange


class Scatter:
    """Reads all inputs of a source into a pile store.

    Parameters
    ----------
    finished
        What was read of inputs whose pile sets the store has taken over from an earlier run. They are not read,
        unless the decoder has to see every record.
    set_aside
        Gets the records that have no table form: input, first row of the batch, which ones, and the batch. None
        where the decoder raises an error instead.
    adds_places
        Whether the place of each record travels beside it; the store's batches have it as their last column.
    on_input
        Called with the index of each input that has been read to its end, in many threads.
    """

    def __init__(
        self,
        source: Source,
        plan: Plan,
        seed: int,
        store: PileStore,
        decoder: Decoder | None,
        progress: Progress,
        finished: Mapping[int, InputCount] | None = None,
        set_aside: Callable[[int, int, BadRecords, pa.RecordBatch], None] | None = None,
        *,
        adds_places: bool = False,
        on_input: Callable[[int], None] | None = None,
    ) -> None:
        self._source = source
        self._plan = plan
        self._seed = seed
        self._store = store
        self._decoder = decoder
        self._progress = progress
        self._finished = finished or {}
        self._set_aside = set_aside
        self._adds_places = adds_places
        self._on_input = on_input
        self._aside = [0] * len(source.inputs)
        must_see = decoder is not None and (decoder.schema is None or set_aside is not None)
        inputs = range(len(source.inputs))
        self._counts = InputCounts(len(source.inputs))
        for index, count in self._finished.items():
            self._counts.put(index, count)
        self._inputs_left = Counter(
            plan.set_of_input[index] for index in inputs if index not in self._finished
        )
        self._lock = threading.Lock()
        reading = ReadingPlan(plan.scatter_workers, plan.block_bytes, plan.max_record_bytes)
        chosen = [index for index in inputs if must_see or index not in self._finished]
        self._reading = InputReader(source, reading, chosen, self._scatter, self._finish_inputs)

    def run(self) -> InputCounts:
        """Read everything and return what was read of each input.

        Raises
        ------
        CheckError
            When not all that was read was passed on.
        RecshufError
            The first error of any thread, after all threads have ended.
        """
        self._reading.run("scatter")
        self._check_rows()
        return self._counts

    def _check_rows(self) -> None:
        """Make sure that every row that was claimed was thrown on a pile or set aside."""
        for index, count in enumerate(self._counts.records.tolist()):
            done, rows = count + self._aside[index], self._reading.rows_of(index)
            if done != rows and (index not in self._finished or rows):
                raise CheckError(
                    f"scatter: {self._source.inputs[index].name}: {done:,} records passed on, {rows:,} read; "
                    "run again, and report this as a fault"
                )

    def count_of(self, input_index: int) -> InputCount:
        """Return what has been read of an input so far."""
        return self._counts[input_index]

    def _finish_inputs(self, inputs: Sequence[int]) -> None:
        """Tell the store which pile sets are complete."""
        if self._on_input is not None:
            for index in inputs:
                self._on_input(index)
        ended = Counter(self._plan.set_of_input[index] for index in inputs if index not in self._finished)
        with self._lock:
            self._inputs_left.subtract(ended)
            complete = [set_index for set_index in ended if not self._inputs_left[set_index]]
        for set_index in complete:
            self._store.complete(set_index, self._counts.digest(self._plan.inputs_of(set_index)))

    def _scatter(self, batch: pa.RecordBatch, ranges: list[RowRange]) -> None:
        """Put records that directly follow each other onto the piles, together where they go to one pile set."""
        bad = self._observe(batch, ranges)
        edges = np.cumsum([0, *(one.rows for one in ranges)])
        byte_count = int(self._store.codec.count_bytes(batch, edges[[0, -1]])[0])
        records = self._make_records(batch, ranges)
        if bad.size:
            # They had keys, too.
            records = records.take(np.delete(np.arange(batch.num_rows), bad))
            edges -= np.searchsorted(bad, edges)
        for set_index, group in groupby(range(len(ranges)), key=lambda i: self._set_of(ranges[i])):
            chosen = list(group)
            part = edges[chosen[0] : chosen[-1] + 2]
            if part[0] < part[-1]:
                inside = [ranges[index] for index in chosen]
                self._throw(set_index, inside, records.slice(part[0], part[-1]), part - part[0])
        self._progress.advance(batch.num_rows, byte_count)

    def _set_of(self, one: RowRange) -> int:
        return self._plan.set_of_input[one.input_index]

    def _make_records(self, batch: pa.RecordBatch, ranges: list[RowRange]) -> Records:
        batch = add_places(batch, ranges) if self._adds_places else batch
        return Records(draw_keys(self._seed, ranges), batch)

    def _observe(self, batch: pa.RecordBatch, ranges: list[RowRange]) -> NDArray[np.int64]:
        """Return the ascending positions of what goes onto no pile: bad records, and those whose piles are there already."""
        found = [np.zeros(0, np.int64)]
        if self._decoder is None and not self._finished:
            return found[0]
        start = 0
        for part, input_index, first_row in split_ranges(batch, ranges):
            bad = self._judge(part, input_index, first_row)
            if input_index in self._finished:
                bad = np.arange(part.num_rows)
            found.append(bad + start)
            start += part.num_rows
        return np.concatenate(found)

    def _judge(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> NDArray[np.int64]:
        """Show records to the decoder, if there is one, set aside what is bad among them, and return where it is."""
        bad = None
        if self._decoder is not None and batch.num_rows:
            bad = self._decoder.observe(batch, input_index, first_row)
        if bad is None:
            return np.zeros(0, np.int64)
        if self._set_aside is None:
            raise RuntimeError("a decoder has set records aside unasked")
        self._set_aside(input_index, first_row, bad, batch)
        with self._lock:
            self._aside[input_index] += len(bad.index)
        return bad.index

    def _throw(
        self, set_index: int, ranges: list[RowRange], records: Records, edges: NDArray[np.int64]
    ) -> None:
        """Throw records, of which each one has ``edges[k]:edges[k + 1]``, onto the piles of a set."""
        store = self._store
        digests = Digests.find(records, edges)
        sizes = store.codec.count_bytes(records.batch, edges)
        piles = find_piles(records.keys, store.pile_count, store.key_range)
        index, bounds = sort_by_pile(piles, store.pile_count)
        store.add(set_index, ranges[0].input_index, ranges[0].first_row, records.take(index), bounds)
        with self._lock:
            self._counts.add([one.input_index for one in ranges], sizes, digests)
