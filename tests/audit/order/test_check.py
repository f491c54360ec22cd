"""The check of an order: where records come from, by which values they are sorted, and what it says."""

import csv
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import recshuf
from recshuf.api import checks
from recshuf.audit.order.check import MOST_LABELS, CheckReport, find_value, order_by_value, rank_densely
from recshuf.audit.order.matching import BottomKSample, Matching, SampledRecords, match_records
from recshuf.audit.order.shufflers import METHODS
from recshuf.errors import InputError, MemoryLimitError, UsageError
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN
from tests.conftest import Run
from tests.support.effort import examples
from tests.support.small_runs import Listener, infer_from_few

COUNT = 8_000


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


def shuffled(seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(COUNT)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of records in order."""
    folder = tmp_path_factory.mktemp("inputs")
    write_parquet(folder / "0.parquet", np.arange(7_000))
    write_parquet(folder / "1.parquet", np.arange(7_000, COUNT))
    return folder


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


numbers = st.lists(st.integers(0, 30), max_size=30)


@settings(max_examples=examples(100))
@given(st.lists(numbers, min_size=1, max_size=3), st.integers(1, 40))
def test_a_sample_keeps_all_of_equal_records_or_none(files: list[list[int]], most: int) -> None:
    sample = draw_sample(files, most)
    provenance = [(file << 42) + row for file, rows in enumerate(files) for row in range(len(rows))]
    flat = [number for rows in files for number in rows]
    values, priorities = hash_numbers(flat)
    bound = (2**64 - 1) >> sample.level
    kept = [index for index, priority in enumerate(priorities.tolist()) if priority <= bound]
    assert sample.records == len(flat)
    if not kept:
        with pytest.raises(UsageError, match="no records"):
            sample.take()
        return
    for taken in (sample.take(), sample.take()):
        assert len(kept) <= most
        assert taken.provenance.tolist() == [provenance[index] for index in kept]
        assert taken.values.to_pylist() == [values[index].as_py() for index in kept]


@settings(max_examples=examples(100))
@given(
    st.lists(numbers, min_size=1, max_size=3), numbers, st.sampled_from([8, 1000]), st.sampled_from([8, 1000])
)
@example([[1, 2], [3, 4]], [3], 1000, 1000)
@example([[*range(30)]], [*range(30)], 8, 1000)
def test_equal_records_are_matched_one_to_one(
    files: list[list[int]], output: list[int], most_given: int, most_made: int
) -> None:
    given, made = draw_sample(files, most_given), draw_sample([output], most_made)
    level = max(given.level, made.level)

    def keep(numbers: list[int]) -> list[int]:
        ranks = hash_numbers(numbers)[1].tolist()
        return [number for number, rank in zip(numbers, ranks, strict=True) if rank < 2 ** (64 - level)]

    flat, left = keep([number for rows in files for number in rows]), keep(output)
    if not flat or not left:
        return
    found = match_records(given, made, len(files), np.random.default_rng(0))
    common = Counter(flat) & Counter(left)
    assert sorted(found.order.tolist()) == list(range(common.total()))
    assert (found.missing, found.extra) == (len(flat) - common.total(), len(left) - common.total())
    repeated = {number for number, count in Counter(left).items() if count > 1}
    assert found.duplicates == sum(common[number] for number in repeated)
    assert (sum(found.file_sizes), found.records, found.share) == (common.total(), len(output), 0.5**level)
    if len({*flat}) == len(flat):
        assert found.file_sizes == [sum(number in common for number in keep(rows)) for rows in files]
    if Counter(flat) == Counter(left):
        assert [flat[index] for index in found.order.tolist()] == left


def test_records_that_nobody_can_tell_apart_are_matched_at_random() -> None:
    given, made = (draw_sample([[5] * 2000], 5000) for _ in range(2))
    found = match_records(given, made, 1, np.random.default_rng(0))
    assert np.count_nonzero(np.diff(found.order) == 1) < 20


def test_records_that_are_added_while_others_raise_the_level_do_not_count_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other thread is one that adds its records between two steps of the first."""
    expected, sample = BottomKSample(600), BottomKSample(600)

    def add(to: BottomKSample, file: int) -> None:
        priorities = np.random.default_rng(file).integers(0, 2**64, 1000, np.uint64)
        to.add(pa.array(range(1000)), priorities, file, 0)

    for file in range(4):
        add(expected, file)
    whole, others = SampledRecords.at_level, [1, 2, 3]

    def interrupt(part: SampledRecords, level: int) -> SampledRecords:
        chosen = whole(part, level)
        if not sample._lock.locked():
            while others:
                add(sample, others.pop(0))
        return chosen

    monkeypatch.setattr(SampledRecords, "at_level", interrupt)
    add(sample, 0)
    monkeypatch.undo()
    assert (sample.level, sample.kept) == (expected.level, expected.kept)
    assert sample.take().provenance.tolist() == expected.take().provenance.tolist()


# Values


def order_values(values: Sequence[str | None]) -> Matching:
    sample = BottomKSample()
    sample.add(pa.array(values, pa.string()), np.zeros(len(values), np.uint64), 0, 0)
    return order_by_value(sample, "name")


@settings(max_examples=examples(100))
@given(st.lists(st.none() | st.sampled_from(["a", "b", "é", ""]), min_size=1))
def test_orders_by_value_are_those_of_the_sorted_values(values: list[str | None]) -> None:
    found = order_values(values)
    ranked = sorted(values, key=lambda value: (value is None, value or ""))
    assert sorted(found.order.tolist()) == list(range(len(values)))
    assert [ranked[position] for position in found.order.tolist()] == values
    assert found.file_sizes == [ranked.count(one) for one in dict.fromkeys(ranked)]
    assert found.duplicates == sum(1 for value in values if values.count(value) > 1)
    many = [f"{number:04}" for number in range(MOST_LABELS + len(values))]
    assert order_values(many).file_sizes == [len(many)]


VALUES = [
    (pa.array([True, False, None]), [1, 0, 2]),
    (pa.array([2.5, float("nan"), -1]), [1, 2, 0]),
    (pa.array([3, 1, 2], pa.timestamp("us")), [2, 0, 1]),
    (pa.array([b"x", b"", b"y"], pa.large_binary()), [1, 0, 2]),
    (pa.array([3, 1, 2], pa.float32()).cast(pa.float16()), [2, 0, 1]),
    (pa.FixedSizeListArray.from_arrays(pa.array([3, 1, 2]), 1), [2, 0, 1]),
    (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"c" * 16, b"a" * 16, b"b" * 16], pa.binary(16))), [2, 0, 1]),
    (pa.array(["c", "a", "b"]).dictionary_encode(), [2, 0, 1]),
]  # fmt: skip


