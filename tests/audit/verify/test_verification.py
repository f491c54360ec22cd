"""Verification: equal multisets pass, in any order, cut and format; every kind of damaged record is found and named."""

import collections
import json
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import recshuf
from recshuf import VerifyReport
from recshuf.output.manifest import manifest_path
from tests.support.effort import examples, mostly_slow
from tests.support.formats.conversion_data import WRITERS, choose_columns, choose_schema
from tests.support.formats.line_comparisons import LINES, compare_lines
from tests.support.numbered_files import SUFFIXES

COUNT = 700
NAMES = list(SUFFIXES)


def compare_tables(folder: Path, given: pa.Table, made: pa.Table) -> VerifyReport:
    pq.write_table(given, folder / "in.parquet", row_group_size=100)
    pq.write_table(made, folder / "out.parquet", row_group_size=37)
    return recshuf.verify(folder / "in.parquet", folder / "out.parquet")


# Against the obvious oracle

RECORDS = st.lists(st.sampled_from([b"", b"a", b"b", b"bb", b"a\0", b"a\xff"]), max_size=12)
TEXT = b"text"
"""A first record, without which others could be taken for UTF-16."""


@settings(max_examples=examples(100))
@given(RECORDS, RECORDS, st.booleans(), st.none() | st.integers(0, 13), st.integers(1, 3))
@example([b"a", b"b", b"bb"], [b"a", b"b"], False, 1, 1)  # a sample of more than was asked for
def test_the_multiset_difference_is_that_of_counters(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[bytes],
    after: list[bytes],
    is_sample: bool,
    head_count: int | None,
    workers: int,
):
    if is_sample:
        after = random.Random(0).sample(
            before, len(before) if head_count is None else min(len(before), len(after))
        )
    before, after = [TEXT, *before], [TEXT, *after]
    options = {"head_count": head_count, "workers": workers}
    report = compare_lines(tmp_path_factory.mktemp("pair"), before, after, **options)
    left, right = collections.Counter(before), collections.Counter(after)
    common = (left & right).total()
    wanted = len(before) if head_count is None else min(head_count, len(before))
    assert report.is_equal == (len(after) == common == wanted)
    assert (report.missing, report.extra) == (max(0, wanted - common), len(after) - min(common, wanted))
    assert (report.records, report.records_written) == (len(before), len(after))
    for records, lines, surplus in (
        (report.missing_places, before, left - right if head_count is None else {}),
        (report.extra_places, after, right - left),
    ):
        assert {lines[record.index]: record.copies for record in records} == surplus
        assert all(lines.index(lines[record.index]) == record.index for record in records)


# Each format is read and written three times; the other pairs are slow.
QUICK = [(one, NAMES[(number + step) % len(NAMES)]) for step in (0, 1, 3) for number, one in enumerate(NAMES)]


@pytest.mark.parametrize(("name", "to"), mostly_slow(product(NAMES, NAMES), *QUICK))
def test_every_shuffle_is_equal_and_lost_records_of_it_are_named(tmp_path: Path, name: str, to: str):
    columns = choose_columns(name, to)
    schema = choose_schema(name, to)
    path, output = tmp_path / f"in{SUFFIXES[name]}", f"{tmp_path}/out/"
    WRITERS[name](path, columns)
    whole: dict[str, Any] = {"to": to, "schema": schema, "shards": 3}
    recshuf.shuffle(path, output, seed=1, **whole)
    report = recshuf.verify(path, output, schema=schema, workers=2)
    assert report.is_equal, report
    assert (report.format, report.to) == (name, to)
    assert [one.records for one in report.shards] == [234, 233, 233]
    assert report.records == report.records_written == COUNT

    fewer = {field: values[3:] for field, values in columns.items()}
    WRITERS[name](tmp_path / f"fewer{SUFFIXES[name]}", fewer)
    recshuf.shuffle(tmp_path / f"fewer{SUFFIXES[name]}", output, seed=2, overwrite=True, **whole)
    manifest_path(tmp_path / "out").unlink()
    report = recshuf.verify(path, output, schema=schema)
    assert (report.missing, report.extra) == (3, 0)
    assert [record.index for record in report.missing_places] == [0, 1, 2]


