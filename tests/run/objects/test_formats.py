"""Formats that are no lines and no Parquet: from a bucket and into it, by tasks and by way of a store, as from files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import recshuf
from tests.support.effort import mostly_slow
from tests.support.formats.sample_folders import KINDS, make_folder
from tests.support.objects.object_outputs import SEED, SHARDS
from tests.support.output_trees import list_shards
from tests.support.processes.task_runs import divide_small

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.objects.object_server import Bucket


@pytest.mark.parametrize("kind", mostly_slow(KINDS, "webdataset"))
def test_a_bucket_gets_the_bytes_of_files(
    tmp_path: Path, s3_bucket: Bucket, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = make_folder(tmp_path / "in", kind)
    for path in (tmp_path / "in").iterdir():
        s3_bucket.put(f"in/{path.name}", path.read_bytes())
    cut = {"seed": SEED, "shards": SHARDS, "workers": 1}
    recshuf.shuffle(tmp_path / "in", f"{tmp_path}/out/", **cut, **options)
    expected = {path.name: path.read_bytes() for path in list_shards(tmp_path / "out")}
    assert len(expected) == SHARDS
    recshuf.shuffle(f"{s3_bucket.url}/in/", f"{s3_bucket.url}/one/", verify=True, **cut, **options)
    divide_small(monkeypatch)
    engine = {"engine": "threads", "temp_dir": f"{s3_bucket.url}/tmp", "piles": 64, "memory": "300MB"}
    recshuf.shuffle(f"{s3_bucket.url}/in/", f"{s3_bucket.url}/tasks/", **engine, **cut, **options)
    for name in ("one", "tasks"):
        found = s3_bucket.read_all(f"{name}/")
        assert {
            key.partition("/")[2]: body for key, body in found.items() if key.endswith(tuple(expected))
        } == expected
    if kind != "webdataset":  # a store keeps the keys
        of_output = {"to": options["to"]} if "to" in options else {}
        of_inputs = {name: value for name, value in options.items() if name != "to"}
        recshuf.scatter(f"{s3_bucket.url}/in/", tmp_path / "store", seed=SEED, **of_inputs)
        recshuf.gather(tmp_path / "store", f"{s3_bucket.url}/gathered/", shards=SHARDS, **of_output)
        found = s3_bucket.read_all("gathered/")
        assert {
            key.partition("/")[2]: body for key, body in found.items() if key.endswith(tuple(expected))
        } == expected
