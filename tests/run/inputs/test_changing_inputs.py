"""Inputs that change, shrink or vanish while a run reads them: an error that names the input, and no output."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import recshuf
from recshuf.errors import InputError
from tests.support.numbered_files import make_inputs
from tests.support.small_runs import Listener

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


@pytest.mark.parametrize(
    ("change", "name", "index"),
    [
        (append, "text", 0),
        (append, "csv", 2),
        (shrink, "parquet", 2),
        (shrink, "jsonl", 0),
        (empty, "hdf5", 2),
        (empty, "text", 2),
        (replace, "parquet", 0),
        (replace, "csv", 2),
        (rewrite, "hdf5", 0),
        (rewrite, "jsonl", 2),
        (vanish, "text", 2),
        (vanish, "parquet", 0),
    ],
)
def test_a_change_is_an_error_that_names_the_input(
    tmp_path: Path, name: str, index: int, change: Callable[[Path], None]
):
    """The first input changes after it was read, or the last one before it is."""
    inputs = make_inputs(tmp_path / "in", name, [300, 300, 300])
    calls = iter(range(100))
    heard = Listener(lambda: next(calls) == 0 and change(inputs[index]))
    with pytest.raises(
        InputError, match=rf"input{index}\S*: .*(changed|gone|vanished|No such file)"
    ) as caught:
        recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=1, workers=1, progress=heard)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize("split", [None, {"a": 0.5, "b": 0.5}], ids=["one", "split"])
@pytest.mark.parametrize(("change", "name"), [(append, "text"), (replace, "parquet")])
def test_no_store_is_made_of_an_input_that_changes(
    tmp_path: Path, change: Callable[[Path], None], name: str, split: dict[str, float] | None
) -> None:
    """It was read as it had been."""
    inputs = make_inputs(tmp_path / "in", name, [300, 300])
    calls = iter(range(100))
    heard = Listener(lambda: heard.passes[-1:] == ["scatter"] and next(calls) == 0 and change(inputs[0]))
    with pytest.raises(InputError, match=r"input0\S*: .*changed"):
        recshuf.scatter(inputs, tmp_path / "store", seed=1, workers=1, progress=heard, split=split)
    assert os.listdir(tmp_path) == ["in"]
