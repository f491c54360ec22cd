"""The journal and the task folder of a run in its work folder: a file with a line for each entry, a file for each result."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from recshuf.errors import OutputError
from recshuf.output.run_log import RunLog, TaskResults, decode_sealed, encode_sealed, is_header, is_result
from recshuf.system.atomic import format_line, parse_line, place_file
from recshuf.system.locks import share_folder
from recshuf.system.paths import write_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from recshuf.output.run_log import Entry


_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class FileLog(RunLog):
    """The journal in a work folder."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._lock = threading.Lock()
        self._ends_well = False
        """Whether the last entry is known to be complete."""

    def read(self) -> list[Entry]:
        return read_log(self.path)

    def note(self, entry: Entry) -> None:
        """Do what `append` does, but raise an `OutputError` on failure."""
        try:
            self.append(entry)
        except OSError as error:
            raise write_error(error, str(self.path), self.path.parent) from error

    def append(self, entry: Entry) -> None:
        text = format_line(entry)
        with self._lock, os.fdopen(os.open(self.path, _APPEND, 0o666), "ab", buffering=0) as file:
            start = b"" if self._ends_well else self._mend(file)
            line = memoryview(start + text)
            self._ends_well = False
            while line:
                line = line[file.write(line) :]
            self._ends_well = True
            self._take(entry)

    def _mend(self, file: BinaryIO) -> bytes:
        """Return what has to follow the last entry, which a killed run may have left incomplete.

        Without the first entry nothing is read: the journal is begun anew. Only who holds the lock of the run appends.
        """
        if not read_log(self.path):
            file.truncate(0)
            return b""
        return b"" if self._ends_in_newline() else b"\n"

    def _ends_in_newline(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, 2)
            return file.read() == b"\n"


def read_log(path: Path) -> list[Entry]:
    """Return the entries of a journal, without damaged ones; none if the first one is damaged or missing."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    entries = [parse_line(line) for line in lines]
    return [entry for entry in entries if entry is not None] if is_header(entries[0]) else []


class FileResults(TaskResults):
    """A folder in the work folder of a run, which all machines share."""

    def __init__(self, path: Path) -> None:
        self.path = self.private = path
        self.removal = f"delete {path.parent}"

    @property
    def address(self) -> str:
        return str(self.path.absolute())

    def make(self) -> None:
        self.path.mkdir(exist_ok=True)

    @contextmanager
    def share(self, output: str) -> Iterator[None]:
        """Make it, and hold the lock of the work folder together with other tasks."""
        work = self.path.parent
        work.parent.mkdir(parents=True, exist_ok=True)
        descriptor = share_folder(work, output)
        try:
            self.make()
            yield
        finally:
            os.close(descriptor)

    def count(self) -> int:
        try:
            names = os.listdir(self.path)  # noqa: PTH208 - names are wanted
        except FileNotFoundError:
            return 0
        return sum(map(is_result, names))

    def read(self, name: str) -> Any:
        path = self._path_of(name)
        try:
            return decode_sealed(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OutputError(
                f"{path}: cannot be read: {error.strerror}; make it readable, or delete it"
            ) from error
        except ValueError as error:
            raise OutputError(f"{path}: is damaged; delete it") from error

    def place(self, name: str, values: dict[str, Any]) -> Any:
        place_file(self._path_of(name), encode_sealed(values))
        return self.read(name)

    def remove(self, name: str) -> None:
        self._path_of(name).unlink(missing_ok=True)

    def _path_of(self, name: str) -> Path:
        return self.path / f"{name}.json"
