"""A split into files: exact parts, those of a split store, each in a folder of its own; or parts that hold all records of a value."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import ForeignFileError, OutputExistsError, UsageError
from recshuf.output.manifest import manifest_path
from recshuf.records.keys import apportion
from tests.conftest import Run
from tests.support.formats.conversion_data import read_columns, write_users
from tests.support.numbered_files import make_inputs, read_ids
from tests.support.processes.task_runs import divide_small
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


@pytest.mark.parametrize("kind", ["hdf5", "jsonl", "values"])
def test_parts_are_those_of_a_split_store_to_the_byte(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    """Equal keys are in the order of the inputs, too; or parts are those of values."""
    if kind == "values":
        inputs = make_users(tmp_path / "in", kind="csv")
        by: dict[str, Any] = {"split_by": ["user", "id"], "split_seed": 3}
        done = shuffle(inputs, tmp_path / "out", **by)
        made = recshuf.scatter(inputs, tmp_path / "stores", split=SHARES, seed=11, **by)
        for part, report, figures in zip(SHARES, made.parts, done.features["split"]["parts"], strict=True):
            recshuf.gather(tmp_path / "stores" / part, f"{tmp_path}/{part}/", shards=1)
            assert read_files(tmp_path / "out" / part) == read_files(tmp_path / part)
            assert (report.records, report.deviation) == (figures["records"], figures["deviation"])
        assert ([one.records for one in made.inputs], made.records) == ([*COUNTS], sum(COUNTS))
        assert (made.deviation, "deviation" in made.to_json()) == (None, False)
        return
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


# A split by values: all records of a value are in one part, whatever the format, the seed of the order and the other records


def make_users(folder: Path, counts: tuple[int, ...] = COUNTS, kind: str = "jsonl") -> list[Path]:
    """Write records of 40 users; one user in 50 is unknown."""
    left = iter([None if number % 50 == 7 else number * 7 % 40 for number in range(sum(counts))])
    inputs = [[*islice(left, count)] for count in counts]
    if kind == "jsonl":  # the same value as text and as a number
        inputs = [
            [user if row % 2 else user and str(user) for row, user in enumerate(users)] for users in inputs
        ]
    elif kind == "hdf5":
        inputs = [[-1 if user is None else user for user in users] for users in inputs]
    return write_users(folder, kind, inputs)


def read_users(folder: Path) -> dict[str, str]:
    """Return the part of each user as text, having checked that it is one."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("shard-*")):
        for user in read_columns(path).get("user", []):
            assert found.setdefault(str(user), path.parent.name) == path.parent.name
    return found


def test_a_value_is_in_one_part_whatever_the_format_the_seed_and_the_other_records(tmp_path: Path):
    """Texts alone tell: 7 as an integer, as text and as a field of CSV."""
    counts, found = (60, 40, 20, 50), dict[str, dict[str, str]]()
    for kind in ("jsonl", "csv", "parquet", "hdf5"):
        inputs = make_users(tmp_path / kind, counts, kind)
        done = shuffle(
            inputs, tmp_path / f"{kind}-out", split_by="user", seed=len(found), shards=5, verify=True
        )
        found[kind] = read_users(tmp_path / f"{kind}-out")
        split: Any = done.features["split"]
        assert (split["by"], split["seed"], sum(part["records"] for part in split["parts"])) == (
            ["user"],
            "0",
            170,
        )
        assert recshuf.verify(inputs, tmp_path / f"{kind}-out")
        if kind != "hdf5":  # it has no nulls
            assert found[kind] == found["jsonl"]
    known = {user: part for user, part in found["jsonl"].items() if user != "None"}
    assert known.items() <= found["hdf5"].items()
    assert {*found["csv"].values()} == {*SHARES}
    shuffle(make_users(tmp_path / "fewer", (30, 20)), tmp_path / "fewer-out", split_by="user")
    assert read_users(tmp_path / "fewer-out").items() <= found["jsonl"].items()
    shuffle(tmp_path / "jsonl", tmp_path / "seed", split_by="user", split_seed=1)
    assert read_users(tmp_path / "seed") != found["jsonl"]
    assert recshuf.verify(tmp_path / "jsonl", tmp_path / "seed")
    moved = {"train": "0.65", "val": "0.25", "test": "0.1"}
    shuffle(tmp_path / "jsonl", tmp_path / "moved", split=moved, split_by="user")
    now = read_users(tmp_path / "moved")
    assert {(part, now[user]) for user, part in found["jsonl"].items() if part != now[user]} <= {
        ("train", "val")
    }


