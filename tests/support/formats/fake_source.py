"""A source of rows that are given, for driving the reading of inputs; everything else is adjustable.

source = FakeSource([[b"a", b"b"], [b"c"]], fragment_rows=2, batch_rows=1)
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from recshuf.interfaces import Decoder, Fragment, InputSummary, Source

SCHEMA = pa.schema([pa.field("record", pa.large_binary(), nullable=False)])


class FakeFragment(Fragment):
    """Some rows of one input."""

    def __init__(self, first_row: int, batches: Sequence[Sequence[bytes]], counted: bool) -> None:
        self._batches = batches
        self.first_row = first_row
        self.record_count = sum(map(len, batches)) if counted else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        for rows in self._batches:
            yield pa.RecordBatch.from_arrays([pa.array(rows, pa.large_binary())], schema=SCHEMA)


class FakeSource(Source):
    """Inputs given as lists of rows.

    Parameters
    ----------
    rows
        The records of each input.
    fragment_rows, batch_rows
        The most records in a fragment and in a batch; `block_bytes` may make both smaller.
    counted
        Whether fragments know their numbers of records and the summaries' counts are exact.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[bytes]],
        *,
        fragment_rows: int = 1000,
        batch_rows: int = 100,
        counted: bool = True,
    ) -> None:
        self.schema = SCHEMA
        self.layout = "fake layout"
        self.rows = rows
        self._fragment_rows = fragment_rows
        self._batch_rows = batch_rows
        self._counted = counted
        self.inputs = tuple(
            InputSummary(f"input {index}", sum(map(len, one)), len(one), counted, sum(map(len, one)))
            for index, one in enumerate(rows)
        )

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[FakeFragment]:
        batches = self._cut_batches(input_index, block_bytes)
        # Without a count a fragment may hold one block only: one batch.
        per_fragment = max(1, self._fragment_rows // self._batch_rows) if self._counted else 1
        first_row = 0
        for start in range(0, len(batches), per_fragment):
            part = batches[start : start + per_fragment]
            yield FakeFragment(first_row, part, self._counted)
            first_row += sum(map(len, part))

    def _cut_batches(self, input_index: int, block_bytes: int) -> list[list[bytes]]:
        batches: list[list[bytes]] = []
        filled = 0
        limit = min(self._batch_rows, self._fragment_rows)
        for row in self.rows[input_index]:
            if not batches or len(batches[-1]) == limit or filled + len(row) > block_bytes:
                batches.append([])
                filled = 0
            batches[-1].append(row)
            filled += len(row)
        return batches

    def reading_bytes(self, block_bytes: int) -> int:
        return 2 * block_bytes

    def decoder(self) -> Decoder:
        raise NotImplementedError
