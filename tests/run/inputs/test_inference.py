"""Schemas inferred from the first records, as if all had been observed; and columns of a conversion from JSONL."""

import io
import json
import os
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import ConversionError, InputError, SchemaMismatch, UsageError
from recshuf.formats.jsonl.decoder import JsonDecoder
from tests.support.effort import examples
from tests.support.formats.json_records import ANY_RECORDS, RECORDS_OF_ONE_TYPE, batch_of, decode_with
from tests.support.small_runs import Listener, change_plans, infer_from_few

KNOWN = [b'{"a": 1, "f": 0.5, "n": null, "t": "x", "l": [{"m": 1}]}', b'{"a": -7}']
STRANGE = {
    "new field": b'{"b": 1}',
    "new field below": b'{"l": [{"o": null}]}',
    "another type": b'{"t": 1}',
    "float among integers": b'{"a": 1.0}',
    "value for null": b'{"n": ""}',
    "integer too long": b'{"a": 9223372036854775808}',
    "integer that float64 cannot hold": b'{"f": 9007199254740993}',
    "no JSON": b'{"a": tru}',
    "field twice": b'{"a": 1, "a": 1}',
    "two objects": b'{"a": 1} {"a": 2}',
}


def decoder_of_prefix(lines: list[bytes], known: int) -> JsonDecoder:
    """Return a decoder that has looked closely at the first lines only."""
    decoder = JsonDecoder(["in.jsonl"], None)
    decoder.infer_from_prefix(0)
    for start, stop in ((known, len(lines)), (0, known)):
        decoder.observe(batch_of(lines[start:stop]), 0, start)
    return decoder


@settings(max_examples=examples(160), deadline=None)
@given(RECORDS_OF_ONE_TYPE | ANY_RECORDS, st.integers(0, 8))
def test_records_are_decoded_as_if_all_had_been_observed_or_not_at_all(
    records: list[dict[str, Any]], known: int
) -> None:
    lines = [json.dumps(record).encode() for record in records]
    observing = JsonDecoder(["in.jsonl"], None)
    try:
        decoder = decoder_of_prefix(lines, known)
        decoder.finish()
        found = decode_with(decoder, lines)
    except (SchemaMismatch, InputError):
        return
    observing.observe(batch_of(lines), 0, 0)
    assert decoder.schema == observing.finish()
    assert found.equals(observing.decode(batch_of(lines)))


def test_lines_that_do_not_even_look_like_objects_are_named_at_once() -> None:
    for bad in (b"[1]", b"", b'{"a":"\xff"}', b'{"a":1'):
        with pytest.raises(InputError, match=r"in\.jsonl: line 5"):
            decoder_of_prefix([*KNOWN, *KNOWN, bad, KNOWN[0]], len(KNOWN))


# Whole runs: the schema is inferred from the first input alone.


@pytest.fixture
def short_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    infer_from_few(monkeypatch)


def make_inputs(
    folder: Path, strange: bytes | None, first: bytes = KNOWN[0], header: bytes | None = None
) -> list[Path]:
    """Write three inputs, of CSV if there is a header, the last of which holds a strange line."""
    paths = [folder / f"in-{index}.{'csv' if header else 'jsonl'}" for index in range(3)]
    for index, path in enumerate(paths):
        lines = [first % {b"id": index * 100 + row} for row in range(100)]
        if index == 2 and strange is not None:
            lines[60] = strange
        path.write_bytes(b"".join(line + b"\n" for line in ([header] if header else []) + lines))
    return paths


def shuffle(inputs: list[Path], output: Path, to: str = "parquet", **options: Any) -> tuple[Any, list[str]]:
    """Return what a run wrote, or said, and its passes."""
    progress = options.pop("progress", None) or Listener()
    try:
        recshuf.shuffle(inputs, f"{output}/", to=to, seed=3, workers=1, progress=progress, **options)
    except (InputError, ConversionError) as error:
        assert not output.exists()
        return str(error), progress.passes
    return {path.name: path.read_bytes() for path in output.iterdir()}, progress.passes


def check_verified(inputs: list[Path], output: Path, to: str, *, reads_twice: bool) -> None:
    """Check that an output is equal to its inputs, and not to others of the same types."""
    listener = Listener()
    assert recshuf.verify(inputs, f"{output}/", to=to, progress=listener).is_equal
    assert ("learn inputs" in listener.passes) == reads_twice
    lines = inputs[1].read_bytes().splitlines(keepends=True)
    inputs[1].write_bytes(b"".join([*lines[:-1], lines[-2]]))
    report = recshuf.verify(inputs, f"{output}/", to=to)
    assert (report.are_compared, report.missing, report.extra) == (True, 1, 1)


