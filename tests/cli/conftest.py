"""Fixtures of the tests of the command line."""

from pathlib import Path
from typing import Protocol

import pytest

from tests.conftest import Run
from tests.support.processes.command_line import assert_one_line, numbers
from tests.support.small_runs import list_tree


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


@pytest.fixture
def refuse(call: Run, folder: Path) -> Refuse:
    """Return a function that calls the command in the folder, the word EMPTY standing for an empty one."""

    def check(line: str | tuple[object, ...], *words: str, code: int = 2) -> None:
        before = list_tree(folder)
        given = line.split() if isinstance(line, str) else line
        result = call(*("" if word == "EMPTY" else str(word) for word in given))
        assert (result.returncode, result.stdout) == (code, b""), line
        assert_one_line(result.stderr, *words)
        assert list_tree(folder) == before

    return check
