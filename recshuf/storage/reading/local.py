"""Local inputs: files, directories, globs and standard input."""

from __future__ import annotations

import glob
import os
import re
import stat
import sys
from contextlib import suppress
from functools import lru_cache
from io import BufferedReader, RawIOBase
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from recshuf.errors import DirectoryInputError, InputError, UsageError
from recshuf.interfaces import InputFile, Stamp
from recshuf.storage import is_url
from recshuf.storage.reading.choosing import choose_files, natural_key
from recshuf.system.files import bytes_of, drop_pages, find_descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from _typeshed import WriteableBuffer

    from recshuf.interfaces import Handle, NameSuffix, Opener
    from recshuf.storage.reading.choosing import NameRules


TABLES = (("_delta_log", "Delta Lake"), ("metadata/*.metadata.json", "Iceberg"), (".hoodie", "Hudi"))
"""What the folder of a table holds, as a pattern, and the name of its format."""
ONLY_OTHERS = "matches only folders, hidden files and markers"
MANIFEST_SUFFIX = ".recshuf.json"  # files of this suffix describe outputs, and are no inputs
_PARTITION = re.compile(r"([^=/]+)=([^/]*)")


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


def refuse_table(pattern: str, kind: str, folder: str) -> InputError:
    return InputError(
        pattern,
        f"has files of the {kind} table {folder!r}, which also hold rows that were removed",
        remedy=f"export the rows with a reader of {kind}, or name the files one by one",
    )


def is_hidden(name: str) -> bool:
    """Tell whether a file or folder of this name is left out."""
    # A folder such as _year=2020 is a partition, not a marker.
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


@lru_cache
def find_partitions(folder: str, root: Path | None) -> tuple[tuple[str, str], ...]:
    """Return the Hive partitions in a folder's path, below `root` if it lies there."""
    parents = Path(folder).parts
    if root is not None and root.parts == parents[: len(root.parts)]:
        parents = parents[len(root.parts) :]
    matches = takewhile(bool, map(_PARTITION.fullmatch, reversed(parents)))  # they are the innermost folders
    return tuple((match[1], match[2]) for match in matches if match)[::-1]


def name_stdin() -> InputFile:
    """Return standard input; for a redirected file, the file itself, which has a size and can be read in parallel.

    The descriptor is then at its end, as other processes that share it expect.
    """
    name = "standard input"
    stream, descriptor = bytes_of(sys.stdin, name, "name the inputs"), find_descriptor(sys.stdin)
    if descriptor is not None:
        status, path = os.fstat(descriptor), Path(f"/proc/self/fd/{descriptor}")
        if (
            stat.S_ISREG(status.st_mode)
            and not os.lseek(descriptor, 0, os.SEEK_CUR)
            and os.access(path, os.R_OK)
        ):
            os.lseek(descriptor, 0, os.SEEK_END)
            return InputFile(name, path, stamp=Stamp.of(status))
    return InputFile(name, None, stream)


def real_names(names: Iterable[str]) -> Iterator[str]:
    """Yield the absolute path of each file with all links followed, those of a folder once for all its files; URLs without a slash at the end."""
    folders: dict[str, str] = {}
    for name in names:
        if is_url(name):
            yield name.rstrip("/")
            continue
        folder, last = os.path.split(name)
        if last in ("", ".", "..") or os.path.islink(name):  # noqa: PTH114 - thousands of times
            yield os.path.realpath(name)
            continue
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        yield os.path.join(folders[folder], last)  # noqa: PTH118 - see above


def expand_input(pattern: str, rules: NameRules, warn: Callable[[str], None]) -> list[InputFile]:
    """Expand a path, directory or glob to files, those of a directory or glob in natural order.

    Folders are searched at any depth; names that begin with ``.`` or ``_`` are skipped. Which of their files are inputs,
    `choose_files` says by `rules`.
    """
    path = Path(pattern)
    if not pattern:
        raise UsageError("an input is the empty string; give a path")
    # These two say no in a folder that may not be read, where those of Path raise.
    if os.path.isdir(path):  # noqa: PTH112
        return _list_folder(pattern, pattern, rules, warn)
    if glob.has_magic(pattern) and not os.path.exists(path):  # noqa: PTH110
        return _list_glob(pattern, rules, warn)
    name = pattern if os.path.lexists(path) else rules.complete(pattern)
    return [_name_file(name, None, rules.split(name))]


