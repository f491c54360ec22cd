"""A value reads back from CSV as it was, or is refused: pyarrow writes an error in place of what its text cannot say."""

import csv
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import ConversionError
from recshuf.formats.csv.encoding import encode_records
from tests.formats.csv.test_decoder import decode
from tests.support.effort import examples
from tests.support.formats.decimal_tools import make_decimals

DAY = 86_400
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
FIRST, LAST = -719_528 * DAY, 2_932_897 * DAY - 1
"""The first and the last second of the years 0000 to 9999."""
FIRST_READ = -(2**63 // 10**9) * 10**9
"""The first nanosecond of the first whole second within int64."""
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "+05:30")
KINDS = [
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    *(pa.duration(unit) for unit in UNITS),
    *(pa.timestamp(unit, zone) for unit in UNITS for zone in (None, *ZONES)),
]


def count_per_second(kind: pa.DataType) -> int:
    return UNITS["ms" if pa.types.is_date64(kind) else kind.unit]


def ticks_of(kind: pa.DataType) -> st.SearchStrategy[int]:
    """Return integers of the width of a type, many of them beside a limit of what its text can say."""
    half = 1 << kind.bit_width - 1
    edges = [0, -half, half - 1]
    if pa.types.is_date32(kind):
        edges += [FIRST // DAY, LAST // DAY]
    elif pa.types.is_date64(kind):
        edges += [FIRST * 1000, (LAST + 1) * 1000 - DAY * 1000]
    else:
        edges += [second * count_per_second(kind) for second in (FIRST, LAST, -DAY, 0, DAY)]
    near = st.tuples(st.sampled_from(edges), st.integers(-DAY, DAY)).map(sum)
    return (near | st.integers(-half, half - 1)).filter(lambda ticks: -half <= ticks < half)


def make_array(kind: pa.DataType, ticks: list[int | None]) -> pa.Array:
    return pa.array(ticks, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def encode(array: pa.Array) -> bytes:
    return b"".join(encode_records(pa.record_batch([array], ["x"]), b",").to_pylist())


def read_back(text: bytes, kind: pa.DataType) -> pa.Array:
    options = pc.ConvertOptions(column_types={"x": kind})
    table = pc.read_csv(
        pa.BufferReader(text),
        pc.ReadOptions(column_names=["x"]),
        pc.ParseOptions(ignore_empty_lines=False),
        options,
    )
    return table["x"].combine_chunks()


@settings(max_examples=examples(100))
@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), st.none() | ticks_of(kind))))
def test_times_read_back_or_are_refused(made: tuple[pa.DataType, int | None]) -> None:
    kind, ticks = made
    array = make_array(kind, [ticks, 0])
    try:
        text = encode(array)
    except ConversionError:
        assert not pa.types.is_duration(kind)
    else:
        assert read_back(text, kind).equals(array)


# Each type, and each zone with one unit.
EDGE_KINDS = [
    *(kind for kind in KINDS if not pa.types.is_duration(kind) and not getattr(kind, "tz", None)),
    *(pa.timestamp(unit, zone) for unit, zone in zip([*UNITS, "us"], ZONES, strict=True)),
]


