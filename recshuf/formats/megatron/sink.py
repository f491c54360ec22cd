"""Data sets of Megatron that are written: documents, or tables with a column of lists of tokens.

Tables have more columns if documents have several sequences or modes. What the index holds is kept on disk until the shard is
complete.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError
from recshuf.formats.files import FileSink, FileTarget, write_all
from recshuf.formats.lines.cutting import view_records
from recshuf.formats.megatron import CODES, MAGIC
from recshuf.formats.megatron.source import END, HEAD, LENGTH, MODE, MegatronLayout, wrap_documents
from recshuf.records.arrays import is_any_list
from recshuf.system.files import BehindFile

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def find_layout(schema: pa.Schema, wanted: str | None) -> MegatronLayout:
    """Return the layout for tables: of one column of lists of numbers, or of those that records make."""
    is_known = "tokens" in schema.names and {*schema.names} <= {"tokens", "lengths", "modes"}
    if not is_known and len(schema) != 1:
        problem = f"megatron holds one column of tokens, and there are {len(schema)}"
        raise ConversionError("", problem, remedy="choose one with --columns, or choose --to parquet")
    field = schema.field("tokens" if is_known else 0)
    if not is_any_list(field.type):
        problem = f"megatron holds lists of numbers, not {field.type}"
        raise ConversionError(field.name, problem, remedy="choose --to parquet")
    codes = {name: code for code, name in CODES.items()}
    said = str(field.type.value_type)
    name = wanted or {"float": "float32", "double": "float64"}.get(said, said)
    if name not in codes:
        problem = f"megatron does not hold tokens of type {name}"
        raise ConversionError(field.name, problem, remedy="give --token-type int32, or int64")
    return MegatronLayout(codes[name], "modes" in schema.names, "lengths" not in schema.names)


def encode(batch: pa.RecordBatch, layout: MegatronLayout) -> pa.RecordBatch:
    """Return rows of a table as native documents."""
    names = batch.schema.names
    tokens, ends = _flatten(batch, names.index("tokens") if "tokens" in names else 0, layout.dtype)
    lengths, edges = np.diff(ends).astype(LENGTH), np.arange(len(ends))
    if not layout.is_plain:
        lengths, edges = _flatten(batch, names.index("lengths"), LENGTH)
        if (lengths < 0).any() or (np.append(0, np.cumsum(lengths, dtype=np.int64))[edges] != ends).any():
            raise ConversionError("lengths", "are not those of the tokens", remedy="leave the column out")
    parts = [(tokens, ends), (lengths, edges)]
    if layout.has_modes:
        parts.append(_flatten(batch, names.index("modes"), MODE))
        if (parts[-1][1] != edges).any():
            raise ConversionError("modes", "are not one for each sequence", remedy="leave the column out")
    return wrap_documents(parts, layout.schema)


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


def open_target(schema: pa.Schema, layout: MegatronLayout | None, wanted: str | None) -> FileTarget:
    """Return the target for shards of one layout; without one, for tables with tokens of a type that may be wanted."""
    known = layout or find_layout(schema, wanted)
    target = FileTarget(".bin", partial(MegatronSink, layout=known, is_table=layout is None), 8 << 20)
    if layout is None and wanted is None and known.dtype == END:
        target.notes = (
            "tokens are written as int64; --token-type int32, or uint16 if all are below 65,536, takes less space",
        )
    return target


class MegatronSink(FileSink):
    """One data set being written.

    The index gets the lengths as they come. What stands behind all of them waits in files without a name: pointers, ends of
    documents, and modes.
    """

    def __init__(self, path: Path, layout: MegatronLayout, *, is_table: bool) -> None:
        self._layout, self._is_table, self._sequences, self._place = layout, is_table, 0, 0
        with ExitStack() as files:
            self._tokens = files.enter_context(BehindFile(path, "xb"))
            self._index = files.enter_context(path.with_suffix(".idx").open("xb"))
            self._index.write(bytes(HEAD.size))
            self._waiting = [files.enter_context(TemporaryFile(dir=path.parent)) for _ in range(3)]
            self._waiting[1].write(bytes(END.itemsize))
            super().__init__(files)

    def write(self, batch: pa.RecordBatch) -> None:
        documents = encode(batch, self._layout) if self._is_table else batch
        (tokens, _), (lengths, offsets), *modes = map(view_records, documents.columns)
        write_all(self._tokens, tokens.data)
        self._index.write(lengths.data)
        sizes = lengths.view(LENGTH) * END.type(self._layout.dtype.itemsize)
        places = self._place + np.append(0, np.cumsum(sizes, dtype=END))
        ends = self._sequences + offsets[1:] // LENGTH.itemsize
        parts: list[NDArray[Any]] = [places[:-1].astype(END), ends.astype(END), *(part for part, _ in modes)]
        for file, part in zip(self._waiting, parts, strict=False):
            file.write(part.data)
        self._count += batch.num_rows
        self._sequences += sizes.size
        self._place = int(places[-1])

    def _complete(self) -> None:
        for file in self._waiting:
            file.seek(0)
            shutil.copyfileobj(file, self._index)
        self._index.seek(0)
        self._index.write(HEAD.pack(MAGIC, 1, self._layout.code, self._sequences, self._count + 1))
