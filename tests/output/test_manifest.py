"""The manifest: what is read of it, and compared with it."""

import json
from dataclasses import replace
from pathlib import Path

from recshuf.job.job import Epoch
from recshuf.job.report import FileReport
from recshuf.output.manifest import Manifest, find_checksum, manifest_path

INPUTS = (FileReport("in/\udcff é.jsonl", 5, 100, 2), FileReport("standard input", 1, None))
SHARDS = (FileReport("shard-00000.txt", 4, 70, checksum="0a1b"), FileReport("shard-00001.txt", 0, 0))


def test_what_is_written_is_read_again(tmp_path: Path):
    """Golden outputs pin the text, but for what names that are no UTF-8 become."""
    options = {"format": "jsonl", "seed": 2**100, "added": ("file", "row"), "epoch": Epoch(3, "piles", 4)}
    manifest = Manifest(tmp_path, "text", INPUTS, SHARDS, counts_quarantined=True, **options)
    manifest.write()
    content = json.loads(manifest_path(tmp_path).read_bytes())
    assert [one["name"] for one in content["inputs"]] == ["in/\ufffd é.jsonl", "standard input"]
    assert content["seed"] == str(2**100)
    assert Manifest.read(tmp_path) == replace(manifest, counts_quarantined=False)
    (tmp_path / "copy").hardlink_to(manifest.path)
    replace(manifest, seed=1).write()
    assert json.loads((tmp_path / "copy").read_bytes()) == content


def test_what_the_folder_holds_and_the_manifest_does_not_say_is_named(tmp_path: Path):
    for name, content in (
        ("changed", "new"),
        ("longer", "abcd"),
        ("right", "abc"),
        ("other", ""),
        (".hid", ""),
    ):
        (tmp_path / f"{name}.txt").write_text(content)
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "README").write_text("of the user")
    checksum = find_checksum(tmp_path / "right.txt")
    names = ("gone", "changed", "longer", "folder", "right")
    shards = tuple(FileReport(f"{name}.txt", 1, 3, checksum=checksum) for name in names)
    manifest = Manifest(tmp_path, "text", (), shards)
    assert manifest.compare_files() == [
        f"{tmp_path}/gone.txt: is missing, and the manifest names it",
        f"{tmp_path}/changed.txt: has another checksum in the manifest",
        f"{tmp_path}/longer.txt: has 4 bytes, and 3 in the manifest",
        f"{tmp_path}/folder.txt: is missing, and the manifest names it",
        f"{tmp_path}/other.txt: is not named in the manifest",
    ]
    assert not manifest.fits_sizes()
    assert manifest.find_present() == [f"{tmp_path}/{name}.txt" for name in ("changed", "longer", "right")]
    whole = replace(manifest, shards=shards[4:])
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
    shards = tuple(replace(SHARDS[0], name=f"{part}/{SHARDS[0].name}") for part in ("train", "val"))
    names = [f"{tmp_path}/{one.name}" for one in shards]
    (said,) = replace(manifest, shards=shards).compare_counts(names, [4, 5], 6)
    assert said == f"{names[1]}: has 5 records, and 4 in the manifest"