def find_edges(kind: pa.DataType) -> tuple[list[int], list[int]]:
    """Return the last times that text can say, and the first that it cannot."""
    margin = DAY if pa.types.is_timestamp(kind) and kind.tz else 0
    if pa.types.is_date32(kind):
        said, unsaid = [FIRST // DAY, LAST // DAY], [FIRST // DAY - 1, LAST // DAY + 1]
    elif pa.types.is_date64(kind):
        said, unsaid = [FIRST * 1000], [FIRST * 1000 - DAY * 1000, (LAST + 1) * 1000, 1]
    elif pa.types.is_time(kind):
        whole = DAY * count_per_second(kind)
        said, unsaid = [0, whole - 1], [-1, whole]
    elif kind.unit == "ns":
        said = [2**63 - 1 - margin * 10**9] + ([] if margin else [FIRST_READ])
        unsaid = [-(2**63), FIRST_READ - 1]
    else:
        first, end = ((second * count_per_second(kind)) for second in (FIRST, LAST + 1))
        said = [end - 1 - margin * count_per_second(kind)] + ([] if margin else [first])
        unsaid = [
            ticks + sign * margin * count_per_second(kind) for ticks, sign in ((first - 1, -1), (end, 1))
        ]
    return said, unsaid


def test_only_what_text_cannot_say_is_refused() -> None:
    for kind in EDGE_KINDS:
        said, unsaid = find_edges(kind)
        assert read_back(encode(make_array(kind, said)), kind).equals(make_array(kind, said))
        for ticks in unsaid:
            for array in (make_array(kind, [0, ticks]), make_array(kind, [ticks]).dictionary_encode()):
                with pytest.raises(ConversionError, match=r"field 'x': a date"):
                    encode(array)


def test_a_distance_from_utc_with_seconds_is_refused() -> None:
    """Before 1893, Berlin was 53 minutes and 28 seconds ahead; the text has hours and minutes."""
    array = make_array(pa.timestamp("s", "Europe/Berlin"), [0, -(2**32)])
    with pytest.raises(ConversionError, match=r"field 'x': .*Europe/Berlin.*seconds.*; "):
        encode(array)
    said = pa.array([0, -(2**32)], pa.timestamp("s", "UTC"))
    assert read_back(encode(said), said.type).equals(said)


ROWS = st.tuples(
    st.none() | st.text(st.characters(codec="utf-8"), max_size=6) | st.text('",;\t\n\r a', max_size=6),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.booleans(),
    st.none() | st.floats(allow_nan=False),
)


@settings(max_examples=examples(100))
@given(st.lists(ROWS, min_size=1, max_size=5), st.sampled_from([b",", b"\t", b";"]), st.booleans())
def test_rows_are_records_that_python_reads(
    rows: list[tuple[Any, ...]], delimiter: bytes, is_cut: bool
) -> None:
    kinds = [pa.string(), pa.int64(), pa.bool_(), pa.float64()]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    batch, rows = pa.record_batch(columns, ["t", "i", "b", "f"])[is_cut:], rows[is_cut:]
    records = encode_records(batch, delimiter).to_pylist()
    assert len(records) == len(rows)
    for record, (text, integer, boolean, number) in zip(records, rows, strict=True):
        [fields] = csv.reader(io.StringIO(record.decode(), newline=""), delimiter=delimiter.decode())
        assert fields[0] == (text or "")
        assert record.startswith(b'"') == (text is not None), "null has no quotes"
        assert fields[1] == ("" if integer is None else str(integer))
        assert fields[2] == ("" if boolean is None else str(boolean).lower())
        assert number == (float(fields[3]) if fields[3] else None)


def test_records_without_fields_are_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    with pytest.raises(ConversionError, match=r"without a single field.*; write JSONL$"):
        recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.csv")


def test_columns_of_one_name_are_refused_with_a_remedy(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    for verify in (False, True):
        with pytest.raises(ConversionError, match="'x': CSV cannot hold 2 columns of one name; rename"):
            recshuf.shuffle(table, tmp_path / "out.csv", verify=verify)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("kind", [pa.decimal128(3, -2), pa.decimal128(38, -20)], ids=str)
def test_decimals_of_a_negative_scale_are_written_with_all_digits(tmp_path: Path, kind: pa.DataType) -> None:
    array = make_decimals([123, -4, 0], kind)
    for given_array in (array, array.dictionary_encode()):
        text = encode(given_array).decode()
        assert decode(tmp_path, text.splitlines(), given=kind)["f0"].combine_chunks().equals(array)
        assert "E" not in text


def test_decimals_of_too_many_digits_are_refused() -> None:
    with pytest.raises(ConversionError, match=r"'a'.*78 digits"):
        encode_records(pa.record_batch({"a": make_decimals([1], pa.decimal128(38, -40))}), b",")
