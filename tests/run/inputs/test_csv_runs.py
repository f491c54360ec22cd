"""Shuffles of CSV: records, header and columns against Python's `csv` and what pandas would write."""

from __future__ import annotations

import csv
import gzip
import io
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, InputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

PARTS = ("", "a", "x,y", 'say "hi"', "two\nlines", "\n\n", "crlf\r\nin", "é", '"', "0")


def make_rows(count: int, seed: int = 0) -> list[list[str]]:
    draw = random.Random(seed)
    return [[str(row), *("".join(draw.choices(PARTS, k=3)) for _ in range(2)), "t"] for row in range(count)]


def write_csv(path: Path, rows: list[list[str]], header: str = "id,one,two,last", **dialect: Any) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, **dialect).writerows([header.split(","), *rows])
    return path


def read_csv(path: Path, **dialect: Any) -> list[list[str]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return list(csv.reader(io.StringIO(data.decode(), newline=""), **dialect))


@pytest.mark.parametrize(
    ("delimiter", "suffix"), [(",", ".csv"), ("\t", ".csv.gz"), (";", ".csv"), ("|", ".csv.gz")]
)
def test_records_survive_whatever_they_hold(tmp_path: Path, delimiter: str, suffix: str):
    rows = make_rows(1000)
    path = write_csv(tmp_path / "in.csv", rows, delimiter=delimiter)
    if suffix == ".csv.gz":
        path = tmp_path / "in.csv.gz"
        path.write_bytes(gzip.compress((tmp_path / "in.csv").read_bytes()))
    recshuf.shuffle(path, tmp_path / "out/", seed=1, shards=3, workers=4, verify=True)
    made = [read_csv(one, delimiter=delimiter) for one in sorted((tmp_path / "out").glob("shard*"))]
    assert all(shard[0] == ["id", "one", "two", "last"] for shard in made)
    records = [row for shard in made for row in shard[1:]]
    assert sorted(records) == sorted(rows)
    assert records != rows


def test_types_are_those_of_all_records(tmp_path: Path):
    lines = [f"{row},2020-01-01,true,{row}" for row in range(30_000)]
    lines[20_000] = "7.5,2020-01-01 10:00:00,1,"
    path = tmp_path / "in.csv"
    path.write_text("\n".join(["number,day,flag,empty", *lines, ""]))
    recshuf.shuffle(path, tmp_path / "out.parquet", seed=1, workers=3, verify=True)
    schema = pq.read_schema(tmp_path / "out.parquet")
    assert schema.types == [pa.float64(), pa.timestamp("ms"), pa.string(), pa.int64()]


def test_columns_without_a_header_are_numbered(tmp_path: Path):
    (tmp_path / "in.csv").write_text("1,2\n3,4\n")
    recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out.parquet", seed=1)
    assert sorted(pq.read_table(tmp_path / "out.parquet").to_pylist(), key=str) == [
        {"f0": 1, "f1": 2},
        {"f0": 3, "f1": 4},
    ]


def test_nested_columns_are_refused_by_name(tmp_path: Path):
    pq.write_table(pa.table({"a": [1], "deep": [[1, 2]]}), tmp_path / "in.parquet")
    with pytest.raises(ConversionError, match=r"'deep'.*CSV cannot hold list"):
        recshuf.shuffle(tmp_path / "in.parquet", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(("to", "packed"), [("out.csv", False), ("out.parquet", False), ("out.csv", True)])
def test_an_open_quote_at_the_end_is_an_error_with_its_line(tmp_path: Path, to: str, packed: bool):
    data = b'id,t\n1,"a\nb"\n2,"open\n3,x\n'
    path = tmp_path / ("in.csv.gz" if packed else "in.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(InputError, match=r"in\.csv.*: line 4: a quoted field .* is not closed"):
        recshuf.shuffle(path, tmp_path / to)
    assert not (tmp_path / to).exists()


def test_a_wrong_number_of_fields_fails_a_conversion_only(tmp_path: Path):
    (tmp_path / "in.csv").write_bytes(b"a,b\nx,y\nz\n\nu,v,w\n")
    recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out.csv", seed=1, verify=True)
    assert sorted((tmp_path / "out.csv").read_bytes().splitlines()[1:]) == [b"u,v,w", b"x,y", b"z"]
    with pytest.raises(InputError, match=r"in\.csv: record 2: has 1 field, and the first record has 2"):
        recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out.parquet")
    report = recshuf.shuffle(
        tmp_path / "in.csv", tmp_path / "out.parquet", on_bad_record=f"quarantine:{tmp_path / 'bad'}"
    )
    assert report.quarantined == 2
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 1
    assert (tmp_path / "bad").read_text().count('"line":') == 2


def test_headers_that_do_not_fit_are_an_error(tmp_path: Path):
    for first, second, message in (
        (b"a,b\n1,2\n", b"a,c\n1,2\n", r"its header differs from that of \S*1.csv; "),
        (b"\xef\xbb\xbfa,b\r\n", b"a,c\n", r"1.csv; "),
        (
            b"ann,rome\nbob,oslo\n",
            b"cid,nice\n",
            r"names none of its columns; give header='first' if only the first",
        ),
        (b"a,b\n1,2\n", b"1,2\n", "does not begin with a header line"),
        (b"1,2\n", b"a,b\n", "begins with a header line"),
    ):
        (tmp_path / "1.csv").write_bytes(first)
        (tmp_path / "2.csv").write_bytes(second)
        with pytest.raises(InputError, match=message):
            recshuf.shuffle([tmp_path / "1.csv", tmp_path / "2.csv"], tmp_path / "out.csv")


@pytest.mark.parametrize(("header", "kept"), [("none", b""), (1, b"7,8\n"), ("auto", b"")])
def test_the_header_is_what_the_option_says(tmp_path: Path, header: int | str, kept: bytes):
    (tmp_path / "in.csv").write_bytes(b"7,8\n1,2\n3,4\n5,6\n")
    recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out/", header=header, shards=2, seed=3, verify=True)
    shards = [path.read_bytes() for path in sorted((tmp_path / "out").glob("shard*"))]
    assert all(shard.startswith(kept) for shard in shards)
    assert sum(shard.removeprefix(kept).count(b"\n") for shard in shards) == (3 if kept else 4)


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("out.csv", {"provenance": True}, "not possible from csv to csv"),
        ("out.parquet", {"columns": "c"}, r"^no column 'c' in the inputs; there are 'a', 'b'$"),
        ("out.parquet", {"datasets": "a"}, r"for inputs of \w+ or \w+ only; here: csv"),
        *(
            (
                "out.csv",
                {"delimiter": one},
                r"(?s)^delimiter[ =].* is not possible: give one ASCII character that ends no line",
            )
            for one in ("tab", "", "\n", "é")
        ),
    ],
)
def test_what_csv_does_not_allow_is_refused(
    tmp_path: Path, output: str, options: dict[str, Any], message: str
):
    (tmp_path / "in.csv").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(UsageError, match=message):
        recshuf.shuffle(tmp_path / "in.csv", tmp_path / output, **options)


@pytest.mark.parametrize(
    ("output", "options"),
    [("out.csv", {}), ("out.csv.gz", {}), ("out.parquet", {"format": "csv"}), ("out", {"format": "csv"})],
)
def test_standard_input_is_csv_by_the_output_or_by_option(
    tmp_path: Path, output: str, options: dict[str, Any]
):
    stream = io.BytesIO(b'a,b\n1,"x\ny"\n3,z\n')
    report = recshuf.shuffle("-", tmp_path / output, stdin=stream, **options)
    assert (report.format, report.records) == ("csv", 2)


@pytest.mark.parametrize("output", ["out.parquet", "out.h5"])
def test_standard_input_into_a_table_asks_for_the_format(tmp_path: Path, output: str):
    with pytest.raises(
        UsageError, match=r"may be text, JSON or CSV; give format='text', format='jsonl' or format='csv'"
    ):
        recshuf.shuffle("-", tmp_path / output, stdin=io.BytesIO(b"a,b\n1,2\n"))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([b"fine", None, b"\xff\xfe" + b"x" * 99], pa.binary()),
        pa.array([b"ab", b"\xff\xfe", None], pa.binary(2)),
        pa.array([b"a", b"\xff\xfe"]).dictionary_encode(),
    ],
    ids=["binary", "fixed", "dictionary"],
)
def test_bytes_that_are_not_utf8_are_shown(tmp_path: Path, values: pa.Array):
    names = [b"good"] * len(values)
    pq.write_table(pa.table({"good": names, "b": values}), tmp_path / "in.parquet")
    message = r"^field 'b': CSV cannot hold b'\\xff\\xfe(x{38}'\.\.\.|'), which is not UTF-8; write Parquet"
    with pytest.raises(ConversionError, match=message):
        recshuf.shuffle(tmp_path / "in.parquet", tmp_path / "out.csv", workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]