def _list_glob(pattern: str, rules: NameRules, warn: Callable[[str], None]) -> list[InputFile]:
    is_recursive = "**" in pattern.split("/")
    if is_recursive:
        _check_ends(pattern)
    # Path.glob takes no absolute pattern, and rewrites the names the user wrote. Several ** give a name several times.
    matches = sorted(set(glob.glob(pattern, recursive=True)), key=natural_key)  # noqa: PTH207
    _tell_unlistable(pattern, warn if matches else None)
    if not matches:
        raise InputError(pattern, "no file matches", remedy="check the path, and quote the pattern")
    root = Path(*takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))
    files = []
    for match in matches:
        below = Path(match).relative_to(root).parts if root.parts else Path(match).parts
        if any(is_hidden(part) for part in below) or match.endswith(MANIFEST_SUFFIX):
            continue
        if Path(match).is_dir():
            if not is_recursive:
                files += _list_folder(match, str(root), rules, warn)
        elif not match.endswith("/"):  # `glob` gives "file/" for "file/**"
            files.append(_name_file(match, root, rules.split(match)))
    _refuse_tables(pattern, {file.name.rpartition("/")[0] for file in files})
    if not files:
        raise InputError(pattern, ONLY_OTHERS, remedy="name them one by one")
    return files


def _tell_unlistable(pattern: str, warn: Callable[[str], None] | None) -> None:
    """Warn of folders in which a glob looks for names and that may not be listed, or refuse them: `glob` takes them for empty ones."""
    parts = pattern.split("/")
    for depth in [depth for depth, part in enumerate(parts) if glob.has_magic(part)]:
        before = "".join(f"{part}/" for part in parts[:depth])
        for folder in glob.glob(before) if before else ["."]:  # noqa: PTH207 - see above
            try:
                os.scandir(folder).close()
            except PermissionError as error:
                problem = f"folder {folder.rstrip('/')} cannot be listed: {error.strerror}"
                if warn is None:
                    raise InputError.of_system(error, pattern, problem) from error
                warn(f"{pattern}: {problem}; its files are not among the inputs")


def _check_ends(pattern: str) -> None:
    """Refuse ``**`` over a folder with a link back to a parent, which `glob` would follow in a circle."""
    parts = pattern.split("/")
    before = "".join(f"{part}/" for part in parts[: parts.index("**")])
    for folder in glob.glob(before) if before else ["."]:  # noqa: PTH207 - see above
        for link in _walk(folder)[1]:
            raise InputError(
                link,
                "leads back to a folder above it, and ** would follow it",
                remedy="give the folder instead",
            )


def _list_folder(folder: str, root: str, rules: NameRules, warn: Callable[[str], None]) -> list[InputFile]:
    paths, circles = _walk(folder)
    _refuse_tables(folder, {folder, *(path.rpartition("/")[0] for path in paths)})
    for link in circles:
        warn(f"{link}: passed over, as it leads back to a folder above it")
    top = Path(root)
    return choose_files(folder, [_name_file(path, top, rules.split(path)) for path in paths], rules, warn)


def _refuse_tables(pattern: str, folders: Iterable[str]) -> None:
    """Refuse files in the folder of a table, or below it: its log says which files and rows are still in the table."""
    paths = {Path(os.path.abspath(folder)) for folder in folders}  # noqa: PTH100 - follows no links
    for folder in sorted(paths.union(*(path.parents for path in paths))):
        for marker, kind in TABLES:
            if next(folder.glob(marker), None) is not None:
                raise refuse_table(pattern, kind, str(folder))


def _walk(folder: str) -> tuple[list[str], list[str]]:
    """Return the files at any depth, and the links back to a parent folder, which are not followed."""
    paths, circles = [], []
    ways = {folder: frozenset([_identify(folder)])}
    for parent, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        way, inner = ways.pop(parent), [name for name in folders if not is_hidden(name)]
        folders.clear()
        for name in inner:
            path = os.path.join(parent, name)  # noqa: PTH118 - keeps ./
            identity = _identify(path)
            if identity in way:
                circles.append(path)
            else:
                folders.append(name)
                ways[path] = way | {identity}
        wanted = [name for name in names if not is_hidden(name) and not name.endswith(MANIFEST_SUFFIX)]
        paths += [os.path.join(parent, name) for name in wanted]  # noqa: PTH118 - keeps ./
    return paths, circles


def _identify(folder: str) -> tuple[int, int]:
    try:
        status = Path(folder).stat()
    except OSError as error:
        raise InputError.of_system(error, folder, f"cannot be listed: {error.strerror}") from error
    return status.st_dev, status.st_ino


def _raise(error: OSError) -> None:
    raise InputError.of_system(error, str(error.filename), f"cannot be listed: {error.strerror}") from error


def _name_file(name: str, root: Path | None, suffix: NameSuffix) -> InputFile:
    path = Path(name)
    try:
        status = path.stat()
    except OSError as error:
        remedy = None if isinstance(error, PermissionError) else "check the path"
        raise InputError.of_system(
            error, name, f"cannot be opened: {error.strerror}", remedy=remedy
        ) from error
    # The times of a pipe change as it is read.
    stamp = Stamp.of(status) if stat.S_ISREG(status.st_mode) else None
    return InputFile(name, path, None, find_partitions(name.rpartition("/")[0], root), stamp, suffix)
