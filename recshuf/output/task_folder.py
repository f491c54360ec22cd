"""The folder of the tasks of a run, which many machines use at the same time.

It holds the results of finished tasks, each a small JSON file, and what tasks have written under names of their own. Of
tasks that ran twice, one result is there, and only what it names counts.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from recshuf.system.atomic import sync
from recshuf.system.paths import write_error

if TYPE_CHECKING:
    from pathlib import Path

TASK_FOLDER = "tasks"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class TaskFolder:
    """The folder of the tasks of one run.

    Parameters
    ----------
    path
        It exists, or only `read` and `count` are called.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def count(self) -> int:
        """Return the number of results."""
        try:
            names = os.listdir(self.path)  # noqa: PTH208 - names are wanted
        except FileNotFoundError:
            return 0
        return sum(name.startswith("task-") and name.endswith(".json") for name in names)

    def read(self, name: str) -> Any:
        """Return the JSON values of a result; None if there is none.

        Raises
        ------
        OutputError
            When it cannot be read.
        """
        path = self._path_of(name)
        try:
            return json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            reason = error if isinstance(error, OSError) else OSError(errno.EIO, "is damaged; delete it")
            raise write_error(reason, str(path)) from error

    def place(self, name: str, values: Any) -> Any:
        """Put a result in place, if there is none of this name, and return the one that is in place.

        Raises
        ------
        OutputError
            When it cannot be written.
        """
        self.place_file(self._path_of(name).name, json.dumps(values).encode())
        return self.read(name)

    def place_file(self, name: str, content: bytes) -> None:
        """Put a file in place, if there is none of this name.

        Raises
        ------
        OutputError
            When it cannot be written.
        """
        path, draft = self.path / name, self.path / f"{secrets.token_hex(8)}.draft"
        try:
            with draft.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _place(draft, path)
            sync(self.path)
        except OSError as error:
            raise write_error(error, str(path), self.path) from error

    def remove(self, name: str) -> None:
        """Delete a result, if it is there."""
        self._path_of(name).unlink(missing_ok=True)

    def _path_of(self, name: str) -> Path:
        return self.path / f"{name}.json"


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
