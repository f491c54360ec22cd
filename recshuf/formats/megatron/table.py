"""Documents as tables: a column of lists of tokens, and, if there are several sequences or modes, columns of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError, InputError
from recshuf.formats.lines.cutting import view_records
from recshuf.formats.megatron import CODES
from recshuf.formats.megatron.index import LENGTH, MODE, MegatronLayout
from recshuf.interfaces import TableDecoder
from recshuf.records.arrays import is_any_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Documents(NamedTuple):
    """What of some documents goes to the files."""

    tokens: NDArray[np.uint8]
    lengths: NDArray[np.uint8]
    """Of all sequences, as bytes."""
    counts: NDArray[np.int64]
    """Sequences of each document."""
    modes: NDArray[np.uint8]


class MegatronDecoder(TableDecoder):
    """Decodes the documents of one layout."""

    def __init__(self, layout: MegatronLayout, names: Sequence[str]) -> None:
        self._names, self._is_plain = names, layout.is_plain
        self._dtypes = {"tokens": layout.dtype}
        self._dtypes |= {} if layout.is_plain else {"lengths": LENGTH}
        self._dtypes |= {"modes": MODE} if layout.has_modes else {}
        kinds = {name: pa.large_list(pa.from_numpy_dtype(dtype)) for name, dtype in self._dtypes.items()}
        super().__init__(pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()]))

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        if not self._is_plain:
            return
        _, offsets = view_records(batch.column(1))
        wrong = np.flatnonzero(np.diff(offsets) != LENGTH.itemsize)
        if wrong.size:
            count = int(np.diff(offsets)[wrong[0]]) // LENGTH.itemsize
            problem = f"this document has {count} sequences, and the index as many sequences as documents, so a table has no place for that"
            place = f"row {first_row + int(wrong[0])}"
            raise InputError(
                self._names[input_index], problem, place=place, remedy="keep the format of the inputs"
            )

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for field in self.schema:
            data, offsets = view_records(batch.column(field.name))
            dtype = self._dtypes[field.name]
            values = pa.array(
                np.ascontiguousarray(data).view(dtype).astype(dtype.newbyteorder("="), copy=False)
            )
            arrays.append(
                pa.LargeListArray.from_arrays(pa.array(offsets // dtype.itemsize), values, type=field.type)
            )
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def find_layout(schema: pa.Schema, wanted: str | None) -> MegatronLayout:
    """Return the layout for tables: of one column of lists of numbers, or of those that `MegatronDecoder` makes."""
    is_known = "tokens" in schema.names and {*schema.names} <= {"tokens", "lengths", "modes"}
    if not is_known and len(schema) != 1:
        problem = f"megatron holds one column of tokens, and there are {len(schema)}"
        raise ConversionError("", problem, remedy="choose one with --columns, or choose --to parquet")
    field = schema.field("tokens" if is_known else 0)
    if not is_any_list(field.type):
        problem = f"megatron holds lists of numbers, not {field.type}"
        raise ConversionError(field.name, problem, remedy="choose --to parquet")
    codes = {name: code for code, name in CODES.items()}
    name = wanted or {"float": "float32", "double": "float64"}.get(
        str(field.type.value_type), str(field.type.value_type)
    )
    if name not in codes:
        problem = f"megatron does not hold tokens of type {name}"
        raise ConversionError(field.name, problem, remedy="give --token-type int32, or int64")
    return MegatronLayout(codes[name], "modes" in schema.names, "lengths" not in schema.names)


def encode(batch: pa.RecordBatch, layout: MegatronLayout) -> Documents:
    """Return the documents of a table."""
    names = batch.schema.names
    tokens, ends = _flatten(batch, names.index("tokens") if "tokens" in names else 0, layout.dtype)
    lengths, counts = np.diff(ends).astype(LENGTH), np.ones(len(ends) - 1, np.int64)
    if not layout.is_plain:
        edges = ends
        lengths, ends = _flatten(batch, names.index("lengths"), LENGTH)
        counts = np.diff(ends)
        if (lengths < 0).any() or (np.append(0, np.cumsum(lengths, dtype=np.int64))[ends] != edges).any():
            raise ConversionError("lengths", "are not those of the tokens", remedy="leave the column out")
    modes = lengths[:0].view(np.uint8)
    if layout.has_modes:
        modes, ends = _flatten(batch, names.index("modes"), MODE)
        if (np.diff(ends) != counts).any():
            raise ConversionError("modes", "are not one for each sequence", remedy="leave the column out")
    return Documents(tokens.view(np.uint8), lengths.view(np.uint8), counts, modes.view(np.uint8))


def _flatten(
    batch: pa.RecordBatch, place: int, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the numbers of a column of lists, and the edges of the lists among them."""
    name = batch.schema.names[place]
    try:
        column = batch.column(place).cast(pa.large_list(pa.from_numpy_dtype(dtype.newbyteorder("="))))
    except pa.ArrowInvalid as error:
        problem = f"is not of type {dtype.name}: {error}"
        raise ConversionError(name, problem, remedy="give another --token-type") from error
    values = column.flatten()
    if column.null_count or values.null_count:
        raise ConversionError(name, "megatron holds no nulls", remedy="choose --to parquet")
    edges = column.offsets.to_numpy()
    return np.ascontiguousarray(values.to_numpy()).astype(dtype, copy=False), edges - edges[0]
