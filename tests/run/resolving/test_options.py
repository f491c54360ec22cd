"""Options that cannot be meant are refused by name before anything is written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import UsageError
from tests.support.numbered_files import make_inputs

if TYPE_CHECKING:
    from pathlib import Path


def test_unknown_options_are_refused(tmp_path: Path):
    with pytest.raises(TypeError, match="'sead'"):
        recshuf.shuffle("x", tmp_path / "out", sead=1)


@pytest.mark.parametrize(
    "options",
    [
        {"seed": -1},
        {"seed": 2**128},
        {"memory": "1MB"},
        {"workers": 0},
        {"piles": 0},
        {"head_count": -1},
        {"shards": 0},
        {"shards": 2, "shard_records": 5},
        {"compression": "lzma"},
        {"separator": b""},
        {"separator": "x", "zero_terminated": True},
    ],
    ids=str,
)
def test_options_that_cannot_be_meant_are_usage_errors(tmp_path: Path, options: dict[str, object]):
    (path,) = make_inputs(tmp_path, "text", [10])
    with pytest.raises(UsageError):
        recshuf.shuffle(path, f"{tmp_path}/out/", **options)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"seed": "x"},
            "seed 'x' is not a whole number; give one, from 0 to 340282366920938463463374607431768211455",
        ),
        ({"head_count": 1.5}, "head_count 1.5 is not a whole number; give one, at least 0"),
        ({"piles": 70_000}, "piles 70000 is out of range; it must be from 1 to 65536"),
    ],
    ids=str,
)
def test_numbers_that_cannot_be_meant_say_what_can(tmp_path: Path, options: dict[str, object], message: str):
    with pytest.raises(UsageError, match=f"^{message}$"):
        recshuf.shuffle("x", f"{tmp_path}/out/", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"seed": True},
        {"seed": 1.5},
        {"seed": "x"},
        {"shards": "3"},
        {"header": "1"},
        {"memory": 3.5},
        {"schema": 7},
    ],
    ids=str,
)
def test_options_of_a_wrong_type_are_named(tmp_path: Path, options: dict[str, Any]):
    (tmp_path / "in.txt").write_text("1\n")
    with pytest.raises(UsageError, match=f"^{next(iter(options))}[ :]"):
        recshuf.shuffle(tmp_path / "in.txt", f"{tmp_path}/out/", **options)


@pytest.mark.parametrize(
    ("name", "value"),
    [("on_bad_record", "quarantine:s3://bucket/bad.jsonl"), ("schema", "s3://bucket/schema.json")],
)
def test_urls_of_files_that_are_local_are_refused(tmp_path: Path, name: str, value: str):
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match=r"^s3://bucket/\w+\.jsonl?: is a URL; give a local path here"):
        recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.parquet", **{name: value})
