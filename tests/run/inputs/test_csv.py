"""CSV as programs leave it: parts, unlike headers and line ends, comments and blank lines, codes, other delimiters."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, InputError, RecshufWarning, UsageError
from tests.support.effort import mostly_slow
from tests.support.formats.conversion_data import read_columns


def write_all(folder: Path, contents: Sequence[bytes], suffix: str = ".csv") -> list[Path]:
    paths = [folder / f"in{index}{suffix}" for index in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


def shuffle_both_ways(paths: list[Path], output: Path, **options: Any) -> bytes:
    """Return what a shuffle writes, and check that a store and a pipe of the same records give the same."""
    recshuf.shuffle(paths, output, seed=1, verify=True, **options)
    made, store = output.read_bytes(), output.with_name(f"{output.name}.store")
    recshuf.scatter(paths, store, seed=1, **options)
    recshuf.gather(store, output, overwrite=True, verify=True)
    assert output.read_bytes() == made
    if len(paths) == 1:
        stdin, piped = io.BytesIO(paths[0].read_bytes()), output.with_stem("piped")
        recshuf.shuffle("-", piped, seed=1, format="csv", stdin=stdin, **options)
        assert piped.read_bytes() == made
    assert recshuf.verify(paths, output, **options)
    return made


ENDS = [b"id,x\n1,a\n", b'\xef\xbb\xbfid,x\r\n2,"b\r\nc"\r\n3,d', b'"id",x\n4,e']
PARTS = [b"id,x\n1,a\n", b"2,b\n", b"", b"3,c\n"]
COMMENTED = b'# made "by", x\nid,x\n1,a\n# not, "this\n2,"#b"\n#end'
# Inputs, options, output, what tops it, and its records.
KEPT: dict[str, list[tuple[list[bytes], dict[str, Any], str, bytes, list[bytes]]]] = {
    "a blank line is no record unless it is a value": [
        ([b"id,x\n1,a\n\n2,b\n\n"], {}, "out.csv", b"id,x\n", [b"1,a\n", b"2,b\n"]),
        ([b"id,x\n1,a\n\n2,b\n\n"] * 2, {}, "out.csv", b"id,x\n", [b"1,a\n", b"2,b\n"] * 2),
        ([b"id,x\r\n1,a\r\n2,b\r\n\r\n\r\n"], {}, "out.csv", b"id,x\r\n", [b"1,a\r\n", b"2,b\r\n"]),
        ([b'id,x\n1,"a\n\nb" \n\n\n'] * 2, {}, "out.csv", b"id,x\n", [b'1,"a\n\nb" \n'] * 2),
        ([b"x\n1\n\n"], {}, "out.csv", b"x\n", [b"\n", b"1\n"]),
    ],
    "line ends and marks become those of the first": [
        (ENDS, {}, "out.csv", b"id,x\n", [b"1,a\n", b"3,d\n", b"4,e\n", b'2,"b\r\nc"\n']),
        (ENDS[1:] + ENDS[:1], {}, "out.csv", b"\xef\xbb\xbfid,x\r\n", [b"1,a\r\n", b"3,d\r\n", b"4,e\r\n", b'2,"b\r\nc"\r\n']),
        ([b"id,x", b"id,x\r\n1,a\r\n"], {}, "out.csv", b"id,x\r\n", [b"1,a\r\n"]),
        ([b"\xef\xbb\xbfid,x\n1,a\n", b"id,x\n"], {}, "out.csv", b"\xef\xbb\xbfid,x\n", [b"1,a\n"]),
        ([b"# one\nid,2020\nxx,5\n", b"# two\nid,2020\n"], {}, "out.csv", b"# one\nid,2020\n", [b"xx,5\n"]),
    ],
    "only the first part of a cut file has a header": [
        *(
            (parts, {"header": "first"}, output, b"id,x\n", records)
            for output in ("out.csv", "out.txt")
            for parts, records in ((PARTS, [b"1,a\n", b"2,b\n", b"3,c\n"]), ([b"id,x", b"2,b\n"], [b"2,b\n"]), ([b"id,x\n", b"2,b\n"], [b"2,b\n"]))
        ),
    ],
    "comments are no records and those on top stay there": [
        ([COMMENTED], {"comment": "#"}, "out.csv", b'# made "by", x\nid,x\n', [b"1,a\n", b'2,"#b"\n']),
    ],
    "a name of tabs gets tabs": [
        ([b'id,"na,me",v\r\n1,"a,b",2\r\n2,"x\ny",3'], {}, "out.tsv", b'id\t"na,me"\tv\r\n', [b'1\t"a,b"\t2\r\n', b'2\t"x\ny"\t3\r\n']),
        ([b'id,t\n1,a\tb\n2,"c\td"\n'], {}, "out.tsv", b"id\tt\n", [b'1\t"a\tb"\n', b'2\t"c\td"\n']),
        ([b"sep=;\nid;t\n1;a\n2;b,c\n"], {}, "out.tsv", b"sep=\t\nid\tt\n", [b"1\ta\n", b"2\tb,c\n"]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("what", KEPT)
def test_records_and_what_tops_them_are_kept(tmp_path: Path, what: str) -> None:
    for number, (contents, options, output, top, records) in enumerate(KEPT[what]):
        folder = tmp_path / str(number)
        folder.mkdir()
        paths = write_all(folder, contents, ".txt" if output == "out.txt" else ".csv")
        made = shuffle_both_ways(paths, folder / output, **options)
        assert made.startswith(top)
        assert sorted(made.removeprefix(top).splitlines(keepends=True)) == sorted(
            b"".join(records).splitlines(keepends=True)
        )


def test_line_ends_of_inputs_that_are_read_together_or_told_become_those_of_the_first(tmp_path: Path) -> None:
    for end, other in ((b"\n", b"\r\n"), (b"\r\n", b"\n")):
        header, record = b"id,x", b"1,a"
        first = header + end + record + end
        contents = [first, header + other + record + other + record + end] * 20
        recshuf.shuffle(write_all(tmp_path, contents), tmp_path / "many.csv", workers=1, overwrite=True)
        assert (tmp_path / "many.csv").read_bytes() == first + (record + end) * 59
    paths = write_all(tmp_path, [b"id,x\n1,a\n", b"id,x\r\n2,b\r\n"])
    said = "in1.csv: its lines end in CRLF, those of .+in0.csv in LF; all get LF"
    with pytest.warns(RecshufWarning, match=said):
        recshuf.shuffle(paths, tmp_path / "told.csv")


@pytest.mark.parametrize("to", ["jsonl", "parquet"])
def test_a_conversion_unites_columns_by_name(tmp_path: Path, to: str) -> None:
    paths = write_all(tmp_path, [b"id,x\n1,a\n2,b\n", b'x,y,id\n"c",0.5,3\n', b"id,x\n4,\n"])
    shuffle_both_ways(paths, tmp_path / f"out.{to}")
    found = read_columns(tmp_path / f"out.{to}")
    rows = [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
    expected = [("a", None), ("b", None), ("c", 0.5), (None, None)]
    wanted = [{"id": number, "x": x, "y": y} for number, (x, y) in enumerate(expected, 1)]
    assert sorted(rows, key=lambda row: row["id"]) == wanted
    # The order is that of the same records under one header.
    contents = [b"id,x,y\n1,a,\n2,b,\n", b'id,x,y\n3,"c",0.5\n', b"id,x,y\n4,,\n"]
    one_header = write_all(tmp_path, contents)
    recshuf.shuffle(one_header, tmp_path / f"same.{to}", seed=1)
    assert (tmp_path / f"same.{to}").read_bytes() == (tmp_path / f"out.{to}").read_bytes()


def test_a_code_far_down_makes_its_column_text(tmp_path: Path) -> None:
    lines = ["5,0,1e-05,2020-01-02"] * 150_000
    (path,) = write_all(
        tmp_path, ["\n".join(["code,n,f,day", *lines, "01234,0,-0.5,2020-01-02", ""]).encode()]
    )
    recshuf.shuffle(path, tmp_path / "out.parquet", seed=1, verify=True)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.types[:3] == [pa.string(), pa.int64(), pa.float64()]
    assert "01234" in table["code"].to_pylist()


def test_codes_are_found_in_columns_of_another_order(tmp_path: Path) -> None:
    paths = write_all(tmp_path, [b"n,code,t\n1,5,x\n", b"t,n,code\n" + b"y,2,007\n" * 99])
    recshuf.shuffle(paths, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert sorted(table["code"].to_pylist()) == ["007"] * 99 + ["5"]
    assert sorted(table["n"].to_pylist()) == [1] + [2] * 99


def test_bad_records_under_unlike_headers_are_set_aside(tmp_path: Path) -> None:
    paths = write_all(tmp_path, [b"id,x\n1,a\n2\n", b"x,y,id\nc,0.5,3\nd,4\n"])
    bad = tmp_path / "bad"
    recshuf.shuffle(paths, tmp_path / "out.parquet", on_bad_record=f"quarantine:{bad}")
    assert [json.loads(line)["record"] for line in bad.read_text().splitlines()] == ["2", "d,4"]
    assert sorted(pq.read_table(tmp_path / "out.parquet")["id"].to_pylist()) == [1, 3]


def test_lines_that_are_no_records_do_not_count_in_small_inputs(tmp_path: Path) -> None:
    """Those are read together."""
    rows = [[b"# %d\n" % row * (number % 3) + b"%d,%d\n" % (number, row) + b"\n" * (row % 2) for row in range(number % 4)] for number in range(40)]  # fmt: skip
    paths = write_all(tmp_path, [b"number,row\n" + b"".join(some) for some in rows])
    recshuf.shuffle(paths, tmp_path / "out.parquet", comment="#", provenance=True)
    table = pq.read_table(tmp_path / "out.parquet")
    names = [str(paths[number]) for number in table["number"].to_pylist()]
    assert (names, table["row"]) == (table["source_file"].to_pylist(), table["source_row"])
    assert table.num_rows == sum(map(len, rows))


@pytest.mark.parametrize(
    "output", mostly_slow(["out.csv", "out.tsv", "out.jsonl", "out.parquet"], "out.csv", "out.parquet")
)
def test_columns_are_chosen_in_their_order(tmp_path: Path, output: str) -> None:
    (path,) = write_all(tmp_path, [b'id,"a,b",v\n1,"x,\n""y""",2\n3,,4\n'])
    shuffle_both_ways([path], tmp_path / output, columns=["v", "a,b"])
    if output == "out.csv":
        assert sorted((tmp_path / output).read_bytes()) == sorted(b'v,"a,b"\n2,"x,\n""y"""\n4,\n')
    elif output == "out.parquet":
        assert pq.read_schema(tmp_path / output).names == ["v", "a,b"]
    report = recshuf.verify(path, tmp_path / output)
    assert not report
    if output != "out.jsonl":
        assert "if a run chose columns, give columns" in report.differences[0]


