"""Files of lines: opening them, and detecting changes between two reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from recshuf.errors import InputError
from recshuf.storage.reading.local import open_input

if TYPE_CHECKING:
    from recshuf.formats.compression.streams import ByteReader
    from recshuf.interfaces import Handle, InputFile, Stamp


class LineFile(NamedTuple):
    """A regular file, or an object, as the census saw it."""

    given: InputFile
    stamp: Stamp

    @property
    def name(self) -> str:
        """The file as messages show it."""
        return self.given.name

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.stamp.size

    def open(self) -> Handle:
        """Return the open file, which the caller closes.

        Raises
        ------
        InputError
            When the file cannot be opened, or has changed since the census.
        """
        handle = open_input(self.given)
        if handle.stamp[:2] != self.stamp[:2]:
            handle.close()
            raise self.changed()
        return handle

    def changed(self) -> InputError:
        """Return the error for a file that is written to during the run."""
        return InputError(self.name, "changed while it was read", remedy="run again when nobody writes to it")

    def read_at(self, handle: Handle, view: memoryview, position: int) -> None:
        """Fill `view` from byte `position` of the file on."""
        filled = 0
        while filled < len(view):
            count = handle.readinto_at(position + filled, view[filled:])
            if not count:
                raise self.changed()
            filled += count


class FileSource:
    """The bytes of a `LineFile` in order; checks that the size is the same as in the census."""

    def __init__(self, file: LineFile) -> None:
        self.file = file
        self._handle = file.open()
        self.bytes_read = 0
        """Bytes read so far."""

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, none at the end."""
        data = self._handle.read_at(self.bytes_read, size)
        self.bytes_read += len(data)
        if not data and self.bytes_read != self.file.size:
            raise self.file.changed()
        return data

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._handle.close()


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
        raise InputError.of_system(error, name) from error


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
