"""Samples the first rows of one row group: the memory of its columns, and their storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.dataclass import dataclass
from recshuf.formats.parquet.file import explained
from recshuf.formats.parquet.pages import check_pages
from recshuf.formats.parquet.types import child_fields, dense_type
from recshuf.records.conforming import conform

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    import pyarrow.parquet as pq

    from recshuf.formats.parquet.file import OpenFile
    from recshuf.formats.parquet.footer import Footer


GROWTH = 16
"""Largest growth of the rows of one batch over the one before."""
_BLIND_ROWS = 1024
_SAMPLE_ROWS = 1024
_SAMPLE_BYTES = 1 << 23
_WIDTHS = {"BOOLEAN": 0.125, "INT32": 4.0, "INT64": 8.0, "INT96": 12.0, "FLOAT": 4.0, "DOUBLE": 8.0}
# Below this share of its plain size, a column chunk is small because of its dictionary. A writer that gave up the
# dictionary stores it and nearly all values plain.
_DICTIONARY_GAIN = 0.8


def first_batch_rows(footer: Footer, group: int, budget: int) -> int:
    """Return the rows of a row group to read first within `budget` bytes, while their size is unknown.

    A value in a dictionary takes its full size in every row: a few KB of file can hold 1 GiB a row.
    """
    return min(_BLIND_ROWS, max(1, budget // max(1, footer.group_bytes[group])))


@dataclass(frozen=True, slots=True)
class LeafStorage:
    """How one Parquet column is stored."""

    codec: str
    """Spelled as in metadata: ``SNAPPY``, ``UNCOMPRESSED``..."""
    has_dictionary: bool
    """Whether a dictionary makes it smaller; False if the writer gave it up."""


@dataclass(slots=True)
class _ColumnSample:
    rows: int = 0
    nulls: int = 0
    nbytes: int = 0

    def add(self, array: pa.Array) -> None:
        self.rows += len(array)
        self.nulls += array.null_count
        self.nbytes += array.nbytes

    @property
    def row_bytes(self) -> float:
        return self.nbytes / max(1, self.rows)

    @property
    def value_share(self) -> float:
        return 1 - self.nulls / max(1, self.rows)


class GroupSample:
    """A sample of the first row group with rows of a file that has rows, read within the memory limit of the run."""

    def __init__(
        self, file: OpenFile, footer: Footer, columns: Sequence[int], memory_bytes: int | None
    ) -> None:
        self._footer = footer
        self._columns = sorted(columns)
        self._group = footer.first_group or 0
        self._rows = footer.group_rows[self._group]
        self._samples = {column: _ColumnSample() for column in self._columns}
        self.pages = check_pages(file, self._group, footer.leaves(self._columns), memory_bytes)
        footer.pages[self._group] = footer.leaves(self._columns), self.pages
        self._read(file)
        with explained(footer.name):
            group = file.metadata.row_group(self._group)
            self._chunks = {leaf: group.column(leaf) for leaf in footer.leaves(self._columns)}
            self._lengths = {leaf: file.columns.column(leaf).length for leaf in self._chunks}
            self.scratch_row_bytes = scratch_row_bytes(self._chunks.values(), self._rows)
            """Memory of writing a row, without the row itself."""
            widths = [_fixed_bytes(footer.schema.field(column).type) for column in self._columns]
            self._fixed = sum(width for width in widths if width is not None)
            varying = [column for column, width in zip(self._columns, widths, strict=True) if width is None]
            self._varying = sum(map(self._varying_bytes, varying))

    def storage(self, column: int) -> tuple[LeafStorage, ...]:
        leaves = self._footer.leaves([column])
        chunks = [self._chunks[leaf] for leaf in leaves]
        if all(self._width(leaf) for leaf in leaves):
            share = self._samples[column].value_share
            plain = [
                chunk.num_values * self._width(leaf) * share
                for leaf, chunk in zip(leaves, chunks, strict=True)
            ]
            stored = [chunk.total_uncompressed_size for chunk in chunks]
        else:
            plain = [self._samples[column].row_bytes * self._rows] * len(leaves)
            stored = [sum(chunk.total_uncompressed_size for chunk in chunks)] * len(leaves)
        return tuple(
            LeafStorage(chunk.compression, chunk.has_dictionary_page and size < _DICTIONARY_GAIN * whole)
            for chunk, size, whole in zip(chunks, stored, plain, strict=True)
        )

    def native_bytes(self, footer: Footer) -> int:
        """Estimate the size of all records, as dense Arrow data, of a file with the same schema.

        Columns of fixed width are exact; others are scaled by the ratio of memory to stored bytes in this row group.
        """
        here = self._footer.group_bytes[self._group]
        if here <= 0:
            return int(footer.row_count * (self._fixed + self._varying / max(1, self._rows)))
        return int(footer.row_count * self._fixed + self._varying / here * sum(footer.group_bytes))

    def _read(self, file: OpenFile) -> None:
        first = first_batch_rows(self._footer, self._group, _SAMPLE_BYTES)
        rows = size = 0
        for batch in file.batches([self._group], self._footer.leaves(self._columns), first):
            with explained(self._footer.name, f"row group {self._group}"):
                size += self._add(batch)
            rows += batch.num_rows
            if rows >= _SAMPLE_ROWS or size >= _SAMPLE_BYTES:
                break
            file.set_batch_rows(min(GROWTH * rows, _SAMPLE_ROWS))

    def _add(self, batch: pa.RecordBatch) -> int:
        size = 0
        for sample, array in zip(self._samples.values(), batch.columns, strict=True):
            dense = conform(array, dense_type(array.type))
            sample.add(dense)
            size += dense.nbytes
        return size

    def _varying_bytes(self, column: int) -> float:
        chunks = [self._chunks[leaf] for leaf in self._footer.leaves([column])]
        flat = not child_fields(self._footer.schema.field(column).type)
        if flat and not _expands(chunks[0]):
            return float(chunks[0].total_uncompressed_size)
        stored = sum(chunk.total_uncompressed_size for chunk in chunks) if flat else 0
        return max(self._samples[column].row_bytes * self._rows, float(stored))

    def _width(self, leaf: int) -> float:
        """Return the plain bytes of a value, 0 if they vary."""
        physical = self._chunks[leaf].physical_type
        return float(self._lengths[leaf] if physical == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(physical, 0))


def _fixed_bytes(kind: pa.DataType) -> float | None:
    """Return the bytes of a value with its validity bit; None if they vary."""
    try:
        return float(dense_type(kind).bit_width + 1) / 8
    except ValueError:
        return None


def _expands(chunk: pq.ColumnChunkMetaData) -> bool:
    """Tell whether values share bytes in the file but not in memory."""
    return bool(chunk.has_dictionary_page or "DELTA_BYTE_ARRAY" in chunk.encodings)


def scratch_row_bytes(chunks: Iterable[pq.ColumnChunkMetaData], rows: int) -> float:
    """Return the scratch bytes per row of the largest of these column chunks of `rows` rows."""
    return max((_scratch_bytes(chunk) for chunk in chunks), default=0) / max(1, rows)


def _scratch_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    levels = 4 if "." in chunk.path_in_schema else 2
    converted = {"INT32": 4, "FIXED_LEN_BYTE_ARRAY": 8}.get(chunk.physical_type, 0)
    return int(chunk.num_values * (levels + converted))
