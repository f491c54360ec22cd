"""Of equal records the first in the order of the inputs is kept, however a run is planned; and every record is counted."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import CheckError, RecshufWarning
from recshuf.records import value_keys
from recshuf.records.duplicates import Duplicates
from tests.support.formats.conversion_data import read_columns
from tests.support.numbered_files import make_inputs
from tests.support.processes.killed_runs import read_journal, run, run_and_die
from tests.support.processes.task_runs import die_after, divide_small, shuffle
from tests.support.small_runs import change_plans, put_in_place, read_files

SEED = 7
PLANS: list[dict[str, Any]] = [
    {},
    {"pile_count": 1},
    {"pile_count": 3, "resident_bytes": 0, "block_bytes": 40, "pile_bytes": 100},
    {"pile_count": 900, "block_bytes": 400},
]


def read_all(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


# Lines


def test_bytes_of_lines_count_and_an_unended_line_equals_one_that_ends(tmp_path: Path):
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    paths[0].write_bytes(b"x\nx\r\n x\n{}\nX\n")
    paths[1].write_bytes(b"{ }\n{}\nx\r\n\nx")
    report = recshuf.shuffle(paths, f"{tmp_path}/out/", dedup="record", seed=SEED, shards=2)
    kept = [b"x\n", b"x\r\n", b" x\n", b"{}\n", b"X\n", b"{ }\n", b"\n"]
    assert sorted(read_all(tmp_path / "out").splitlines(keepends=True)) == sorted(kept)
    passes = [("scatter", 10), ("gather", 7), ("commit", 7)]
    assert [(done.name, done.records) for done in report.passes] == passes
    figures = {"fields": "record", "kept": 7, "dropped": 3, "without_value": 0}
    manifest = json.loads((tmp_path / ".out.recshuf.json").read_text())
    assert report.features["dedup"] == report.to_json()["dedup"] == manifest["dedup"] == figures
    assert sum(one["records"] for one in manifest["shards"]) == manifest["records"] == 7


# Fields


RECORDS = [
    {"id": 0, "user": "a", "meta": {"site": 7}},
    {"id": 1, "user": "b", "meta": {"site": 7}},
    {"id": 2, "user": "a", "meta": {"site": 8}},
    {"id": 3, "user": None, "meta": {"site": 7}},
    {"id": 4, "user": "", "meta": {"site": None}},
    {"id": 5, "user": None, "meta": {"site": None}},
    {"id": 6, "user": None, "meta": None},
    {"id": 7, "user": "a", "meta": {"site": 7}},
    {"id": 8, "user": "", "meta": {"site": None}},
]
FIELDS = {
    "user": ([0, 1, 3, 4, 5, 6], 3),
    "meta.site": ([0, 2, 4, 5, 6, 8], 4),
    "user,meta.site": ([0, 1, 2, 3, 4, 5, 6], 2),
}


@pytest.mark.parametrize(("name", "to"), [("jsonl", "parquet"), ("parquet", "jsonl")])
def test_values_of_fields_tell_records_apart_and_those_without_one_are_kept(
    tmp_path: Path, name: str, to: str
):
    path, output = tmp_path / f"in.{name}", tmp_path / f"out.{to}"
    if name == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    else:
        pq.write_table(pa.Table.from_pylist(RECORDS), path, row_group_size=2)
    for fields, (kept, without_value) in FIELDS.items():
        report = recshuf.shuffle(path, output, dedup=fields, seed=SEED, overwrite=True)
        assert sorted(read_columns(output)["id"]) == kept, fields
        assert report.features["dedup"] == {
            "fields": fields.split(","),
            "kept": len(kept),
            "dropped": len(RECORDS) - len(kept),
            "without_value": without_value,
        }


# Tables and arrays


def test_whole_rows_of_parquet_with_nulls_nan_and_nested_values(tmp_path: Path):
    other_nan = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0]
    table = pa.table(
        {
            "x": pa.array(
                [1.5, None, math.nan, 1.5, None, math.nan, 0.0, -0.0, other_nan],
                pa.float64(),
                from_pandas=False,
            ),
            "y": [[{"a": 1}], None, [], [{"a": 1}], None, [], [None], [None], []],
            "z": pa.array(["t", "t", None, "t", "t", None, "", "", None]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=2)
    for plan in PLANS:
        with pytest.MonkeyPatch.context() as patch:
            change_plans(patch, **plan)
            report = recshuf.shuffle(
                tmp_path / "in.parquet", tmp_path / "out.parquet", dedup="record", seed=SEED, overwrite=True
            )
        assert report.features["dedup"]["dropped"] == 3
        found = pq.read_table(tmp_path / "out.parquet")
        assert sorted(map(str, found.to_pylist())) == sorted(
            map(str, table.take([0, 1, 2, 6, 7, 8]).to_pylist())
        )


def test_rows_of_all_datasets_of_hdf5(tmp_path: Path):
    ids, images = [3, 1, 3, 3, 1], [[1, 2], [0, 0], [1, 2], [1, 3], [0, 0]]
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["id"], file["image"] = ids, images
    for dedup, kept in {"record": [0, 1, 3], "id": [0, 1], "image": [0, 1, 3]}.items():
        recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5", dedup=dedup, seed=SEED, overwrite=True)
        found = read_columns(tmp_path / "out.h5")
        rows = sorted(zip(found["id"], found["image"], strict=True))
        assert rows == sorted((ids[row], images[row]) for row in kept)


def test_provenance_is_that_of_the_first_record_and_bad_ones_are_set_aside_before(tmp_path: Path):
    for index, lines in enumerate([(5, 6, "?", 5), (6, 7, 5, "?", 8)]):
        (tmp_path / f"in{index}.jsonl").write_text("".join(f'{{"x": {line}}}\n' for line in lines))
    options = {"provenance": True, "on_bad_record": f"quarantine:{tmp_path}/bad"}
    report = recshuf.shuffle(
        f"{tmp_path}/in*.jsonl", tmp_path / "out.parquet", dedup="x", seed=SEED, **options
    )
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    found = {row["x"]: (row["source_file"][-9:-6], row["source_row"]) for row in rows}
    assert found == {5: ("in0", 0), 6: ("in0", 1), 7: ("in1", 1), 8: ("in1", 4)}
    assert (report.records, report.quarantined, report.records_written) == (9, 2, 4)
    assert report.features["dedup"]["dropped"] == 3


# Hashes


@pytest.mark.parametrize(
    ("name", "dedup", "block_bytes"),
    [("jsonl", "record", 20), ("jsonl", "x", 1 << 20), ("parquet", "record", 1 << 20), ("parquet", "x", 20)],
)
def test_different_values_of_one_hash_are_an_error(
    tmp_path: Path, name: str, dedup: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch
):
    if name == "jsonl":
        (tmp_path / "in.jsonl").write_text("".join(f'{{"x": "{number}"}}\n' for number in range(300)))
    else:
        rows = pa.table({"x": [f"{number}" for number in range(300)]})
        pq.write_table(rows, tmp_path / "in.parquet", row_group_size=2)
    change_plans(monkeypatch, block_bytes=block_bytes)
    encrypt = value_keys.encrypt

    def stub(low: Any, high: Any, key: int) -> Any:
        return encrypt(low % np.uint64(256), high * np.uint64(0), key)

    put_in_place(monkeypatch, encrypt, stub)
    with pytest.raises(
        CheckError, match=r"two different values have one hash, .+ and .+; run again with another seed$"
    ):
        recshuf.shuffle(tmp_path / f"in.{name}", tmp_path / f"out.{name}", dedup=dedup, seed=SEED)
    assert not (tmp_path / f"out.{name}").exists()


# Plans, tasks, deaths


def test_tasks_know_what_was_dropped_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A task whose records all repeat those of an earlier one leaves no record; one that dies is continued."""
    divide_small(monkeypatch, block_bytes=300)
    (tmp_path / "in").mkdir()
    paths = [tmp_path / "in" / f"{index}.txt" for index in range(3)]
    for path in paths:
        path.write_bytes(b"".join(b"%d\n" % (number % 10) for number in range(400)))
    die_after(4, paths, tmp_path / "out", dedup="record")
    report = shuffle(paths, tmp_path / "out", dedup="record", engine="threads", resume=True)
    assert report.features["dedup"] == {"fields": "record", "kept": 10, "dropped": 1190, "without_value": 0}
    assert [one.records for one in report.inputs] == [400] * 3
    shuffle(paths, tmp_path / "whole", dedup="record")
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


