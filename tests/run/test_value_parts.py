"""A split by values: all records of a value are in one part, whatever the format, the seed of the order and the other records."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from numpy.random import SeedSequence

import recshuf
from recshuf.errors import UsageError
from recshuf.output.manifest import manifest_path
from recshuf.records.keys import stream_of
from recshuf.records.value_keys import encrypt
from tests.run.test_split_files import COUNTS, SHARES, shuffle
from tests.support.processes.task_runs import divide_small
from tests.support.small_runs import read_files, spill

if TYPE_CHECKING:
    from pathlib import Path


def write_users(folder: Path, counts: tuple[int, ...] = COUNTS, kind: str = "jsonl") -> list[Path]:
    """Write records of 40 users, numbered in input order; one user in 50 is unknown."""
    folder.mkdir()
    paths: list[Path] = []
    first = 0
    for index, count in enumerate(counts):
        users = [None if number % 50 == 7 else number * 7 % 40 for number in range(first, first + count)]
        paths.append(path := folder / f"{index}.{'h5' if kind == 'hdf5' else kind}")
        if kind == "jsonl":
            # The same value as text and as a number.
            shown = [user if number % 2 else user and str(user) for number, user in enumerate(users)]
            path.write_text(
                "".join(
                    json.dumps({"user": user, "id": first + row}) + "\n" for row, user in enumerate(shown)
                )
            )
        elif kind == "csv":
            path.write_text(
                "user,id\n"
                + "".join(f"{'' if user is None else user},{first + row}\n" for row, user in enumerate(users))
            )
        elif kind == "parquet":
            pq.write_table(
                pa.table({"user": pa.array(users, pa.int16()), "id": range(first, first + count)}), path
            )
        else:
            with h5py.File(path, "w") as file:
                file["user"] = np.array([-1 if user is None else user for user in users], np.int32)
                file["id"] = np.arange(first, first + count)
        first += count
    return paths  # fmt: skip


def read_users(folder: Path) -> dict[str, str]:
    """Return the part of each user as text, having checked that it is one."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("shard-*")):
        if path.suffix == ".jsonl":
            users = [json.loads(line)["user"] for line in path.read_text().splitlines()]
        elif path.suffix == ".csv":
            users = [line.partition(",")[0] or None for line in path.read_text().splitlines()[1:]]
        elif path.suffix == ".parquet":
            users = pq.read_table(path)["user"].to_pylist()
        else:
            with h5py.File(path) as file:
                users = file["user"][:].tolist()
        for user in users:
            assert found.setdefault(str(user), path.parent.name) == path.parent.name
    return found


def test_a_value_is_in_one_part_whatever_the_format_the_seed_and_the_other_records(tmp_path: Path):
    """Texts alone tell: 7 as an integer, as text and as a field of CSV."""
    counts, found = (60, 40, 20, 50), dict[str, dict[str, str]]()
    for kind in ("jsonl", "csv", "parquet", "hdf5"):
        inputs = write_users(tmp_path / kind, counts, kind)
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
    shuffle(write_users(tmp_path / "fewer", (30, 20)), tmp_path / "fewer-out", split_by="user")
    assert read_users(tmp_path / "fewer-out").items() <= found["jsonl"].items()
    shuffle(tmp_path / "jsonl", tmp_path / "seed", split_by="user", split_seed=1)
    assert read_users(tmp_path / "seed") != found["jsonl"]
    moved = {"train": "0.65", "val": "0.25", "test": "0.1"}
    shuffle(tmp_path / "jsonl", tmp_path / "moved", split=moved, split_by="user")
    now = read_users(tmp_path / "moved")
    assert {(part, now[user]) for user, part in found["jsonl"].items() if part != now[user]} <= {
        ("train", "val")
    }


def test_parts_of_values_are_those_of_a_split_store_to_the_byte(tmp_path: Path):
    inputs = write_users(tmp_path / "in", kind="csv")
    done = shuffle(inputs, tmp_path / "out", split_by=["user", "id"], split_seed=3)
    made = recshuf.scatter(
        inputs, tmp_path / "stores", split=SHARES, seed=11, split_by="user,id", split_seed=3
    )
    for part, report in zip(SHARES, made.parts, strict=True):
        recshuf.gather(tmp_path / "stores" / part, f"{tmp_path}/{part}/", shards=1)
        assert read_files(tmp_path / "out" / part) == read_files(tmp_path / part)
        assert report.deviation == done.features["split"]["parts"][[*SHARES].index(part)]["deviation"]
        assert report.records == next(one.records for one in done.shards if one.name.startswith(part))
    assert [one.records for one in made.inputs] == [*COUNTS]
    assert made.deviation is None
    assert made.records == sum(COUNTS)


