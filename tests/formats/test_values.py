"""Fields of records as texts: one text for a value in every format, as written, and a refusal where there is none."""

import datetime as dt
import json
import random
from collections.abc import Sequence
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from recshuf.errors import InputError, UsageError
from recshuf.formats import load_format, open_source
from recshuf.formats.jsonl.encoding import encode_lines
from recshuf.formats.jsonl.values import JsonValueReader
from recshuf.formats.objects import name_table
from recshuf.formats.texts import find_texts, find_value_reader
from recshuf.interfaces import InputFile, ReadOptions, Source
from tests.support.effort import TRIES_ALL
from tests.support.formats.format_tools import place_batches, reading

MOMENT = dt.datetime(2024, 2, 29, 23, 59, 58, 123456)


def open_path(path: Path, **options: Any) -> Source:
    names = {"h5": "hdf5", "csv": "csv", "txt": "text"}
    kind = path.suffix[1:]
    return open_source(names.get(kind, kind), [InputFile(path.name, path)], reading(**options))


def hold(table: pa.Table, target: str = "arrow") -> Source:
    """Return the source of a table that a caller holds."""
    held = name_table(table, 0)
    assert held is not None
    files = [InputFile(held, None, table=held.table)]
    return open_source(target, files, ReadOptions())


def read_texts(source: Source, *paths: str, block_bytes: int = 1 << 20) -> list[list[bytes | None]]:
    """Return the texts of some fields of all records."""
    reader = find_value_reader(source, load_format("parquet").traits, paths)
    assert reader is not None
    found = [reader.read(batch, file, row) for batch, file, row in place_batches(source, block_bytes)]
    return [[value for part in field for value in part.to_pylist()] for field in zip(*found, strict=True)]


def read_lines(tmp_path: Path, lines: Sequence[str], *paths: str, **options: Any) -> list[list[bytes | None]]:
    (tmp_path / "in.jsonl").write_bytes("".join(f"{line}\n" for line in lines).encode())
    return read_texts(open_path(tmp_path / "in.jsonl", **options), *paths)


# The table of texts

ARRAYS = {
    "text": pa.array(["", "é ", None, "NaN"]),
    "large text": pa.array(["a", "\0"], pa.large_string()),
    "view": pa.array(["a" * 30, None, "b"], pa.string_view()),
    "integer": pa.array([0, -7, None, 2**63 - 1]),
    "uint64": pa.array([2**64 - 1], pa.uint64()),
    "boolean": pa.array([True, None, False]),
    "double": pa.array([7.0, 0.1, 1e300, -1e-7, 5e-324, None, 123456789.0]),
    "single": pa.array([7.0, 0.1, 16777216.0, -1e-7], pa.float32()),
    "half": pa.array(np.array([7, 0.1, -65504], np.float16)),
    "decimal": pa.array([Decimal("1.50"), Decimal("-0.01"), None]),
    "decimal without point": pa.array([Decimal(12)], pa.decimal256(60, 0)),
    "negative scale": pa.array([Decimal(12300)], pa.decimal128(5, -2)),
    "date": pa.array([MOMENT.date(), None]),
    "date64": pa.array([MOMENT.date()], pa.date64()),
    "time": pa.array([MOMENT.time()], pa.time64("ns")),
    "seconds": pa.array([dt.time(1, 2, 3)], pa.time32("s")),
    "timestamp": pa.array([MOMENT, None], pa.timestamp("us")),
    "zone": pa.array([MOMENT], pa.timestamp("us", "Europe/Berlin")),
    "duration": pa.array([dt.timedelta(seconds=-3)], pa.duration("ms")),
    "dictionary": pa.array(["x", None, "y", "x"]).dictionary_encode()[1:],
    "dictionary of numbers": pa.array([1.5, None, 2.0]).dictionary_encode(),
    "runs": pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([4, 5])),
    "null": pa.nulls(2),
    "json": pa.array(['{"a": 1}', None], pa.json_()),
}


def test_texts_are_those_that_jsonl_has() -> None:
    for name, array in ARRAYS.items():
        lines = encode_lines(pa.record_batch([array], ["x"]), nan_as_null=False).to_pylist()
        written = [json.loads(line, parse_float=str, parse_int=str)["x"] for line in lines]
        expected = [str(value).lower() if isinstance(value, bool) else value for value in written]
        texts = find_texts(array, "x").to_pylist()
        assert [None if text is None else text.decode() for text in texts] == expected, name
        if not isinstance(array.type, pa.BaseExtensionType):
            assert find_texts(array[1:], "x").to_pylist() == texts[1:], name


