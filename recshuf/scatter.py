"""Pass 1: reads every fragment and throws its records onto piles by their keys."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recshuf.digests import Digest, digest_records, sum_digests
from recshuf.errors import CheckError
from recshuf.order import draw_keys, find_piles, sort_by_pile
from recshuf.reading import Reading, ReadingPlan
from recshuf.records import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from recshuf.interfaces import BadRecords, Decoder, Source
    from recshuf.plans import Plan
    from recshuf.progress import Progress
    from recshuf.store import PileStore


@dataclass(frozen=True, slots=True)
class InputCount:
    """What was read of one input."""

    byte_count: int
    """Bytes of the records themselves, without keys and offsets where they are lines or fixed rows."""
    digest: Digest

    @property
    def records(self) -> int:
        """Number of records."""
        return self.digest.records


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
    ) -> None:
        self._source = source
        self._plan = plan
        self._seed = seed
        self._store = store
        self._decoder = decoder
        self._progress = progress
        self._finished = finished or {}
        self._set_aside = set_aside
        self._aside = [0] * len(source.inputs)
        must_see = decoder is not None and (decoder.schema is None or set_aside is not None)
        inputs = range(len(source.inputs))
        self._counts = [self._finished.get(index, InputCount(0, Digest())) for index in inputs]
        self._inputs_left = Counter(
            plan.set_of_input[index] for index in inputs if index not in self._finished
        )
        self._lock = threading.Lock()
        reading = ReadingPlan(plan.scatter_workers, plan.block_bytes, plan.max_record_bytes)
        chosen = [index for index in inputs if must_see or index not in self._finished]
        self._reading = Reading(source, reading, chosen, self._scatter_batch, self._finish_input)

    def run(self) -> list[InputCount]:
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
        for index, count in enumerate(self._counts):
            done, rows = count.records + self._aside[index], self._reading.rows_of(index)
            if done != rows and (index not in self._finished or rows):
                raise CheckError(
                    f"scatter: {self._source.inputs[index].name}: {done:,} records passed on, {rows:,} read; "
                    "run again, and report this as a fault"
                )

    def count_of(self, input_index: int) -> InputCount:
        """Return what has been read of an input so far."""
        return self._counts[input_index]

    def _finish_input(self, index: int) -> None:
        """Tell the store when a pile set is complete."""
        if index in self._finished:
            return
        set_index = self._plan.set_of_input[index]
        with self._lock:
            self._inputs_left[set_index] -= 1
            if self._inputs_left[set_index]:
                return
        inputs = [i for i, one in enumerate(self._plan.set_of_input) if one == set_index]
        self._store.complete(set_index, sum_digests(self._counts[i].digest for i in inputs))

    def _scatter_batch(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        """Put one batch onto the piles."""
        if not batch.num_rows:
            return
        bad = None if self._decoder is None else self._decoder.observe(batch, input_index, first_row)
        if bad is not None:
            if self._set_aside is None:
                raise RuntimeError("a decoder has set records aside unasked")
            self._set_aside(input_index, first_row, bad, batch)
            with self._lock:
                self._aside[input_index] += len(bad.index)
        if input_index not in self._finished:
            self._throw(input_index, first_row, batch, bad)
        self._progress.advance(batch.num_rows, self._store.codec.count_bytes(batch))

    def _throw(self, input_index: int, first_row: int, batch: pa.RecordBatch, bad: BadRecords | None) -> None:
        """Throw the records of a batch onto the piles, without the bad ones; those had keys, too."""
        store = self._store
        records = Records(draw_keys(self._seed, input_index, first_row, batch.num_rows), batch)
        if bad is not None:
            records = records.take(np.delete(np.arange(batch.num_rows), bad.index))
            batch = records.batch
            if not len(records):
                return
        digest = digest_records(records)
        piles = find_piles(records.keys, store.pile_count, store.key_range)
        index, bounds = sort_by_pile(piles, store.pile_count)
        set_index = self._plan.set_of_input[input_index]
        store.add(set_index, input_index, first_row, records.take(index), bounds)
        with self._lock:
            count = self._counts[input_index]
            byte_count = count.byte_count + store.codec.count_bytes(batch)
            self._counts[input_index] = InputCount(byte_count, count.digest + digest)
