"""Paths that are empty, as those from unset variables are, are refused by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "arguments", [{"inputs": ""}, {"inputs": ["in.txt", ""]}, {"output": ""}, {"temp_dir": ""}]
)
def test_an_empty_path_is_named(tmp_path: Path, arguments: dict[str, Any]) -> None:
    (name,) = arguments
    given: dict[str, Any] = {"inputs": tmp_path / "in.txt", "output": tmp_path / "out.txt"} | arguments
    (tmp_path / "in.txt").write_bytes(b"a\n")
    with pytest.raises(UsageError, match=rf"{name}.* empty; give one"):
        recshuf.shuffle(**given)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]