NUMBERED = b'{"a": %(id)d, "f": 0.5, "n": null, "t": "x", "l": [{"m": 1}]}'


LATE = {
    "text among integers": b"x,-1,007,0.5,,2020-01-01 10:00:00.5,t",
    "a code among integers": b"007,-1,007,0.5,,2020-01-01 10:00:00.5,t",
    "a hexadecimal number": b"0x10,-1,007,0.5,,2020-01-01 10:00:00.5,t",
    "a fraction among integers": b"0.5,-1,007,0.5,,2020-01-01 10:00:00.5,t",
    "a long integer among floats": b"1,-1,007,9007199254740993,,2020-01-01 10:00:00.5,t",
    "a value where there was none": b"1,-1,007,0.5,7,2020-01-01 10:00:00.5,t",
    "a time that nanoseconds do not hold": b"1,-1,007,0.5,,9999-01-01 10:00:00,t",
    "bytes that are no UTF-8": b"1,-1,007,0.5,,2020-01-01 10:00:00.5,\xff",
    "a field too many": b"1,-1,007,0.5,,2020-01-01 10:00:00.5,t,u",
    "a carriage return": b"1,-1,007,0.5,,2020-01-01 10:00:00.5,t\ru",
}


LINE = b"%(id)d,-1,007,0.5,,2020-01-01 10:00:00.5,t"


