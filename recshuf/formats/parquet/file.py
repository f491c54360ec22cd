"""One Parquet file opened for reading, its checks before the library sees it, and the meaning of its errors."""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.parquet as pq

from recshuf.errors import InputError, UsageError
from recshuf.formats.compression import explain_packed
from recshuf.formats.parquet import MAGIC, MAGIC_ENCRYPTED
from recshuf.formats.parquet.metadata import settle
from recshuf.formats.pointers import POINTER_BYTES, refuse_pointer
from recshuf.storage.reading.local import opener_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from recshuf.formats.parquet.metadata import RangeIndex
    from recshuf.interfaces import Handle, InputFile


BUFFER_BYTES = 1 << 18
"""Read buffer of each column chunk, so that memory does not depend on the chunk's size."""
_BIN_BYTES = 2 << 20
_KEYLESS = "is encrypted, and recshuf has no keys"


def check_kind(file: InputFile) -> None:
    """Refuse a stream, as the footer is at the end of a file, and pipes and devices, which could block forever."""
    if file.is_stream:
        raise UsageError(f"{file.name}: Parquet cannot be read from a stream; give the path of a file")
    with explained(file.name):
        is_regular = (
            file.stamp is not None
            or file.path is None
            or not file.path.exists()
            or file.path.is_file()
            or file.path.is_dir()
        )
    if not is_regular:
        raise InputError(
            file.name, "is not a regular file, which Parquet needs", remedy="save it to a file first"
        )


def _open_handle(file: InputFile) -> tuple[pa.NativeFile, Handle | None]:
    """Return a file for the library, and the handle behind it; a local file is read by the library itself."""
    if file.path is not None:
        # By bytes: a path is then never taken for a URL, and need not be UTF-8.
        return pa.OSFile(os.fsencode(file.path), "rb"), None
    raw = opener_of(file).open_raw()
    return pa.PythonFile(raw, "r"), getattr(raw, "handle", None)


@contextmanager
def explained(name: str, place: str | None = None) -> Iterator[None]:
    """Turn the exceptions of libraries for a bad file into an `InputError` that names it."""
    try:
        yield
    except InputError:
        raise
    except (MemoryError, pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise _explain(error, name, place) from error


def _explain(error: BaseException, name: str, place: str | None) -> InputError:
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        problem = "reading it asks for more memory than the system gives"
        remedy: str | None = (
            "give the process more memory, or fewer --workers; if that is no help, the file is damaged"
        )
        return InputError(name, problem, place=place, remedy=remedy)
    if isinstance(error, UnicodeDecodeError):
        return InputError(name, "a name or key in its footer is not valid UTF-8", place=place)
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return InputError.of_system(error, name, f"cannot be read: {error.strerror}")
    if "crypt" in text.lower():
        return InputError(name, _KEYLESS, place=place, remedy="decrypt it first")
    if "CRC checksum" in text:
        problem = "a page does not match its checksum, so the file is damaged"
        return InputError(name, problem, place=place, remedy="fetch or write the file again")
    lacks = isinstance(error, pa.ArrowNotImplementedError)
    remedy = "Arrow lacks this; write the file without it" if lacks else None
    return InputError(name, f"cannot be read as Parquet: {text[:300]}", place=place, remedy=remedy)


def check_magic(name: str, stream: BinaryIO) -> int:
    """Return the size of the file in bytes; one that does not end as a Parquet file does is refused."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 4))
    tail = stream.read(4)
    if tail == MAGIC_ENCRYPTED:
        raise InputError(name, _KEYLESS, remedy="decrypt it first")
    if tail == MAGIC and size >= 12:
        return size
    if size == 0:
        raise InputError(name, "is empty (0 bytes), not a Parquet file")
    stream.seek(0)
    head = stream.read(POINTER_BYTES)
    refuse_pointer(name, head)
    if head.startswith(MAGIC):
        remedy = "fetch or write the file again"
        raise InputError(name, "is cut off: a Parquet file ends with PAR1", remedy=remedy)
    packed = explain_packed(name, head, "Parquet")
    raise packed or InputError(name, "is not a Parquet file (no PAR1 at its end)")


class _FooterBin:
    """Frees the memory of footers in time.

    A footer and its Parquet schema refer to each other inside pyarrow, so after access to the schema only the garbage
    collector frees them. It counts objects: these are two, of 50 MB for a file of 10,000 row groups.
    """

    def __init__(self) -> None:
        self._held_bytes = 0  # roughly, where several threads add

    def add(self, footer_bytes: int) -> None:
        """Count a footer of so many bytes in its file, which will soon be unused."""
        self._held_bytes += footer_bytes
        if self._held_bytes > _BIN_BYTES:
            self._held_bytes = 0
            gc.collect()


_BIN = _FooterBin()


class OpenFile:
    """A Parquet file opened for reading by one thread; a context manager. Times stored as INT96 are read in `int96_unit`."""

    def __init__(
        self, file: InputFile, *, metadata: pq.FileMetaData | None = None, int96_unit: str = "ns"
    ) -> None:
        self.name = file.name
        with explained(file.name):
            self._handle, self._expecting = _open_handle(file)
        try:
            with explained(file.name):
                self.parquet = pq.ParquetFile(
                    self._handle,
                    metadata=metadata,
                    pre_buffer=False,
                    buffer_size=BUFFER_BYTES,
                    coerce_int96_timestamp_unit=int96_unit,
                    page_checksum_verification=True,
                )
                self.metadata: pq.FileMetaData = self.parquet.metadata
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent."""
        with suppress(OSError):  # it was only read
            self._handle.close()

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema with the key-value metadata of the file that hold for its records in any order."""
        return self._settled[0]

    @property
    def range_index(self) -> RangeIndex | None:
        return self._settled[1]

    @cached_property
    def _settled(self) -> tuple[pa.Schema, RangeIndex | None]:
        with explained(self.name):
            # The metadata of pyarrow's schema lack what others added.
            return settle(
                self.parquet.schema_arrow.with_metadata(self.metadata.metadata), self.metadata.num_rows
            )

    @cached_property
    def columns(self) -> pq.ParquetSchema:
        """The Parquet schema. Access costs a garbage collection every few thousand files; see `_FooterBin`."""
        _BIN.add(self.metadata.serialized_size)
        return self.parquet.schema

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
