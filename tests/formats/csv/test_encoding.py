"""A value reads back from CSV as it was, or is refused: pyarrow writes an error in place of what its text cannot say."""

import csv
import io
import random
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


def find_limits(kind: pa.DataType) -> tuple[int, int, int]:
    """Return the first and the last time that text can say, and a day, all in ticks."""
    if pa.types.is_date32(kind):
        return FIRST // DAY, LAST // DAY, 1
    per_second = UNITS["ms" if pa.types.is_date64(kind) else kind.unit]
    day = DAY * per_second
    if pa.types.is_time(kind):
        return 0, day - 1, day
    if pa.types.is_date64(kind) or kind.unit != "ns":
        return FIRST * per_second, (LAST + 1) * per_second - 1, day
    return FIRST_READ, 2**63 - 1, day


def draw_ticks(kind: pa.DataType, edges: tuple[int, ...], day: int) -> list[int]:
    """Return times around some, and anywhere."""
    half, chance = 1 << kind.bit_width - 1, random.Random(str(kind))
    steps = [sign * step for sign in (-1, 1) for step in (0, 1, day - 1, day, day + 1, 2 * day)]
    near = [edge + step for edge in edges for step in steps if -half <= edge + step < half]
    return [*near, *(chance.randrange(-half, half) for _ in range(9))]


def test_times_read_back_and_only_what_text_cannot_say_is_refused() -> None:
    """The local time counts, too, which is less than a day away."""
    for kind in KINDS:
        half = 1 << kind.bit_width - 1
        first, last, day = (-half, half - 1, 0) if pa.types.is_duration(kind) else find_limits(kind)
        margin = day if getattr(kind, "tz", None) else 0
        for ticks in draw_ticks(kind, (first, last, 0), day):
            array = make_array(kind, [ticks, 0])
            is_whole = not pa.types.is_date64(kind) or ticks % day == 0
            try:
                text = encode(array)
            except ConversionError as error:
                assert error.field == "x"
                has_seconds = "distance from UTC in seconds" in str(error)
                assert has_seconds or not (first + margin <= ticks <= last - margin and is_whole), (
                    kind,
                    ticks,
                )
                with pytest.raises(ConversionError, match=r"field 'x': a (date|time)"):
                    encode(make_array(kind, [0, ticks]).dictionary_encode())
            else:
                assert first <= ticks <= last, (kind, ticks)
                assert is_whole
                assert read_back(text, kind).equals(array), (kind, ticks)


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
