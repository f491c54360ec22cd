"""Whole runs over real files: shards, samples and headers, what a seed means, streams, and what manifest and report tell."""

from __future__ import annotations

import io
import json
import os
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import UsageError
from recshuf.output.manifest import manifest_path
from tests.support.formats.format_tools import OneWayReader, OneWayWriter
from tests.support.numbered_files import FORMATS, make_inputs, make_lines, order_of, read_ids
from tests.support.output_trees import list_shards

if TYPE_CHECKING:
    from pathlib import Path

# Shards


def test_a_header_is_kept_once_in_every_shard(tmp_path: Path):
    for index in range(2):
        rows = [b"%d" % number for number in range(index * 50, index * 50 + 50)]
        (tmp_path / f"{index}.csv").write_bytes(b"\n".join([b"id", *rows]))
    inputs = sorted(tmp_path.glob("*.csv"))
    recshuf.shuffle(inputs, tmp_path / "out/", format="text", header=1, shards=3, seed=1)
    shards = [shard.read_bytes().splitlines() for shard in list_shards(tmp_path / "out")]
    assert [shard[0] for shard in shards] == [b"id"] * 3
    assert [int(row) for shard in shards for row in shard[1:]] == order_of([50, 50], 1)


@pytest.mark.parametrize("name", FORMATS)
def test_shards_follow_the_options(tmp_path: Path, name: str):
    inputs = make_inputs(tmp_path / "in", name, [303])
    expected = order_of([303], 0)
    for label, options, sizes in (
        ("n", {"shards": 4}, [76, 76, 76, 75]),
        ("records", {"shard_records": 120}, [120, 120, 63]),
        ("many", {"shards": 13, "head_count": 10}, [1] * 10 + [0] * 3),
    ):
        recshuf.shuffle(inputs, tmp_path / label, seed=0, **options)
        shards = list_shards(tmp_path / label)
        assert [len(read_ids(shard)) for shard in shards] == sizes
        found = [number for shard in shards for number in read_ids(shard)]
        assert found == expected[: options.get("head_count")]
        assert sorted(os.listdir(tmp_path / label)) == sorted(shard.name for shard in shards)


def test_shard_bytes_cut_lines_into_files_of_that_size(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "jsonl", [4000])
    recshuf.shuffle(inputs, tmp_path / "out", seed=0, shard_bytes=20_000)
    sizes = [shard.stat().st_size for shard in list_shards(tmp_path / "out")]
    assert len(sizes) == -(-inputs[0].stat().st_size // 20_000)
    assert all(15_000 < size < 21_000 for size in sizes)


def test_aligned_files_stay_aligned(tmp_path: Path):
    english = [b"line %d" % number for number in range(3000)]
    german = [b"Zeile %d" % number + b"." * (number % 50) for number in range(3000)]
    for name, lines in (("en", english), ("de", german)):
        (tmp_path / f"{name}.txt").write_bytes(b"\n".join(lines))
        recshuf.shuffle(tmp_path / f"{name}.txt", tmp_path / f"{name}.out.txt", seed=1, piles=5 + len(name))
    pairs = zip(
        (tmp_path / "en.out.txt").read_bytes().splitlines(),
        (tmp_path / "de.out.txt").read_bytes().splitlines(),
        strict=True,
    )
    assert all(left.split()[1] == right.split()[1].rstrip(b".") for left, right in pairs)


# What a seed means, pinned


# Streams


@pytest.mark.parametrize("spelling", ["-", ["-"]])
def test_standard_input_to_standard_output(spelling: str | list[str]):
    lines = make_lines(0, 2000)
    stdout = OneWayWriter()
    report = recshuf.shuffle(spelling, "-", seed=4, stdin=OneWayReader(b"\n".join(lines)), stdout=stdout)
    assert stdout.content.splitlines() == [lines[place] for place in order_of([2000], 4)]
    assert stdout.content.endswith(b"\n")
    assert [shard.records for shard in report.shards] == [2000]


def test_standard_input_to_a_directory_and_a_file_to_standard_output(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "jsonl", [1500])
    recshuf.shuffle(
        "-", f"{tmp_path}/out/", seed=4, shards=2, format="jsonl", stdin=io.BytesIO(path.read_bytes())
    )
    found = [number for shard in list_shards(tmp_path / "out") for number in read_ids(shard)]
    stdout = OneWayWriter()
    recshuf.shuffle(path, "-", seed=4, stdout=stdout)
    assert [json.loads(line)["id"] for line in stdout.content.splitlines()] == found == order_of([1500], 4)


def test_standard_input_in_a_format_that_seeks_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="parquet cannot be read from standard input"):
        recshuf.shuffle("-", tmp_path / "out.parquet", format="parquet", stdin=io.BytesIO())
    assert list(tmp_path.iterdir()) == []


# What is told


def test_the_manifest_tells_what_the_run_did(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "parquet", [10, 20])
    report = recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=2**100)
    manifest = json.loads(manifest_path(tmp_path / "out").read_text())
    assert int(manifest["seed"]) == 2**100 == report.seed
    assert [(one["name"], one["records"]) for one in manifest["inputs"]] == [
        (str(path), count) for path, count in zip(inputs, [10, 20], strict=True)
    ]
    for shard in manifest["shards"]:
        path = tmp_path / "out" / shard["name"]
        assert path.stat().st_size == shard["bytes"]
        assert pq.read_metadata(path).num_rows == shard["records"]


def test_a_drawn_seed_is_reported_and_gives_the_same_again(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "text", [100])
    seed = recshuf.shuffle(path, tmp_path / "a.txt").seed
    recshuf.shuffle(path, tmp_path / "b.txt", seed=seed)
    assert (tmp_path / "a.txt").read_bytes() == (tmp_path / "b.txt").read_bytes()
    assert recshuf.shuffle(path, tmp_path / "c.txt").seed != seed


def test_the_manifest_tells_types_that_people_know(tmp_path: Path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["id"] = np.arange(5)
        file["image"] = np.zeros((5, 8, 3), np.float32)
    recshuf.shuffle(tmp_path / "in.h5", f"{tmp_path}/out/")
    schema = json.loads(manifest_path(tmp_path / "out").read_text())["schema"]
    assert [field["type"].count("float") for field in schema] == [0, 1]
    assert schema[0]["type"] == "int64"
