"""Files of lines: opening them, and detecting changes between two reads."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from recshuf.errors import DirectoryInputError, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from recshuf.formats.compression.streams import ByteReader


class LineFile(NamedTuple):
    """A regular file as the census saw it."""

    name: str
    """The file as messages show it."""
    path: Path
    size: int
    modified_ns: int

    def open(self) -> int:
        """Return a new file descriptor, which the caller closes.

        Raises
        ------
        InputError
            When the file cannot be opened, or has changed since the census.
        """
        descriptor, status = open_descriptor(self.name, self.path)
        if (status.st_size, status.st_mtime_ns) != (self.size, self.modified_ns):
            os.close(descriptor)
            raise self.changed()
        return descriptor

    def changed(self) -> InputError:
        """Return the error for a file that is written to during the run."""
        return InputError(self.name, "changed while it was read", remedy="run again when nobody writes to it")

    def read_at(self, descriptor: int, view: memoryview, position: int) -> None:
        """Fill `view` from byte `position` of the file on."""
        filled = 0
        while filled < len(view):
            try:
                count = os.preadv(descriptor, [view[filled:]], position + filled)
            except OSError as error:
                raise read_error(self.name, error) from error
            if not count:
                raise self.changed()
            filled += count


def read_error(name: str, error: OSError) -> InputError:
    """Return the error for an input that the system cannot read."""
    return InputError.of_system(error, name)


def close_read(descriptor: int) -> None:
    """Close a descriptor that was only read; errors are ignored, as no data is lost."""
    with suppress(OSError):
        os.close(descriptor)


def open_descriptor(name: str, path: Path) -> tuple[int, os.stat_result]:
    """Return a descriptor of the file or pipe at `path`, and its status.

    Raises
    ------
    InputError
        When it is missing, unreadable, or a folder.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError.of_system(error, name) from error
    except ValueError as error:
        raise InputError(name, str(error)) from error
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        os.close(descriptor)
        raise DirectoryInputError(name, "is a folder")
    return descriptor, status


def read_head(name: str, path: Path, size: int) -> bytes:
    """Return the first `size` bytes of a file, or fewer if it is shorter.

    Raises
    ------
    InputError
        As `open_descriptor` does, and when reading fails.
    """
    descriptor, _ = open_descriptor(name, path)
    try:
        return os.pread(descriptor, size, 0)
    except OSError as error:
        raise read_error(name, error) from error
    finally:
        close_read(descriptor)


class FileSource:
    """The bytes of a `LineFile` in order; checks that the size is the same as in the census."""

    def __init__(self, file: LineFile) -> None:
        self.file = file
        self._descriptor = file.open()
        self._is_open = True
        self.bytes_read = 0
        """Bytes read so far."""

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, none at the end."""
        try:
            data = os.read(self._descriptor, size)
        except OSError as error:
            raise read_error(self.file.name, error) from error
        self.bytes_read += len(data)
        if not data and self.bytes_read != self.file.size:
            raise self.file.changed()
        return data

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._is_open:
            self._is_open = False
            close_read(self._descriptor)


class StreamSource:
    """The bytes of a stream in order; `head` was read from it before and comes first.

    Parameters
    ----------
    owned
        Whether closing this closes the stream.
    """

    def __init__(self, name: str, stream: BinaryIO, head: bytes, *, owned: bool) -> None:
        self._name = name
        self._stream = stream
        self._head = head
        self._owned = owned

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, none at the end."""
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        return read_stream(self._name, self._stream, size)

    def close(self) -> None:
        """Close the stream if it is owned. Idempotent."""
        if self._owned:
            self._stream.close()


def read_stream(name: str, stream: BinaryIO, size: int) -> bytes:
    """Return up to `size` bytes of a stream, none at its end."""
    try:
        return stream.read(size)
    except OSError as error:
        raise read_error(name, error) from error


class PrefixedReader:
    """The bytes of a reader; `head` was read from it before and comes first."""

    def __init__(self, head: bytes, reader: ByteReader) -> None:
        self._head = head
        self._reader = reader

    @property
    def window_bytes(self) -> int:
        """See `ByteReader`."""
        return self._reader.window_bytes

    def limit_window(self, max_window_bytes: int) -> None:
        """See `ByteReader`."""
        self._reader.limit_window(max_window_bytes)

    def readinto(self, view: memoryview) -> int:
        """See `ByteReader`."""
        if self._head:
            count = min(len(self._head), len(view))
            view[:count], self._head = self._head[:count], self._head[count:]
            return count
        return self._reader.readinto(view)

    def close(self) -> None:
        """See `ByteReader`."""
        self._reader.close()


def fill(reader: ByteReader, view: memoryview) -> int:
    """Read until `view` is full or the data ends; return the number of bytes."""
    filled = 0
    while filled < len(view) and (count := reader.readinto(view[filled:])):
        filled += count
    return filled
