"""A split into files has exact parts: those of a split store, each in a folder of its own, under one manifest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import CheckError, ForeignFileError, OutputExistsError
from recshuf.output.manifest import manifest_path
from recshuf.records.keys import apportion
from tests.conftest import Run
from tests.support.effort import mostly_slow
from tests.support.numbered_files import FORMATS, make_inputs, read_ids
from tests.support.small_runs import Listener, forge_keys, read_files

COUNTS = (60, 40, 0, 50)
"""A file of HDF5 has at least one record."""
SHARES = {"train": 0.7, "val": 0.2, "test": "1/10"}
GIVEN: dict[str, Any] = {"split": SHARES, "seed": 11, "workers": 1}


def counts_of(kind: str) -> tuple[int, ...]:
    return (60, 40, 20, 50) if kind == "hdf5" else COUNTS


def shuffle(inputs: Any, output: Path, **options: Any) -> recshuf.ShuffleReport:
    return recshuf.shuffle(inputs, f"{output}/", **GIVEN | options)


def read_manifest(output: Path) -> dict[str, Any]:
    return json.loads(manifest_path(output).read_text())


@pytest.mark.parametrize("kind", mostly_slow(FORMATS, "hdf5", "jsonl"))
def test_parts_are_those_of_a_split_store_to_the_byte(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    """Equal keys are in the order of the inputs, too."""
    if kind == "jsonl":
        forge_keys(monkeypatch, 2, 0)
    counts = counts_of(kind)
    inputs, total = make_inputs(tmp_path / "in", kind, counts), sum(counts)
    done = shuffle(inputs, tmp_path / "out", shards=5, format=kind, verify=True)
    recshuf.scatter(inputs, tmp_path / "stores", split=SHARES, seed=11, format=kind)
    shards, ids = {"train": 3, "val": 1, "test": 1}, list[int]()
    sizes = dict(zip(SHARES, apportion(total, [0.7, 0.2, 0.1]), strict=True))
    for part, count in shards.items():
        recshuf.gather(tmp_path / "stores" / part, f"{tmp_path}/{part}/", shards=count)
        assert read_files(tmp_path / "out" / part) == read_files(tmp_path / part)
        found = [one for path in sorted((tmp_path / "out" / part).iterdir()) for one in read_ids(path)]
        assert len(found) == sizes[part]
        ids += found
    assert sorted(ids) == list(range(total))
    assert [(one.name, one.records) for one in done.shards if not one.name.startswith("train")] == [
        (next(f"{part}/{path.name}" for path in (tmp_path / "out" / part).iterdir()), sizes[part]) for part in ("val", "test")
    ]  # fmt: skip
    described = {
        "shares": {"train": "0.7", "val": "0.2", "test": "0.1"},
        "parts": [{"name": part, "records": size} for part, size in sizes.items()],
    }
    assert done.features["split"] == read_manifest(tmp_path / "out")["split"] == described
    assert recshuf.verify(inputs, tmp_path / "out", format=kind)


@pytest.mark.parametrize(
    "cut", [{}, {"shards": 3}, {"shards": 7}, {"shard_records": 25}, {"shard_bytes": "1kB"}]
)
def test_shards_are_cut_within_parts(tmp_path: Path, cut: dict[str, Any]):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    done = shuffle(inputs, tmp_path / "out", **cut)
    sizes: dict[str, list[int]] = {}
    for shard in done.shards:
        sizes.setdefault(shard.name.partition("/")[0], []).append(shard.records)
    assert {part: sum(counts) for part, counts in sizes.items()} == {"train": 105, "val": 30, "test": 15}
    if "shard_records" in cut:
        assert sizes == {"train": [25, 25, 25, 25, 5], "val": [25, 5], "test": [15]}
        return
    assert all(max(counts) - min(counts) <= 1 for counts in sizes.values())
    wanted = {None: [1, 1, 1], 3: [1, 1, 1], 7: [4, 2, 1]}
    if "shard_bytes" not in cut:
        assert [len(counts) for counts in sizes.values()] == wanted[cut.get("shards")]
    else:
        assert [len(counts) > 1 for counts in sizes.values()] == [True, False, False]
    assert recshuf.plan(inputs, f"{tmp_path}/new/", **GIVEN | cut).shard_count == len(done.shards)


def test_an_empty_part_has_an_empty_shard_and_is_told(tmp_path: Path):
    (tmp_path / "few.csv").write_text("a\n1\n2\n3\n")
    heard = Listener()
    given = GIVEN | {"split": {"all": 0.98, "no": 0.01, "none": 0.01}}
    done = recshuf.shuffle(tmp_path / "few.csv", tmp_path / "out", progress=heard, shards=6, **given)
    assert [one.records for one in done.shards] == [1, 1, 1, 0, 0, 0]
    assert (tmp_path / "out" / "none" / "shard-00000.csv").read_text() == "a\n"
    assert heard.warnings == ["3 of 6 shards are empty, as there are 3 records: all of no, none"]
    assert recshuf.verify(tmp_path / "few.csv", tmp_path / "out")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_only_inputs_whose_files_do_not_tell_are_counted(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    inputs, heard = make_inputs(tmp_path / "in", kind, COUNTS), Listener()
    shuffle(inputs, tmp_path / "whole")
    monkeypatch.setattr("recshuf.formats.lines.source._MAX_SAMPLE_BYTES", 200)  # larger files are estimated
    monkeypatch.setattr("recshuf.formats.lines.source._MIN_SAMPLE_BYTES", 200)
    shuffle(inputs, tmp_path / "out", progress=heard)
    assert heard.passes == ["count"] * (kind != "parquet") + ["scatter", "gather"]
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")


def test_parts_of_a_saved_data_set_are_saved_data_sets(tmp_path: Path):
    """As `load_from_disk` opens them, alone and together."""
    (tmp_path / "in").mkdir()
    table = pa.table({"id": range(100)})
    with pa.ipc.new_stream(tmp_path / "in" / "data.arrow", table.schema) as file:
        file.write_table(table)
    (tmp_path / "in" / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    shuffle(tmp_path / "in", tmp_path / "out", shards=4, verify=True)
    assert json.loads((tmp_path / "out" / "dataset_dict.json").read_text()) == {"splits": [*SHARES]}
    for part in SHARES:
        listed = json.loads((tmp_path / "out" / part / "state.json").read_text())["_data_files"]
        shards = [path.name for path in sorted((tmp_path / "out" / part).glob("*.arrow"))]
        assert [one["filename"] for one in listed] == shards
    shuffle(tmp_path / "in", tmp_path / "out", split="a=0.5,b=0.5", overwrite=True)
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "b", "dataset_dict.json"]


# Outputs that exist, and runs that died


def test_a_split_output_is_replaced_as_a_whole_and_only_that(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    out = tmp_path / "out"
    shuffle(inputs, out, shards=5)
    with pytest.raises(OutputExistsError, match="is not empty; give overwrite=True"):
        shuffle(inputs, out)
    (out / "val" / "mine").touch()
    with pytest.raises(ForeignFileError, match="holds 'val/mine', which is not from an earlier run"):
        shuffle(inputs, out, overwrite=True)
    (out / "val" / "mine").unlink()
    (out / "val").chmod(0o750)
    shuffle(inputs, out, split={"val": 0.5, "more": 0.5}, overwrite=True)
    assert sorted(os.listdir(out)) == ["more", "val"]
    assert (out / "val").stat().st_mode & 0o777 == 0o750
    recshuf.shuffle(inputs, f"{out}/", shards=2, overwrite=True)
    assert sorted(os.listdir(out)) == ["shard-00000.txt", "shard-00001.txt"]
    shuffle(inputs, out, overwrite=True)
    assert sorted(os.listdir(out)) == ["test", "train", "val"]
    assert sorted(os.listdir(tmp_path)) == [".out.recshuf.json", "in", "out"]


# What verify finds


def swap(first: Path, second: Path) -> None:
    moved = first.rename(first.with_name("moved"))
    second.rename(first)
    moved.rename(second)


def test_a_record_in_another_part_than_planned_is_found_by_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from recshuf.records.keys import Split

    whole = Split.find_parts

    def find_parts(split: Split, ranges: Any) -> Any:
        parts = whole(split, ranges)
        parts[:1] = (parts[:1] + 1) % 3
        return parts

    monkeypatch.setattr(Split, "find_parts", find_parts)
    with pytest.raises(CheckError, match=r"records in the parts of the split, .* planned; run again"):
        shuffle(make_inputs(tmp_path / "in", "text", COUNTS), tmp_path / "out")
    assert os.listdir(tmp_path) == ["in"]


# Refusals, and the command


def test_the_command_plans_and_tells_sizes(tmp_path: Path, call: Run):
    (path,) = make_inputs(tmp_path, "csv", [150])
    given = [path, "-o", f"{tmp_path}/out/", "--split", "train=0.7,val=0.2,test=0.1", "--seed", "11"]
    planned = call(*given, "--plan")
    assert "parts         train 0.7, val 0.2, test 0.1" in planned.stdout.decode()
    assert "shards        3" in planned.stdout.decode()
    done = call(*given, "--report", tmp_path / "report.json")
    assert ", 105 in train, 30 in val, 15 in test, seed 11" in done.stderr.decode()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["split"]["parts"] == [
        {"name": "train", "records": 105},
        {"name": "val", "records": 30},
        {"name": "test", "records": 15},
    ]
    assert report["plan"]["split"] == {"shares": report["split"]["shares"]}
    assert call("verify", path, f"{tmp_path}/out/").returncode == 0