def test_values_of_many_types_have_an_order_and_others_are_refused() -> None:
    for values, ranks in VALUES:
        assert rank_densely(values).tolist() == ranks, values.type
    with pytest.raises(UsageError, match=r"list<.*have no order"):
        rank_densely(pa.array([[1], [2]]))


def test_fields_are_found_by_their_path() -> None:
    batch = pa.RecordBatch.from_pylist([{"a": {"b": {"c": 7}}, "a.b": 1, "d": 2}])
    assert find_value(batch, "a.b").to_pylist() == [1]
    assert find_value(batch, "a.b.c").to_pylist() == find_value(batch, "a/b/c").to_pylist() == [7]
    missing = {"x": "there are: a, a.b, d", "a.x": "no field 'x'", "d.x": "no field 'x' in int64"}
    for path, said in missing.items():
        with pytest.raises(UsageError, match=said):
            find_value(batch, path)


# Checks


@pytest.mark.parametrize("to", ["parquet", "jsonl", "hdf5"])
def test_own_shuffles_are_uniform_by_content_and_by_provenance(tmp_path: Path, inputs: Path, to: str) -> None:
    recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=1, to=to, shards=3, provenance=True)
    report = recshuf.check(tmp_path / "out", against=inputs)
    assert report.is_uniform
    assert report.tested == report.records == COUNT
    assert report.mean_move == pytest.approx(1 / 3, abs=0.01)
    found = recshuf.check(tmp_path / "out", provenance=True)
    assert found.tested == found.records == COUNT
    assert [(one.name, one.z) for one in found.scores] == [(one.name, one.z) for one in report.scores]
    for column in ("label", "meta.time"):
        assert recshuf.check(tmp_path / "out", column=column).is_uniform
        assert not recshuf.check(inputs, column=column).is_uniform


