"""The manifest: every key as it is written, and what is read of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.job.job import Epoch
from recshuf.job.report import FileReport
from recshuf.output.manifest import Manifest, find_checksum, manifest_path
from recshuf.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

INPUTS = (FileReport("in/\udcff é.jsonl", 5, 100, 2), FileReport("standard input", 1, None))
SHARDS = (FileReport("shard-00000.txt", 4, 70, checksum="0a1b"), FileReport("shard-00001.txt", 0, 0))


def make_manifest(folder: Path, **options: object) -> Manifest:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    return Manifest(folder, "text", INPUTS, SHARDS, format="jsonl", seed=2**100, schema=schema, **options)


def test_keys_are_written_in_their_order(tmp_path: Path):
    make_manifest(tmp_path).write()
    content = manifest_path(tmp_path).read_bytes()
    assert content.startswith(b'{\n  "recshuf": "')
    assert content.endswith(b"\n}\n")
    assert list(json.loads(content).items()) == [
        ("recshuf", __version__),
        ("order", 1),
        ("seed", str(2**100)),
        ("format", "jsonl"),
        ("to", "text"),
        ("records", 4),
        (
            "inputs",
            [
                {
                    "name": "in/\ufffd é.jsonl",
                    "name_hex": "in/\udcff é.jsonl".encode(errors="surrogateescape").hex(),
                    "records": 5,
                    "bytes": 100,
                },
                {"name": "standard input", "records": 1, "bytes": None},
            ],
        ),
        (
            "shards",
            [
                {"name": "shard-00000.txt", "records": 4, "bytes": 70, "xxh3": "0a1b"},
                {"name": "shard-00001.txt", "records": 0, "bytes": 0},
            ],
        ),
        ("schema", [{"name": "a", "type": "int64", "nullable": False}]),
    ]


def test_keys_for_options_are_written_with_them(tmp_path: Path):
    make_manifest(
        tmp_path, added=("file", "row"), counts_quarantined=True, epoch=Epoch(3, "piles", 4)
    ).write()
    content = json.loads(manifest_path(tmp_path).read_bytes())
    assert content["provenance"] == ["file", "row"]
    assert [content[name] for name in ("epoch", "reshuffle", "mix")] == [3, "piles", 4]
    assert [one["quarantined"] for one in content["inputs"]] == [2, 0]


def test_a_shard_of_the_same_size_and_other_bytes_is_named(tmp_path: Path):
    (tmp_path / "a.txt").write_text("old")
    manifest = Manifest(
        tmp_path, "text", (), (FileReport("a.txt", 1, 3, checksum=find_checksum(tmp_path / "a.txt")),)
    )
    assert manifest.compare_files() == []
    (tmp_path / "a.txt").write_text("new")
    assert manifest.compare_files() == [f"{tmp_path}/a.txt: has another checksum in the manifest"]


def test_what_the_folder_holds_and_the_manifest_does_not_say_is_named(tmp_path: Path):
    shards = tuple(FileReport(f"{name}.txt", 1, 3) for name in ("gone", "longer", "folder", "right"))
    for name, content in (("longer", "abcd"), ("right", "abc"), ("other", "abc"), (".hidden", "abc")):
        (tmp_path / f"{name}.txt").write_text(content)
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "README").write_text("of the user")
    manifest = Manifest(tmp_path, "text", (), shards)
    assert manifest.compare_files() == [
        f"{tmp_path}/gone.txt: is missing, and the manifest names it",
        f"{tmp_path}/longer.txt: has 4 bytes, and 3 in the manifest",
        f"{tmp_path}/folder.txt: is missing, and the manifest names it",
        f"{tmp_path}/other.txt: is not named in the manifest",
    ]
    assert not manifest.fits_sizes()
    assert manifest.find_present() == [f"{tmp_path}/longer.txt", f"{tmp_path}/right.txt"]
    whole = replace(manifest, shards=shards[3:])
    assert whole.fits_sizes()
    (tmp_path / "right.txt").write_text("ab")
    assert not whole.fits_sizes()


def test_other_counts_and_another_format_than_the_manifest_says_are_named(tmp_path: Path):
    manifest = Manifest(tmp_path, "text", INPUTS, SHARDS)
    names = [f"{tmp_path}/{one.name}" for one in SHARDS]
    assert manifest.compare_counts(names, [4, 0], 6) == []
    assert manifest.compare_counts(names, [4, 1], 6) == [f"{names[1]}: has 1 records, and 0 in the manifest"]
    (said,) = manifest.compare_counts(names, [4, 0], 5)
    assert said.endswith(".recshuf.json: names inputs of 6 records, and these have 5")
    assert manifest.compare_format("text") == []
    (said,) = manifest.compare_format("jsonl")
    assert "says that the shards are text, and they are read as jsonl" in said
