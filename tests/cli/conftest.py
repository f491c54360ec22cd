"""Fixtures of the tests of the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.support.processes.command_line import assert_one_line, numbers

if TYPE_CHECKING:
    from tests.conftest import Run


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_bytes(numbers(1000))
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Refuse(Protocol):
    """Gives a command line that is refused in one line, which says some words, and that changes no file here."""

    def __call__(self, line: str | tuple[object, ...], *words: str, code: int = 2) -> None: ...


def read_all() -> dict[str, bytes | None]:
    """Return the names here, with the content of files."""
    found = [Path(folder) / name for folder, folders, files in os.walk(".") for name in folders + files]
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


@pytest.fixture
def refuse(call: Run, folder: Path) -> Refuse:
    """Return a function that calls the command in the folder, the word EMPTY standing for an empty one."""

    def check(line: str | tuple[object, ...], *words: str, code: int = 2) -> None:
        before = read_all()
        given = line.split() if isinstance(line, str) else line
        result = call(*("" if word == "EMPTY" else str(word) for word in given))
        assert (result.returncode, result.stdout) == (code, b""), line
        assert_one_line(result.stderr, *words)
        assert read_all() == before

    return check
