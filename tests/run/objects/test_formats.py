"""Formats that are no lines and no Parquet: from a bucket and into it, by tasks and by way of a store, as from files."""

from __future__ import annotations

from pathlib import Path

import pytest

import recshuf
from tests.support.effort import mostly_slow
from tests.support.formats.sample_folders import KINDS, make_folder
from tests.support.objects.object_outputs import SEED, SHARDS, put_files
from tests.support.objects.object_server import Bucket
from tests.support.output_trees import list_shards
from tests.support.processes.task_runs import divide_small


@pytest.mark.parametrize("kind", mostly_slow(KINDS, "webdataset"))
def test_a_bucket_gets_the_bytes_of_files(
    tmp_path: Path, s3_bucket: Bucket, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = make_folder(tmp_path / "in", kind)
    put_files(s3_bucket, tmp_path / "in")
    cut = {"seed": SEED, "shards": SHARDS, "workers": 1}
    recshuf.shuffle(tmp_path / "in", f"{tmp_path}/out/", **cut, **options)
    expected = {path.name: path.read_bytes() for path in list_shards(tmp_path / "out")}
    assert len(expected) == SHARDS
    source, outputs = (
        f"{s3_bucket.url}/in/",
        [f"{s3_bucket.url}/{name}/" for name in ("one", "tasks", "gathered")],
    )
    recshuf.shuffle(source, outputs[0], verify=True, **cut, **options)
    divide_small(monkeypatch, sum(path.stat().st_size for path in (tmp_path / "in").iterdir()) // 6)
    engine = {"engine": "threads", "temp_dir": f"{s3_bucket.url}/tmp", "piles": 8, "memory": "300MB"}
    recshuf.shuffle(source, outputs[1], **engine, **cut, **options)
    keeps_keys = kind == "webdataset"  # as a store does
    if not keeps_keys:
        to = {name: value for name, value in options.items() if name == "to"}
        of_inputs = {name: value for name, value in options.items() if name != "to"}
        recshuf.scatter(source, tmp_path / "store", seed=SEED, **of_inputs)
        recshuf.gather(tmp_path / "store", outputs[2], shards=SHARDS, **to)
    for name in ("one", "tasks", "gathered")[: 2 if keeps_keys else 3]:
        found = {key.partition("/")[2]: body for key, body in s3_bucket.read_all(f"{name}/").items()}
        assert {name: found.get(name) for name in expected} == expected
