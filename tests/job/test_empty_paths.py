"""Paths that are empty, as those from unset variables are, are refused by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_an_empty_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"a\n")
    whole: dict[str, Any] = {"inputs": tmp_path / "in.txt", "output": tmp_path / "out.txt"}
    for name, value in (("inputs", ""), ("inputs", ["in.txt", ""]), ("output", ""), ("temp_dir", "")):
        with pytest.raises(UsageError, match=rf"{name}.* empty; give one"):
            recshuf.shuffle(**whole | {name: value})
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]
