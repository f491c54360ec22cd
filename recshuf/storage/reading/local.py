"""Local files as inputs."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, BinaryIO, cast

from recshuf.errors import DirectoryInputError, InputError
from recshuf.interfaces import Stamp
from recshuf.system.page_cache import drop_pages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from _typeshed import WriteableBuffer

    from recshuf.interfaces import Handle, InputFile, Opener


class LocalFile:
    """A file at a path; an `Opener`."""

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._path = path

    def open(self) -> LocalHandle:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError.of_system(error, self._name) from error
        except ValueError as error:
            raise InputError(self._name, str(error)) from error
        handle = LocalHandle(self._name, descriptor)
        if handle.is_folder:
            handle.close()
            raise DirectoryInputError(self._name, "is a folder")
        return handle

    def open_raw(self) -> RawIOBase:
        return cast("RawIOBase", self._path.open("rb", buffering=0))

    def find_stamp(self) -> Stamp:
        return Stamp.of(self._path.stat())


class LocalHandle:
    """An open file; a `Handle`, whose `close` closes the descriptor."""

    def __init__(self, name: str, descriptor: int) -> None:
        self._name = name
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self.stamp = Stamp.of(status)
        self._mode = status.st_mode

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self._mode)

    def read_at(self, offset: int, size: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise InputError.of_system(error, self._name) from error

    def readinto_at(self, offset: int, view: memoryview) -> int:
        try:
            return os.preadv(self._descriptor, [view], offset)
        except OSError as error:
            raise InputError.of_system(error, self._name) from error

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """See `Handle`; the system reads ahead."""

    def drop_pages(self, offset: int, size: int) -> None:
        drop_pages(self._descriptor, offset, size)

    def take_stream(self) -> BinaryIO | None:
        return None if stat.S_ISREG(self._mode) else os.fdopen(self._descriptor, "rb")

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):  # it was only read
                os.close(descriptor)


def opener_of(file: InputFile) -> Opener:
    """Return the opener of an input that is no stream."""
    return file.opener or LocalFile(file.name, cast("Path", file.path))


class StreamHandle:
    """Standard input; a `Handle` without places, which leaves the stream open."""

    stamp = Stamp()

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self._name = name
        self._stream = stream

    def read_at(self, offset: int, size: int) -> bytes:  # noqa: ARG002 # of no use
        raise InputError(self._name, "is a stream, which has no places")

    def readinto_at(self, offset: int, view: memoryview) -> int:  # noqa: ARG002 # of no use
        raise InputError(self._name, "is a stream, which has no places")

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        pass

    def drop_pages(self, offset: int, size: int) -> None:
        pass

    def take_stream(self) -> BinaryIO:
        return cast("BinaryIO", BufferedReader(_Borrowed(self._stream)))

    def close(self) -> None:
        pass


class _Borrowed(RawIOBase):
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._stream.read(len(view))
        view[: len(data)] = data
        return len(data)


def open_input(file: InputFile) -> Handle:
    """Return an input, open; of a stream only `take_stream` reads."""
    if file.stream is not None:
        return StreamHandle(file.name, file.stream)
    return opener_of(file).open()


def read_head(file: InputFile, size: int) -> bytes:
    """Return the first `size` bytes of an input that is no stream, or fewer if it is shorter."""
    handle = open_input(file)
    try:
        return handle.read_at(0, size)
    finally:
        handle.close()