LOSSLESS: dict[str, pa.Array] = {
    str(values.type).replace("/", "-"): values
    for values in (
        pa.array(["", "ä", "x" * 1000]),
        pa.array([b"\x00\xff", b"", b"x"]),
        pa.array([b"abc", b"\0\0\0", b"xyz"], pa.binary(3)),
        pa.array([[1, 2], [], [3]], pa.list_(pa.int16())),
        pa.array([[1.5, 2], [0, -0.0], [3, 1]], pa.list_(pa.float32(), 2)),
        pa.array([0, 1, 19_000], pa.date32()),
        pa.array([0, 86_400_000, -86_400_000], pa.date64()),
        pa.array([0, 1, 86_399], pa.time32("s")),
        pa.array([0, 1, 86_399_999_999], pa.time64("us")),
        pa.array([1, -1, 3], pa.duration("ms")),
        pa.array([True, False, True]),
        pa.array([1, -2, 3], pa.timestamp("s")),
        pa.array([1, -2, 3], pa.timestamp("us", "Europe/Berlin")),
        pa.array([0.1, 2, -5e-324]),
        pa.array([0.1, 2, 1e38], pa.float32()),
        pa.array(np.array([0.1, 2, 65504], np.float16)),
        pa.array([0, 2**63, 2**64 - 1], pa.uint64()),
        pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": ""}, {"a": 3, "b": "y"}]),
        pa.array(["x", "y", "x"]).dictionary_encode(),
    )
}
JSON_ONLY: dict[str, pa.Array] = {
    str(values.type): values
    for values in (
        pa.array([1, None, 3]),
        pa.array([None, None, None]),
        pa.array([[1, None], None, []]),
        pa.array([{"a": None, "b": [{"c": 1}]}, None, {"a": "x", "b": None}]),
        pa.array([["x", None], [], None], pa.large_list(pa.string())),
        pa.array([1, 2, 3], pa.decimal32(7, 2)),
        pa.array([1, None, 3], pa.decimal64(18, 2)),
        pa.array([1, 2, 3], pa.decimal128(10, 2)),
        pa.array([1, None, -3], pa.decimal256(50, 3)),
        pa.array([[("a", 1), ("b", None)], [], None], pa.map_(pa.string(), pa.int64())),
    )
}


@pytest.mark.parametrize(
    ("columns", "suffix"),
    [(LOSSLESS, ".h5"), (LOSSLESS, ".jsonl"), (LOSSLESS, ".parquet"), (JSON_ONLY, ".jsonl")],
)
def test_types_that_a_conversion_keeps_are_equal_and_changed_values_are_not(
    tmp_path: Path, columns: dict[str, pa.Array], suffix: str
):
    """Each column differs in a row of its own."""
    rows = np.arange(len(columns)) % 3
    table = pa.table({name: values.take(rows) for name, values in columns.items()} | {"row": rows})
    pq.write_table(table, tmp_path / "in.parquet")
    recshuf.shuffle(tmp_path / "in.parquet", tmp_path / f"out{suffix}", seed=1)
    assert recshuf.verify(tmp_path / "in.parquet", tmp_path / f"out{suffix}").is_equal
    changed = 0
    for index, values in enumerate(columns.values()):
        others = [row for row in range(3) if values[row] != values[rows[index]]]
        if others:
            changed += 1
            taken = values.take(np.where(np.arange(len(rows)) == index, others[0], rows))
            table = table.set_column(index, table.field(index), taken)
    assert changed >= len(columns) - 1, "but for a column of nulls"
    pq.write_table(table, tmp_path / "other.parquet")
    report = recshuf.verify(tmp_path / "other.parquet", tmp_path / f"out{suffix}")
    assert (report.missing, report.extra) == (changed, changed)
    if suffix == ".h5":
        recshuf.shuffle(tmp_path / "out.h5", tmp_path / "back.parquet", seed=1)
        assert recshuf.verify(tmp_path / "out.h5", tmp_path / "back.parquet").is_equal