def test_shards_that_count_other_repeats_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another memory limit may read other batches, which drop more or fewer repeats before records go to piles."""
    paths = make_inputs(tmp_path / "in", "jsonl", [60, 100, 140])
    whole = run(paths, tmp_path / "whole", dedup="pad")
    with monkeypatch.context() as patch:
        change_plans(patch, block_bytes=100)
        run_and_die(2, paths, tmp_path / "out", dedup="pad")
    assert sum("shard" in entry for entry in read_journal(tmp_path / "out")) == 2
    with pytest.warns(RecshufWarning, match="has changed since it was written; it is written again"):
        report = run(paths, tmp_path / "out", dedup="pad", resume=True)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    assert report.features == whole.features


# Verify


@pytest.mark.parametrize("to", ["jsonl", "parquet"])
def test_the_manifest_tells_what_was_compared(tmp_path: Path, to: str):
    """Lines of other bytes are different records, also where they are equal rows."""
    (tmp_path / "in.jsonl").write_text('{"x": 1}\n{"x":1}\n{"x": 1}\n{"x": 2}\n')
    options = {"to": to, "seed": SEED}
    recshuf.shuffle(tmp_path / "in.jsonl", f"{tmp_path}/out/", dedup="record", verify=True, **options)
    report = recshuf.verify(tmp_path / "in.jsonl", tmp_path / "out")
    assert (report.is_equal, report.records, report.records_written) == (True, 4, 3)


def test_verify_finds_a_wrong_copy_a_missing_record_and_one_too_many(tmp_path: Path):
    rows = [{"id": number, "x": number % 5 if number % 7 else None} for number in range(60)]
    path, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recshuf.shuffle(path, output, dedup="x", seed=SEED, verify=True)
    lines = output.read_text().splitlines()
    of_x = [json.dumps(row) for row in rows if row["x"] == 3]
    assert of_x[0] in lines
    changes = {
        (1, 1): [of_x[1] if line == of_x[0] else line for line in lines],
        (1, 0): [line for line in lines if line != of_x[0]],
        (0, 1): [*lines, of_x[0]],
        (0, 2): [*lines, of_x[1], '{"id": 99, "x": 9}'],
        (0, 0): lines[::-1],
    }
    for (missing, extra), changed in changes.items():
        output.write_text("".join(line + "\n" for line in changed))
        report = recshuf.verify(path, output, dedup="x")
        assert (report.missing, report.extra) == (missing, extra)
        if missing:
            assert [place.index for place in report.missing_places] == [3]
    assert not recshuf.verify(path, output)


# Memory


@pytest.mark.parametrize("dedup", ["record", "x"])
def test_a_pile_of_repeats_is_not_split_but_read_without_them(
    tmp_path: Path, dedup: str, monkeypatch: pytest.MonkeyPatch
):
    """Long records are few in a batch, so that each keeps some that repeat those of others."""
    numbers = [(number % 2) * number % 50 for number in range(240)]
    rows = [f'{{"x": {number}, "y": "{"z" * (800 if number else 900)}"}}\n' for number in numbers]
    (tmp_path / "in.jsonl").write_text("".join(rows))
    outputs, joined, join = [], list[int](), Duplicates.join

    def note_join(duplicates: Duplicates, read: Any, edges: Sequence[int]) -> Any:
        found = join(duplicates, read, edges)
        joined.append(len(found[0]))
        return found

    monkeypatch.setattr(Duplicates, "join", note_join)
    for plan in ({}, {"block_bytes": 2000, "pile_count": 2, "pile_bytes": 60_000, "resident_bytes": 0}):
        with monkeypatch.context() as patch:
            change_plans(patch, **plan)
            report = run(tmp_path / "in.jsonl", tmp_path / "out", dedup=dedup, piles=None, overwrite=True)
        outputs.append((read_files(tmp_path / "out"), report.features))
        assert bool(joined) == bool(plan)
    assert outputs[0] == outputs[1]
    assert outputs[0][1]["dedup"]["kept"] == len(set(rows))
