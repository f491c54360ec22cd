"""Files that are uploaded in parts, and the local folders in which they wait."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from recshuf.errors import OutputError
from recshuf.storage.writing.bucket import MOST_PART_BYTES, MOST_PARTS
from recshuf.system.locks import lock_folder
from recshuf.system.paths import write_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from recshuf.storage.writing.bucket import Part
    from recshuf.system.threads import Pool


PART_BYTES = 8 << 20
PART_THREADS = 4
"""So many parts are sent at once at most."""
_MIB = 1 << 20
PREFIX = "recshuf-output-"
"""Begin of the names of folders."""


def choose_part_bytes(file_bytes: int) -> int:
    """Return the size of all parts of a file but the last.

    >>> choose_part_bytes(10**6) == PART_BYTES, choose_part_bytes(10**12) * MOST_PARTS >= 10**12
    (True, True)
    """
    wanted = -(-file_bytes // MOST_PARTS)
    return max(PART_BYTES, -(-wanted // _MIB) * _MIB)


def send_file(path: Path, send: Callable[[int, bytes], Part], pool: Pool, *, in_order: bool) -> list[Part]:
    """Send a file in parts, and return them.

    `send` gets the number of a part, from 1, and its bytes. If `in_order`, each part must arrive before the next one is sent.
    """
    size = path.stat().st_size
    part_bytes = choose_part_bytes(size)
    if part_bytes > MOST_PART_BYTES:
        raise OutputError(
            f"{path.name}: {size:,} bytes are more than an object can have; write more --shards"
        )

    def send_part(number: int, start: int) -> Part:
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            return send(number, file.read(part_bytes))

    futures: list[Future[Part]] = []
    try:
        for number, start in enumerate(range(0, max(1, size), part_bytes), 1):
            futures.append(pool.submit(send_part, number, start))
            if in_order:
                futures[-1].result()
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


class UploadFolder:
    """A folder in `parent` that is locked until `close`, which deletes it. What dead processes left beside it is deleted, too."""

    def __init__(self, parent: Path, output: str) -> None:
        _delete_dead(parent, output)
        name = f"{PREFIX}{secrets.token_hex(16)}"
        self.path, draft = parent.absolute() / name, parent.absolute() / f".{name}"
        try:
            self._lock: int | None = lock_folder(draft, output)
            draft.rename(self.path)  # locked before others look for dead ones
        except OSError as error:
            raise write_error(error, str(parent), parent) from error

    def close(self) -> None:
        """Delete it. Idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):
                os.close(lock)


def _delete_dead(parent: Path, output: str) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError, OutputError):  # in use, or of another user
            lock = lock_folder(folder, output)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