def test_datasets_of_hdf5_are_compared_by_name(tmp_path: Path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["b"], file["a"], file["c"] = np.arange(50), np.arange(50.0), np.arange(3)
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5", seed=1, datasets="b,a", verify=True)
    assert recshuf.verify(tmp_path / "in.h5", tmp_path / "out.h5", datasets="b,a")
    with h5py.File(tmp_path / "out.h5", "a") as file:
        file["b"][7] += 1
    found = recshuf.verify(tmp_path / "in.h5", tmp_path / "out.h5", datasets="b,a")
    assert (found.missing, found.extra) == (1, 1)
    with h5py.File(tmp_path / "out.h5", "a") as file:
        del file["b"]
    assert "'b' is in the inputs only" in str(
        recshuf.verify(tmp_path / "in.h5", tmp_path / "out.h5", datasets="b,a")
    )


def test_options_say_what_a_record_is(tmp_path: Path):
    (tmp_path / "head.txt").write_bytes(b"head\0b\nb\0a\0")
    recshuf.shuffle(tmp_path / "head.txt", tmp_path / "made.txt", seed=1, header=1, zero_terminated=True)
    assert (
        recshuf.verify(tmp_path / "head.txt", tmp_path / "made.txt", header=1, zero_terminated=True).records
        == 2
    )
    (tmp_path / "made.txt").write_bytes(b"Head\0b\nb\0a\0")
    report = recshuf.verify(tmp_path / "head.txt", tmp_path / "made.txt", header=1, zero_terminated=True)
    assert report.differences == ("schemas: the header lines differ",)

    recshuf.shuffle(tmp_path / "head.txt", tmp_path / "out.jsonl", seed=1, header=1, separator=b"\0")
    assert recshuf.verify(tmp_path / "head.txt", tmp_path / "out.jsonl", header=1, separator=b"\0").is_equal

    pq.write_table(pa.table({"a": ["x", "y"], "b": [1, 2]}), tmp_path / "in.parquet")
    for name in ("out.txt", "out.parquet"):
        recshuf.shuffle(tmp_path / "in.parquet", tmp_path / name, columns="a", separator="|" if name == "out.txt" else None)  # fmt: skip
    assert recshuf.verify(tmp_path / "in.parquet", tmp_path / "out.txt", columns="a", separator="|").is_equal
    assert recshuf.verify(tmp_path / "in.parquet", tmp_path / "out.parquet", columns="a").is_equal
    report = recshuf.verify(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert report.differences == (
        "schemas: field 'b' is in the inputs only; if a run chose columns, give columns",
    )
    recshuf.shuffle(tmp_path / "in.parquet", tmp_path / "all.parquet")
    report = recshuf.verify(tmp_path / "in.parquet", tmp_path / "all.parquet", columns="a")
    assert report.differences == ("schemas: field 'b' is in the output only",)


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("in.csv", b"a,b\n1,x\n2,y\n3,z\n", {}),
        ("in.csv", b'a,b\n1,"x\ny"\n2,y\n3,z\n', {}),
        ("in.tsv", b"a\tb\n1\tx\n2\ty\n3\tz\n", {}),
        ("in.csv", b"a,b\n1,x\n2,\xe9\n3,z\n", {}),
        ("in.fasta", b">a\nAC\nGT\n>b\nA\n>c\nTT\n", {"record_start": ">"}),
        ("in.fastq", b"@a\nAC\n+\nII\n@b\nGT\n+\nJJ\n@c\nGG\n+\nKK\n", {"record_lines": 4}),
        ("in.txt", b'{"a":1}\n{"a":2}\n{"a" : 3}\n', {}),
        ("in.txt", b"\x00\x01\nb\nc\n", {"format": "text"}),
        ("in.json", b'[{"a":1},\n{"a":2},\n{"a":3}]\n', {}),
        ("in.jsonl", b'{"a":1}\n{"a":2}\n{"a":3}\n', {}),
    ],
    ids=["csv", "csv-lines", "tsv", "latin", "fasta", "fastq", "text-of-json", "bytes", "array", "jsonl"],
)
def test_an_output_whose_name_tells_no_format_is_that_of_the_inputs(
    tmp_path: Path, name: str, content: bytes, options: dict[str, Any]
):
    (tmp_path / name).write_bytes(content)
    for output in ("o", "o.gz", "o.d"):
        recshuf.shuffle(tmp_path / name, tmp_path / output, seed=2, **options)
        found = recshuf.verify(tmp_path / name, tmp_path / output, **options)
        assert (found.is_equal, found.records, found.differences) == (True, 3, ())


def test_chosen_columns_of_csv_are_compared(tmp_path: Path):
    given, output = tmp_path / "in.csv", tmp_path / "o.csv"
    given.write_bytes(b'a,b,c\n1,x,2\n3,y,4\n5,"z",6\n')
    recshuf.shuffle(given, output, columns=["c", "a"], seed=1, verify=True)
    found = recshuf.verify(given, output, columns=["c", "a"])
    assert (found.is_equal, found.records) == (True, 3)
    output.write_bytes(output.read_bytes().replace(b"4,3", b"4,4"))
    found = recshuf.verify(given, output, columns=["c", "a"])
    assert (found.missing, found.extra) == (1, 1)