def test_tasks_write_parts_of_values_as_one_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    inputs, given = make_users(tmp_path / "in"), {"split_by": "user", "shard_records": 20}
    shuffle(inputs, tmp_path / "plain", **given)
    divide_small(monkeypatch)
    shuffle(inputs, tmp_path / "tasks", **given, piles=64, engine="threads", memory="300MB")
    assert read_files(tmp_path / "plain") == read_files(tmp_path / "tasks")


def test_verify_finds_a_value_in_two_parts(tmp_path: Path):
    inputs = make_users(tmp_path / "in")
    shuffle(inputs, tmp_path / "out", split_by="user")
    train, val = (tmp_path / "out" / part / "shard-00000.jsonl" for part in ("train", "val"))
    line, rest = train.read_text().split("\n", 1)
    train.write_text(rest)
    val.write_text(val.read_text() + line + "\n")
    found = recshuf.verify(inputs, tmp_path / "out")
    assert (found.missing, found.extra, found.extra_places[0].name) == (1, 1, str(val))
    assert "1 records are in another part than their values of 'user' tell" in found.differences
    manifest_path(tmp_path / "out").unlink()
    assert not recshuf.verify(inputs, tmp_path / "out", split=SHARES, split_by="user")
    assert recshuf.verify(inputs, tmp_path / "out", split=SHARES)
    val.write_text(val.read_text().replace(line, line.replace('"pad"', '"pod"')))
    found = recshuf.verify(inputs, tmp_path / "out", split=SHARES, split_by="user")
    assert (found.missing, found.extra, found.differences) == (1, 1, ())


def test_verify_counts_records_that_parts_have_exchanged(tmp_path: Path):
    """Many of them are in one class of hashes."""
    (tmp_path / "in.jsonl").write_text("".join(f'{{"user": {number}}}\n' for number in range(20_000)))
    recshuf.shuffle(
        tmp_path / "in.jsonl", tmp_path / "out/", split={"a": 0.5, "b": 0.5}, split_by="user", seed=1
    )
    first, second = (tmp_path / "out" / part / "shard-00000.jsonl" for part in "ab")
    lines, others = (path.read_text().splitlines(keepends=True) for path in (first, second))
    first.write_text("".join(others[:4000] + lines[4000:]))
    second.write_text("".join(lines[:4000] + others[4000:]))
    found = recshuf.verify(tmp_path / "in.jsonl", tmp_path / "out")
    assert (found.missing, found.extra) == (8000, 8000)


def test_bad_records_and_streams_have_parts_by_their_values(tmp_path: Path):
    inputs = make_users(tmp_path / "in")
    shuffle(inputs, tmp_path / "whole", split_by="user", shards=3)
    with (tmp_path / "lines").open("wb") as file:
        file.writelines(path.read_bytes() for path in inputs)
    with (tmp_path / "lines").open("rb") as stdin:
        shuffle("-", tmp_path / "stream", split_by="user", format="jsonl", stdin=stdin)
    assert read_users(tmp_path / "stream") == read_users(tmp_path / "whole")
    inputs[0].write_text(inputs[0].read_text().replace('"id"', "id", 1))
    bad = f"quarantine:{tmp_path}/bad"
    schema = {"id": "int64", "user": "string", "pad": "string"}
    done = shuffle(inputs, tmp_path / "good", split_by="user", to="parquet", schema=schema, on_bad_record=bad)
    assert (done.quarantined, done.records_written) == (1, sum(COUNTS) - 1)
    assert read_users(tmp_path / "good").items() <= read_users(tmp_path / "whole").items()


def test_check_tests_the_order_of_each_part_that_is_large_enough(tmp_path: Path):
    """All parts as one are in no random order, as users are in some of them alone."""
    (tmp_path / "in.jsonl").write_text(
        "".join(f'{{"id": {row}, "user": {row % 300}}}\n' for row in range(6000))
    )
    shuffle(tmp_path / "in.jsonl", tmp_path / "out", split="a=0.5,b=0.4,c=0.1", split_by="user", shards=5)
    found = recshuf.check(tmp_path / "out", against=tmp_path / "in.jsonl")
    assert found.is_uniform
    done = recshuf.verify(tmp_path / "in.jsonl", tmp_path / "out")
    assert done
    assert found.tested == sum(one.records for one in done.shards if "/c/" not in one.name) < 6000
    assert (found.missing, found.extra) == (0, 0)
    shuffle(tmp_path / "in.jsonl", tmp_path / "exact", split="a=1/6,b=5/6")
    assert recshuf.check(tmp_path / "exact", against=tmp_path / "in.jsonl").tested == 6000
    shuffle(tmp_path / "in.jsonl", tmp_path / "small", split={f"{part}": 0.1 for part in range(10)})
    with pytest.raises(
        UsageError, match=r"^no part of .*small has the 1,000 records that it takes to test an order"
    ):
        recshuf.check(tmp_path / "small", against=tmp_path / "in.jsonl")
