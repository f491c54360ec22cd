"""One Parquet file opened for reading, the facts of its footer, and the meaning of the library's errors."""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Self, cast

import pyarrow as pa
import pyarrow.parquet as pq

from recshuf.dataclass import dataclass
from recshuf.errors import InputError, RecshufError
from recshuf.formats.compression import explain_packed
from recshuf.formats.files import (
    DAMAGED,
    POINTER_BYTES,
    check_memory,
    check_regular,
    explain_misfit,
    refuse_pointer,
)
from recshuf.formats.parquet import MAGIC, MAGIC_ENCRYPTED
from recshuf.formats.parquet.annotations import INT96, read_schema
from recshuf.formats.parquet.metadata import settle
from recshuf.formats.parquet.types import is_narrow, is_ordered, leaf_types
from recshuf.records.conforming import MisfitError
from recshuf.storage.reading.local import opener_of
from recshuf.system.units import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import BinaryIO

    from recshuf.formats.parquet.annotations import Leaf, StoredSchema
    from recshuf.formats.parquet.metadata import RangeIndex
    from recshuf.interfaces import Handle, InputFile


_BUFFER_BYTES = 1 << 18
"""Read buffer of each column chunk, so that memory does not depend on the chunk's size."""
_KEYLESS = "is encrypted, and recshuf has no keys"
_PAGED_WRITERS = ("parquet-cpp", "parquet-mr", "parquet-rs", "parquet-go", "Polars", "impala")
_PARSED = 6
"""Memory of a footer, as a multiple of its bytes in the file: 9 MB for 10,000 row groups took 47 to 62."""
_COLUMN_BYTES = 24 << 10
"""Memory of each Parquet column while it is read: 8,000 to 50,000 columns took 21 to 24 KB each."""
_PAGE_BYTES = 1 << 20
_PAGE_VALUES = 1024
_MOST_COLUMNS = 100_000  # each takes some 0.3 ms and 10 KB, and a file of a few MB could claim any number
_MOST_ROWS = 1 << 56


