"""Options that cannot be meant, or have no effect for the formats, are refused by name before anything is written."""

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, UsageError
from tests.support.numbered_files import FORMATS, WRITERS

# That cannot be meant

VALUES: list[tuple[dict[str, Any], str]] = [
    ({"seed": -1}, "seed"),
    ({"seed": 2**128}, "seed"),
    ({"seed": "x"}, f"seed 'x' is not a whole number; give one, from 0 to {2**128 - 1}$"),
    ({"memory": "1MB"}, "memory 1MB is out of range; it must be at least 12 MB$"),
    *(({"memory": one}, "memory .* is out of range; it must be at most 9223372 TB$") for one in ("1e99", float("inf"), 2**63, 10**400)),
    ({"memory": float("nan")}, "memory nan is out of range; it must be at least 12 MB$"),
    ({"memory": 300}, "memory 300 .* a number without a unit is bytes; .* 12 MB: give memory='300MB'$"),
    ({"memory": "4"}, "memory 4 .*: give memory='4GB'$"),
    ({"memory": 32}, "memory 32 .*: give memory='32GB'$"),
    ({"workers": 0}, "workers"),
    ({"piles": 0}, "piles"),
    ({"piles": 70_000}, "piles 70000 is out of range; it must be from 1 to 65536$"),
    ({"head_count": -1}, "head_count"),
    ({"head_count": 1.5}, "head_count 1.5 is not a whole number; give one, at least 0$"),
    *(({"head_count": one}, f"head_count '{one}' is out of range; give a whole number, or a share") for one in ("101%", "x%", "-1%", "5")),
    ({"shards": 0}, "shards"),
    ({"shards": 2, "shard_records": 5}, "shard"),
    ({"header": "one"}, "header 'one' is not possible: give a number of lines, auto, none or first$"),
    ({"header": -1}, "header -1 is not possible"),
    ({"compression": "lzma"}, "compression"),
    ({"separator": b""}, "separator"),
    *(({"separator": end, "zero_terminated": True}, "zero_terminated=True and separator contradict") for end in ("x", "\n", r"\n", b"\n")),
    ({"on_bad_record": "quarantine:s3://b/bad", "to": "parquet"}, "s3://b/bad: is a URL; give a local path"),
    ({"schema": "s3://b/schema.json", "to": "parquet"}, "s3://b/schema.json: is a URL; give a local path"),
    ({"resume": True, "output": "-"}, "resume=True"),
]  # fmt: skip
ID = pa.schema({"id": pa.int64()})
REFUSED: dict[str, list[tuple[str, dict[str, Any], str]]] = {
    "values": [("in.txt", *case) for case in VALUES],
    "streams": [
        ("-", {"resume": True}, "resume=True"),
        ("-", {"format": "parquet", "output": "out.parquet"}, "parquet cannot be read from standard input"),
        ("-", {"copies": [1.5], "format": "text"}, "^copies reads its inputs twice, and a stream is read once; give files$"),
        ("-", {"split": "a=0.5,b=0.5", "format": "text"}, "a stream is read once; give files, or split_by"),
        ("pipe", {"split": "a=0.5,b=0.5", "format": "text"}, "a stream is read once; give files"),
        ("in.jsonl", {"columns": "id", "output": "-"}, "columns: records of jsonl are kept as they are, unless they are converted"),
    ],
    "formats": [
        ("in.csv", {"provenance": True, "output": "out.csv"}, "not possible from csv to csv"),
        ("in.txt", {"provenance": True}, "to='parquet' or to='jsonl'"),
        ("in.parquet", {"provenance": True, "to": "text"}, "to='jsonl'"),
        ("in.h5", {"provenance": True}, "to='parquet'"),
        ("in.txt in.txt", {"provenance": True, "to": "jsonl"}, "an input 2 times"),
        ("in.csv", {"columns": "c", "to": "parquet"}, "^no column 'c' in the inputs; there are 'id', 'user'$"),
        ("in.jsonl", {"columns": "no", "to": "parquet", "schema": ID}, "there is no column 'no'; there are: id"),
        *(
            ("in.csv", {"delimiter": one}, r"(?s)^delimiter[ =].* is not possible: give one ASCII character that ends no line")
            for one in ("tab", "", "\n", "é")
        ),
    ],
    "mixtures": [
        ("in.jsonl", {"weights": "1,2", "head_count": 5}, "^weights: 2 for 1 inputs; give one for each INPUT$"),
        ("in.jsonl more.jsonl", {"weights": "1,2"}, "^weights: give head_count with the number of records to take, or copies instead$"),
        ("in.jsonl more.jsonl", {"copies": "1,2", "head_count": 5}, "^copies and head_count contradict each other; give weights with"),
        ("in.jsonl more.jsonl", {"copies": "1,2", "head_count": "10%"}, "^copies and head_count contradict each other; give weights with"),
        ("in.jsonl more.jsonl", {"weights": "1,2", "head_count": "10%"}, "^weights: give head_count as a number of records, not as a share$"),
        ("in.jsonl more.jsonl", {"copies": "1,x"}, "^copies: 'x' is no number from 0 on; write for example copies 0.7,0.3$"),
        ("in.jsonl more.jsonl", {"copies": [0, 0.0]}, "^copies: all numbers are 0; let one be larger$"),
        *(
            ("in.jsonl", {"copies": number}, rf"^copies: '{number}' is out of range; it must be from 0 to 1,000,000$")
            for number in ("1e99", "1e7", "18446744073709551616")
        ),
        *(
            ("in.jsonl", {"copies": number}, f"^copies: '{number}' is no number from 0 on")
            for number in ("1e99999999", "1e-99999999", "nan", "inf", "1/0", "-1")
        ),
        ("in.jsonl", {"weights": "1e99999999", "head_count": 1}, "^weights: '1e99999999' is no number from 0 on"),
        ("in.jsonl", {"head_count": "1e99999999%"}, "^head_count '1e99999999%' is out of range"),
        ("in.jsonl", {"split": "a=1e-99999999,b=1"}, "^split: share '1e-99999999' of 'a': give a number between 0 and 1$"),
        ("in.jsonl more.jsonl", {"copies": [1, -1]}, "^copies: '-1' is no number from 0 on"),
        ("in.jsonl", {"copies": "1", "group_by": "id"}, "^group_by and copies: give one of them in a run; the output of one"),
        ("in.jsonl", {"copies": "1", "to": "parquet", "on_bad_record": "quarantine:bad"}, "^copies and on_bad_record.* exclude"),
        ("in.jsonl empty.jsonl", {"weights": [1, 1], "head_count": 3}, "empty.jsonl: holds no records, and 1 are to be taken; leave it out$"),
    ],
    "groups": [
        ("in.jsonl", {"group_by": "usr"}, "^group_by: no record has a value of 'usr'; name a field that some have$"),
        ("in.jsonl", {"group_by": ["user", "usr"]}, "^group_by: no record has a value of 'usr'; name a field"),
        ("in.parquet", {"group_by": "usr"}, "^group_by: there is no column 'usr'; there are: id, user$"),
        ("in.csv", {"group_by": "usr"}, "^group_by: there is no column 'usr'; there are: id, user$"),
        ("in.parquet", {"group_by": "user", "columns": "id"}, "^group_by: there is no column 'user'; there are: id; columns keeps no others$"),
        ("in.jsonl", {"group_by": "user", "format": "text"}, "^group_by user: text has no fields; give format='jsonl' or csv if"),
        ("in.jsonl", {"group_by": "user", "head_count": 5}, "^head_count: not with group_by, as it would cut groups; sample in"),
        ("in.jsonl", {"group_by": "user", "dedup": "record"}, "^group_by and dedup: give one of them in a run; the output"),
        ("in.jsonl", {"group_order": "random"}, "^group_order: is used with group_by only; give that, too$"),
        ("in.jsonl", {"group_by": "user", "group_order": "any"}, "^group_order 'any' is not possible; choose one of input, random$"),
        ("in.jsonl", {"group_by": "user,"}, "^group_by holds an empty name; write for example group_by a,b$"),
    ],
    "duplicates": [
        ("in.txt", {"dedup": "user"}, "^dedup user: text has no fields; give format=.jsonl. or csv if"),
        ("in.jsonl", {"dedup": "usr"}, "^dedup: no record has a value of 'usr'; name a field that some have$"),
        ("in.jsonl", {"dedup": "id,usr"}, "^dedup: no record has a value of 'usr'"),
        ("in.csv", {"dedup": "usr"}, "^dedup: there is no column 'usr'; there are: id, user$"),
        ("in.jsonl", {"dedup": "id", "head_count": 5}, "^head_count: not with dedup: the number of records kept is"),
        ("in.jsonl", {"dedup": "id", "shard_records": 5}, "^shard_records: not with dedup.*; give shards$"),
        ("in.jsonl", {"dedup": "id", "shard_bytes": 500, "head_count": 1}, "^head_count, shard_bytes: not with dedup"),
        ("in.jsonl", {"dedup": "id", "copies": "2"}, "^dedup and copies: give one of them in a run"),
        ("in.csv", {"dedup": "record", "columns": "id,user"}, "^dedup record: lines of csv are compared whole, and columns keeps a part of .*; give dedup id,user$"),
        ("in.jsonl", {"dedup": "record", "columns": "id", "to": "parquet"}, "^dedup record: lines of jsonl .*; give dedup id$"),
        ("in.jsonl", {"dedup": ","}, "dedup holds an empty name"),
    ],
    "parts": [
        ("in.jsonl", {"split": "a=0.5,b=0.5", "head_count": 5}, "head_count: not with split"),
        ("in.jsonl", {"split": "a=0.5,b=0.3,c=0.2", "shards": 2}, "shards 2: fewer than the 3 parts of split; give at least 3"),
        ("in.jsonl", {"split": "a=0.5,b=0.5", "to": "parquet", "on_bad_record": "quarantine:bad"}, "on_bad_record: not with split alone, .*; give split_by, too, or leave"),
        ("in.jsonl", {"split": "a=0.5"}, "give 2 to 255"),
        ("in.jsonl", {"split": "a=0.5,b=0.6"}, "the shares add up to 1.1"),
        ("in.jsonl", {"split": {"a/b": 0.5, "c": 0.5}}, "name 'a/b'"),
        ("in.jsonl", {"split": "a=0.5,b=0.5", "group_by": "id"}, "group_by and split: give one of them in a run"),
        ("in.jsonl", {"split": "a=0.5,b=0.5", "split_seed": 1}, "^split_seed: is used with split_by only; give that, too$"),
        ("in.jsonl", {"split": "a=0.5,b=0.5", "split_by": "usr"}, "^split_by: no record has a value of 'usr'; name a field that some have"),
        *(
            ("in.txt", {"split": "a=0.5,b=0.5", "output": output}, "^split: the output is a folder of folders; give output with a / at its end")
            for output in ("out.txt", "-")
        ),
    ],
}  # fmt: skip
WIDE = [
    ("csv", "columns"),
    ("csv", "group_by"),
    ("parquet", "columns"),
    ("parquet", "group_by"),
    ("store", "columns"),
]
STORED: list[tuple[dict[str, Any], str]] = [
    ({"split": {"a": 0.5, "b": 0.5}, "split_by": "usr"}, "^split_by: no record has a value of 'usr'; name a field that some have"),
    ({"split_by": "user"}, "^split_by: is used with split only; give that, too"),
    ({"columns": "id"}, "columns: records of jsonl are kept as they are, unless they are converted"),
]  # fmt: skip


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Work in a folder with inputs of all formats, and return what is there."""
    monkeypatch.chdir(tmp_path)
    table = pa.table({"id": [1, 2], "user": ["a", "b"]})
    (tmp_path / "in.txt").write_text("1\n")
    for name in ("in.jsonl", "more.jsonl"):
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "in.csv").write_text("id,user\n1,a\n2,b\n")
    pq.write_table(table, tmp_path / "in.parquet")
    WRITERS["hdf5"](tmp_path / "in.h5", 0, 2)
    os.mkfifo(tmp_path / "pipe")
    return sorted(os.listdir())


@pytest.mark.parametrize("topic", REFUSED)
def test_what_cannot_be_meant_is_refused_by_name_and_nothing_is_left(inputs: list[str], topic: str):
    for names, options, message in REFUSED[topic]:
        given = {"output": "out/"} | options
        given |= {"stdin": io.BytesIO(b"1\n")} if names == "-" else {}
        given |= {"stdout": io.BytesIO()} if given["output"] == "-" else {}
        with pytest.raises(UsageError, match=message) as caught:
            recshuf.shuffle(names.split(), **given)
        assert "\n" not in str(caught.value)
        assert sorted(os.listdir()) == inputs, options


def test_what_no_store_can_keep_is_refused_by_name(inputs: list[str]):
    for options, message in STORED:
        with pytest.raises(UsageError, match=message):
            recshuf.scatter("in.jsonl", "store", **options)
        assert sorted(os.listdir()) == inputs
    with pytest.raises(TypeError, match="'sead'"):
        recshuf.shuffle("in.txt", "out", sead=1)


@pytest.mark.parametrize("option", ["group_by", "dedup", "split_by"])
def test_a_value_without_a_text_is_named_with_its_line(tmp_path: Path, option: str):
    (tmp_path / "in.jsonl").write_text('{"x": 1}\n{"x": {"y": 2}}\n')
    options = {"split": "a=0.5,b=0.5"} if option == "split_by" else {}
    with pytest.raises(
        InputError, match=r"in\.jsonl: line 2, field 'x': holds an object; name a field inside"
    ):
        recshuf.shuffle(tmp_path / "in.jsonl", f"{tmp_path}/out/", **options, **{option: "x"})


# That have no effect, which the plan already tells

PAIRS = [(given, to) for given in FORMATS for to in FORMATS]
LINES = ("jsonl", "csv", "text")
FITTING: dict[str, tuple[Any, str, Any]] = {
    "separator": ("|", "separator: for records of text only", lambda given, to: "text" in (given, to)),
    "zero_terminated": (True, "zero_terminated=True: for records of text only", lambda given, to: "text" in (given, to)),
    "header": (1, "header: for inputs of csv or text only", lambda given, _: given in ("text", "csv")),
    "datasets": ("id", "datasets: for inputs of hdf5 or npz only", lambda given, _: given == "hdf5"),
    "columns": ("id", "columns: (for inputs of|records of)", lambda given, to: given in ("csv", "parquet") or (given, to != given) == ("jsonl", True)),
    "comment": ("#", "comment: for inputs of csv only", lambda given, _: given == "csv"),
    "skip_lines": (1, "skip_lines: for inputs of csv only", lambda given, _: given == "csv"),
    "widen": (
        True,
        "widen=True: for inputs of parquet or hdf5 or arrow only",
        lambda given, _: given in ("parquet", "hdf5"),
    ),
    "nan_as_null": (True, "nan_as_null=True: ", lambda given, to: to == "jsonl" != given),
    "provenance": (True, "provenance=True: ", lambda given, to: to != "text" and (given, to) not in (("hdf5", "hdf5"), ("csv", "csv"))),
    "delimiter": (";", "delimiter: for records of csv only", lambda given, to: "csv" in (given, to)),
    "quote": ("'", "quote: for inputs of csv only", lambda given, _: given == "csv"),
    "keep_others": (True, "keep_others=True: for hdf5 to hdf5 or npz to npz only", lambda given, to: given == to == "hdf5"),
    "schema": (pa.schema([("text", pa.string())]), "schema: (for|[a-z0-9]+ to) ", lambda given, to: given in LINES and given != to),
    "on_bad_record": ("quarantine:bad", "on_bad_record: for a conversion of", lambda given, to: given in LINES and given != to),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an input of each format, named by it."""
    made = tmp_path_factory.mktemp("inputs")
    for name in FORMATS:
        WRITERS[name](made / name, 0, 9)
    pq.write_table(pa.table({"id": ["a"]}), made / "parquet")
    return made