def test_texts_that_jsonl_has_not() -> None:
    odd = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, None, -1.0]
    expected = [None, b"inf", b"-inf", b"0.0", b"0.0", None, b"-1.0"]
    for kind in (pa.float64(), pa.float32(), pa.float16()):
        array = pa.array([None if value is None else kind.to_pandas_dtype()(value) for value in odd], kind)
        assert find_texts(array, "x").to_pylist() == expected
    assert find_texts(pa.array([b"\xff", None]), "x").to_pylist() == [b"\xff", None]
    assert find_texts(pa.array([b"\xff\0"], pa.binary(2)), "x").to_pylist() == [b"\xff\0"]
    assert find_texts(pa.array([b"\0" * 16], pa.uuid()), "x").to_pylist() == [b"\0" * 16]


def write_all(folder: Path, table: pa.Table) -> list[Source]:
    """Return sources of a table with columns `n`, `t` and `s` in all formats that have fields."""
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in ("n", "t")}
    pq.write_table(table, folder / "in.parquet")
    pa.csv.write_csv(table.select(["n", "t"]), folder / "in.csv")
    (folder / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    (folder / "in.json").write_text(json.dumps(table.to_pylist(), indent=1))
    with pa.ipc.new_file(folder / "in.arrow", table.schema) as file:
        file.write_table(table)
    with h5py.File(folder / "in.h5", "w") as file:
        file["n"] = columns["n"].astype(">i2")[:, None]
        file.create_dataset("t", data=columns["t"].tolist(), dtype=h5py.string_dtype())
        file["s/m"] = table["s"].combine_chunks().field("m").to_numpy()
    rows = np.zeros(len(table), [("n", "<i4"), ("t", "S8"), ("s", [("m", "<i8")])])
    rows["n"], rows["t"] = columns["n"], columns["t"].astype("S8")
    rows["s"]["m"] = table["s"].combine_chunks().field("m")
    np.save(folder / "in.npy", rows)
    np.savez(folder / "in.npz", n=columns["n"], t=columns["t"].astype("S8"), s=rows["s"])
    options = {"in.csv": {"header": 1}}
    sources = [open_path(path, **options.get(path.name, {})) for path in sorted(folder.glob("in.*"))]
    return [*sources, hold(table), hold(table, "parquet")]


def test_a_value_has_one_text_in_all_formats(tmp_path: Path) -> None:
    table = pa.table({"n": [7, -1, 300], "t": ["7", "a b", "x"], "s": [{"m": 7}, {"m": 2**40}, {"m": 0}]})
    sources = write_all(tmp_path, table)
    for source in sources:
        assert read_texts(source, "n", "t") == [[b"7", b"-1", b"300"], [b"7", b"a b", b"x"]], source
        if "csv" not in source.inputs[0].name:
            assert read_texts(source, "s.m", "s/m")[0] == [b"7", b"%d" % 2**40, b"0"]
    assert len(sources) == 10


def test_rows_of_several_elements_are_their_bytes(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=">u2").reshape(3, 2)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["a"] = rows
        file.create_dataset("b", (3,), h5py.vlen_dtype(np.dtype("<u1")))[:] = [[1, 2], [], [3]]
    np.savez(tmp_path / "in.npz", a=rows)
    np.save(tmp_path / "in.npy", rows)
    expected = [row.tobytes() for row in rows]
    assert read_texts(open_path(tmp_path / "in.h5"), "a", "b") == [expected, [b"\1\2", b"", b"\3"]]
    assert read_texts(open_path(tmp_path / "in.npz"), "a") == [expected]
    assert read_texts(open_path(tmp_path / "in.npy"), "value") == [expected]


# JSONL


def forbid(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Have lines be read without a way that takes long."""

    def fail(*_: object) -> None:
        raise AssertionError(method)

    monkeypatch.setattr(JsonValueReader, method, fail)


MIXED = {
    "7": b"7", '"7"': b"7", "7.0": b"7.0", "1.50": b"1.50", "1e5": b"1e5", "true": b"true", "null": None,
    "-0": b"0", "-0.0": b"0.0", "-0.5": b"-0.5", "-0e-1": b"0e-1", '"-0"': b"-0", "12345678901234567890123456789": b"12345678901234567890123456789",
    '"\\u00e9é\\ud83d\\ude00\\u0000\\/"': "éé😀\0/".encode(), "NaN": None, "-Infinity": b"-inf", '""': b"", '" "': b" ",
    '"\\"u\\": 5"': b'"u": 5', "-1": b"-1", "9223372036854775807": b"9223372036854775807",
}  # fmt: skip


@pytest.mark.parametrize(
    "around", ['{"u":%s}', '{"x":[1,"a",{"u":1}], "u" : %s ,"z":{"u":[1,{}]}}', '{"\\u0075":%s}']
)
def test_values_of_lines_are_as_they_are_written(
    tmp_path: Path, around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together, and each with others like it, as pieces of one kind are parsed by that kind."""
    if "\\" not in around:
        forbid(monkeypatch, "_read_line")
    lines = [around % value for value in MIXED]
    assert read_lines(tmp_path, [*lines, "{}"], "u") == [[*MIXED.values(), None]]
    for line, text in zip(lines, MIXED.values(), strict=True):
        assert read_lines(tmp_path, [line, line], "u") == [[text, text]]


NAMES = ["u", "v", 'x"u', "größe", "a b"]


def find_slowly(line: str, name: str) -> bytes | None:
    value = json.loads(line, parse_float=_Number, parse_int=_Number, parse_constant=_Number).get(name)
    if isinstance(value, _Number) and value.startswith("-") and float(value) == 0:
        value = value[1:]
    if value is None or (isinstance(value, _Number) and value == "NaN"):
        return None
    text = str(value).lower() if isinstance(value, bool) else value
    return (text.replace("Infinity", "inf") if isinstance(value, _Number) else text).encode()


class _Number(str):
    __slots__ = ()


def test_random_lines_are_read_as_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same names in other objects, in texts and in other spellings."""
    forbid(monkeypatch, "_read_line")
    rng = random.Random(5)
    texts = [r'"\"u\":5"', r'"x\\"', r'"\"v\": -0,"', '"}"', r'"{\"u\":1}"']

    def make(depth: int) -> str:
        fields = [
            f"{json.dumps(name, ensure_ascii=rng.random() < 0.5)}{rng.choice(['', ' '])}:{rng.choice(['', ' '])}"
            + (
                make(depth + 1)
                if depth < 2 and name > "v" and rng.random() < 0.2
                else rng.choice([*MIXED, *texts])
            )
            for name in rng.sample(NAMES, rng.randint(0, len(NAMES)))
        ]
        return f"{{{', '.join(fields)}}}"

    for _ in range(40 if TRIES_ALL else 12):
        names = rng.sample(["u", "v", "a b"], 2)
        lines = [make(0) for _ in range(rng.randint(1, 30))]
        assert read_lines(tmp_path, lines, *names) == [
            [find_slowly(line, name) for line in lines] for name in names
        ]


def test_paths_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with dots are found at the top, and else are the names of objects inside each other."""
    lines = ['{"a":{"b":1,"c":"x"}}', '{"a.b":2,"a":{"c":"y"}}', '{"a":null}', '{"a":{"b":null}}', "{}"]
    assert read_lines(tmp_path, lines, "a.b", "a/c", "/a.c") == [
        [b"1", b"2", None, None, None], *[[b"x", b"y", None, None, None]] * 2
    ]  # fmt: skip
    assert read_lines(tmp_path, ['{"u":-0,"v":-0.0,"w":-0}', '{"w":true}'], "u", "v", "w") == [
        [b"0", None], [b"0.0", None], [b"0", b"true"]
    ]  # fmt: skip
    (tmp_path / "marked.jsonl").write_bytes(b'\xef\xbb\xbf{"u":7}\r\n{"u":"7\\r\\n"}\r\n{"u":null}')
    assert read_texts(open_path(tmp_path / "marked.jsonl"), "u") == [[b"7", b"7\r\n", None]]
    forbid(monkeypatch, "_read_line")
    lines = ['{"größe":1}', '{"gr\\u00f6\\u00dfe":2.5}', '{"gr\\u00f6\\u00dfe":true}']
    assert read_lines(tmp_path, lines, "größe") == [[b"1", b"2.5", b"true"]]
    assert read_lines(tmp_path, [r'{"a b+\"c\\":-0.0,"b+\"c\\":1}'], 'a b+"c\\') == [[b"0.0"]]
    assert read_lines(tmp_path, ['{"a":"x"}'], "usr") == [[None]]
    with pytest.raises(UsageError, match=r"^column 'a.b': another field is inside it"):
        read_lines(tmp_path, lines, "a", "a.b")
    with pytest.raises(UsageError, match=r"^there is no column 'b'; there are: a, c$"):
        read_lines(tmp_path, lines, "b", columns=("a", "c"))
    with pytest.raises(UsageError, match=r"^there is no column 'b'; there are: a$"):
        read_lines(tmp_path, lines, "b", schema=pa.schema([("a", pa.int64())]))


WITHOUT_TEXT = [
    ('{"u":[1]}', ", field 'u': holds an array; name another field"),
    ('{"u":{"a":1}}', ", field 'u': holds an object; name a field inside it"),
    ('{"u":1,"u":2}', ", field 'u': occurs twice in one object"),
    ('{"u":"a","u":null}', ", field 'u': occurs twice in one object"),
    ('{"a":5}', ", field 'a': holds a number, and no object with a field 'b'"),
    ('{"a":{"b":{}}}', ", field 'a.b': holds an object; name a field inside it"),
    ('{"a.b":1,"a":{"b":2}}', ", field 'a.b': has a value, and so has 'a.b' inside of an object; rename one of them"),
    ('{"u":01}', ": is not valid JSON (Missing a comma or '}' after an object member)"),
    ('{"u":1}{"u":2}', ": holds more than one JSON value; every line must be one object"),
    ('{"u":"\\ud83d"}', ": is not valid JSON (The surrogate pair in string is invalid)"),
    ("[1]", ': is not a JSON object; every line must be one object, such as {"text": "..."}'),
]  # fmt: skip


def test_lines_without_a_text_are_named(tmp_path: Path) -> None:
    for (line, problem), others in product(WITHOUT_TEXT, ('{"u":1,"a":{"b":"x"}}', '{"u":2.5,"a.b":true}')):
        with pytest.raises(InputError) as caught:
            read_lines(tmp_path, [*[others] * 9, line, *[others] * 7, line], "u", "a.b")
        assert str(caught.value) == f"in.jsonl: line 10{problem}"


# CSV


def test_fields_of_csv_are_as_they_are_written(tmp_path: Path) -> None:
    rows = b'7,a\n07,""\r\n,"x ""y""\r\nz"\n"", 7 \n\xc3\xa9,NaN\n'
    (tmp_path / "in.csv").write_bytes(b"\xef\xbb\xbfu,v.w\n" + rows)
    source = open_path(tmp_path / "in.csv", header=1, skip_lines=0)
    texts = [[b"7", b"07", None, b"", "é".encode()], [b"a", b"", b'x "y"\r\nz', b" 7 ", b"NaN"]]
    assert read_texts(source, "u", "v.w") == texts
    assert read_texts(source, "v.w", "u", "v.w", block_bytes=8) == [texts[1], texts[0], texts[1]]
    with pytest.raises(UsageError, match=r"^there is no column 'w'; there are: u, v.w$"):
        source.value_reader(["w"])
    (tmp_path / "in.csv").write_bytes(b"u,v\n1,2\n3\n")
    with pytest.raises(
        InputError, match=r"^in.csv: record 2: has 1 field, and the first record has 2; correct it"
    ):
        read_texts(open_path(tmp_path / "in.csv", header=1), "u")


def test_columns_of_several_headers_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("u,v\n1,2\n")
    (tmp_path / "b.csv").write_text("v,w\n3,4\n")
    files = [InputFile(name, tmp_path / name) for name in ("a.csv", "b.csv")]
    source = open_source("csv", files, reading(header=1))
    assert read_texts(source, "u", "v") == [[b"1", None], [b"2", b"3"]]


# What has no text


def test_fields_without_texts_are_refused(tmp_path: Path) -> None:
    table = pa.table({"l": [[1]], "s": [{"a": 1}], "n": [1]})
    pq.write_table(table, tmp_path / "in.parquet")
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["g/a"] = [1, 2]
    np.save(tmp_path / "in.npy", np.zeros(2, [("a", "f4", 2), ("b", [("c", "c8")])]))
    for name, path, problem in [
        ("in.parquet", "l", r"column 'l': values of type list<.*> have no text; name another field"),
        ("in.parquet", "s", r"column 's': holds struct<.*>; name a field inside it"),
        ("in.parquet", "s.b", r"column 's.b': there is no field 'b' in struct<.*>"),
        ("in.parquet", "x", r"there is no column 'x'; there are: l, s, n"),
        ("in.h5", "g", r"column 'g': is a group; name a dataset inside it"),
        ("in.h5", "h", r"there is no column 'h'; there are: g/a"),
        ("in.npy", "c", r"there is no column 'c'; there are: a, b"),
        ("in.npy", "b", r"column 'b': holds struct<.*>; name a field inside it|.*no table form.*"),
    ]:
        with pytest.raises((UsageError, TypeError), match=rf"^{problem}$"):
            find_value_reader(open_path(tmp_path / name), load_format("parquet").traits, [path])
    twice = pa.record_batch([[1], [2]], ["a", "a"])
    source = hold(pa.Table.from_batches([twice]))
    with pytest.raises(UsageError, match=r"^column 'a': there are 2 of this name; rename them$"):
        find_value_reader(source, load_format("parquet").traits, ["a"])
    (tmp_path / "in.txt").write_text("a\n")
    assert find_value_reader(open_path(tmp_path / "in.txt"), load_format("text").traits, ["text"]) is None


def test_a_value_without_text_is_named(tmp_path: Path) -> None:
    times = pa.array([0, 1, 2, 2**60, 3], pa.timestamp("s"))
    source = hold(pa.table({"t": times}))
    with pytest.raises(InputError, match=r"^<table 0>: row 3, field 't': a date or time lies outside"):
        read_texts(source, "t")
