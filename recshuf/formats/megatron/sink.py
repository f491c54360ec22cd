"""Data sets of Megatron that are written: documents, or tables with a column of lists of tokens.

Tables have more columns if documents have several sequences or modes. What the index holds is kept on disk until the shard is
complete.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError
from recshuf.formats.files import FileSink, write_all
from recshuf.formats.lines.cutting import view_records
from recshuf.formats.megatron import CODES, MAGIC
from recshuf.formats.megatron.source import END, HEAD, LENGTH, MODE, MegatronLayout, wrap_documents
from recshuf.interfaces import Target
from recshuf.records.arrays import is_any_list
from recshuf.system.files import BehindFile

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from recshuf.interfaces import Sink


_CHUNK = 1 << 16


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
    name = wanted or {"float": "float32", "double": "float64"}.get(
        str(field.type.value_type), str(field.type.value_type)
    )
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


class MegatronTarget(Target):
    """Shards of one layout."""

    suffix = ".bin"

    def __init__(self, schema: pa.Schema, layout: MegatronLayout | None, wanted: str | None) -> None:
        self._is_table = layout is None
        self._layout = layout or find_layout(schema, wanted)
        if self._is_table and wanted is None and self._layout.dtype == END:
            self.notes = (
                "tokens are written as int64; --token-type int32, or uint16 if all are below 65,536, takes less space",
            )

    def sink_bytes(self, threads: int) -> int:  # noqa: ARG002 - one thread writes
        return 8 << 20

    def open(self, path: Path, threads: int) -> Sink:  # noqa: ARG002 - as above
        return MegatronSink(path, self._layout, is_table=self._is_table)


class MegatronSink(FileSink):
    """One data set being written.

    The index gets the lengths as they come. Ends of documents and modes, which stand behind all pointers, wait in files
    without a name.
    """

    def __init__(self, path: Path, layout: MegatronLayout, *, is_table: bool) -> None:
        self._layout, self._is_table, self._sequences = layout, is_table, 0
        with ExitStack() as files:
            self._tokens = files.enter_context(BehindFile(path, "xb"))
            self._index = files.enter_context(path.with_suffix(".idx").open("x+b"))
            self._ends = files.enter_context(TemporaryFile(dir=path.parent))
            self._modes = files.enter_context(TemporaryFile(dir=path.parent))
            self._index.write(bytes(HEAD.size))
            self._ends.write(bytes(END.itemsize))
            super().__init__(files)

    def write(self, batch: pa.RecordBatch) -> None:
        documents = encode(batch, self._layout) if self._is_table else batch
        (tokens, _), (lengths, offsets), *modes = map(view_records, documents.columns)
        write_all(self._tokens, tokens.data)
        self._index.write(lengths.data)
        self._ends.write((self._sequences + offsets[1:] // LENGTH.itemsize).astype(END).data)
        for values, _ in modes:
            self._modes.write(values.data)
        self._count += batch.num_rows
        self._sequences += lengths.size // LENGTH.itemsize

    def _complete(self) -> None:
        self._write_pointers()
        for spool in (self._ends, self._modes):
            spool.seek(0)
            shutil.copyfileobj(spool, self._index)
        self._index.seek(0)
        self._index.write(HEAD.pack(MAGIC, 1, self._layout.code, self._sequences, self._count + 1))

    def _write_pointers(self) -> None:
        """Write where each sequence begins behind the lengths, which are read again."""
        place = 0
        for first in range(0, self._sequences, _CHUNK):
            self._index.seek(HEAD.size + LENGTH.itemsize * first)
            count = min(_CHUNK, self._sequences - first)
            lengths = np.frombuffer(self._index.read(LENGTH.itemsize * count), LENGTH)
            ends = place + np.cumsum(lengths, dtype=END) * self._layout.dtype.itemsize
            self._index.seek(HEAD.size + LENGTH.itemsize * self._sequences + END.itemsize * first)
            self._index.write(np.append(place, ends[:-1]).astype(END).data)
            place = int(ends[-1])