@pytest.mark.parametrize("to", ["parquet", "arrow", "jsonl"])
def test_content_tells_the_format_of_an_output_before_the_inputs_do(tmp_path: Path, to: str):
    (tmp_path / "in.csv").write_bytes(b"a,b\n1,x\n2,y\n3,z\n")
    recshuf.shuffle(tmp_path / "in.csv", tmp_path / f"o.{to}", seed=2)
    (tmp_path / f"o.{to}").rename(tmp_path / "o")
    found = recshuf.verify(tmp_path / "in.csv", tmp_path / "o")
    assert (found.is_equal, found.to) == (True, to)


def test_an_output_that_looks_like_another_format_than_it_was_read_as_is_told(tmp_path: Path):
    (tmp_path / "in.txt").write_bytes(b"a\nb\nc\n")
    (tmp_path / "in.jsonl").write_bytes(b'{"a":1,"b":"x"}\n{"a":2,"b":"y"}\n{"a":3,"b":"z"}\n')
    for name, read_as, to in (("in.txt", "text", "jsonl"), ("in.jsonl", "jsonl", "csv")):
        way = "such as to='jsonl'" if to == "jsonl" else "with to"
        recshuf.shuffle(tmp_path / name, tmp_path / "o", to=to, overwrite=True)
        found = recshuf.verify(tmp_path / name, tmp_path / "o")
        assert found.missing == 3
        said = (
            f"{tmp_path}/o: was read as {read_as}, and does not look like it; if a run wrote another format, "
        )
        assert found.differences == (f"{said}give that one, {way}",)
        assert recshuf.verify(tmp_path / name, tmp_path / "o", to=to).is_equal
    (tmp_path / "o").write_bytes(b"d\n")
    assert recshuf.verify(tmp_path / "in.txt", tmp_path / "o").differences == ()


DAMAGES: dict[str, tuple[Callable[[list[bytes]], object], int, int]] = {
    "a-bit": (lambda lines: lines.__setitem__(7, lines[7].replace(b"r", b"s")), 1, 1),
    "torn-in-two": (lambda lines: lines.__setitem__(slice(7, 8), [lines[7][:5], lines[7][5:]]), 1, 2),
    "bytes-swapped": (lambda lines: lines.__setitem__(slice(7, 19, 11), [lines[18][:9] + lines[7][9:], lines[7][:9] + lines[18][9:]]), 2, 2),
    "all": (lambda lines: lines.clear(), 300, 0),
    "all-changed": (lambda lines: lines.__setitem__(slice(None), [line + b"!" for line in lines]), 300, 300),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "missing", "extra"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_records_are_counted_and_named(tmp_path: Path, harm: Any, missing: int, extra: int):
    made = list(LINES)
    harm(made)
    report = compare_lines(tmp_path, LINES, random.Random(1).sample(made, len(made)))
    assert not report.is_equal
    assert (report.missing, report.extra, report.differences) == (missing, extra, ())
    named = [(record.name, record.index) for record in report.missing_places]
    first = [7, 18][:missing] if missing < 10 else range(10)
    assert named == [(str(tmp_path / "in.txt"), index) for index in first]


def test_nan_as_null_makes_the_nulls_of_jsonl_equal_to_nan(tmp_path: Path):
    broken = [1.5, float("nan"), float("inf"), None]
    pq.write_table(
        pa.table({"a": broken, "b": pa.array([[value] for value in broken])}), tmp_path / "in.parquet"
    )
    (tmp_path / "out.jsonl").write_text('{"a":1.5,"b":[1.5]}\n' + '{"a":null,"b":[null]}\n' * 3)
    pair = tmp_path / "in.parquet", tmp_path / "out.jsonl"
    assert recshuf.verify(*pair, nan_as_null=True)
    plain = recshuf.verify(*pair)
    assert not plain
    assert (plain.missing, plain.extra) == (2, 2)
    with pytest.raises(
        recshuf.errors.UsageError, match="nan_as_null=True: for a conversion to jsonl or json only"
    ):
        recshuf.verify(pair[0], pair[0], nan_as_null=True)


SCHEMAS: dict[str, pa.Table] = {
    "stand in another order": pa.table({"b": [1], "a": ["x"]}),
    "'b' is in the inputs only": pa.table({"a": ["x"], "c": [1]}),
    "'c' is in the output only": pa.table({"a": ["x"], "b": [1], "c": [1]}),
    "'b' is int64 in the inputs and int32 in the output": pa.table({"a": ["x"], "b": pa.array([1], pa.int32())}),
    "may hold nulls in the inputs only": pa.table({"a": ["x"], "b": [1]}, pa.schema([("a", pa.string()), pa.field("b", pa.int64(), nullable=False)])),
    "metadata": pa.table({"a": ["x"], "b": [1]}, pa.schema([("a", pa.string()), pa.field("b", pa.int64(), metadata={"unit": "m"})])),
}  # fmt: skip


def test_schemas_that_differ_are_named(tmp_path: Path):
    for words, other in SCHEMAS.items():
        report = compare_tables(tmp_path, pa.table({"a": ["x"], "b": [1]}), other)
        assert (report.is_equal, report.are_compared) == (False, False)
        assert any(words in one for one in report.differences)
    inner = [pa.field("x", pa.int64(), metadata={"unit": unit}) for unit in ("m", "km")]
    tables = [pa.table({"a": pa.nulls(1, pa.list_(pa.struct([one])))}) for one in inner]
    assert "'a.element.x', key 'unit', is" in compare_tables(tmp_path, *tables).differences[0]


ENTRIES = pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())]))
PAIRS: list[tuple[pa.DataType, pa.DataType, bool]] = [
    (pa.decimal128(10, 2), pa.decimal128(10, 1), False),
    (pa.decimal128(10, 2), pa.decimal256(40, 2), True),
    (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
    (pa.uint64(), pa.int64(), False),
    (pa.uint32(), pa.int64(), True),
    (pa.bool_(), pa.int64(), False),
    (pa.date32(), pa.int32(), False),
    (pa.time32("s"), pa.int32(), False),
    (pa.duration("s"), pa.int64(), False),
    *((pa.null(), kind, True) for kind in (pa.int64(), pa.string(), pa.timestamp("us"), ENTRIES, pa.struct({"x": pa.int8()}))),
    (pa.string(), pa.null(), True),
    (pa.binary(), pa.string(), True),
    (pa.map_(pa.string(), pa.int64()), ENTRIES, True),
    (pa.map_(pa.string(), pa.int64()), pa.list_(pa.string()), False),
    (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.string()), False),
    (pa.map_(pa.string(), pa.null()), pa.map_(pa.string(), pa.string()), True),
]  # fmt: skip


