"""Inputs that change, shrink or vanish while a run reads them: an error that names the input, and no output."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import InputError
from recshuf.run.scatter import Scatter
from tests.support.numbered_files import FORMATS, make_inputs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"id": 1}\n')


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def replace(path: Path) -> None:
    """Put a file of the same size and time in its place."""
    found = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.rename(path)


def rewrite(path: Path) -> None:
    content, found = path.read_bytes(), path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))


def vanish(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("change", [append, shrink, empty, replace, rewrite, vanish])
def test_a_change_is_an_error_that_names_the_input(
    tmp_path: Path, name: str, index: int, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
):
    """The first input changes after it was read, or the last one before it is."""
    inputs = make_inputs(tmp_path / "in", name, [300, 300, 300])
    whole, calls = Scatter._add, iter(range(100))

    def change_and_add(*arguments: Any) -> None:
        whole(*arguments)
        if next(calls) == 0:
            change(inputs[index])

    monkeypatch.setattr(Scatter, "_add", change_and_add)
    with pytest.raises(
        InputError, match=rf"input{index}\S*: .*(changed|gone|vanished|No such file)"
    ) as caught:
        recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=1, workers=1)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["in"]
