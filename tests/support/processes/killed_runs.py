"""Runs that die when some of their parts are finished."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.output.local.log import FileJournal

if TYPE_CHECKING:
    from pathlib import Path

SEED = 5


class Killed(BaseException):
    """Ends a run as no error of its own would."""


def run(inputs: list[Path], output: Path, **options: Any) -> recshuf.ShuffleReport:
    given = {"seed": SEED, "shards": 3, "piles": 4, "workers": 1} | options
    return recshuf.shuffle(inputs, f"{output}/", **given)


def kill_after(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    """Have the next run die when so many parts are finished."""
    note, left = FileJournal.note, iter(range(parts - 1, -100, -1))

    def note_and_die(self: FileJournal, entry: dict[str, Any]) -> None:
        note(self, entry)
        if ("set" in entry or "shard" in entry) and next(left) <= 0:
            raise Killed

    monkeypatch.setattr(FileJournal, "note", note_and_die)


def run_and_die(parts: int, inputs: list[Path], output: Path, **options: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, parts)
        with pytest.raises(Killed):
            run(inputs, output, **options)
