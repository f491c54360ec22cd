"""The footer of one Parquet file, reduced to the facts in use, and the schemas that files declare."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import field, replace
from itertools import accumulate
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from recshuf.dataclass import dataclass
from recshuf.errors import InputError
from recshuf.formats.parquet.annotations import read_annotations
from recshuf.formats.parquet.file import BUFFER_BYTES, OpenFile, check_kind, check_magic, explained
from recshuf.formats.parquet.types import is_narrow, is_ordered, is_time_stamp, leaf_types
from recshuf.storage.reading.local import opener_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import BinaryIO

    from recshuf.formats.parquet.annotations import Annotations
    from recshuf.formats.parquet.metadata import RangeIndex
    from recshuf.formats.parquet.pages import Pages
    from recshuf.interfaces import InputFile


_PAGED_WRITERS = ("parquet-cpp", "parquet-mr", "parquet-rs", "parquet-go", "Polars", "impala")
_PARSED = 6
"""Memory of a footer, as a multiple of its bytes in the file: 9 MB for 10,000 row groups took 47 to 62."""
COLUMN_BYTES = 24 << 10
"""Memory of each Parquet column while it is read: 8,000 to 50,000 columns took 21 to 24 KB each."""
_HEAD_BYTES = 1 << 20
"""Bytes of a footer that most schemas fit."""
_PAGE_BYTES = 1 << 20
_PAGE_VALUES = 1024
_MOST_COLUMNS = 100_000  # each takes some 0.3 ms and 10 KB, and a file of a few MB could claim any number
_MOST_ROWS = 1 << 56


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """A schema, with facts about its Parquet columns."""

    schema: pa.Schema
    record_schema: pa.Schema
    """Schema of its records: behind its columns, the index of pandas."""
    leaf_starts: tuple[int, ...]
    """Index of the first Parquet column of each Arrow column, and the number of all."""
    time_columns: tuple[int, ...]
    ordered_columns: tuple[int, ...]
    narrow_columns: tuple[int, ...]
    """Arrow columns with dictionaries of narrow indices in them."""


class DeclaredSchemas:
    """All schemas of a run, each stored and analysed once: of thousands of files, most share one."""

    def __init__(self) -> None:
        self._known: list[Declared] = []
        self._annotations: Annotations | None = None

    def find_annotations(self, name: str, footer: bytes) -> Annotations:
        """Return the annotations in the footer of a file; those of the file before, if the schema has the same bytes."""
        if self._annotations is None or not footer.startswith(self._annotations.head):
            self._annotations = read_annotations(name, footer)
        return self._annotations

    def find(self, schema: pa.Schema, index_name: str | None = None) -> Declared:
        """Return the facts of a schema, the same object for equal schemas; their metadata name the index."""
        for known in self._known:
            if known.schema.equals(schema, check_metadata=True):
                return known
        records = schema if index_name is None else schema.append(pa.field(index_name, pa.int64()))
        leaves = [list(leaf_types(field.type)) for field in schema]
        starts = tuple(accumulate(map(len, leaves), initial=0))
        times = tuple(index for index, types in enumerate(leaves) if any(map(is_time_stamp, types)))
        ordered = tuple(index for index, field in enumerate(schema) if is_ordered(field.type))
        narrow = tuple(index for index, types in enumerate(leaves) if any(map(is_narrow, types)))
        self._known.append(Declared(schema, records, starts, times, ordered, narrow))
        return self._known[-1]


@dataclass(frozen=True, slots=True)
class Footer:
    """Counts, sizes and the schema of one file."""

    input_file: InputFile
    file_bytes: int
    declared: Declared
    """The schema that the file declares, every column."""
    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]
    """Bytes of each row group before compression, every column."""
    int96_columns: tuple[int, ...]
    """Arrow columns that hold INT96 times."""
    int96_unit: str
    is_paged: bool
    parsed_bytes: int
    """Estimated memory of the footer while the file is open."""
    range_index: RangeIndex | None
    """The index of pandas that becomes a column."""
    pages: dict[int, tuple[list[int], Pages]] = field(default_factory=dict)
    """What is known of some pages already: by row group, the Parquet columns, and their pages."""

    @property
    def name(self) -> str:
        return self.input_file.name

    @property
    def schema(self) -> pa.Schema:
        return self.declared.schema

    @property
    def row_count(self) -> int:
        """Rows of the file, summed over row groups: the count for the file is wrong in some files."""
        return sum(self.group_rows)

    @property
    def first_group(self) -> int | None:
        return next((index for index, rows in enumerate(self.group_rows) if rows), None)

    def leaves(self, columns: Iterable[int]) -> list[int]:
        starts = self.declared.leaf_starts
        return [leaf for column in sorted(columns) for leaf in range(starts[column], starts[column + 1])]

    def page_bytes(self, columns: Sequence[int]) -> int:
        """Return the peak memory of pages, dictionaries and read buffers of these columns.

        This is some MiB for each Parquet column, or the largest row group if pages may be huge.
        """
        group_bytes = max(self.group_bytes, default=0)
        leaf_count = len(self.leaves(columns))
        whole = 2 * group_bytes
        # Writers check the size of a page every `_PAGE_VALUES` values, so pages of long values are large.
        long_pages = 2 * _PAGE_VALUES * group_bytes // max((1, *self.group_rows))
        pages = min(whole, 3 * _PAGE_BYTES * leaf_count + long_pages) if self.is_paged else whole
        return pages + min(group_bytes, BUFFER_BYTES * leaf_count)


def open_footer(
    input_file: InputFile, schemas: DeclaredSchemas, int96_unit: str | None = None
) -> tuple[OpenFile, Footer]:
    """Open a file and read its footer; the caller closes the file.

    The default unit of INT96 times is microseconds if Spark wrote the file, which has no finer ones; else nanoseconds.
    """
    check_kind(input_file)
    name = input_file.name
    with explained(name), cast("BinaryIO", opener_of(input_file).open_raw()) as stream:
        file_bytes = check_magic(name, stream)
        annotations = _read_annotations(name, stream, file_bytes, schemas)
    file = OpenFile(input_file)
    try:
        with explained(name):
            footer = _read_footer(file, input_file, file_bytes, schemas, annotations)
        unit = int96_unit or footer.int96_unit
        if footer.int96_columns and unit != "ns":
            metadata = file.metadata
            file.close()
            file = OpenFile(input_file, metadata=metadata, int96_unit=unit)
            footer = replace(footer, declared=_find_declared(file, schemas, annotations))
    except BaseException:
        file.close()
        raise
    return file, replace(footer, int96_unit=unit)


def _read_footer(
    file: OpenFile,
    input_file: InputFile,
    file_bytes: int,
    schemas: DeclaredSchemas,
    annotations: Annotations | None,
) -> Footer:
    metadata = file.metadata
    if metadata.num_columns > _MOST_COLUMNS:
        raise InputError(
            file.name, f"has {metadata.num_columns} columns, more than the {_MOST_COLUMNS} that are read"
        )
    declared = _find_declared(file, schemas, annotations)
    if declared.leaf_starts[-1] != metadata.num_columns:
        raise InputError(file.name, f"its {metadata.num_columns} columns do not match its Arrow schema")
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    rows = tuple(group.num_rows for group in groups)
    _check_holds_records(file.name, rows, metadata.num_columns)
    int96 = _find_int96(file, declared)
    unit = "us" if int96 and b"org.apache.spark.version" in (metadata.metadata or {}) else "ns"
    sizes = tuple(group.total_byte_size for group in groups)
    is_paged = str(metadata.created_by).startswith(_PAGED_WRITERS)
    parsed_bytes = _PARSED * metadata.serialized_size
    return Footer(
        input_file, file_bytes, declared, rows, sizes, int96, unit, is_paged, parsed_bytes, file.range_index
    )


def _find_declared(file: OpenFile, schemas: DeclaredSchemas, annotations: Annotations | None) -> Declared:
    schema = annotations.annotate(file.schema) if annotations else file.schema
    return schemas.find(schema, file.range_index.name if file.range_index else None)


def _read_annotations(
    name: str, stream: BinaryIO, file_bytes: int, schemas: DeclaredSchemas
) -> Annotations | None:
    """Return the annotations of the columns; None if the footer cannot be parsed, which is left to the library."""
    stream.seek(file_bytes - 8)
    footer_bytes = int.from_bytes(stream.read(4), "little")
    for most in (_HEAD_BYTES, footer_bytes):
        stream.seek(max(0, file_bytes - 8 - footer_bytes))
        head = stream.read(min(footer_bytes, most))
        with suppress(IndexError, RecursionError):
            return schemas.find_annotations(name, head)
    return None


def _find_int96(file: OpenFile, declared: Declared) -> tuple[int, ...]:
    """Return the Arrow columns that hold INT96, which pyarrow reads as time stamps."""
    starts = declared.leaf_starts
    return tuple(
        index
        for index in declared.time_columns
        if any(
            file.columns.column(leaf).physical_type == "INT96"
            for leaf in range(starts[index], starts[index + 1])
        )
    )


def _check_holds_records(name: str, group_rows: tuple[int, ...], column_count: int) -> None:
    if any(rows < 0 for rows in group_rows):
        raise InputError(name, "is damaged: a row group has a negative number of rows")
    if sum(group_rows) > _MOST_ROWS:
        raise InputError(name, f"is damaged: its footer claims {sum(group_rows)} rows")
    if not column_count and any(group_rows):
        raise InputError(name, f"has {sum(group_rows)} rows but no columns, so there is nothing to shuffle")
    if PurePosixPath(name).name == "_metadata" and any(group_rows):
        raise InputError(
            name, "holds only the metadata of the files beside it", remedy="give those files instead"
        )
