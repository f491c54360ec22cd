"""The check of an order: where records come from, by which values they are sorted, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import recshuf
from recshuf.audit.order.battery import MIN_RECORDS
from recshuf.audit.order.check import score_matching
from recshuf.audit.order.matching import BottomKSample, Matching, match_records
from recshuf.audit.order.sampling import find_value, order_by_value, rank_densely
from recshuf.audit.order.shufflers import METHODS
from recshuf.errors import InputError, MemoryLimitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

COUNT = 20_000
FLAWED = [name for name, method in METHODS.items() if not method.is_exact]
EXACT = [name for name, method in METHODS.items() if method.is_exact]


def make_table(numbers: NDArray[np.int64]) -> pa.Table:
    """Return records that say which they are."""
    return pa.table(
        {
            "id": numbers,
            "label": pa.array(np.where(numbers < COUNT // 2, "cat", "dog")),
            "meta": pa.array([{"time": 1.5 * number} for number in numbers.tolist()]),
        }
    )


def write_parquet(path: Path, numbers: NDArray[np.int64]) -> Path:
    pq.write_table(make_table(numbers), path, row_group_size=3000)
    return path


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of records in order."""
    folder = tmp_path_factory.mktemp("inputs")
    write_parquet(folder / "0.parquet", np.arange(7_000))
    write_parquet(folder / "1.parquet", np.arange(7_000, COUNT))
    return folder


def run_check(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recshuf", "check", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# Samples


def hash_numbers(numbers: Sequence[int]) -> tuple[pa.Array, NDArray[np.uint64]]:
    """Return a value and a priority of each number, both random and always the same."""
    pairs = [np.random.default_rng(number).integers(0, 2**64, 2, np.uint64) for number in numbers]
    hashes = np.array(pairs, np.uint64).reshape(-1, 2)
    return pa.array(np.ascontiguousarray(hashes[:, 0])), np.ascontiguousarray(hashes[:, 1])


def draw_sample(files: Sequence[Sequence[int]], most: int, batch: int = 3) -> BottomKSample:
    sample = BottomKSample(most)
    for file, numbers in reversed(list(enumerate(files))):
        for start in range(0, len(numbers), batch):
            sample.add(*hash_numbers(numbers[start : start + batch]), file, start)
    return sample


def test_a_sample_keeps_as_much_as_its_bytes_allow():
    numbers = list(range(400))
    values, priorities = hash_numbers(numbers)
    for most_bytes in (8, 100, 1000, 2000, 10_000):
        sample = BottomKSample(most_bytes=most_bytes)
        for start in range(0, 400, 7):
            sample.add(values[start : start + 7], priorities[start : start + 7], 0, start)
        kept = [np.count_nonzero(priorities <= (2**64 - 1) >> level) for level in range(64)]
        level = next(level for level, count in enumerate(kept) if 8 * count <= most_bytes)
        assert (sample.level, sample.kept, sample.records) == (level, kept[level], 400)


numbers = st.lists(st.integers(0, 30), max_size=30)


@given(st.lists(numbers, min_size=1, max_size=3), st.integers(1, 40))
def test_a_sample_keeps_all_of_equal_records_or_none(files: list[list[int]], most: int):
    sample = draw_sample(files, most)
    provenance = [(file << 42) + row for file, rows in enumerate(files) for row in range(len(rows))]
    flat = [number for rows in files for number in rows]
    values, priorities = hash_numbers(flat)
    kept = [
        index for index, priority in enumerate(priorities.tolist()) if priority <= (2**64 - 1) >> sample.level
    ]
    assert sample.records == len(flat)
    if not kept:
        with pytest.raises(UsageError, match="no records"):
            sample.take()
        return
    taken = sample.take()
    assert len(kept) <= most
    assert taken.provenance.tolist() == [provenance[index] for index in kept]
    assert sample.take().provenance.tolist() == taken.provenance.tolist()
    assert taken.values.to_pylist() == [values[index].as_py() for index in kept]


@given(st.lists(numbers, min_size=1, max_size=3), numbers)
def test_equal_records_are_matched_one_to_one(files: list[list[int]], output: list[int]):
    flat = [number for rows in files for number in rows]
    if not flat or not output:
        return
    found = match_records(
        draw_sample(files, 1000), draw_sample([output], 1000), len(files), np.random.default_rng(0)
    )
    common = Counter(flat) & Counter(output)
    assert sorted(found.order.tolist()) == list(range(common.total()))
    assert (found.missing, found.extra) == (len(flat) - common.total(), len(output) - common.total())
    assert found.duplicates == sum(count for count in Counter(output).values() if count > 1)
    assert sum(found.file_sizes) == common.total()
    if Counter(flat) == Counter(output):
        assert [flat[index] for index in found.order.tolist()] == output


def test_records_that_nobody_can_tell_apart_are_matched_at_random():
    found = match_records(
        draw_sample([[5] * 2000], 5000), draw_sample([[5] * 2000], 5000), 1, np.random.default_rng(0)
    )
    assert np.count_nonzero(np.diff(found.order) == 1) < 20


# Values


@given(st.lists(st.none() | st.sampled_from(["a", "b", "é", ""]), min_size=1))
def test_orders_by_value_are_those_of_the_sorted_values(values: list[str | None]):
    found = order_by_value(pa.array(values, pa.string()), np.random.default_rng(0))
    ranked = sorted(values, key=lambda value: (value is None, value or ""))
    assert sorted(found.order.tolist()) == list(range(len(values)))
    assert [ranked[position] for position in found.order.tolist()] == values
    assert found.group_sizes == [ranked.count(one) for one in dict.fromkeys(ranked)]
    assert found.duplicates == sum(1 for value in values if values.count(value) > 1)
    assert found.value_count == len(set(values))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([True, False, None]),
        pa.array([2.5, float("nan"), -1]),
        pa.array([3, 1, 2], pa.timestamp("us")),
        pa.array(["b", "a", "b"]).dictionary_encode(),
        pa.array([b"x", b"", b"y"], pa.large_binary()),
    ],
    ids=lambda values: str(values.type),
)
def test_values_of_many_types_have_an_order(values: pa.Array):
    assert sorted(order_by_value(values, np.random.default_rng(0)).order.tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([3, 1, 2], pa.float32()).cast(pa.float16()),
        pa.FixedSizeListArray.from_arrays(pa.array([3, 1, 2]), 1),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"c" * 16, b"a" * 16, b"b" * 16], pa.binary(16))),
        pa.array(["c", "a", "b"]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type),
)
def test_values_that_arrow_cannot_sort_have_the_order_of_what_they_hold(values: pa.Array):
    assert rank_densely(values).tolist() == [2, 0, 1]


