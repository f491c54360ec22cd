"""Outputs in place of inputs and among them, room on disk and in memory; a run that cannot write leaves nothing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import DiskFullError, OutputError, UsageError
from recshuf.output.manifest import manifest_path
from recshuf.system import files as page_cache
from recshuf.system.memory import available_bytes
from recshuf.system.paths import free_bytes
from recshuf.system.units import format_size
from tests.support.numbered_files import FORMATS, SUFFIXES, make_inputs, order_of, read_ids
from tests.support.output_trees import list_shards, list_tree
from tests.support.small_runs import put_in_place, read_files


def test_an_output_in_place_of_the_input(tmp_path: Path):
    for name in FORMATS:
        (path,) = make_inputs(tmp_path / name, name, [800])
        with pytest.raises(OutputError, match="overwrite=True"):
            recshuf.shuffle(path, path, seed=1)
        assert read_ids(path) == list(range(800))
        recshuf.shuffle(path, path, seed=1, overwrite=True)
        assert read_ids(path) == order_of([800], 1)
        assert os.listdir(tmp_path / name) == [path.name]


@pytest.mark.parametrize("name", ["text", "hdf5"])
def test_the_shards_of_a_run_can_be_shuffled_in_place(tmp_path: Path, name: str):
    inputs = make_inputs(tmp_path / "in", name, [300, 300])
    recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=1)
    first = [number for shard in list_shards(tmp_path / "out") for number in read_ids(shard)]
    recshuf.shuffle(tmp_path / "out", f"{tmp_path}/out/", seed=2, overwrite=True)
    second = [number for shard in list_shards(tmp_path / "out") for number in read_ids(shard)]
    assert second == [first[place] for place in order_of([300, 300], 2)]
    assert len(os.listdir(tmp_path / "out")) == 2


@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_nothing_is_left_when_writing_fails(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    """The folder of the output is full: simulated by the rename that puts it in place."""
    inputs = make_inputs(tmp_path / "in", name, [100])
    before = list_tree(tmp_path)

    def refuse(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OutputError, match="no space left"):
        recshuf.shuffle(inputs, f"{tmp_path}/out{SUFFIXES[name]}", seed=0)
    assert list_tree(tmp_path) == before


def test_an_output_inside_a_folder_of_inputs_is_not_read_back(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1\n2\n3\n")
    for _ in range(3):
        report = recshuf.shuffle(tmp_path / "in", tmp_path / "in" / "out.txt", overwrite=True)
        assert report.records == 3


# Room on disk: numbers of the system are replaced, as nobody can have a disk of a few bytes.


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Return the number of bytes that are free on every disk; None if nobody knows."""
    free: list[int | None] = [None]
    put_in_place(monkeypatch, free_bytes, lambda _: free[0])
    return free


@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_an_output_that_does_not_fit_is_refused(tmp_path: Path, name: str, free: list[int | None]):
    inputs = make_inputs(tmp_path / "in", name, [500])
    needed = inputs[0].stat().st_size
    free[0] = needed - 1
    message = rf"{re.escape(str(tmp_path))}\S*: .*{format_size(needed)}.*{format_size(needed - 1)} are free"
    with pytest.raises(DiskFullError, match=message):
        recshuf.shuffle(inputs, f"{tmp_path}/out/")
    assert os.listdir(tmp_path) == ["in"]
    recshuf.shuffle(inputs, f"{tmp_path}/out/", no_space_check=True)
    free[0] = needed
    recshuf.shuffle(inputs, f"{tmp_path}/out/", overwrite=True)
    free[0] = 1
    recshuf.shuffle(inputs, tmp_path / "out.csv")  # nobody knows the size


def test_a_gather_needs_room_for_its_output_only(tmp_path: Path, free: list[int | None]):
    (tmp_path / "in.txt").write_bytes((b"x" * 999 + b"\n") * 20_000)
    recshuf.scatter(tmp_path / "in.txt", tmp_path / "store", memory="16MB")
    free[0] = 20_000_000
    recshuf.gather(tmp_path / "store", tmp_path / "out.txt", memory="16MB")
    free[0] -= 1
    with pytest.raises(DiskFullError, match=r": the output: about 20 MB needed, and .* are free"):
        recshuf.gather(tmp_path / "store", tmp_path / "more.txt", memory="16MB")


