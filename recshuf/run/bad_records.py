"""The bad records of one task, in a file beside its pile set."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import xxhash

from recshuf.errors import PileError
from recshuf.output.manifest import find_checksum

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from recshuf.output.quarantine import Quarantine
    from recshuf.piles.set_folder import SetFolder


_PIECE_BYTES = 1 << 20


def keep_bad(sets: SetFolder, quarantine: Quarantine, cleanup: ExitStack) -> dict[str, Any] | None:
    """Write the bad records of a task to their file, and describe it; None if there are none. `cleanup` deletes it."""
    counts = [(index, count) for index, count in enumerate(quarantine.counts) if count]
    if not counts:
        return None
    quarantine.finish()
    quarantine.settle()
    name = quarantine.path.name
    cleanup.callback(sets.discard, name)
    described = {
        "name": name,
        "counts": counts,
        "bytes": quarantine.path.stat().st_size,
        "xxh3": find_checksum(quarantine.path),
    }
    sets.keep(name)
    return described


def take_bad(quarantine: Quarantine, sets: SetFolder, bad: dict[str, Any]) -> None:
    """Let the quarantine of a run take over a file that `keep_bad` has described."""
    quarantine.take(_read_bad(sets, bad), bad["counts"])


def check_bad(sets: SetFolder, bad: dict[str, Any]) -> None:
    """Check that a file that `keep_bad` has described is there, as `take_bad` does."""
    for _ in _read_bad(sets, bad):
        pass


def _read_bad(sets: SetFolder, bad: dict[str, Any]) -> Iterator[bytes]:
    """Yield the pieces of a file that `keep_bad` has described."""
    with ExitStack() as cleanup:
        path = cleanup.enter_context(sets.fetch(bad["name"]))
        yield from _read_whole(path, bad["bytes"], bad["xxh3"], sets.show(bad["name"]))


def _read_whole(path: Path, byte_count: int, checksum: str, shown: str) -> Iterator[bytes]:
    digest = xxhash.xxh3_128()
    try:
        with path.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size == byte_count:
                while piece := file.read(_PIECE_BYTES):
                    digest.update(piece)
                    yield piece
    except OSError as error:
        raise PileError(f"{shown}: bad records set aside cannot be read: {error.strerror}") from error
    if digest.hexdigest() != checksum:
        raise PileError(f"{shown}: bad records set aside are not as they were written")
