"""Manifest and report tell what the run did: seed, inputs, shards and types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pyarrow.parquet as pq

import recshuf
from recshuf.output.manifest import manifest_path
from tests.support.numbered_files import make_inputs

if TYPE_CHECKING:
    from pathlib import Path


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
        assert path.stat().st_size in shard.values()
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
