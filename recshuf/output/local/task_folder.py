"""The results of tasks as files in the work folder."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from recshuf.errors import OutputError
from recshuf.output.sealed import decode_sealed, encode_sealed
from recshuf.output.task_folder import TaskFolder, is_result
from recshuf.system.atomic import place_file
from recshuf.system.locks import share_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
