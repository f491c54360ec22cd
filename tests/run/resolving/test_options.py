"""Options that cannot be meant are refused by name before anything is written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"seed": -1}, "seed"),
    ({"seed": 2**128}, "seed"),
    ({"seed": True}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"seed": "x"}, f"seed 'x' is not a whole number; give one, from 0 to {2**128 - 1}$"),
    ({"memory": "1MB"}, "memory"),
    ({"memory": 3.5}, "memory"),
    ({"workers": 0}, "workers"),
    ({"piles": 0}, "piles"),
    ({"piles": 70_000}, "piles 70000 is out of range; it must be from 1 to 65536$"),
    ({"head_count": -1}, "head_count"),
    ({"head_count": 1.5}, "head_count 1.5 is not a whole number; give one, at least 0$"),
    ({"shards": 0}, "shards"),
    ({"shards": "3"}, "shards"),
    ({"shards": 2, "shard_records": 5}, "shard"),
    ({"header": "1"}, "header"),
    ({"schema": 7}, "schema"),
    ({"compression": "lzma"}, "compression"),
    ({"separator": b""}, "separator"),
    ({"separator": "x", "zero_terminated": True}, "separator"),
    ({"on_bad_record": "quarantine:s3://b/bad", "to": "parquet"}, "s3://b/bad: is a URL; give a local path"),
    ({"schema": "s3://b/schema.json", "to": "parquet"}, "s3://b/schema.json: is a URL; give a local path"),
]


def test_options_that_cannot_be_meant_are_named(tmp_path: Path):
    (tmp_path / "in.txt").write_text("1\n")
    for options, message in REFUSED:
        with pytest.raises(UsageError, match=f"(?i)^.*{message}"):
            recshuf.shuffle(tmp_path / "in.txt", f"{tmp_path}/out/", **options)
        assert os.listdir(tmp_path) == ["in.txt"]
    with pytest.raises(TypeError, match="'sead'"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out", sead=1)


def test_the_command_ends_with_2(tmp_path: Path, call: Run):
    (tmp_path / "in.txt").write_text("1\n")
    for words in (["--seed", "-1"], ["--shards", "0"], ["--compression", "lzma"], ["--sead", "1"]):
        assert call(tmp_path / "in.txt", "-o", f"{tmp_path}/out/", *words).returncode == 2
    assert os.listdir(tmp_path) == ["in.txt"]
