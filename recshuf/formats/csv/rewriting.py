"""CSV records as CSV with fewer columns, or another delimiter. The bytes of fields stay as they are.

A field without quotes that holds the new delimiter gets quotes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.dataclass import dataclass
from recshuf.errors import ConversionError
from recshuf.formats.csv.quotes import Dialect, QuoteScanner, State
from recshuf.formats.lines.cutting import make_batch, view_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.lines.cutting import Bytes, Positions


_RETURN = ord("\r")
_SHOWN_BYTES = 40


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Turns native batches into records of another form."""

    dialect: Dialect
    delimiter: bytes
    """That of the output."""
    places: Sequence[int] | None
    """Positions of the columns to keep, in their order; None for all."""
    width: int
    """Number of columns of the inputs, if some are to be kept."""

    def __call__(self, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
        return self.rewrite(batch.column(0))

    def rewrite(self, records: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        if self.places is not None and len(records):
            records = self._choose_fields(records, self.places)
        if self.delimiter != self.dialect.delimiter and len(records):
            records = self._change_delimiter(records)
        return records

    def rewrite_header(self, top: bytes, above: int) -> bytes:
        """Return the lines of a header in the new form; `above` bytes stand above it."""
        lines = re.sub(
            rb"(?i)(sep=)" + re.escape(self.dialect.delimiter), rb"\1" + self.delimiter, top[:above]
        )
        data = np.frombuffer(top[above:], np.uint8)
        ends = [found for found, _ in QuoteScanner(self.dialect).find_ends(data, 0, State())]
        records = _view_as_array(data, np.concatenate([np.zeros(1, np.int64), *ends]))
        return lines + view_records(self.rewrite(records))[0].tobytes()

    def _choose_fields(self, records: pa.LargeBinaryArray, places: Sequence[int]) -> pa.LargeBinaryArray:
        """Return records with some of their fields.

        Bounds cut the records into fields and what stands behind each, a delimiter or a line end, in turn.
        """
        data, offsets = view_records(records)
        delimiters = self._find(data, self.dialect.delimiter)
        firsts = np.searchsorted(delimiters, offsets) + np.arange(offsets.size)
        counts = np.diff(firsts)
        self._check_widths(data, offsets, counts)
        bounds = np.sort(
            np.concatenate([[0], delimiters, delimiters + 1, _find_ends(data, offsets), offsets[1:]])
        )
        source = np.append(data, np.frombuffer(self.dialect.delimiter, np.uint8))
        parts = _view_as_array(source, np.append(bounds, source.size))
        delimiter = bounds.size - 1
        wanted = np.full((len(records), 2 * len(places)), delimiter, np.int64)
        wanted[:, ::2] = 2 * (firsts[:-1, None] + np.array(places))
        wanted[:, -1] = 2 * (firsts[1:] - 1) + 1
        taken = parts.take(pa.array(wanted.reshape(-1)))
        chosen, ends = view_records(taken)
        return _view_as_array(chosen, ends[:: 2 * len(places)])

    def _check_widths(self, data: Bytes, offsets: Positions, counts: Positions) -> None:
        odd = np.flatnonzero(counts != self.width)
        if odd.size:
            record = data[offsets[odd[0]] : offsets[odd[0] + 1]].tobytes()
            shown = record[:_SHOWN_BYTES].decode(errors="replace").rstrip()
            fields = "1 field" if counts[odd[0]] == 1 else f"{counts[odd[0]]} fields"
            raise ConversionError(
                "",
                f"the record {shown!r} has {fields}, and the first one {self.width}",
                remedy="correct it, or leave out --columns",
            )

    def _change_delimiter(self, records: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        data, offsets = view_records(records)
        delimiters, inner = self._find(data, self.dialect.delimiter), self._find(data, self.delimiter)
        changed = data.copy()
        changed[delimiters] = self.delimiter[0]
        if not inner.size:
            return _view_as_array(changed, offsets)
        begins = np.sort(np.concatenate([offsets[:-1], delimiters + 1]))
        ends = np.sort(np.concatenate([_find_ends(data, offsets), delimiters]))
        fields = np.unique(np.searchsorted(begins, inner, "right") - 1)
        self._check_plain(data, begins[fields], ends[fields])
        added = np.stack([begins[fields], ends[fields]], axis=1).reshape(-1)
        quoted = np.insert(changed, added, self.dialect.quote[0])
        return _view_as_array(quoted, offsets + np.searchsorted(added, offsets))

    def _check_plain(self, data: Bytes, begins: Positions, ends: Positions) -> None:
        counts = np.append(0, np.cumsum(np.isin(data, list(self.dialect.quote))))
        odd = np.flatnonzero(counts[ends] != counts[begins])
        if odd.size or not self.dialect.quote:
            place = odd[0] if odd.size else 0
            shown = data[begins[place] : ends[place]][:_SHOWN_BYTES].tobytes().decode(errors="replace")
            raise ConversionError(
                "",
                f"the field {shown!r} holds {self.delimiter.decode()!r}, the delimiter of the output, and cannot be quoted",
                remedy="write a file named .csv, or JSONL",
            )

    def _find(self, data: Bytes, byte: bytes) -> Positions:
        ends = [found for found, _ in QuoteScanner(self.dialect, byte[0]).find_ends(data, 0, State())]
        return np.concatenate(ends) - 1


def _find_ends(data: Bytes, offsets: Positions) -> Positions:
    ends = offsets[1:] - 1
    has_return = (ends > offsets[:-1]) & (data[ends - 1] == _RETURN)
    begins: Positions = ends - has_return
    return begins


def _view_as_array(data: Bytes, offsets: Positions) -> pa.LargeBinaryArray:
    return make_batch(data, np.ascontiguousarray(offsets, np.int64)).column(0)