def test_parts_are_those_of_the_formula(tmp_path: Path):
    """The key of each text, and how many thresholds are at most as large; without a value, the hash of nothing."""
    inputs = write_users(tmp_path / "in", kind="parquet")
    shuffle(inputs, tmp_path / "out", split_by="user", split_seed=5)
    a, b = SeedSequence(5, spawn_key=stream_of("value")).generate_state(2, np.uint64).tolist()
    ends = [int(Fraction(share) * 2**64) for share in ("0.7", "0.9")]
    found = read_users(tmp_path / "out")
    for user, part in found.items():
        text, seed = (b"", a + 1) if user == "None" else (user.encode(), a)
        low, high = (
            np.array([word], np.uint64)
            for word in divmod(xxhash.xxh3_128_intdigest(text, seed % 2**64), 2**64)[::-1]
        )
        key = int(encrypt(low, high, b)[0][0])
        assert [*SHARES][sum(end <= key for end in ends)] == part
    assert len(found) == 41


@pytest.mark.parametrize(
    "options",
    [
        {"piles": 3, "spills": True},
        {"engine": "threads"},
        *(pytest.param(one, marks=pytest.mark.slow) for one in ({"piles": 3}, {"workers": 3})),
    ],
)
def test_no_plan_changes_parts_of_values(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    inputs = write_users(tmp_path / "in")
    given = {"split_by": "user", "shard_records": 20}
    shuffle(inputs, tmp_path / "plain", **given)
    if options.pop("spills", False):
        spill(monkeypatch, region_piles=3, pile_bytes=500)
    if "engine" in options:
        divide_small(monkeypatch)
        options |= {"piles": 64, "memory": "300MB"}
    shuffle(inputs, tmp_path / "other", **given, **options)
    assert read_files(tmp_path / "plain") == read_files(tmp_path / "other")


def test_verify_finds_a_value_in_two_parts(tmp_path: Path):
    inputs = write_users(tmp_path / "in")
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


def test_bad_records_and_streams_have_parts_by_their_values(tmp_path: Path):
    inputs = write_users(tmp_path / "in")
    shuffle(inputs, tmp_path / "whole", split_by="user", shards=3)
    with (tmp_path / "lines").open("wb") as file:
        file.writelines(path.read_bytes() for path in inputs)
    with (tmp_path / "lines").open("rb") as stdin:
        shuffle("-", tmp_path / "stream", split_by="user", format="jsonl", stdin=stdin)
    assert read_users(tmp_path / "stream") == read_users(tmp_path / "whole")
    inputs[0].write_text(inputs[0].read_text().replace('"id"', "id", 1))
    bad = f"quarantine:{tmp_path}/bad"
    schema = {"user": "string", "id": "int64"}
    done = shuffle(inputs, tmp_path / "good", split_by="user", to="parquet", schema=schema, on_bad_record=bad)
    assert (done.quarantined, done.records_written) == (1, sum(COUNTS) - 1)
    assert read_users(tmp_path / "good").items() <= read_users(tmp_path / "whole").items()


@pytest.mark.parametrize("scatters", [False, True])
def test_a_field_that_no_record_has_is_refused(tmp_path: Path, scatters: bool):
    inputs = write_users(tmp_path / "in")
    write: Any = recshuf.scatter if scatters else shuffle
    with pytest.raises(
        UsageError, match=r"^split_by: no record has a value of 'usr'; name a field that some have"
    ):
        write(inputs, tmp_path / "out", split=SHARES, split_by="usr")
    with pytest.raises(UsageError, match=r"^split_by: is used with split only; give that, too"):
        recshuf.scatter(inputs, tmp_path / "out", split_by="user")
    assert os.listdir(tmp_path) == ["in"]


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
    shuffle(tmp_path / "in.jsonl", tmp_path / "small", split={f"{part}": 0.1 for part in range(10)})
    with pytest.raises(
        UsageError, match=r"^no part of .*small has the 1,000 records that it takes to test an order"
    ):
        recshuf.check(tmp_path / "small", against=tmp_path / "in.jsonl")