def test_spilled_records_count_where_they_go(tmp_path: Path, free: list[int | None]):
    """80 MB at a limit of 64 MB: on one file system both count, on two each for itself."""
    (tmp_path / "in.txt").write_bytes((b"x" * 99 + b"\n") * 800_000)
    plan = recshuf.plan(tmp_path / "in.txt", tmp_path / "out.txt", memory="64MB")
    assert plan.spilled_bytes > 0
    free[0] = plan.peak_disk_bytes - 1
    with pytest.raises(DiskFullError, match="spilled records and the output: about"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt", memory="64MB")
    free[0] = plan.spilled_bytes - 1
    with pytest.raises(DiskFullError, match="spilled records: about"):
        recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt.zst", memory="64MB")
    assert os.listdir(tmp_path) == ["in.txt"]


# The page cache


@pytest.mark.parametrize(
    ("name", "shards", "available"),
    [("text", 1, 1000), ("parquet", 3, 1000), ("hdf5", 1, 1000), ("jsonl", 3, 10**9), ("csv", 1, 10**9)],
)
def test_files_are_given_up_in_memory_if_it_cannot_hold_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, shards: int, available: int
):
    monkeypatch.setattr(page_cache, "_BEHIND_BYTES", 1000)
    monkeypatch.setattr(page_cache, "_KEPT_BYTES", 3000)
    put_in_place(monkeypatch, available_bytes, lambda: available)
    forgotten = set()
    monkeypatch.setattr(
        os, "posix_fadvise", lambda file, *_: forgotten.add(Path(f"/proc/self/fd/{file}").readlink())
    )
    inputs = make_inputs(tmp_path / "in", name, [3000, 40])
    recshuf.shuffle(inputs, tmp_path / "out/", seed=0, shards=shards, piles=4, memory="64MB")
    assert forgotten.issuperset(inputs) == (available == 1000)
    assert len(forgotten - set(inputs)) == (shards if available == 1000 else 0)
    monkeypatch.undo()
    recshuf.shuffle(inputs, tmp_path / "expected/", seed=0, shards=shards)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "expected")


# What is told


def test_a_drawn_seed_is_reported_and_gives_the_same_again(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "text", [100])
    seed = recshuf.shuffle(path, tmp_path / "a.txt").seed
    recshuf.shuffle(path, tmp_path / "b.txt", seed=seed)
    assert (tmp_path / "a.txt").read_bytes() == (tmp_path / "b.txt").read_bytes()
    assert recshuf.shuffle(path, tmp_path / "c.txt").seed != seed


def test_the_manifest_tells_types_that_people_know(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "hdf5", [5])
    recshuf.shuffle(path, f"{tmp_path}/out/")
    schema = json.loads(manifest_path(tmp_path / "out").read_text())["schema"]
    assert [field["type"].count("float") for field in schema] == [0, 1]


@pytest.mark.parametrize(
    ("cut", "remedy"),
    [
        ({"shard_bytes": 1}, "give more, with a unit, such as 512MB"),
        ({"shard_records": 1}, "give more"),
    ],
    ids=str,
)
def test_millions_of_shards_are_refused(tmp_path: Path, cut: dict[str, Any], remedy: str) -> None:
    (tmp_path / "in.txt").write_bytes(b"\n" * 1_000_002)
    (name,) = cut
    with pytest.raises(
        UsageError, match=rf"^{name} 1: makes 1,00\d,\d\d\d shards, and 1,000,000 .*; {remedy}$"
    ):
        recshuf.shuffle(tmp_path / "in.txt", f"{tmp_path}/out/", **cut)
    assert os.listdir(tmp_path) == ["in.txt"]


@pytest.mark.parametrize("cut", [{}, {"shards": 1}, {"shard_records": 10}, {"shard_bytes": 10}])
def test_an_output_without_records_is_one_empty_shard(tmp_path: Path, cut: dict[str, Any]) -> None:
    (tmp_path / "in.txt").touch()
    recshuf.shuffle(tmp_path / "in.txt", f"{tmp_path}/out/", **cut)
    assert read_files(tmp_path / "out") == {"shard-00000.txt": b""}
