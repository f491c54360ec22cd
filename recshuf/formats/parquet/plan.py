"""Plan for writing the shards of one run: from what they keep of Parquet inputs, the options, or the first rows."""

from __future__ import annotations

import base64
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from recshuf.dataclass import dataclass
from recshuf.errors import ConversionError, UsageError
from recshuf.formats.parquet import PAGE_CHECKSUMS
from recshuf.formats.parquet.annotations import take_marks
from recshuf.formats.parquet.metadata import settle_copies
from recshuf.formats.parquet.types import (
    dense_schema,
    fit_index,
    held_type,
    leaf_types,
    null_bits,
    widen_indices,
    without_required_vectors,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import BinaryIO

    from recshuf.formats.parquet.annotations import Marks
    from recshuf.formats.parquet.file import Footer
    from recshuf.interfaces import WriteOptions


ROW_GROUP_BYTES = 1 << 26
"""Most Arrow data in a row group."""
_LEAST_GROUP_BYTES = 1 << 20
"""Least Arrow data in a row group: a smaller one takes longer to open than to read, and its footer entry is as large."""
ROW_GROUP_ROWS = 1 << 20
"""Most rows in a row group, unless the inputs have more."""
SINK_FACTOR = 2.5
"""Memory of writing rows, as a multiple of their Arrow data."""
SINK_BYTES = int(SINK_FACTOR * ROW_GROUP_BYTES)
"""Most memory of writing a row group."""
_DEFAULT_CODEC = "zstd"
# UNKNOWN is what pyarrow calls the LZ4 of Hadoop, which it reads but does not write.
_CODECS = {"UNCOMPRESSED": "none", "UNKNOWN": "lz4"}
_FIRST_ROWS = (1, 8, 64)
"""Rows that are measured one after the other, as far as a row group has room for as many."""
_SAMPLE_ROWS = 1 << 14
_SAMPLE_BYTES = 1 << 22
_DICTIONARY_GAIN = 0.8
_ADDED_BYTES = 8  # per row of a column that the inputs lack: a number or a dictionary index


@dataclass(frozen=True, slots=True)
class LeafStorage:
    """How one Parquet column is stored."""

    codec: str
    """Spelled as in metadata: ``SNAPPY``, ``UNCOMPRESSED``..."""
    has_dictionary: bool
    """Whether a dictionary makes it smaller; False if the writer gave it up."""


@dataclass(frozen=True, slots=True)
class ParquetLayout:
    """How the inputs are stored."""

    schema: pa.Schema
    """The declared schema, dictionaries and views included, which shards declare again."""
    storage: tuple[tuple[LeafStorage, ...], ...]
    """For each column of `schema` its Parquet columns, as the first input with rows stores them; empty for
    a column that it lacks."""
    row_group_rows: int
    """Rows of each row group but the last of a shard."""
    sink_bytes: int
    """Memory of collecting and writing such a row group."""
    categories: dict[int, pa.Array]
    """For each column of an ordered dictionary type its values, in their order."""
    has_page_checksums: bool = True
    """Whether the pages of the first input with rows have checksums. Stores of earlier versions do not say it."""


def choose_row_group_rows(footers: Sequence[Footer], least: int, most: int) -> int:
    """Return the rows of a row group of the shards, from `least` to `most`.

    The largest row group counts only if some input has several: otherwise its size is that of the data.
    """
    chosen = [max(footer.group_rows) for footer in footers if len(footer.group_rows) > 1]
    if chosen:
        return min(max(*chosen, least), most)
    single = max((footer.row_count for footer in footers), default=0)
    return min(max(single, ROW_GROUP_ROWS), most)


@dataclass(frozen=True, slots=True)
class RowCost:
    """Memory of a row until it is written, in bytes.

    A row group is held twice while its columns are made contiguous. The writer adds scratch space for one column: levels
    for each value, and values of another width than in Arrow.
    """

    row_bytes: float
    scratch_bytes: float

    @property
    def sink_bytes(self) -> float:
        """Peak memory of a row."""
        return 2 * self.row_bytes + self.scratch_bytes

    def least_rows(self) -> int:
        return math.ceil(_LEAST_GROUP_BYTES / max(1, self.row_bytes))

    def most_rows(self) -> int:
        """Return the rows of a row group within `ROW_GROUP_BYTES` and `SINK_BYTES`."""
        return max(
            1, int(min(ROW_GROUP_BYTES / max(1, self.row_bytes), SINK_BYTES / max(1, self.sink_bytes)))
        )


def scratch_row_bytes(chunks: Iterable[pq.ColumnChunkMetaData], rows: int) -> float:
    """Return the scratch bytes per row of the largest of these column chunks of `rows` rows."""
    return max((_scratch_bytes(chunk) for chunk in chunks), default=0) / max(1, rows)


def _scratch_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    levels = 4 if "." in chunk.path_in_schema else 2
    converted = {"INT32": 4, "FIXED_LEN_BYTE_ARRAY": 8}.get(chunk.physical_type, 0)
    return int(chunk.num_values * (levels + converted))


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Everything besides the records that determines the bytes of a shard."""

    declared: pa.Schema
    native: pa.Schema
    """Schema written: `declared` made dense, in types that Parquet has, except ordered dictionaries with a known order."""
    codecs: str | dict[str, str]
    """One codec for all, or one for each Parquet column by its path."""
    level: int | None
    dictionaries: list[str] | None
    """Paths of the Parquet columns with a dictionary; None if the first rows of each shard decide."""
    row_group_rows: int | None
    """None if the first rows of each shard decide."""
    sink_bytes: int
    """Memory of collecting and writing a row group."""
    categories: dict[int, pa.Array]
    """Values of the ordered dictionaries of `native`, by column."""
    keeps_list_names: bool
    """Whether list values keep their names of the inputs; else they are named ``element``."""
    annotations: dict[int, Marks]
    """Annotations that Arrow types lack, by Parquet column."""
    has_page_checksums: bool

    def open_writer(
        self, stream: BinaryIO, dictionaries: list[str] | bool, batch_values: int | None = None
    ) -> pq.ParquetWriter:
        """Return a writer by this plan, with these dictionary columns, so many values at once, and without a page index."""
        options: dict[str, Any] = {
            "compression": self.codecs,
            "compression_level": self.level,
            "use_dictionary": dictionaries,
            "version": "2.6",
            "write_page_checksum": self.has_page_checksums,
            "write_page_index": False,
            "write_batch_size": batch_values,
            "use_compliant_nested_type": not self.keeps_list_names,
            "store_schema": False,
        }
        writer = pq.ParquetWriter(stream, self.native, **options)
        # Read back first, as a store does: Arrow renames the entries of maps then.
        declared = pa.ipc.read_schema(self.declared.serialize())
        encoded = base64.b64encode(declared.serialize())
        writer.add_key_value_metadata({b"ARROW:schema": encoded, **(self.declared.metadata or {})})
        return writer


_LAST: list[tuple[pa.Schema, ParquetLayout | None, WriteOptions, WritePlan]] = []
"""The last plan, and what it was made of: a run asks for its plan before it reads, before it writes, and at its end."""


def make_plan(schema: pa.Schema, layout: ParquetLayout | None, options: WriteOptions) -> WritePlan:
    """Return the plan for batches of `schema`; `layout` is that of Parquet inputs."""
    options = replace(options, drop_page_cache=False, table_bytes=None)
    for known, of_layout, of_options, plan in _LAST:
        same = of_layout is layout and of_options == options
        if same and known.equals(schema, check_metadata=True):
            return plan
    plan = _make_plan(schema, layout, options)
    _LAST[:] = [(schema, layout, options, plan)]
    return plan


def _make_plan(schema: pa.Schema, layout: ParquetLayout | None, options: WriteOptions) -> WritePlan:
    _check_codec(options)
    if layout is None:
        # How many values the dictionaries of all records have shows when they are written.
        declared = widen_indices(schema)
        dense = dense_schema(schema)
        # Arrow would bring values to these types unchecked.
        native = pa.schema([field.with_type(held_type(field.type)) for field in dense], dense.metadata)
    else:
        # Columns that the inputs lack come last, and are written as they are, dictionaries included.
        added = list(schema)[len(layout.schema) :]
        declared = settle_copies(layout.schema.metadata, layout.schema, pa.schema([*layout.schema, *added]))
        native = pa.schema([*dense_schema(layout.schema), *added], declared.metadata)
    declared, _ = take_marks(without_required_vectors(declared))
    native, annotations = take_marks(without_required_vectors(native))
    given = PAGE_CHECKSUMS.of(options)
    paths = _list_paths(native, keeps_list_names=layout is not None)
    plan = WritePlan(
        declared=declared,
        native=native,
        codecs=options.compression or _DEFAULT_CODEC,
        level=options.compression_level,
        dictionaries=None,
        row_group_rows=None,
        sink_bytes=SINK_BYTES,
        categories={},
        keeps_list_names=layout is not None,
        annotations=annotations,
        has_page_checksums=layout is not None and layout.has_page_checksums if given is None else given,
    )
    if layout is None:
        return plan
    return _with_storage(_with_categories(plan, layout.categories), layout, options, paths)


def _with_storage(
    plan: WritePlan, layout: ParquetLayout, options: WriteOptions, paths: list[list[str]]
) -> WritePlan:
    """Return the plan with the storage of the inputs; `paths` are those of the Parquet columns of each column."""
    stored = [leaf.codec for leaves in layout.storage for leaf in leaves]
    if not stored:
        return plan
    known = len(layout.storage)
    usual = _codec_name(max(stored, key=stored.count))
    codecs = {path: usual for leaves in paths for path in leaves}
    dictionaries: list[str] = []
    for column, (leaves, kind) in enumerate(zip(paths, plan.native.types, strict=True)):
        storage = layout.storage[column] if column < known else ()
        # Only the dictionary holds the order of categories.
        if column in plan.categories or (
            pa.types.is_dictionary(kind) if column >= known else len(storage) != len(leaves)
        ):
            dictionaries += leaves
        elif storage:
            dictionaries += [path for path, leaf in zip(leaves, storage, strict=True) if leaf.has_dictionary]
        if len(storage) == len(leaves):
            codecs |= {path: _codec_name(leaf.codec) for path, leaf in zip(leaves, storage, strict=True)}
    added_bytes = 2 * _ADDED_BYTES * layout.row_group_rows * (len(paths) - known)
    return replace(
        plan,
        codecs=options.compression or codecs,
        dictionaries=dictionaries,
        row_group_rows=layout.row_group_rows,
        sink_bytes=layout.sink_bytes + added_bytes,
    )


def _codec_name(name: str) -> str:
    codec = _CODECS.get(name, name.lower())
    return codec if codec in ("none", "lz4") or pa.Codec.is_available(codec) else _DEFAULT_CODEC


def _with_categories(plan: WritePlan, categories: dict[int, pa.Array]) -> WritePlan:
    """Keep ordered dictionaries, with an index type that fits their number of values."""
    native, declared = plan.native, plan.declared
    for index, values in categories.items():
        kind = fit_index(declared.field(index).type, len(values))
        declared = declared.set(index, declared.field(index).with_type(kind))
        native = native.set(index, declared.field(index))
    return replace(plan, native=native, declared=declared, categories=categories)


def _list_paths(schema: pa.Schema, *, keeps_list_names: bool) -> list[list[str]]:
    """Return the paths of the Parquet columns of each column; `ConversionError` if Parquet lacks a type."""
    stream = pa.BufferOutputStream()
    try:
        with pq.ParquetWriter(stream, schema, use_compliant_nested_type=not keeps_list_names):
            pass
        # What is written may nest too deep to be read.
        stored = pq.read_metadata(pa.BufferReader(stream.getvalue())).schema
    except (pa.ArrowException, OSError, ValueError) as error:
        for field in schema if len(schema) > 1 else ():
            _list_paths(pa.schema([field]), keeps_list_names=keeps_list_names)
        name, kind = (schema.names[0], schema.types[0]) if len(schema) == 1 else ("", "of this schema")
        problem = f"Parquet cannot hold type {kind}: {' '.join(str(error).split())[:200].rstrip('.')}"
        raise ConversionError(name, problem, remedy="leave the field out or convert it first") from error
    paths = (stored.column(leaf).path for leaf in itertools.count())
    return [[next(paths) for _ in leaf_types(field.type)] for field in schema]


def _trial(table: pa.Table, *, use_dictionary: bool = False) -> list[pq.ColumnChunkMetaData]:
    """Return the column chunks of a table written without compression, to nowhere."""
    options = {"compression": "none", "use_dictionary": use_dictionary, "write_statistics": False}
    with pq.ParquetWriter(pa.MockOutputStream(), table.schema, **options) as writer:
        writer.write_table(table)
    metadata = writer.writer.metadata
    return [metadata.row_group(0).column(leaf) for leaf in range(metadata.num_columns)]


def _find_row_bytes(table: pa.Table, chunks: Iterable[pq.ColumnChunkMetaData]) -> float:
    """Return the memory of a row, given plain column chunks: nulls take as much as other values, but none in a file."""
    sizes, rows = (chunk.total_uncompressed_size for chunk in chunks), max(1, int(table.num_rows))
    stored: list[float] = [
        sum(itertools.islice(sizes, sum(1 for _ in leaf_types(kind)))) for kind in table.schema.types
    ]
    held = (rows * null_bits(kind) / 8 for kind in table.schema.types)
    return max(1.0, sum(max(pair) for pair in zip(stored, held, strict=True))) / rows


class FirstRows:
    """Finds row-group size and dictionary columns from the first rows of a shard alone.

    The size of a few rows determines the sample, and the sample the rest. Sizes come from writing rows to memory, and
    those of nulls from types, so they depend on values and not on batches.
    """

    def __init__(self) -> None:
        self.dictionaries: list[str] = []
        """Paths of the columns that a dictionary makes smaller, after `learn`."""
        self.is_done = False
        self._is_sampled = False

    rows = _FIRST_ROWS[0]
    """Rows that the next call of `learn` should get."""

    def learn(self, table: pa.Table) -> int:
        """Return the rows to wait for, given the first rows of the shard in one chunk, which are included."""
        rows = int(table.num_rows)
        plain = _trial(table)
        row_bytes = _find_row_bytes(table, plain)
        most_rows = RowCost(row_bytes, scratch_row_bytes(plain, rows)).most_rows()
        # The sample comes behind the first rows; there is none if these are all rows.
        self.is_done = self._is_sampled or rows < self.rows
        if self.is_done:
            shorter = _trial(table, use_dictionary=True)
            self.dictionaries = [
                chunk.path_in_schema
                for chunk, less in zip(plain, shorter, strict=True)
                if less.total_uncompressed_size < _DICTIONARY_GAIN * chunk.total_uncompressed_size
            ]
            return max(rows, min(most_rows, ROW_GROUP_ROWS))
        self.rows = next((more for more in _FIRST_ROWS if rows < more <= most_rows), 0)
        if not self.rows:
            self._is_sampled = True
            self.rows = max(rows, min(int(_SAMPLE_BYTES / row_bytes), _SAMPLE_ROWS))
        return self.rows


def _check_codec(options: WriteOptions) -> None:
    if options.compression in (None, "none"):
        if options.compression == "none" and options.compression_level is not None:
            raise UsageError("compression none has no level")
        return
    try:
        pa.Codec(
            "lz4_raw" if options.compression == "lz4" else options.compression, options.compression_level
        )
    except (pa.ArrowException, ValueError, OSError) as error:
        level = "" if options.compression_level is None else f":{options.compression_level}"
        raise UsageError(f"compression {options.compression}{level} does not fit Parquet: {error}") from error