def test_values_without_an_order_are_refused():
    with pytest.raises(UsageError, match=r"list<.*have no order"):
        order_by_value(pa.array([[1], [2]]), np.random.default_rng(0))


def test_fields_are_found_by_their_path():
    batch = pa.RecordBatch.from_pylist([{"a": {"b": {"c": 7}}, "a.b": 1, "d": 2}])
    assert find_value(batch, "a.b").to_pylist() == [1]
    assert find_value(batch, "a.b.c").to_pylist() == find_value(batch, "a/b/c").to_pylist() == [7]
    for path, said in (
        ("x", "there are: a, a.b, d"),
        ("a.x", "no field 'x'"),
        ("d.x", "no field 'x' in int64"),
    ):
        with pytest.raises(UsageError, match=said):
            find_value(batch, path)


# Checks


@pytest.mark.parametrize("name", FLAWED)
def test_flawed_orders_are_not_uniform(tmp_path: Path, inputs: Path, name: str):
    order = METHODS[name].shuffle(COUNT, 3)
    if sorted(order.tolist()) != list(range(COUNT)):
        pytest.skip("loses records, which is for verify to say")
    output = write_parquet(tmp_path / "out.parquet", order)
    report = recshuf.check(output, against=inputs)
    assert not report.is_uniform
    assert (report.tested, report.missing, report.extra, report.duplicates) == (COUNT, 0, 0, 0)


@pytest.mark.parametrize("name", EXACT)
def test_exact_orders_are_uniform(tmp_path: Path, inputs: Path, name: str):
    output = write_parquet(tmp_path / "out.parquet", METHODS[name].shuffle(COUNT, 3))
    assert recshuf.check(output, against=inputs).is_uniform
    for column in ("label", "id", "meta.time"):
        assert recshuf.check(output, column=column).is_uniform