REFUSED: dict[str, tuple[list[bytes], str, dict[str, Any], str]] = {
    "other column": ([b"a,b\n1,2\n", b"a,c\n1,2\n"], "out.csv", {}, r"in1.csv: its header differs from that of .*in0.csv; give to='jsonl'"),
    "other column below a mark": ([b"\xef\xbb\xbfa,b\r\n", b"a,c\n"], "out.csv", {}, "in1.csv: its header differs from that of"),
    "no column named": ([b"ann,rome\nbob,oslo\n", b"cid,nice\n"], "out.csv", {}, "names none of its columns; give header='first' if only the first"),
    "no header": ([b"a,b\n1,2\n", b"1,2\n"], "out.csv", {}, "does not begin with a header line"),
    "header in one only": ([b"1,2\n", b"a,b\n"], "out.csv", {}, "begins with a header line"),
    "quote in a comment": ([b'id,x\n1,a\n#,"open\n2,b"\n'], "out.csv", {"comment": "#"}, "a quote in the comment '#,\"open' takes further lines into it"),
    "quote in a field of tabs": ([b'id,t\n1,a\tb"c\n2,x\n'], "out.tsv", {}, r"the field 'a\\tb\"c' holds '\\t', .* named .csv"),
    "chosen column missing": ([b"id,t\n1,a\n2\n"], "out.csv", {"columns": "t"}, "the record '2' has 1 field, and the first one 2; correct it"),
    "too few fields": ([b"a,b\nx,y\nz\n"], "out.parquet", {}, r"in0\.csv: record 2: has 1 field, and the first record has 2"),
    "decimal behind a bad record": ([b"id,x\n1,\r2\n2,123\n"], "out.jsonl", {"schema": {"id": "int8", "x": "decimal128(3, 2)"}}, r"in0.csv: record 2: column 'x': .*123"),
    "number behind a bad record": ([b"id,x\n1,\r2\n2,z\n"], "out.jsonl", {"schema": {"id": "int8", "x": "int8"}}, r"in0.csv: record 2: column 'x': .*'z'"),
    "odd quote in small inputs": ([b"id,x\n1,a\n"] * 37 + [b'id,x\n1,"a\nb"c\n'], "out.csv", {"workers": 1}, r"in37.csv: text follows the quote"),
    "value of another type": ([b"id,x\n1,a\n", b"x,y,id\nc,0.5,3\n"], "out.jsonl", {"schema": {"id": "int8", "x": "string", "y": "int8"}}, r"in1.csv: record 1: column 'y': .*invalid value '0.5'"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_named(tmp_path: Path, what: str) -> None:
    contents, output, options, message = REFUSED[what]
    paths = write_all(tmp_path, contents)
    with pytest.raises((ConversionError, InputError), match=message):
        recshuf.shuffle(paths, tmp_path / output, **options)
    assert not (tmp_path / output).exists()


@pytest.mark.parametrize("bad", [b'"two\tx\nthree "y"\tz\n', b'"open\tx\nb\ty\n' * 2, b'a\t"x\nb\t"y\n'])
def test_a_quote_that_joins_lines_far_down_is_an_error(tmp_path: Path, bad: bytes) -> None:
    lines = b"".join(b"w%d\tx\n" % row for row in range(20_000))
    (path,) = write_all(tmp_path, [b"one\tuno\n" + lines + bad + b"four\t4\n"], ".tsv")
    for output in ("out.tsv", "out.jsonl"):
        with pytest.raises(
            InputError, match=r"text follows the quote that ends a field of several lines: .*quote"
        ):
            recshuf.shuffle(path, tmp_path / output)
        assert recshuf.shuffle(path, tmp_path / output, quote="none").records == 20_001 + bad.count(b"\n")
    assert recshuf.shuffle(path, tmp_path / "joined.tsv", quote='"').records < 20_001 + bad.count(b"\n")


def test_a_store_takes_csv_of_its_own_form_only(tmp_path: Path) -> None:
    first, same, other, mixed = write_all(
        tmp_path, [b"id,x\n1,a\n", b"id,x\n2,b\n", b"id;x\n3;c\n", b"x,id\nd,4\n"]
    )
    recshuf.scatter([first, mixed], tmp_path / "united", seed=1)
    recshuf.scatter(first, tmp_path / "one", seed=1)
    for store, fitting, unfitting in (
        ("one", [same], [other]),
        ("united", [same, mixed], [mixed, same]),
        ("one", [same], [same, mixed]),
    ):
        with recshuf.PileStore(tmp_path / store).update() as update:
            update.append(fitting)
        with (
            pytest.raises(UsageError, match="another delimiter, other quotes or other headers"),
            recshuf.PileStore(tmp_path / store).update() as update,
        ):
            update.append(unfitting)
    recshuf.gather(tmp_path / "united", tmp_path / "out.jsonl")
    rows = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert sorted((row["id"], row["x"]) for row in rows) == [(1, "a"), (2, "b"), (4, "d"), (4, "d")]


def test_a_wrong_number_of_fields_fails_a_conversion_only(tmp_path: Path):
    (tmp_path / "in.csv").write_bytes(b"a,b\nx,y\nz\n\nu,v,w\n")
    recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out.csv", seed=1, verify=True)
    assert sorted((tmp_path / "out.csv").read_bytes().splitlines()[1:]) == [b"u,v,w", b"x,y", b"z"]
    report = recshuf.shuffle(
        tmp_path / "in.csv", tmp_path / "out.parquet", on_bad_record=f"quarantine:{tmp_path / 'bad'}"
    )
    assert report.quarantined == 2
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 1
    assert (tmp_path / "bad").read_text().count('"line":') == 2


@pytest.mark.parametrize(("header", "kept"), [("none", b""), (1, b"7,8\n"), ("auto", b"")])
def test_the_header_is_what_the_option_says(tmp_path: Path, header: int | str, kept: bytes):
    (tmp_path / "in.csv").write_bytes(b"7,8\n1,2\n3,4\n5,6\n")
    recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out/", header=header, shards=2, seed=3, verify=True)
    shards = [path.read_bytes() for path in sorted((tmp_path / "out").glob("shard*"))]
    assert all(shard.startswith(kept) for shard in shards)
    assert sum(shard.removeprefix(kept).count(b"\n") for shard in shards) == (3 if kept else 4)
    if header == "none":
        recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out.parquet", header=header)
        assert pq.read_schema(tmp_path / "out.parquet").names == ["f0", "f1"]


def test_bytes_that_are_not_utf8_are_shown(tmp_path: Path):
    for values in (
        pa.array([b"fine", None, b"\xff\xfe" + b"x" * 99], pa.binary()),
        pa.array([b"ab", b"\xff\xfe", None], pa.binary(2)),
        pa.array([b"a", b"\xff\xfe"]).dictionary_encode(),
    ):
        pq.write_table(pa.table({"good": [b"good"] * len(values), "b": values}), tmp_path / "in.parquet")
        message = (
            r"^field 'b': CSV cannot hold b'\\xff\\xfe(x{38}'\.\.\.|'), which is not UTF-8; write Parquet"
        )
        with pytest.raises(ConversionError, match=message):
            recshuf.shuffle(tmp_path / "in.parquet", tmp_path / "out.csv", workers=1)
        assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_text_that_becomes_bytes_is_said(tmp_path: Path):
    """Files that were saved as Latin-1 go on unchanged as CSV."""
    (tmp_path / "in.csv").write_bytes("id;name\n1;José\n2;Ann\n".encode("latin-1"))
    recshuf.shuffle(tmp_path / "in.csv", tmp_path / "same.csv")
    for engine in ("local", "processes"):
        with pytest.warns(RecshufWarning, match="not all is UTF-8 in 'name', so that it becomes bytes"):
            recshuf.shuffle(
                tmp_path / "in.csv", tmp_path / "out.parquet", engine=engine, verify=True, overwrite=True
            )
    assert pq.read_schema(tmp_path / "out.parquet").field("name").type == pa.binary()
    given = pa.schema({"id": pa.int64(), "name": pa.binary()})
    recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out.jsonl", schema=given)
