"""A split into files has exact parts: those of a split store, each in a folder of its own, under one manifest."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import (
    AlreadyCompleteError,
    CheckError,
    ForeignFileError,
    OutputExistsError,
    UsageError,
)
from recshuf.output.manifest import manifest_path
from recshuf.records.split import apportion
from tests.support.effort import mostly_slow
from tests.support.numbered_files import FORMATS, make_inputs, read_ids
from tests.support.processes.killed_runs import Killed, die, kill_after, read_journal, strike_renames
from tests.support.small_runs import Listener, forge_keys, read_files, spill

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Run

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
def test_parts_are_those_of_a_split_store_to_the_byte(tmp_path: Path, kind: str):
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
    "options", [
        {"piles": 4000, "workers": 3},
        {"piles": 3, "spills": True},
        *(pytest.param(one, marks=pytest.mark.slow) for one in ({"piles": 1}, {"piles": 3}, {"memory": "64MB"})),
    ],
)  # fmt: skip
def test_the_plan_changes_no_byte(tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    shuffle(inputs, tmp_path / "plain", shard_records=20)
    if options.pop("spills", False):
        spill(monkeypatch, region_piles=3, pile_bytes=500)  # piles are larger, and split
    shuffle(inputs, tmp_path / "other", shard_records=20, **options)
    assert read_files(tmp_path / "plain") == read_files(tmp_path / "other")
    assert len(read_files(tmp_path / "plain")) == 6 + 2 + 1


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


def test_equal_keys_stay_in_input_order_in_their_part(tmp_path: Path):
    """Of all records, the second keys and the keys are of four values."""
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    with pytest.MonkeyPatch.context() as patch:
        forge_keys(patch, 2, 0)
        shuffle(inputs, tmp_path / "out", piles=5)
        recshuf.scatter(inputs, tmp_path / "stores", split=SHARES, seed=11)
        for part in SHARES:
            recshuf.gather(tmp_path / "stores" / part, f"{tmp_path}/{part}/")
            found = [one for path in sorted((tmp_path / "out" / part).iterdir()) for one in read_ids(path)]
            gathered = [one for path in sorted((tmp_path / part).iterdir()) for one in read_ids(path)]
            assert found == gathered


def test_an_empty_part_has_an_empty_shard_and_is_told(tmp_path: Path):
    (tmp_path / "few.csv").write_text("a\n1\n2\n3\n")
    heard = Listener()
    done = shuffle(
        tmp_path / "few.csv", tmp_path / "out", split={"all": 0.98, "no": 0.01, "none": 0.01}, progress=heard
    )
    assert [one.records for one in done.shards] == [3, 0, 0]
    assert (tmp_path / "out" / "none" / "shard-00000.csv").read_text() == "a\n"
    assert heard.warnings == ["2 of 3 shards are empty, as there are 3 records: all of no, none"]
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


def test_files_beside_shards_lie_in_the_folder_of_their_part(tmp_path: Path):
    tokens = pa.array([[number, 1] for number in range(100)], pa.list_(pa.uint16()))
    pq.write_table(pa.table({"tokens": tokens}), tmp_path / "in.parquet")
    given = {"to": "megatron", "shards": 4}
    shuffle(tmp_path / "in.parquet", tmp_path / "whole", **given)
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, 2)
        with pytest.raises(Killed):
            shuffle(tmp_path / "in.parquet", tmp_path / "out", **given)
    shuffle(tmp_path / "in.parquet", tmp_path / "out", resume=True, verify=True, **given)
    found = read_files(tmp_path / "out")
    assert found == read_files(tmp_path / "whole")
    assert sorted(found) == sorted(
        f"{name}.{end}"
        for name in ("train/shard-00000", "train/shard-00001", "val/shard-00000", "test/shard-00000")
        for end in ("bin", "idx")
    )
    shuffle(tmp_path / "in.parquet", tmp_path / "out", overwrite=True, **given)
    assert recshuf.verify(tmp_path / "in.parquet", tmp_path / "out")


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


@pytest.mark.parametrize(
    "parts", [pytest.param(parts, marks=() if parts in (3, 6) else pytest.mark.slow) for parts in range(1, 9)]
)
def test_a_run_that_died_goes_on_from_what_is_finished(
    tmp_path: Path, parts: int, monkeypatch: pytest.MonkeyPatch
):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    given = {"shards": 5, "piles": 4}
    shuffle(inputs, tmp_path / "whole", **given)
    spill(monkeypatch)
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, parts)
        with pytest.raises(Killed):
            shuffle(inputs, tmp_path / "out", **given)
    heard = Listener()
    if parts > 3:
        name = next(entry["name"] for entry in read_journal(tmp_path / "out") if "shard" in entry)
        shard = tmp_path / ".out.recshuf" / "shards" / name
        shard.write_bytes(shard.read_bytes()[::-1])
    shuffle(inputs, tmp_path / "out", resume=True, progress=heard, **given)
    assert "count" not in heard.passes
    assert len(heard.warnings) == (parts > 3)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    assert read_manifest(tmp_path / "out") == read_manifest(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == [".out.recshuf.json", ".whole.recshuf.json", "in", "out", "whole"]


@pytest.mark.parametrize(
    ("exchanges", "late"), mostly_slow(product([False, True], repeat=2), (False, True), (True, False))
)
def test_a_reader_sees_the_old_parts_or_the_new_ones(tmp_path: Path, late: bool, exchanges: bool):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    shuffle(inputs, tmp_path / "old", seed=1)
    shuffle(inputs, tmp_path / "new", shards=4)
    before, after = read_files(tmp_path / "old"), read_files(tmp_path / "new")
    steps = 3 - exchanges
    for step in range(steps):
        out = tmp_path / f"out{step}"
        shuffle(inputs, out, seed=1)
        with pytest.MonkeyPatch.context() as patch:
            strike_renames(patch, step, die, late=late, exchanges=exchanges)
            with pytest.raises(Killed):
                shuffle(inputs, out, shards=4, overwrite=True)
        assert not out.exists() or read_files(out) in (before, after)
        with suppress(AlreadyCompleteError):
            shuffle(inputs, out, shards=4, overwrite=True, resume=True)
        assert read_files(out) == after
        assert read_manifest(out)["shards"] == read_manifest(tmp_path / "new")["shards"]


# What verify finds


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda out: (out / "val" / "shard-00000.txt").unlink(), "val/shard-00000.txt: is missing"),
        (lambda out: (out / "val" / "more.txt").write_bytes(b""), "val/more.txt: is not named in the manifest"),
        (lambda out: swap(out / "val" / "shard-00000.txt", out / "test" / "shard-00000.txt"), "has .* bytes, and .* in the manifest"),
        (lambda out: swap(out / "train" / "shard-00000.txt", out / "train" / "shard-00001.txt"), "train/shard-00000.txt: has"),
    ],
)  # fmt: skip
def test_verify_finds_changed_parts(tmp_path: Path, change: Callable[[Path], object], told: str):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    shuffle(inputs, tmp_path / "out", shards=5)
    change(tmp_path / "out")
    found = recshuf.verify(inputs, tmp_path / "out")
    assert not found
    assert any(told in one or told.startswith("has") for one in found.differences)


def swap(first: Path, second: Path) -> None:
    moved = first.rename(first.with_name("moved"))
    second.rename(first)
    moved.rename(second)


def test_a_record_in_another_part_than_planned_is_found_by_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from recshuf.records.split import Split

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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"head_count": 5}, "head_count: not with split"),
        ({"shards": 2}, "shards 2: fewer than the 3 parts of split; give at least 3"),
        ({"on_bad_record": "quarantine:bad"}, "on_bad_record: not with split alone, .*; give split_by, too, or leave"),
        ({"split": "a=0.5"}, "give 2 to 255"),
        ({"split": "a=0.5,b=0.6"}, "the shares add up to 1.1"),
        ({"split": {"a/b": 0.5, "c": 0.5}}, "name 'a/b'"),
        ({"group_by": "id"}, "group_by and split: give one of them in a run"),
    ],
)  # fmt: skip
def test_what_a_split_excludes_is_refused_and_nothing_is_left(
    tmp_path: Path, options: dict[str, Any], told: str
):
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    with pytest.raises(UsageError, match=told) as caught:
        shuffle(inputs, tmp_path / "out", **options)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["in"]


def test_streams_are_refused_and_a_file_is_no_output(tmp_path: Path):
    (tmp_path / "in.txt").write_text("a\nb\n")
    os.mkfifo(tmp_path / "pipe")
    with (
        (tmp_path / "in.txt").open("rb") as stdin,
        pytest.raises(UsageError, match="a stream is read once; give files, or split_by"),
    ):
        recshuf.shuffle("-", f"{tmp_path}/out/", split=SHARES, stdin=stdin)
    with pytest.raises(UsageError, match="a stream is read once; give files"):
        recshuf.shuffle(tmp_path / "pipe", f"{tmp_path}/out/", split=SHARES, format="text")
    for output in (tmp_path / "out.txt", "-"):
        with pytest.raises(
            UsageError, match=r"^split: the output is a folder of folders; give output with a / at its end"
        ):
            recshuf.shuffle(tmp_path / "in.txt", output, split=SHARES)
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "pipe"]
    recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out", split={"a": 0.5, "b": 0.5})
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "b"]  # a path of Python has no slash at its end


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
