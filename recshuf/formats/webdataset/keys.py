"""Whether keys occur twice, in bounded memory: hashes are sorted in runs, and runs merged range by range.

Of each key 128 bits are kept. So many of them are in memory as a run holds; more go to an unnamed file, from which a 256th
part of all is loaded at a time.
"""

from __future__ import annotations

import tempfile
import threading
from typing import IO, TYPE_CHECKING

import numpy as np
import xxhash

from recshuf.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray


RUN_KEYS = 1 << 17
HASH_BYTES = 16
KEYS_BYTES = 6 * RUN_KEYS * HASH_BYTES
"""Memory of a run, and of sorting it."""
_EDGES = np.arange(1, 256, dtype=np.uint64) << np.uint64(56)


def hash_key(key: bytes) -> bytes:
    """Return what is kept of a key."""
    return xxhash.xxh3_128_digest(key)


class KeySet:
    """Hashes of keys of which none may occur twice. `add` may be called from many threads."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        """Where its file is, if it needs one; None for that of the system."""
        self._lock = threading.Lock()
        self._held: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._edges: list[NDArray[np.int64]] = []
        """Where each range of each run begins in the file, in hashes."""

    def add(self, hashes: Iterable[bytes]) -> bytes | None:
        """Add some; return one of which another is known already, if that shows at once."""
        with self._lock:
            self._held += hashes
            return self._end_run() if len(self._held) >= RUN_KEYS else None

    def finish(self) -> bytes | None:
        """Return one that occurs twice among all, and release the file; None if there is none."""
        twice = self._end_run()
        ranges = range(len(_EDGES) + 1 if len(self._edges) > 1 and twice is None else 0)
        twice = next((found for one in ranges if (found := self._merge(one)) is not None), twice)
        self.close()
        return twice

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self._edges = None, []

    def __del__(self) -> None:
        self.close()

    def _end_run(self) -> bytes | None:
        """Sort a run, and write it to the file, which only a second one needs."""
        keys = np.frombuffer(b"".join(self._held), np.uint64).reshape(-1, 2)
        self._held = []
        run, twice = _sort(keys)
        if len(run) < RUN_KEYS and self._file is None:
            return twice
        start = self._edges[-1][-1] if self._edges else 0
        self._edges.append(start + np.concatenate([[0], np.searchsorted(run[:, 0], _EDGES), [len(run)]]))
        try:
            self._file = self._file or tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - `close` does
            self._file.write(run.tobytes())
            self._file.flush()
        except OSError as error:
            problem = (
                f"{self.folder or tempfile.gettempdir()}: keys cannot be compared in a file: {error.strerror}"
            )
            raise OutputError(
                f"{problem}; make room there" + ("" if self.folder else ", or set TMPDIR")
            ) from error
        return twice

    def _merge(self, number: int) -> bytes | None:
        assert self._file is not None  # noqa: S101 - there are runs
        pieces = []
        for edges in self._edges:
            begin, end = (HASH_BYTES * edges[number : number + 2]).tolist()
            self._file.seek(begin)
            pieces.append(self._file.read(end - begin))
        return _sort(np.frombuffer(b"".join(pieces), np.uint64).reshape(-1, 2))[1]


def _sort(keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], bytes | None]:
    """Return pairs of words in order, and a pair that occurs twice as bytes."""
    keys = keys[np.argsort(keys[:, 0])]
    same = np.flatnonzero(keys[1:, 0] == keys[:-1, 0])
    if same.size:  # equal keys, or hardly ever half of two hashes
        near = keys[np.unique([same, same + 1])]
        near = near[np.lexsort((near[:, 1], near[:, 0]))]
        twice = np.flatnonzero((near[1:] == near[:-1]).all(axis=1))
        if twice.size:
            return keys, near[twice[0]].tobytes()
    return keys, None