@contextmanager
def explained(name: str, place: str | None = None) -> Iterator[None]:
    """Turn the exceptions of libraries for a bad file into an `InputError` that names it."""
    try:
        yield
    except RecshufError:
        raise
    except (MemoryError, pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise _explain(error, name, place) from error


def _explain(error: BaseException, name: str, place: str | None) -> InputError:
    text = " ".join(str(error).split())
    problem, remedy = f"cannot be read as Parquet: {text[:300]}", DAMAGED
    if isinstance(error, MisfitError):
        return explain_misfit(error, name, place)
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return InputError.of_system(error, name, f"cannot be read: {error.strerror}")
    if isinstance(error, MemoryError):
        problem = "reading it asks for more memory than the system gives"
        remedy = "give the process more memory, or fewer --workers; if that is no help, the file is damaged"
    elif isinstance(error, UnicodeDecodeError):
        problem = "a name or key in its footer is not valid UTF-8"
    elif "crypt" in text.lower():
        problem, remedy = _KEYLESS, "decrypt it first"
    elif "CRC checksum" in text:
        problem = "a page does not match its checksum, so the file is damaged"
    elif isinstance(error, pa.ArrowNotImplementedError):
        remedy = "Arrow lacks this; write the file without it"
    elif "Expected all lists to be of size" in text and pa.__version__.startswith("25."):
        remedy = f"null lists of a fixed size need pyarrow 26; without them, {DAMAGED}"
    return InputError(name, problem, place=place, remedy=remedy)


def check_magic(name: str, stream: BinaryIO) -> int:
    """Return the size of the file in bytes; one that does not end as a Parquet file does is refused."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 4))
    tail = stream.read(4)
    if tail == MAGIC_ENCRYPTED:
        raise InputError(name, _KEYLESS, remedy="decrypt it first")
    if tail == MAGIC and size >= 12:
        return size
    stream.seek(0)
    head = stream.read(POINTER_BYTES)
    refuse_pointer(name, head, "a Parquet file")
    if head.startswith(MAGIC):
        raise InputError(name, "is cut off: a Parquet file ends with PAR1", remedy=DAMAGED)
    packed = explain_packed(name, head, "Parquet")
    raise packed or InputError(name, "is not a Parquet file (no PAR1 at its end)")


class OpenFile:
    """A Parquet file opened for reading by one thread; a context manager. Times stored as INT96 are read in `int96_unit`."""

    def __init__(
        self, file: InputFile, *, metadata: pq.FileMetaData | None = None, int96_unit: str = "ns"
    ) -> None:
        self.name, self.int96_unit = file.name, int96_unit
        self._expecting: Handle | None = None
        with explained(file.name), ExitStack() as stack:
            if file.path is not None:
                # Read by the library itself, and by bytes: a path is then never taken for a URL, and need not be UTF-8.
                self._handle = pa.OSFile(os.fsencode(file.path), "rb")
            else:
                raw = opener_of(file).open_raw()
                self._handle, self._expecting = pa.PythonFile(raw, "r"), getattr(raw, "handle", None)
            stack.callback(self.close)
            self.parquet = pq.ParquetFile(
                self._handle,
                metadata=metadata,
                pre_buffer=False,
                buffer_size=_BUFFER_BYTES,
                coerce_int96_timestamp_unit=int96_unit,
                page_checksum_verification=True,
            )
            self.metadata: pq.FileMetaData = self.parquet.metadata
            stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent."""
        with suppress(OSError):  # it was only read
            self._handle.close()

    def read_schema(self) -> tuple[pa.Schema, RangeIndex | None]:
        """Return the Arrow schema with the metadata that hold for its records in any order, and the index of pandas."""
        with explained(self.name):
            # The metadata of pyarrow's schema lack what others added.
            return settle(
                self.parquet.schema_arrow.with_metadata(self.metadata.metadata), self.metadata.num_rows
            )

    def read_at(self, place: int, most_bytes: int) -> bytes:
        content: bytes = self._handle.read_at(most_bytes, place)
        return content

    def batches(self, groups: Sequence[int], leaves: Sequence[int], rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the columns with these leaf indices of row groups that follow each other, `rows` rows at a time.

        Over several row groups, pyarrow fills up a column that is too short from the next group, and leaves surplus values
        to the next group, so rows can be torn apart without an error. `set_batch_rows` takes effect after the next
        ``next``.
        """
        if self._expecting is not None:
            self._expecting.expect([self._find_range(group, leaf) for group in groups for leaf in leaves])
        iterator = self.parquet.reader.iter_batches(
            rows, row_groups=groups, column_indices=list(leaves), use_threads=False
        )
        place = name_groups(groups)
        while True:
            with explained(self.name, place):
                batch = next(iterator, None)
            if batch is None:
                return
            yield batch

    def _find_range(self, group: int, leaf: int) -> tuple[int, int]:
        chunk = self.metadata.row_group(group).column(leaf)
        begin = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)), default=0)
        return begin, begin + max(0, chunk.total_compressed_size)

    def set_batch_rows(self, rows: int) -> None:
        self.parquet.reader.set_batch_size(rows)


def name_groups(groups: Sequence[int]) -> str:
    """Return consecutive row groups in words.

    >>> name_groups([3]), name_groups([3, 4, 6])
    ('row group 3', 'row groups 3 to 6')
    """
    return f"row group {groups[0]}" if len(groups) == 1 else f"row groups {groups[0]} to {groups[-1]}"


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """A schema, with facts about its Parquet columns."""

    schema: pa.Schema
    record_schema: pa.Schema
    """Schema of its records: behind its columns, the index of pandas."""
    leaf_starts: tuple[int, ...]
    """Index of the first Parquet column of each Arrow column, and the number of all."""
    dictionary_columns: tuple[int, ...]
    """Arrow columns of ordered dictionaries, or with dictionaries of narrow indices in them."""


class DeclaredSchemas:
    """All schemas of a run, each stored and analysed once: of thousands of files, most share one."""

    def __init__(self) -> None:
        self._known: list[Declared] = []
        self._stored: StoredSchema | None = None

    def read(self, name: str, footer: bytes) -> StoredSchema:
        """Return the schema in the footer of a file; that of the file before, if it has the same bytes."""
        if self._stored is None or not footer.startswith(self._stored.head):
            self._stored = read_schema(name, footer)
        return self._stored

    def find(self, schema: pa.Schema, index_name: str | None = None) -> Declared:
        """Return the facts of a schema, the same object for equal schemas; their metadata name the index."""
        for known in self._known:
            if known.schema.equals(schema, check_metadata=True):
                return known
        records = schema if index_name is None else schema.append(pa.field(index_name, pa.int64()))
        leaves = [list(leaf_types(field.type)) for field in schema]
        starts = tuple(accumulate(map(len, leaves), initial=0))
        dictionaries = tuple(
            index
            for index, (kind, types) in enumerate(zip(schema.types, leaves, strict=True))
            if is_ordered(kind) or any(map(is_narrow, types))
        )
        self._known.append(Declared(schema, records, starts, dictionaries))
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
    groups_place: int
    """Offset of what the footer says behind the schema."""
    stored_leaves: list[Leaf]
    int96_columns: tuple[int, ...]
    """Arrow columns that hold INT96 times."""
    int96_unit: str
    is_paged: bool
    parsed_bytes: int
    """Estimated memory of the footer while the file is open."""
    range_index: RangeIndex | None
    """The index of pandas that becomes a column."""

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
    def groups(self) -> list[int]:
        """Row groups that have rows."""
        return [group for group, rows in enumerate(self.group_rows) if rows]

    def leaves(self, columns: Iterable[int]) -> list[int]:
        starts = self.declared.leaf_starts
        return [leaf for column in sorted(columns) for leaf in range(starts[column], starts[column + 1])]

    def open_bytes(self, columns: Sequence[int], page_bytes: int = 0) -> int:
        """Return the peak memory of reading these columns without the batch: of the footer, pages, dictionaries and read buffers.

        Pages take some MiB for each Parquet column, or the largest row group if they may be huge, and at least `page_bytes`.
        """
        group_bytes = max(self.group_bytes, default=0)
        leaf_count = len(self.leaves(columns))
        whole = 2 * group_bytes
        # Writers check the size of a page every `_PAGE_VALUES` values, so pages of long values are large.
        long_pages = 2 * _PAGE_VALUES * group_bytes // max((1, *self.group_rows))
        pages = min(whole, 3 * _PAGE_BYTES * leaf_count + long_pages) if self.is_paged else whole
        page_bytes = max(page_bytes, pages + min(group_bytes, _BUFFER_BYTES * leaf_count))
        return self.parsed_bytes + _COLUMN_BYTES * leaf_count + page_bytes


def open_footer(
    input_file: InputFile,
    schemas: DeclaredSchemas,
    int96_unit: str | None = None,
    memory_bytes: int | None = None,
) -> tuple[OpenFile, Footer]:
    """Open a file and read its footer, if the memory limit allows it; the caller closes the file.

    The default unit of INT96 times is microseconds if Spark wrote the file, which has no finer ones; else nanoseconds.
    """
    check_regular(input_file, "Parquet")
    name = input_file.name
    with explained(name), cast("BinaryIO", opener_of(input_file).open_raw()) as stream:
        file_bytes = check_magic(name, stream)
        stream.seek(file_bytes - 8)
        footer_bytes = int.from_bytes(stream.read(4), "little")
        footer_place = file_bytes - 8 - footer_bytes
        stored: StoredSchema | None = None
        if (
            footer_bytes < file_bytes
        ):  # else the library tells that it is damaged, as of one that cannot be parsed
            check_memory(name, "its footer", _PARSED * footer_bytes, memory_bytes)
            stream.seek(footer_place)
            with suppress(IndexError, RecursionError):
                stored = schemas.read(name, stream.read(footer_bytes))
    file = OpenFile(input_file, int96_unit=int96_unit or "ns")
    try:
        if stored is None:
            raise InputError(name, "is damaged: its schema ends too early", remedy=DAMAGED)
        metadata = file.metadata
        has_int96 = any(leaf.physical == INT96 for leaf in stored.leaves)
        if has_int96 and int96_unit is None and b"org.apache.spark.version" in (metadata.metadata or {}):
            file.close()
            file = OpenFile(input_file, metadata=metadata, int96_unit="us")
        with explained(name):
            return file, _read_footer(file, input_file, file_bytes, footer_place, schemas, stored)
    except BaseException:
        file.close()
        raise


def _read_footer(
    file: OpenFile,
    input_file: InputFile,
    file_bytes: int,
    footer_place: int,
    schemas: DeclaredSchemas,
    stored: StoredSchema,
) -> Footer:
    metadata, count = file.metadata, file.metadata.num_columns
    if count > _MOST_COLUMNS:
        raise InputError(file.name, f"has {count} columns, more than the {_MOST_COLUMNS} that are read")
    schema, index = file.read_schema()
    declared = schemas.find(stored.annotate(schema), index.name if index else None)
    starts = declared.leaf_starts
    if not starts[-1] == len(stored.leaves) == count:
        raise InputError(file.name, f"its {count} columns do not match its Arrow schema")
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    rows = tuple(group.num_rows for group in groups)
    _check_holds_records(file.name, rows, count)
    times = [leaf for leaf, each in enumerate(stored.leaves) if each.physical == INT96]
    return Footer(
        input_file=input_file,
        file_bytes=file_bytes,
        declared=declared,
        group_rows=rows,
        group_bytes=tuple(group.total_byte_size for group in groups),
        groups_place=footer_place + len(stored.head),
        stored_leaves=stored.leaves,
        int96_columns=tuple(sorted({bisect_right(starts, leaf) - 1 for leaf in times})),
        int96_unit=file.int96_unit,
        is_paged=str(metadata.created_by).startswith(_PAGED_WRITERS),
        parsed_bytes=_PARSED * metadata.serialized_size,
        range_index=index,
    )


def _check_holds_records(name: str, group_rows: tuple[int, ...], column_count: int) -> None:
    if any(rows < 0 for rows in group_rows):
        raise InputError(name, "is damaged: a row group has a negative number of rows", remedy=DAMAGED)
    if sum(group_rows) > _MOST_ROWS:
        raise InputError(name, f"is damaged: its footer claims {sum(group_rows)} rows", remedy=DAMAGED)
    if not column_count and any(group_rows):
        rows = count_of(sum(group_rows), "row")
        raise InputError(name, f"has {rows} but no columns, so there is nothing to shuffle")
    if PurePosixPath(name).name == "_metadata" and any(group_rows):
        raise InputError(
            name, "holds only the metadata of the files beside it", remedy="give those files instead"
        )