@pytest.mark.parametrize("suffix", [".csv.gz", ".parquet"])
def test_columns_of_csv_are_those_of_its_header_and_records_may_span_lines(
    tmp_path: Path, suffix: str
) -> None:
    count, given = 6000, tmp_path / "in"
    given.mkdir()
    for name, rows in (("0.csv", range(count // 3)), ("1.csv", range(count // 3, count))):
        with (given / name).open("w", newline="") as file:
            labelled = ([row, "cat" if row < count / 2 else "dog", "two\nlines"] for row in rows)
            csv.writer(file).writerows([["id", "label", "text"], *labelled])
    output = tmp_path / f"out{suffix}"
    recshuf.shuffle(given, output, seed=1)
    report = recshuf.check(output, against=given)
    assert (report.is_uniform, report.tested, report.missing, report.extra) == (True, count, 0, 0)
    assert recshuf.check(output, column="label").is_uniform
    assert not recshuf.check(given, column="id").is_uniform
    with pytest.raises(UsageError, match="no column 'x'; there are: id, label, text"):
        recshuf.check(given, column="x")


@pytest.mark.parametrize("last", [1999, 0.5])
def test_types_are_those_of_the_first_records_unless_others_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: float
) -> None:
    rows = [{"id": row, "label": row, FILE_COLUMN: "a", ROW_COLUMN: row} for row in range(1999)]
    rows.append({"id": 1999, "label": last, FILE_COLUMN: "a", ROW_COLUMN: 1999})
    mixed = [*(rows[index] for index in np.random.default_rng(1).permutation(1999)), rows[-1]]
    for name, some in (("in", rows), ("out", mixed)):
        (tmp_path / name).mkdir()
        for place in range(2):
            text = "".join(f"{json.dumps(row)}\n" for row in some[place * 1000 :][:1000])
            (tmp_path / name / f"{place}.jsonl").write_text(text)
    pq.write_table(pa.Table.from_pylist(mixed), tmp_path / "out.parquet")

    def check_all() -> tuple[list[CheckReport], list[bool]]:
        reports, learn = [], []
        for name, options in (
            ("out", {"column": "label"}),
            ("out", {"provenance": True}),
            ("out.parquet", {"against": tmp_path / "in"}),
            ("out.parquet", {"against": tmp_path / "in", "id_column": "label"}),
        ):
            listener = Listener()
            report = recshuf.check(tmp_path / name, progress=listener, **options)
            reports.append(replace(report, seconds=0))
            learn.append("learn inputs" in listener.passes)
        return reports, learn

    reports, _ = check_all()
    infer_from_few(monkeypatch)
    assert check_all() == (reports, [last != 1999] * 4)


def test_the_only_dataset_of_the_record_tells_the_order(tmp_path: Path, inputs: Path) -> None:
    path = tmp_path / "in.h5"
    with h5py.File(path, "w") as file:
        file["group/label"] = np.arange(2000) // 100
        file["group/other"] = np.zeros(2000)
    by_column = recshuf.check(path, column="group/label")
    assert not by_column.is_uniform
    assert recshuf.check(path, datasets="/group/label").scores == by_column.scores
    both = ["group/other", "group/label"]
    assert recshuf.check(path, column="group/label", datasets=both).scores == by_column.scores
    assert recshuf.check(inputs, columns=["label"]).scores == recshuf.check(inputs, column="label").scores
    with pytest.raises(UsageError, match="several columns: group/other, group/label; choose one with column"):
        recshuf.check(path, datasets=both)


def test_a_column_can_tell_records_apart(tmp_path: Path, inputs: Path) -> None:
    table = make_table(shuffled()).drop_columns("label").set_column(0, "id", [np.zeros(COUNT, np.int64)])
    pq.write_table(table, tmp_path / "out.parquet")
    with pytest.raises(UsageError, match="id_column"):
        recshuf.check(tmp_path / "out.parquet", against=inputs)
    report = recshuf.check(tmp_path / "out.parquet", against=inputs, id_column="meta.time")
    assert (report.is_uniform, report.tested, report.duplicates) == (True, COUNT, 0)
    keys, paths = (
        {"a": np.arange(COUNT), "b": np.zeros(COUNT)},
        [tmp_path / "0.parquet", tmp_path / "1.parquet"],
    )
    for path, order in zip(paths, ("ab", "ba"), strict=True):
        key = pa.StructArray.from_arrays([keys[name] for name in order], list(order))
        pq.write_table(pa.table({"key": key}).take(shuffled()), path)
    assert recshuf.check(paths[1], against=paths[0], id_column="key").tested == COUNT
    pytest.importorskip("PIL")
    pytest.importorskip("jinja2")
    options = {"against": inputs, "id_column": "meta.time"}
    assert recshuf.picture(tmp_path / "out.parquet", **options).startswith(b"\x89PNG")
    assert checks.write_check(tmp_path / "out.parquet", **options)[0].tested == COUNT


def test_files_that_say_other_things_of_their_columns_are_tested_together(tmp_path: Path) -> None:
    """Whoever shuffled them; recshuf itself would refuse to."""
    numbers = shuffled()
    schemas = [pa.schema([pa.field("id", pa.int64(), metadata={"unit": unit})]) for unit in ("m", "km")]
    given = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    for path, schema, half in zip(given, schemas, np.split(np.arange(COUNT), 2), strict=True):
        pq.write_table(pa.table([half], schema), path)
    pq.write_table(pa.table([numbers], schemas[0]), tmp_path / "out.parquet")
    with pytest.raises(InputError, match="unit"):
        recshuf.shuffle(given, tmp_path / "own.parquet")
    report = recshuf.check(tmp_path / "out.parquet", against=given)
    assert (report.is_uniform, report.tested) == (True, COUNT)
    assert not recshuf.check(given, column="id").is_uniform


def test_missing_and_extra_records_are_told(tmp_path: Path, inputs: Path) -> None:
    first = write_parquet(tmp_path / "1.parquet", np.append(shuffled(1)[:-3], [COUNT, COUNT + 1]))
    second = write_parquet(tmp_path / "2.parquet", np.append(shuffled(2), [COUNT]))
    report = recshuf.check(first, against=inputs)
    assert (report.tested, report.missing, report.extra) == (COUNT - 3, 3, 2)
    assert report.is_uniform
    both = recshuf.check([second, first], against=inputs)
    assert (both.tested, both.missing, both.extra) == (2 * COUNT - 3, 3, 3)
    assert both.mean_move == pytest.approx(
        (report.mean_move + recshuf.check(second, against=inputs).mean_move) / 2
    )
    other = write_parquet(tmp_path / "other.parquet", np.arange(COUNT, 2 * COUNT))
    with pytest.raises(UsageError, match="only 0 records of an output are in the inputs"):
        recshuf.check(other, against=inputs)
    with pytest.raises(InputError, match="nothing"):
        recshuf.check(tmp_path / "nothing", column="id")


def test_large_data_are_sampled(
    tmp_path: Path, inputs: Path, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recshuf.audit.order.matching.MOST_SAMPLED", 2500)  # instead of a million
    output = write_parquet(tmp_path / "out.parquet", METHODS["one buffer"].shuffle(COUNT, 3))
    for report in (recshuf.check(output, against=inputs), recshuf.check(output, column="id")):
        assert 1000 < report.tested <= 2500
        assert report.tested == pytest.approx(COUNT * report.share, rel=0.1)
        assert not report.is_uniform
    done = call("check", output, "--column", "id")
    assert f"sampled: {report.tested:,} of 8,000 records were tested\n" in done.stdout.decode()
    recshuf.shuffle(inputs, tmp_path / "own.parquet", seed=1)
    assert recshuf.check(tmp_path / "own.parquet", against=inputs).is_uniform
    some = write_parquet(tmp_path / "some.parquet", np.arange(4700))  # sampled less often
    report = recshuf.check(tmp_path / "own.parquet", against=some)
    assert (report.missing, report.share) == (0, 0.25)


def test_the_share_of_several_shuffles_is_that_of_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recshuf.audit.order.matching.MOST_SAMPLED", 2000)
    for count in (1200, 3000):
        given = write_parquet(tmp_path / "in.parquet", np.arange(count))
        recshuf.shuffle(given, tmp_path / f"{count}.parquet", seed=1, provenance=True)
    for counts in ((1200, 3000), (3000, 1200)):
        outputs = [tmp_path / f"{count}.parquet" for count in counts]
        report = recshuf.check(outputs, provenance=True)
        assert (report.records, report.share) == (4200, 0.5)


def test_several_shuffles_are_tested_by_what_all_of_them_allow(tmp_path: Path) -> None:
    """One is of a single file, which tells nothing of files, and has no records that come twice."""
    for name in ("a", "b", "twice"):
        numbers = [row for row in range(1200) for _ in range(2 if name == "twice" else 1)]
        (tmp_path / f"{name}.txt").write_text("".join(f"{number}\n" for number in numbers))
    outputs = [tmp_path / "0.jsonl", tmp_path / "1.jsonl"]
    for output, names in zip(outputs, ("a", "ab"), strict=True):
        recshuf.shuffle([tmp_path / f"{name}.txt" for name in names], output, seed=1, provenance=True)
    each = [{one.name: one.z for one in recshuf.check(output, provenance=True).scores} for output in outputs]
    both = {one.name: one.z for one in recshuf.check(outputs, provenance=True).scores}
    assert both.keys() == each[0].keys() < each[1].keys()
    assert both["steps"] not in (each[0]["steps"], each[1]["steps"])
    report = recshuf.check([tmp_path / "a.txt", tmp_path / "twice.txt"], against=tmp_path / "twice.txt")
    assert (report.duplicates, report.missing, report.extra) == (2400, 1200, 0)


def test_of_long_values_as_many_are_tested_as_fit_the_memory(tmp_path: Path) -> None:
    def write(count: int, length: int) -> Path:
        text = pa.array([f"{number:0{length}}" for number in range(count)])
        pq.write_table(pa.table({"text": text}), tmp_path / "in.parquet", row_group_size=200)
        return tmp_path / "in.parquet"

    report = recshuf.check(write(20_000, 1000), column="text", memory="64MB")
    assert 1000 <= report.tested <= 16_000
    assert not report.is_uniform
    with pytest.raises(MemoryLimitError, match=r"2,000 values .* only \d+ .* 64 MB.*memory"):
        recshuf.check(write(2_000, 20_000), column="text", memory="64MB")


@pytest.mark.parametrize("basis", ["column", "against", "provenance"])
def test_data_that_change_after_they_were_read_are_named(tmp_path: Path, basis: str) -> None:
    given, made = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(f'{{"id":{number}}}\n' for number in range(2000)))
    recshuf.shuffle(given, made, seed=1, provenance=basis == "provenance")

    def touch() -> None:
        if listener.passes[-1] == ("read output" if basis == "against" else "read inputs"):
            os.utime(made, ns=(1, 1))

    listener = Listener(touch)
    options = {"column": "id", "against": given, "provenance": True}
    with pytest.raises(InputError, match=r"out\.jsonl: has changed while it was read"):
        recshuf.check(made, progress=listener, **{basis: options[basis]})


def test_values_that_are_equal_or_few_are_no_evidence(tmp_path: Path) -> None:
    schema = pa.schema({"a": "int8", "b": "int8", "c": "int16"})
    table = pa.table({"a": [None] * 2000, "b": [1] * 2000, "c": range(2000)}, schema)
    pq.write_table(table, tmp_path / "in.parquet")
    for column in ("a", "b"):
        with pytest.raises(UsageError, match=f"all values of column '{column}' are equal"):
            recshuf.check(tmp_path / "in.parquet", column=column)
    for count in (0, 999):
        pq.write_table(table[:count], tmp_path / "in.parquet")
        with pytest.raises(UsageError, match=f"{count} records are too few|no records"):
            recshuf.check(tmp_path / "in.parquet", column="c")


# The command


def test_the_command_tells_by_its_exit_code(tmp_path: Path, inputs: Path, call: Run) -> None:
    recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=1, provenance=True)
    pq.write_table(pq.read_table(tmp_path / "out").sort_by("id"), tmp_path / "sorted.parquet")
    for name, code in (("out", 0), ("sorted.parquet", 3)):
        assert call("check", "--provenance", tmp_path / name).returncode == code
    paths = inputs / "0.parquet", inputs / "1.parquet"
    good = call("check", tmp_path / "out", "--against", *paths, "--workers", 1)
    assert (good.returncode, good.stderr) == (0, b"")
    assert b"looks uniformly random" in good.stdout
    bad = call("check", *paths, "--column", "label")
    assert bad.returncode == 3
    assert b"label-windows: Labels come in clumps" in bad.stdout
    assert b"8,000 of 8,000 records have equal values, which were told apart at random" in bad.stdout
    assert b"2 paths are not in a uniformly random order" in bad.stdout.splitlines()[-1]
    quiet = call("check", "-q", inputs, "--field", "label")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (3, b"", b"")
    report = json.loads(call("check", "--json", inputs, "--column", "label").stdout)
    assert (report["uniform"], report["basis"], report["records"]) == (False, "label", COUNT)
    scores = {score["name"]: score for score in report["scores"]}
    assert scores["same-label"]["flagged"]
    assert scores["same-label"]["z"] > 6
    assert all((score["meaning"] is not None) == score["flagged"] for score in report["scores"])


@pytest.mark.parametrize(
    ("options", "count", "where"), [("--copies=2", COUNT, b"of the data"), ("--copies=0.5", COUNT // 2, b"of the inputs")]
)  # fmt: skip
def test_records_that_a_run_repeats_or_leaves_out_are_not_called_missing(
    tmp_path: Path, inputs: Path, call: Run, options: str, count: int, where: bytes
) -> None:
    out = f"{tmp_path}/out/"
    assert call(inputs, "-o", out, "--seed=1", options).returncode == 0
    found = call("check", out, "--against", inputs)
    assert found.returncode == 0
    line = next(line for line in found.stdout.splitlines() if where in line)
    assert line.startswith(f"{count:,} records".encode())
    assert line.endswith(b", or not as often; recshuf verify tells if there should be any")
    assert call("verify", inputs, out).returncode == 0
