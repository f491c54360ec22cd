"""The manifest: every key as it is written, and what is read of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from recshuf.job.report import FileReport
from recshuf.output.manifest import MANIFEST_NAME, Manifest
from recshuf.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

INPUTS = (FileReport("in/\udcff é.jsonl", 5, 100, 2), FileReport("standard input", 1, None))
SHARDS = (FileReport("shard-00000.txt", 4, 70), FileReport("shard-00001.txt", 0, 0))


def make_manifest(folder: Path, **options: object) -> Manifest:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    return Manifest(folder, "text", INPUTS, SHARDS, format="jsonl", seed=2**100, schema=schema, **options)


def test_keys_are_written_in_their_order(tmp_path: Path):
    make_manifest(tmp_path).write()
    content = (tmp_path / MANIFEST_NAME).read_bytes()
    assert content.startswith(b'{\n  "recshuf": "')
    assert content.endswith(b"\n}\n")
    assert b'"in/\xff \xc3\xa9.jsonl"' in content
    assert list(json.loads(content.replace(b"\xff", b"")).items()) == [
        ("recshuf", __version__),
        ("order", 1),
        ("seed", str(2**100)),
        ("format", "jsonl"),
        ("to", "text"),
        ("records", 4),
        (
            "inputs",
            [
                {"name": "in/ é.jsonl", "records": 5, "bytes": 100},
                {"name": "standard input", "records": 1, "bytes": None},
            ],
        ),
        (
            "shards",
            [
                {"name": "shard-00000.txt", "records": 4, "bytes": 70},
                {"name": "shard-00001.txt", "records": 0, "bytes": 0},
            ],
        ),
        ("schema", [{"name": "a", "type": "int64", "nullable": False}]),
    ]


def test_keys_for_options_are_written_with_them(tmp_path: Path):
    make_manifest(tmp_path, added=("file", "row"), counts_quarantined=True).write()
    content = json.loads((tmp_path / MANIFEST_NAME).read_bytes().replace(b"\xff", b""))
    assert content["provenance"] == ["file", "row"]
    assert [one["quarantined"] for one in content["inputs"]] == [2, 0]


def test_what_was_written_is_read(tmp_path: Path):
    inputs = (FileReport("a \udcff", 5, 100),)
    Manifest(tmp_path, "text", inputs, SHARDS, added=("file", "row"), seed=7).write()
    found = Manifest.read(tmp_path)
    assert found == Manifest(tmp_path, "text", (FileReport("a \udcff", 5, None),), SHARDS, ("file", "row"))


def test_a_folder_without_one_has_none(tmp_path: Path):
    (tmp_path / "file").touch()
    assert Manifest.read(tmp_path) is None
    assert Manifest.read(tmp_path / "file") is None


@pytest.mark.parametrize(
    "content",
    ["", "[]", "null", "{}", "\xff", '{"shards": 1}', '{"shards": [{}]}', '{"shards": [1]}', "[" * 100_000],
)
def test_what_is_none_is_one_error(tmp_path: Path, content: str):
    (tmp_path / MANIFEST_NAME).write_text(content, encoding="latin-1")
    with pytest.raises(ValueError):  # noqa: PT011 - the callers word it
        Manifest.read(tmp_path)


@pytest.mark.parametrize("name", ["../a", "a/b", "..", ".", "", "a\0b", 7])
def test_shards_are_in_the_folder(tmp_path: Path, name: object):
    content = {"to": "text", "inputs": [], "shards": [{"name": name, "records": 1, "bytes": 1}]}
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(content))
    with pytest.raises(ValueError):  # noqa: PT011
        Manifest.read(tmp_path)
