"""Runs that die when some of their parts are finished, or in their commit; and the journal that they leave."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.system import files
from tests.support.small_runs import put_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from _typeshed import ReadableBuffer

SEED = 5


class Killed(BaseException):
    """Ends a run as no error of its own would."""


def run(inputs: Sequence[Path | str], output: Path, **options: Any) -> recshuf.ShuffleReport:
    given = {"seed": SEED, "shards": 3, "piles": 4, "workers": 1} | options
    return recshuf.shuffle(inputs, f"{output}/", **given)


def read_journal(output: Path) -> list[dict[str, Any]]:
    """Return the whole entries in the journal of an unfinished run, the header first."""
    lines = journal_of(output).read_bytes().splitlines()
    return [entry for entry in map(files.parse_line, lines) if entry is not None]


def write_journal(output: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Leave a journal of these entries."""
    journal_of(output).parent.mkdir(exist_ok=True)
    journal_of(output).write_bytes(b"".join(map(files.format_line, entries)))


def journal_of(output: Path) -> Path:
    return output.with_name(f".{output.name}.recshuf") / "journal.jsonl"


def kill_after(patch: pytest.MonkeyPatch, parts: int) -> None:
    """Have runs die when so many pile sets and shards are in their journals."""
    whole, left = os.fdopen, iter(range(parts - 1, -1000, -1))

    class Entry(io.FileIO):
        """The journal, as it is open for one entry."""

        def close(self) -> None:
            is_open = not self.closed
            super().close()
            if is_open and (b'"set":' in entry or b'"shard":' in entry) and next(left) <= 0:
                raise Killed

        def write(self, data: ReadableBuffer) -> int:
            entry[:] = bytes(data)
            return super().write(data) or 0

    entry = bytearray()

    def open_entry(file: int, mode: str, *given: Any, **options: Any) -> Any:
        is_journal = mode == "ab" and Path(f"/proc/self/fd/{file}").readlink().name == "journal.jsonl"
        return Entry(file, mode) if is_journal else whole(file, mode, *given, **options)

    patch.setattr(os, "fdopen", open_entry)


def strike_renames(
    patch: pytest.MonkeyPatch, step: int, strike: Callable[[], object], *, late: bool, exchanges: bool = True
) -> None:
    """Have something happen before, or right after, a file or folder is renamed or exchanged.

    Parameters
    ----------
    exchanges
        Whether the file system can exchange folders.
    """
    steps = iter(range(1000))

    def strike_or(whole: Callable[..., object]) -> Callable[..., object]:
        def change(*given: object) -> object:
            is_struck = next(steps) == step
            if is_struck and not late:
                strike()
            changed = whole(*given)
            if is_struck and late:
                strike()
            return changed

        return change

    put_in_place(patch, files.exchange, strike_or(files.exchange) if exchanges else refuse_exchange)
    patch.setattr(Path, "rename", strike_or(Path.rename))


def refuse_exchange(first: Path, second: Path) -> None:
    """Be a file system on which folders cannot change places."""
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def die() -> None:
    raise Killed


def run_and_die(parts: int, inputs: Sequence[Path | str], output: Path, **options: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, parts)
        with pytest.raises(Killed):
            run(inputs, output, **options)