def test_types_whose_values_mean_the_same_are_compared_between_formats_and_others_named(tmp_path: Path):
    for left, right, is_same in PAIRS:
        given, made = (
            pa.table({"a": pa.nulls(1, kind), "b": pa.array([[None]], pa.list_(kind)), "n": [1]})
            for kind in (left, right)
        )
        with pa.ipc.new_file(tmp_path / "in.arrow", given.schema) as writer:
            writer.write_table(given)
        pq.write_table(made, tmp_path / "out.parquet")
        report = recshuf.verify(tmp_path / "in.arrow", tmp_path / "out.parquet")
        assert (report.is_equal, report.are_compared) == (is_same, is_same), (left, right)
        assert is_same or "in the inputs and " in report.differences[0]


def test_a_record_of_another_type_is_named(tmp_path: Path):
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "in.parquet")
    (tmp_path / "out.jsonl").write_text('{"a": 1}\n{"a": "x"}\n{"a": 3}\n')
    with pytest.raises(recshuf.errors.InputError, match=r"out\.jsonl: line 2, field 'a': "):
        recshuf.verify(tmp_path / "in.parquet", tmp_path / "out.jsonl")


def test_types_that_cannot_be_compared_across_formats_are_named(tmp_path: Path):
    for before, after, words in [
        ({"a": [1]}, {"b": [1]}, "'a' is in the inputs only"),
        ({"a": [1]}, {"a": [1.0]}, "'a' is int64 in the inputs and double in the output"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1.5}]}, r"'a.b' is int64"),
        ({"a": [[1]]}, {"a": [["1"]]}, r"'a[]' is int64"),
        ({"a": [1]}, {"a": [[1]]}, "'a' is int64 in the inputs and list<"),
        ({"a": [[1]]}, {"a": [1]}, "'a' is list<"),
        ({"a": [{"b": 1}]}, {"a": [[1]]}, "'a' is struct<"),
    ]:
        (tmp_path / "in.jsonl").write_text(f"{json.dumps({'a': before['a'][0]})}\n")
        pq.write_table(pa.table(after), tmp_path / "out.parquet")
        report = recshuf.verify(tmp_path / "in.jsonl", tmp_path / "out.parquet")
        assert words in report.differences[0]