@pytest.mark.parametrize("to", ["parquet", "jsonl", "hdf5"])
def test_own_shuffles_are_uniform_whatever_they_are_written_as(tmp_path: Path, inputs: Path, to: str):
    recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=1, to=to)
    report = recshuf.check(tmp_path / "out", against=inputs)
    assert report.is_uniform
    assert report.tested == report.records == COUNT
    assert recshuf.check(tmp_path / "out", column="label").is_uniform
    assert recshuf.check(tmp_path / "out", column="meta.time").is_uniform
    assert not recshuf.check(inputs, column="meta.time").is_uniform


def test_datasets_of_groups_are_values(tmp_path: Path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["group/label"] = np.arange(2000) // 100
    assert not recshuf.check(tmp_path / "in.h5", column="group/label").is_uniform


def test_the_only_dataset_of_the_record_tells_the_order(tmp_path: Path, inputs: Path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["group/label"] = np.arange(2000) // 100
        file["group/other"] = np.zeros(2000)
    path = tmp_path / "in.h5"
    by_column = recshuf.check(path, column="group/label")
    assert not by_column.is_uniform
    assert recshuf.check(path, datasets="/group/label").scores == by_column.scores
    assert (
        recshuf.check(path, column="group/label", datasets=["group/other", "group/label"]).scores
        == by_column.scores
    )
    assert recshuf.check(inputs, columns=["label"]).scores == recshuf.check(inputs, column="label").scores
    assert recshuf.picture(path, datasets="group/label", title="x") == recshuf.picture(
        path, column="group/label", title="x"
    )
    with pytest.raises(UsageError, match="several columns: group/other, group/label; choose one with column"):
        recshuf.check(path, datasets="group/other,group/label")


def test_several_shuffles_show_together_what_none_shows_alone(tmp_path: Path, inputs: Path):
    """Sattolo's algorithm makes one cycle of all records, in every run."""
    outputs = []
    for seed in range(10):
        rng, order = np.random.default_rng(seed), np.arange(COUNT)
        for index in range(COUNT - 1, 0, -1):
            other = int(rng.integers(index))
            order[index], order[other] = order[other], order[index]
        outputs.append(write_parquet(tmp_path / f"{seed}.parquet", order))
    assert recshuf.check(outputs[0], against=inputs).is_uniform
    together = recshuf.check(outputs, against=inputs)
    assert {score.name for score in together.scores if score.is_flagged} == {"cycles"}
    assert (together.records, together.tested) == (10 * COUNT, 10 * COUNT)


def test_a_column_can_tell_records_apart(tmp_path: Path, inputs: Path):
    table = make_table(np.random.default_rng(0).permutation(COUNT)).drop_columns("meta")
    pq.write_table(table, tmp_path / "out.parquet")
    with pytest.raises(UsageError, match="id_column"):
        recshuf.check(tmp_path / "out.parquet", against=inputs)
    report = recshuf.check(tmp_path / "out.parquet", against=inputs, id_column="id")
    assert report.is_uniform
    assert report.tested == COUNT


def test_missing_and_extra_records_are_told(tmp_path: Path, inputs: Path):
    order = np.random.default_rng(0).permutation(COUNT)
    output = write_parquet(tmp_path / "out.parquet", np.append(order[:-3], [COUNT, COUNT + 1]))
    report = recshuf.check(output, against=inputs)
    assert (report.tested, report.missing, report.extra) == (COUNT - 3, 3, 2)
    assert report.is_uniform


def test_other_data_cannot_be_checked(tmp_path: Path, inputs: Path):
    other = write_parquet(tmp_path / "other.parquet", np.arange(COUNT, 2 * COUNT))
    with pytest.raises(UsageError, match="only 0 records of an output are in the inputs"):
        recshuf.check(other, against=inputs)


def test_large_data_are_sampled(tmp_path: Path, inputs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("recshuf.audit.order.matching.MOST_SAMPLED", 5000)
    order = (
        METHODS["one buffer"].shuffle(COUNT, 3)
        if "one buffer" in METHODS
        else METHODS[FLAWED[0]].shuffle(COUNT, 3)
    )
    output = write_parquet(tmp_path / "out.parquet", order)
    for report in (recshuf.check(output, against=inputs), recshuf.check(output, column="id")):
        assert 2000 < report.tested <= 5000
        assert report.tested == pytest.approx(COUNT * report.share, rel=0.1)
        assert not report.is_uniform
    recshuf.shuffle(inputs, tmp_path / "own.parquet", seed=1)
    assert recshuf.check(tmp_path / "own.parquet", against=inputs).is_uniform


def test_of_long_values_as_many_are_tested_as_fit_the_memory(tmp_path: Path):
    def write(count: int, length: int) -> Path:
        text = pa.array([f"{number:0{length}}" for number in range(count)])
        pq.write_table(pa.table({"text": text}), tmp_path / "in.parquet", row_group_size=200)
        return tmp_path / "in.parquet"

    report = recshuf.check(write(40_000, 1000), column="text", memory="64MB")
    assert MIN_RECORDS <= report.tested <= 16_000
    assert not report.is_uniform
    with pytest.raises(MemoryLimitError, match=r"2,000 values .* only \d+ .* 64 MB.*memory"):
        recshuf.check(write(2_000, 50_000), column="text", memory="64MB")


def test_checks_of_the_same_files_say_the_same(inputs: Path):
    first, second = (recshuf.check(inputs, column="label").scores for _ in range(2))
    assert first == second


# The command


def test_the_command_tells_by_its_exit_code(tmp_path: Path, inputs: Path):
    recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=1)
    good = run_check(
        tmp_path / "out", "--against", inputs / "0.parquet", inputs / "1.parquet", "--workers", 1
    )
    assert (good.returncode, good.stderr) == (0, "")
    assert "looks uniformly random" in good.stdout
    bad = run_check(*sorted(inputs.iterdir()), "--column", "label")
    assert bad.returncode == 3
    assert "label-windows: Labels come in clumps" in bad.stdout
    assert "20,000 of 20,000 records have equal values, which were told apart at random" in bad.stdout
    assert "2 paths are not in a uniformly random order" in bad.stdout.splitlines()[-1]
    quiet = run_check("-q", inputs, "--field", "label")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (3, "", "")


def test_findings_are_given_as_json(inputs: Path):
    done = run_check("--json", inputs, "--column", "label")
    report = json.loads(done.stdout)
    assert done.returncode == 3
    assert (report["uniform"], report["basis"], report["records"]) == (False, "label", COUNT)
    scores = {score["name"]: score for score in report["scores"]}
    assert scores["same-label"]["flagged"]
    assert scores["same-label"]["z"] > 6
    assert all((score["meaning"] is not None) == score["flagged"] for score in report["scores"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no data; usage: recshuf check"),
        (["in"], "either --against INPUT..., --column NAME or --provenance"),
        (
            ["in", "--against", "in", "--column", "a"],
            "either --against INPUT..., --column NAME or --provenance",
        ),
        (["in", "--column", "a", "--id", "b"], "--id"),
        (["in", "--provenance", "--id", "b"], "--id"),
        (["in", "--provenance"], "no column 'source_file'"),
        (["in", "-q", "--json", "--column", "a"], "contradict"),
        (["-", "--column", "a"], "no -"),
        (["in", "--column", "nothing"], "no column 'nothing'"),
        (["in", "--colum", "a"], "--column"),
    ],
)
def test_wrong_usage_is_told_in_one_line(inputs: Path, arguments: list[str], said: str):
    done = run_check(*(inputs if word == "in" else word for word in arguments))
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_equal_values_are_no_evidence(tmp_path: Path):
    pq.write_table(
        pa.table({"a": [None] * 2000, "b": [1] * 2000}, pa.schema({"a": "int8", "b": "int8"})),
        tmp_path / "in.parquet",
    )
    for column in ("a", "b"):
        with pytest.raises(UsageError, match=f"all values of column '{column}' are equal"):
            recshuf.check(tmp_path / "in.parquet", column=column)


def test_few_records_are_no_evidence(tmp_path: Path):
    write_parquet(tmp_path / "in.parquet", np.arange(999))
    with pytest.raises(UsageError, match="too few"):
        recshuf.check(tmp_path / "in.parquet", column="id")


def test_no_records_are_refused_without_a_warning():
    with pytest.raises(UsageError, match=r"^0 records are too few"):
        score_matching(Matching(np.zeros(0, np.int64), [], records=0, share=1.0), 0)


def test_missing_files_are_named(tmp_path: Path):
    with pytest.raises(InputError, match="nothing"):
        recshuf.check(tmp_path / "nothing", column="id")