@pytest.mark.parametrize("name", FITTING)
def test_an_option_that_does_not_fit_the_formats_is_named(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    value, message, fits = FITTING[name]
    for given, to in PAIRS:
        options: dict[str, Any] = {"format": given, "to": to, "memory": "300MB"}
        said = ""
        try:
            recshuf.plan(given, "out/", **options, **{name: value})
        except recshuf.errors.RecshufError as error:
            said = str(error) if isinstance(error, UsageError) else ""
        assert bool(re.search(f"^{message}", said)) != fits(given, to), (given, to, said)


@pytest.mark.parametrize(("kind", "option"), WIDE)
def test_an_unknown_name_among_thousands_is_told_with_those_like_it(
    tmp_path: Path, kind: str, option: str
) -> None:
    table = pa.table({f"column{number}": [1] for number in range(2000)})
    path = tmp_path / f"in.{kind}"
    if kind == "csv":
        path.write_text(",".join(table.column_names) + "\n" + ",".join(["1"] * 2000) + "\n")
    elif kind == "parquet":
        pq.write_table(table, path)
    else:
        recshuf.scatter(table, path)
    with pytest.raises(UsageError, match=r"'?column\d+'?, .*, \.\.\.") as caught:
        _ = (
            recshuf.PileLoader(path, batch_size=1, columns=["colunm7"])
            if kind == "store"
            else recshuf.shuffle(path, tmp_path / f"out.{kind}", **{option: "colunm7"})
        )
    assert len(str(caught.value)) < 600
