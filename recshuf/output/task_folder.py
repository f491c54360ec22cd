"""What the tasks of a run leave for each other, which many machines use at the same time.

It holds the results of finished tasks, each a small JSON file, and what tasks have written under names of their own. Of
tasks that ran twice, one result is there, and only what it names counts.
"""

from __future__ import annotations

import errno
import os
import secrets
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from recshuf.errors import OutputError
from recshuf.output.sealed import decode_sealed, encode_sealed
from recshuf.system.atomic import sync
from recshuf.system.locks import share_folder
from recshuf.system.paths import write_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

TASK_FOLDER = "tasks"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class TaskFolder(ABC):
    """The results of the tasks of one run, JSON values by name, each with a checksum."""

    removal: str
    """How a user deletes it, as an infinitive."""
    private: Path | None = None
    """Folder that only the user can write; None if others may write here, too."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Absolute path or URL, the same on all machines."""

    @abstractmethod
    def make(self) -> None:
        """Make it, if it does not exist. Before that, only `read` and `count` may be called."""

    @abstractmethod
    def share(self, output: str) -> AbstractContextManager[None]:
        """Make it, and let no run remove it meanwhile.

        Parameters
        ----------
        output
            Name of the output, for messages.

        Raises
        ------
        OutputError
            When a run has it for itself, or it cannot be made.
        """

    @abstractmethod
    def count(self) -> int:
        """Return the number of results of tasks."""

    @abstractmethod
    def read(self, name: str) -> Any:
        """Return the JSON values of a result; None if there is none.

        Raises
        ------
        OutputError
            When it cannot be read, or is damaged.
        """

    def read_all(self, names: Iterable[str]) -> list[Any]:
        """Return what `read` returns of each name."""
        return [self.read(name) for name in names]

    @abstractmethod
    def place(self, name: str, values: dict[str, Any]) -> Any:
        """Put a result in place, if there is none of this name, and return the one that is in place.

        Raises
        ------
        OutputError
            When it cannot be written.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a result, if it is there."""


class LocalTaskFolder(TaskFolder):
    """A folder in the work folder of a run, which all machines share."""

    def __init__(self, path: Path) -> None:
        self.path = self.private = path
        self.removal = f"delete {path.parent}"

    @property
    def address(self) -> str:
        """Absolute path."""
        return str(self.path.absolute())

    def make(self) -> None:
        """Make the folder, if it does not exist, in the work folder, which does."""
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
        """Return the number of results."""
        try:
            names = os.listdir(self.path)  # noqa: PTH208 - names are wanted
        except FileNotFoundError:
            return 0
        return sum(map(is_result, names))

    def read(self, name: str) -> Any:
        """See `TaskFolder`."""
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
        """See `TaskFolder`."""
        place_file(self._path_of(name), encode_sealed(values))
        return self.read(name)

    def remove(self, name: str) -> None:
        """See `TaskFolder`."""
        self._path_of(name).unlink(missing_ok=True)

    def _path_of(self, name: str) -> Path:
        return self.path / f"{name}.json"


def is_result(name: str) -> bool:
    """Tell whether the name of a file or object is that of the result of a task."""
    return name.startswith("task-") and name.endswith(".json")


def place_file(path: Path, content: bytes) -> None:
    """Write a file that is whole or not there, if there is none of this name.

    Raises
    ------
    OutputError
        When it cannot be written.
    """
    draft = path.with_name(f"{secrets.token_hex(8)}.draft")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _place(draft, path)
        sync(path.parent)
    except OSError as error:
        raise write_error(error, str(path), path.parent) from error


def _place(draft: Path, path: Path) -> None:
    """Rename a file, unless there is one of the new name."""
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Of two that get here at the same time the later one counts. What the other names is complete and stays.
        draft.rename(path)
        return
    draft.unlink()
