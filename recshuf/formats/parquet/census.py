"""Reads every footer once: one schema, counts, sizes, and the storage of the first input."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats.files import check_memory
from recshuf.formats.metadata import MetadataUnion
from recshuf.formats.parquet.annotations import FIXED
from recshuf.formats.parquet.columns import (
    Dictionaries,
    choose_unit,
    fill_types,
    known_schema,
    read_partitions,
)
from recshuf.formats.parquet.file import DeclaredSchemas, explained, open_footer
from recshuf.formats.parquet.metadata import adopt, read_metadata, settle_copies
from recshuf.formats.parquet.pages import GROWTH, check_pages, first_batch_rows
from recshuf.formats.parquet.plan import (
    LeafStorage,
    ParquetLayout,
    RowCost,
    choose_row_group_rows,
    scratch_row_bytes,
)
from recshuf.formats.parquet.types import child_fields, dense_type, fit_indices, without_required_vectors
from recshuf.formats.parquet.union import SchemaClashError, SchemaUnion, columns_of, pick_columns
from recshuf.interfaces import InputSummary
from recshuf.records.arrays import dotted
from recshuf.records.conforming import conform
from recshuf.storage.reading.objects import look_ahead
from recshuf.storage.reading.read_ahead import UNIT_BYTES
from recshuf.system.memory import release_freed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow.parquet as pq

    from recshuf.formats.parquet.file import Declared, Footer, OpenFile
    from recshuf.formats.parquet.metadata import RangeIndex
    from recshuf.interfaces import InputFile, Metadata, MetadataKey, ReadOptions


_LARGE_FOOTER = 16 << 20
_SAMPLE_ROWS = 1024
_SAMPLE_BYTES = 1 << 23
_WIDTHS = (0.125, 4, 8, 12, 4, 8, 0)
"""Bytes of the values of each physical type, by its number; 0 if they vary."""
# Below this share of its plain size, a column chunk is small because of its dictionary. A writer that gave up the
# dictionary stores it and nearly all values plain.
_DICTIONARY_GAIN = 0.8


class ParquetCensus:
    """Facts about all inputs before a record is read; `columns`, `widens`, `field` and `memory_bytes` of the options apply."""

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        self._options = options
        self._memory_bytes = options.memory_bytes
        self._int96_unit: str | None = None
        self._knows: list[pa.Schema] | None = None
        try:
            self._unite(inputs)
        except InputError as error:
            # One that is about two files may be about columns without values, which fit any others; one about the last file
            # alone is no such error.
            if not isinstance(error, SchemaClashError) and len(self._native_bytes) < len(inputs):
                raise
            self._knows = []
            self._unite(inputs)
        if max((footer.parsed_bytes for footer in self.footers), default=0) > _LARGE_FOOTER:
            release_freed()  # the C library keeps it for this thread, and others parse the footer again

    def _unite(self, inputs: Sequence[InputFile]) -> None:
        self._read_all(inputs)
        unit = self._choose_int96_unit()
        if unit != self._int96_unit:
            self._int96_unit = unit
            self._read_all(inputs)
        samples = self._samples.values()
        self._page_bytes = max((sample.pages.memory_bytes for sample in samples), default=0)
        self._scratch_row_bytes = max((sample.scratch_row_bytes for sample in samples), default=0.0)
        self._has_checksums = bool(samples) and next(iter(samples)).pages.have_checksums
        self._samples.clear()
        self.partitions = read_partitions(inputs, set(self._union.schema.names))
        self._fields = {key: pa.field(key, value.type) for key, value in self.partitions[0].items()}
        self._picks = pick_columns(self._union.schema, self._options, self._fields)
        counts = self.dictionaries.counts
        fields = [fit_indices(field, (field.name,), counts) for field in self._union.schema]
        chosen = [self._fields[pick] if isinstance(pick, str) else fields[pick] for pick in self._picks]
        declared = settle_copies(
            self._union.schema.metadata,
            self.footers[0].declared.record_schema,
            without_required_vectors(pa.schema(chosen), self._options.store_schema),
        )
        self.metadata, taken = self._unite_metadata()
        self.declared = adopt(declared, taken) if taken else declared

    def find_open_bytes(self) -> int:
        """Return the peak memory of reading a file without the batch: its footer, and pages of a row group."""
        return max(
            footer.open_bytes([at for at in self.columns_of(index) if isinstance(at, int)], self._page_bytes)
            for index, footer in enumerate(self.footers)
        )

    def summaries(self) -> tuple[InputSummary, ...]:
        added = self._fields.keys() | {f.range_index.name for f in self.footers if f.range_index}
        constant = 8 * len(added & set(self.declared.names))
        return tuple(
            InputSummary(f.name, f.file_bytes, f.row_count, True, size + constant * f.row_count)
            for f, size in zip(self.footers, self._native_bytes, strict=True)
        )

    def schemas(self) -> list[pa.Schema]:
        added = self._fields.values()
        owns = [footer.declared.record_schema for footer in self.footers]
        return [pa.schema([*own, *added], own.metadata) for own in owns] if added else owns

    def layout(self) -> ParquetLayout:
        native_bytes = sum(summary.native_bytes or 0 for summary in self.summaries())
        total = sum(footer.row_count for footer in self.footers)
        cost = RowCost(native_bytes / max(1, total), self._scratch_row_bytes)
        rows = choose_row_group_rows(self.footers, cost.least_rows(), cost.most_rows())
        return ParquetLayout(
            self.declared,
            tuple(self._storage.get(name, ()) for name in self.declared.names),
            rows,
            int(cost.sink_bytes * min(rows, total)),
            self.dictionaries.find_orders(self.declared),
            self._has_checksums,
        )

    def columns_of(self, input_index: int) -> list[int | pa.Scalar | RangeIndex | None]:
        """Return the origin of each column of the run in one input, as `conform_batch` takes it."""
        footer, values = self.footers[input_index], self.partitions[input_index]
        places = columns_of(self._union.schema, footer.declared.record_schema, footer.name, [])
        columns = [footer.range_index if place == len(footer.schema) else place for place in places]
        return [values[pick] if isinstance(pick, str) else columns[pick] for pick in self._picks]

    def _read_all(self, inputs: Sequence[InputFile]) -> None:
        self.footers: list[Footer] = []
        self._native_bytes: list[int] = []
        self._schemas = DeclaredSchemas()
        self._knows = None if self._knows is None else []
        self._samples: dict[Declared, GroupSample] = {}
        self._union = SchemaUnion(self._options)
        self._storage: dict[str, tuple[LeafStorage, ...]] = {}
        self.dictionaries = Dictionaries()
        for file in look_ahead(inputs, tail_bytes=UNIT_BYTES):
            self._read(file)
        if self._knows is not None:
            self._unite_known(self._knows)

    def _unite_known(self, knows: Sequence[pa.Schema]) -> None:
        """Unite the schemas of files of which some have no values in a column: these get its type from the others."""
        known = SchemaUnion(self._options)
        for footer, schema in zip(self.footers, knows, strict=True):
            known.add(schema, footer.name)
        for footer, schema in zip(self.footers, knows, strict=True):
            filled = fill_types(footer.declared.record_schema, schema, known.schema)
            self._union.add(filled, footer.name)

    def _unite_metadata(self) -> tuple[Metadata, dict[MetadataKey, pa.Schema]]:
        """Return what the inputs say of the records, and the schemas that say what the first one does not."""
        union = MetadataUnion(is_lenient=self._options.first_metadata)
        said: dict[tuple[Declared, frozenset[str], bool], list[int]] = {}
        for index, footer in enumerate(self.footers):
            is_empty = not footer.row_count and index > 0
            said.setdefault((footer.declared, self._find_void(index), is_empty), []).append(index)
        for (declared, void, is_empty), indices in said.items():
            schema, name = declared.record_schema, self.footers[indices[0]].name
            values = read_metadata(schema, self._options.columns) if self._options.field is None else {}
            values = {key: text for key, text in values.items() if key.column not in void}
            columns = frozenset(schema.names) - void
            union.add(
                indices[0],
                name,
                values,
                columns=columns,
                origin=schema,
                count=len(indices),
                is_empty=is_empty,
            )
        return union.merge()

    def _find_void(self, input_index: int) -> frozenset[str]:
        if self._knows is None:
            return frozenset()
        return frozenset(field.name for field in self._knows[input_index] if pa.types.is_null(field.type))

    def _choose_int96_unit(self) -> str | None:
        """Return the unit of the INT96 times of all inputs; None if no input has any."""
        if self._int96_unit is None:
            return None
        files = []
        for footer in self.footers:
            names = footer.schema.names
            if columns := [column for column in footer.int96_columns if self._is_kept(names[column])]:
                files.append((footer, columns))
        if not files:
            return self._int96_unit
        return choose_unit(files, self._int96_unit, self._memory_bytes)

    def _read(self, input_file: InputFile) -> None:
        file, footer = open_footer(input_file, self._schemas, self._int96_unit, self._memory_bytes)
        with file:
            if footer.int96_columns:
                self._int96_unit = footer.int96_unit
            if self._knows is None:
                self._union.add(footer.declared.record_schema, footer.name)
            else:
                self._knows.append(known_schema(file, footer, self._memory_bytes))
            self.footers.append(footer)
            columns = [i for i, name in enumerate(footer.schema.names) if self._is_kept(name)]
            self._check_columns(footer, columns)
            sample = self._samples.get(footer.declared)
            if sample is None and footer.groups:
                sample = self._samples[footer.declared] = GroupSample(
                    file, footer, columns, self._memory_bytes
                )
            self._native_bytes.append(sample.native_bytes(footer) if sample else 0)
            if sample and not self._storage:
                self._storage = {footer.schema.field(i).name: sample.storage(i) for i in columns}
            for column in footer.declared.dictionary_columns:
                if column in columns:
                    self.dictionaries.add(file, footer, column, self._memory_bytes)

    def _check_columns(self, footer: Footer, columns: list[int]) -> None:
        """Refuse more columns, or larger pages, than the memory limit allows before any is read."""
        what = f"its {len(footer.leaves(columns)):,} columns"
        check_memory(footer.name, what, footer.open_bytes(columns), self._memory_bytes)

    def _is_kept(self, name: str) -> bool:
        names, path = self._options.columns, self._options.field
        is_wanted = path is None or name in (path, dotted(path).split(".")[0])
        return is_wanted and (names is None or name in names)


class _ColumnSample(NamedTuple):
    row_bytes: float
    """Of dense values."""
    value_share: float
    """Part of the values that are no nulls."""


class GroupSample:
    """A sample of the first row group with rows of a file that has rows, read within the memory limit of the run."""

    def __init__(
        self, file: OpenFile, footer: Footer, columns: Sequence[int], memory_bytes: int | None
    ) -> None:
        self._footer = footer
        self._columns = sorted(columns)
        self._group = footer.groups[0]
        self._rows = footer.group_rows[self._group]
        self.pages = check_pages(file, self._group, footer.leaves(self._columns), memory_bytes)
        self._samples = self._read(file)
        with explained(footer.name):
            group = file.metadata.row_group(self._group)
            self._chunks = {leaf: group.column(leaf) for leaf in footer.leaves(self._columns)}
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

    def _read(self, file: OpenFile) -> dict[int, _ColumnSample]:
        first = first_batch_rows(self._footer, self._group, _SAMPLE_BYTES)
        rows = size = 0
        read: list[list[pa.Array]] = [[] for _ in self._columns]
        for batch in file.batches([self._group], self._footer.leaves(self._columns), first):
            with explained(self._footer.name, f"row group {self._group}"):
                for arrays, array in zip(read, batch.columns, strict=True):
                    arrays.append(conform(array, dense_type(array.type)))
                    size += arrays[-1].nbytes
            rows += batch.num_rows
            if rows >= _SAMPLE_ROWS or size >= _SAMPLE_BYTES:
                break
            file.set_batch_rows(min(GROWTH * rows, _SAMPLE_ROWS))
        samples = {}
        for column, arrays in zip(self._columns, read, strict=True):
            nulls, column_bytes = (
                sum(array.null_count for array in arrays),
                sum(array.nbytes for array in arrays),
            )
            samples[column] = _ColumnSample(column_bytes / max(1, rows), 1 - nulls / max(1, rows))
        return samples

    def _varying_bytes(self, column: int) -> float:
        chunks = [self._chunks[leaf] for leaf in self._footer.leaves([column])]
        flat = not child_fields(self._footer.schema.field(column).type)
        if flat and not _expands(chunks[0]):
            return float(chunks[0].total_uncompressed_size)
        stored = sum(chunk.total_uncompressed_size for chunk in chunks) if flat else 0
        return max(self._samples[column].row_bytes * self._rows, float(stored))

    def _width(self, leaf: int) -> float:
        """Return the plain bytes of a value, 0 if they vary."""
        physical, length, _ = self._footer.stored_leaves[leaf]
        return float(length if physical == FIXED else _WIDTHS[physical])


def _fixed_bytes(kind: pa.DataType) -> float | None:
    """Return the bytes of a value with its validity bit; None if they vary."""
    try:
        return float(dense_type(kind).bit_width + 1) / 8
    except ValueError:
        return None


def _expands(chunk: pq.ColumnChunkMetaData) -> bool:
    """Tell whether values share bytes in the file but not in memory."""
    return bool(chunk.has_dictionary_page or "DELTA_BYTE_ARRAY" in chunk.encodings)