@pytest.mark.parametrize(
    ("strange", "to"),
    [
        (None, "parquet"),
        *((name, ("parquet", "hdf5", "text")[k % 3]) for k, name in enumerate(STRANGE)),
        (None, "csv"),
        *((name, "csv") for name in LATE),
    ],
)
def test_a_run_gives_what_a_full_scan_gives(
    tmp_path: Path, strange: str | None, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of JSONL into some formats, or of CSV into Parquet."""
    is_csv, to = to == "csv", to.replace("csv", "parquet")
    given = (LATE if is_csv else STRANGE).get(strange or "")
    inputs = make_inputs(tmp_path, given, *((LINE, b"a,b,c,f,n,d,t") if is_csv else (NUMBERED,)))
    expected, passes = shuffle(inputs, tmp_path / "without", to)
    assert "observe" not in passes
    infer_from_few(monkeypatch)
    found, passes = shuffle(inputs, tmp_path / "with", to)
    assert found == expected
    is_read_once = strange is None and to == "parquet"
    assert passes[:3] == (["scatter", "gather"] if is_read_once else ["scatter", "gather", "observe"])
    if is_csv:
        assert isinstance(found, str) == (strange in ("a field too many", "a carriage return"))
    if isinstance(found, dict):
        check_verified(inputs, tmp_path / "with", to, reads_twice=strange is not None)
        if is_csv and strange is not None:
            inputs[2].write_bytes(inputs[0].read_bytes())
            report = recshuf.verify(inputs, f"{tmp_path}/with/")
            assert not report
            assert report.are_compared == (strange == "bytes that are no UTF-8")  # which differ in values


@pytest.mark.usefixtures("short_prefix")
def test_verify_looks_at_each_line_as_a_run_does(tmp_path: Path) -> None:
    """Two objects on a line and a blank line are as many rows as lines."""
    inputs = make_inputs(tmp_path, None)
    shuffle(inputs, tmp_path / "out")
    lines = inputs[2].read_bytes().splitlines(keepends=True)
    inputs[2].write_bytes(b"".join([*lines[:60], lines[60].rstrip(), lines[61], b" \n", *lines[62:]]))
    with pytest.raises(InputError, match=r"in-2\.jsonl: line 6[12]"):
        recshuf.verify(inputs, f"{tmp_path}/out/", to="parquet")


@pytest.mark.usefixtures("short_prefix")
def test_what_cannot_be_held_by_the_first_records_alone_may_be_so_by_all(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path, b'{"a": 1, "l": [5]}', b'{"a": %(id)d, "l": []}')
    found, passes = shuffle(inputs, tmp_path / "out", "hdf5")
    assert passes == ["scatter", "gather", "observe", "gather"]
    assert isinstance(found, dict)
    assert recshuf.verify(inputs, f"{tmp_path}/out/", to="hdf5").is_equal
    refused, _ = shuffle(inputs[:2], tmp_path / "refused", "hdf5")
    assert isinstance(refused, str)


@pytest.mark.usefixtures("short_prefix")
@pytest.mark.parametrize(
    "options",
    [{"head_count": 5}, {"dedup": "record"}, {"on_bad_record": "quarantine:bad.jsonl"}],
    ids=["sample", "repeats", "quarantine"],
)
def test_where_every_record_counts_all_are_observed(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inputs = make_inputs(tmp_path, STRANGE["no JSON"], NUMBERED)
    found, passes = shuffle(inputs, tmp_path / "out", **options)
    assert "observe" not in passes
    if "on_bad_record" not in options:
        assert "line 61" in found
    else:
        assert (tmp_path / "bad.jsonl").read_bytes().count(b"\n") == 1


@pytest.mark.usefixtures("short_prefix")
def test_shards_of_what_was_known_before_are_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, options = make_inputs(tmp_path, STRANGE["new field"], NUMBERED), {"shards": 30, "piles": 64}
    expected, _ = shuffle(inputs, tmp_path / "expected", **options)

    change_plans(monkeypatch, pile_bytes=600, units_in_flight=1)  # not all piles are decoded at once

    class Dying(Listener):
        def start(self, name: str, *_: Any) -> None:
            if name == "observe":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shuffle(inputs, tmp_path / "out", progress=Dying(), **options)
    assert len(list((tmp_path / ".out.recshuf").rglob("shard-*"))) > 1
    found, passes = shuffle(inputs, tmp_path / "out", resume=True, **options)
    assert found == expected
    assert "observe" not in passes


@pytest.mark.usefixtures("short_prefix")
def test_all_are_observed_where_what_was_written_cannot_be_taken_back(tmp_path: Path) -> None:
    inputs, stdout = make_inputs(tmp_path, b'{"t": 1}', b'{"t": "%(id)d"}'), io.BytesIO()
    with pytest.raises(InputError, match="line 61"):
        recshuf.shuffle(inputs, "-", to="text", piles=64, stdout=stdout)
    assert not stdout.getvalue()


@pytest.mark.usefixtures("short_prefix")
def test_all_are_observed_where_an_input_can_be_read_once_only(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path, b'{"t": "x", "u": 1}', b'{"t": "%(id)d"}')
    expected, _ = shuffle(inputs, tmp_path / "expected")
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    Thread(target=pipe.write_bytes, args=(inputs[2].read_bytes(),), daemon=True).start()
    found, _ = shuffle([*inputs[:2], pipe], tmp_path / "out", shards=3)
    assert isinstance(found, dict)
    tables = [name for name in expected if name.endswith(".parquet")]
    assert [found[name] for name in tables] == [expected[name] for name in tables]


# Columns


ROWS = [{"text": f"t{row}", "id": row, "more": [{"a": row}]} for row in range(400)]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("schema", [None, {"text": "string", "id": "int16"}])
def test_only_these_fields_are_written_in_their_order(
    tmp_path: Path, lines: Path, schema: dict[str, str] | None
) -> None:
    options = {"columns": "id,text", "schema": schema, "verify": True}
    recshuf.shuffle(lines, tmp_path / "out.parquet", **options)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.names == ["id", "text"]
    assert str(table.schema.field("id").type) == ("int64" if schema is None else "int16")
    assert sorted(table["id"].to_pylist()) == [row["id"] for row in ROWS]
    recshuf.shuffle(lines, tmp_path / "out.txt", columns=["text"], verify=True)
    assert sorted((tmp_path / "out.txt").read_text().split()) == sorted(row["text"] for row in ROWS)
    report = recshuf.verify(lines, tmp_path / "out.parquet", columns="id,text", schema=schema)
    assert report.is_equal


def test_a_field_may_appear_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    infer_from_few(monkeypatch)
    inputs = [tmp_path / f"{index}.jsonl" for index in range(3)]
    for path, row in zip(inputs, [{"a": 1}, {"a": 2}, {"a": 3, "b": "x"}], strict=True):
        path.write_text((json.dumps(row) + "\n") * 30)
    recshuf.shuffle(inputs, tmp_path / "out.parquet", columns="b")
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.schema.names == ["b"]
    assert found["b"].null_count == 60
    with pytest.raises(UsageError, match="there is no column 'c'; there are: a, b"):
        recshuf.shuffle(inputs, tmp_path / "c.parquet", columns="b,c")


def test_a_schema_file_in_the_folder_of_the_inputs_is_no_input(tmp_path: Path, lines: Path) -> None:
    (tmp_path / "in").mkdir()
    lines.rename(tmp_path / "in" / "a.jsonl")
    schema = tmp_path / "in" / "schema.json"
    schema.write_text('{"text": "string", "id": "int64", "more": "json"}')
    report = recshuf.shuffle(tmp_path / "in", tmp_path / "out.parquet", schema=schema, verify=True)
    assert report.records == len(ROWS)
    assert recshuf.verify(tmp_path / "in", tmp_path / "out.parquet", schema=str(schema)).is_equal
