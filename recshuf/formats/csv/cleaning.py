"""What is done to native CSV records as they are read: lines that are no records are left out, line ends made alike.

In most inputs there is nothing to do, and batches stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.dataclass import dataclass
from recshuf.errors import InputError
from recshuf.formats.csv.quotes import OddQuote
from recshuf.formats.lines.cutting import SCHEMA, make_batch, view_records
from recshuf.interfaces import Fragment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from recshuf.formats.lines.cutting import Bytes, Positions

    Mask = NDArray[np.bool_]


HEADER_BYTES = 2
UNITED_SCHEMA = SCHEMA.append(pa.field("header", pa.binary(HEADER_BYTES), nullable=False))
"""Native form of records under several headers: each has the number of its header, two bytes, the lowest first."""
_NEWLINE, _RETURN = b"\n\r"
_BLANK_BYTES = 2


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What is done to the records of one input."""

    name: str
    """The input in messages."""
    comment: bytes
    """Byte with which lines begin that are no records; empty for none."""
    drops_blank: bool
    """Whether blank lines are no records."""
    line_end: bytes | None = None
    """What lines get for an end; None to leave it."""
    header: int | None = None
    """Number of its header; None where all have one."""

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.comment or self.drops_blank:
            batch = self.drop(batch)
        if self.line_end is not None:
            batch = _set_ends(batch, self.line_end)
        if self.header is None:
            return batch
        numbers = np.full(batch.num_rows, self.header, "<u2")
        column = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(HEADER_BYTES), batch.num_rows, [None, pa.py_buffer(numbers)]
        )
        return pa.RecordBatch.from_arrays([batch.column(0), column], schema=UNITED_SCHEMA)

    def drop(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        data, offsets = view_records(batch.column(0))
        if not self.comment and int(np.diff(offsets).min(initial=_BLANK_BYTES + 1)) > _BLANK_BYTES:
            return batch
        wanted = self.find_records(data, offsets)
        if wanted.all():
            return batch
        if self.comment:
            self._refuse_long_comments(data, offsets)
        return batch.filter(pa.array(wanted))

    def find_records(self, data: Bytes, offsets: Positions) -> Mask:
        wanted = np.ones(offsets.size - 1, np.bool_)
        if self.drops_blank:
            sizes = np.diff(offsets)
            wanted &= ~((sizes == 1) | ((sizes == _BLANK_BYTES) & (data[offsets[:-1]] == _RETURN)))
        if self.comment:
            wanted &= data[offsets[:-1]] != self.comment[0]
        return wanted

    def _refuse_long_comments(self, data: Bytes, offsets: Positions) -> None:
        """Refuse comments that are many lines because a quote is open in them: the others would be lost."""
        ends = np.flatnonzero(data == _NEWLINE) + 1
        lines = np.diff(np.searchsorted(ends, offsets, "right"))
        long = np.flatnonzero((lines > 1) & (data[offsets[:-1]] == self.comment[0]))
        if long.size:
            begin = int(offsets[long[0]])
            text = data[begin : begin + 40].tobytes().partition(b"\n")[0].decode(errors="replace")
            raise InputError(
                self.name,
                f"a quote in the comment {text!r} takes further lines into it",
                remedy="remove the quote, or give --quote none if quotes are text",
            )


class CleanFragment(Fragment):
    """The records of a fragment, with what is done to them."""

    def __init__(self, fragment: Fragment, cleaning: Cleaning) -> None:
        self._fragment = fragment
        self._cleaning = cleaning

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._fragment.batches():
                if (cleaned := self._cleaning.apply(batch)).num_rows:
                    yield cleaned
        except OddQuote as odd:
            raise InputError(
                self._cleaning.name,
                f"text follows the quote that ends a field of several lines: {odd.text!r}",
                remedy="correct it, or give --quote none if quotes are text, or --quote '\"' if they are quotes",
            ) from None


def _set_ends(batch: pa.RecordBatch, line_end: bytes) -> pa.RecordBatch:
    data, offsets = view_records(batch.column(0))
    ends = offsets[1:]
    sizes = np.diff(offsets)
    has_return = (sizes > 1) & (data[ends - 2] == _RETURN)
    if line_end == b"\n":
        return make_batch(
            np.delete(data, ends[has_return] - 2), offsets - np.append(0, np.cumsum(has_return))
        )
    data = np.insert(data, ends[~has_return] - 1, _RETURN)
    return make_batch(data, offsets + np.append(0, np.cumsum(~has_return)))
