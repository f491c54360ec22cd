"""Table form to JSON lines, against a plain recursive comparison with what `json` reads back."""

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recshuf.errors import ConversionError
from recshuf.formats.jsonl.encoding import check_schema, decode_base64, encode_lines
from tests.support.effort import examples

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
DAY = 86_400


def encode(array: pa.Array, *, nan_as_null: bool = False) -> list[bytes]:
    """Return the JSON values of one column, cut out of the lines."""
    batch = pa.record_batch([array], ["x"])
    check_schema(batch.schema)
    lines = encode_lines(batch, nan_as_null)
    assert lines.type == pa.large_binary()
    assert lines.null_count == 0
    return [line.removeprefix(b'{"x":').removesuffix(b"}\n") for line in lines.to_pylist()]


def is_list(kind: pa.DataType) -> bool:
    return any(
        f(kind)
        for f in (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)
    )


def clock(ticks: int, unit: str) -> str:
    seconds, fraction = divmod(ticks, UNITS[unit])
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + (f".{fraction:0{DIGITS[unit]}}" if DIGITS[unit] else "")


def moment(ticks: int, unit: str) -> str:
    days, ticks = divmod(ticks, DAY * UNITS[unit])
    return f"{datetime.date(1970, 1, 1) + datetime.timedelta(days)}T{clock(ticks, unit)}"


def expected_text(value: Any, kind: pa.DataType) -> str:
    """Return the text of a JSON string for a value as `pa.array` takes it."""
    if pt.is_timestamp(kind):
        return moment(value, kind.unit) + ("Z" if kind.tz else "")
    if pt.is_date32(kind):
        return str(datetime.date(1970, 1, 1) + datetime.timedelta(value))
    if pt.is_time(kind):
        return clock(value, kind.unit)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def assert_says(found: Any, value: Any, kind: pa.DataType) -> None:
    """Assert that a JSON value as `json` reads it, floats as text, is the given one."""
    if pt.is_dictionary(kind):
        assert_says(found, value, kind.value_type)
    elif value is None:
        assert found is None
    elif pt.is_struct(kind):
        assert list(found) == [field.name for field in kind]
        for field in kind:
            assert_says(found[field.name], value.get(field.name), field.type)
    elif is_list(kind):
        assert len(found) == len(value)
        for one, other in zip(found, value, strict=True):
            assert_says(one, other, kind.value_type)
    elif pt.is_map(kind):
        assert_says(found, [{"key": k, "value": v} for k, v in value], pa.list_(entry_of(kind)))
    else:
        assert_says_scalar(found, value, kind)


def assert_says_scalar(found: Any, value: Any, kind: pa.DataType) -> None:
    if pt.is_floating(kind):
        width = {16: np.float16, 32: np.float32, 64: np.float64}[kind.bit_width]
        assert isinstance(found, tuple), "floats look like floats"
        assert width(found[0]).tobytes() == width(value).tobytes()
    elif pt.is_decimal(kind):
        assert Decimal(found[0] if isinstance(found, tuple) else found) == value
    elif pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_duration(kind):
        assert type(found) is type(value)
        assert found == value
    else:
        assert found == expected_text(value, kind)


def entry_of(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("key", kind.key_type), ("value", kind.item_type)])


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=6) | st.text(
    '\x00\x01\x08\t\n\x0b\x0c\r\x1f "\\/\x7f\u2028', max_size=6
)
LOW, HIGH = -62_135_596_800, 253_402_300_799  # the years that Python's datetime, the oracle, knows
FIRST_READ = -((1 << 63) // 10**9) * 10**9
"""The first nanosecond of the first whole second within int64."""


def moments(unit: str) -> st.SearchStrategy[int]:
    scale = UNITS[unit]
    return st.integers(max(LOW * scale, FIRST_READ), min((HIGH + 1) * scale - 1, (1 << 63) - 1))


LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    *((getattr(pa, f"int{bits}")(), signed(bits)) for bits in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{bits}")(), st.integers(0, (1 << bits) - 1)) for bits in (8, 16, 32, 64)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.float64(), st.integers(-(10**19), 10**19).map(float)),
    (pa.float32(), st.floats(allow_nan=False, allow_infinity=False, width=32)),
    (pa.float16(), st.floats(allow_nan=False, allow_infinity=False, width=16).map(np.float16)),
    (pa.decimal128(20, 3), st.decimals(-(10**16), 10**16, places=3)),
    (pa.decimal128(38, 38), st.decimals(0, Decimal("0.5"), places=38)),
    (pa.decimal256(60, 0), st.integers(-(10**60) + 1, 10**60 - 1).map(Decimal)),
    *((kind, TEXTS) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *((kind, st.binary(max_size=7)) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    (pa.binary(5), st.binary(min_size=5, max_size=5)),
    *((pa.timestamp(unit), moments(unit)) for unit in UNITS),
    *((pa.timestamp(unit, "America/New_York"), moments(unit)) for unit in UNITS),
    (pa.date32(), st.integers(LOW // DAY, HIGH // DAY)),
    *((pa.time32(unit), st.integers(0, DAY * UNITS[unit] - 1)) for unit in ("s", "ms")),
    *((pa.time64(unit), st.integers(0, DAY * UNITS[unit] - 1)) for unit in ("us", "ns")),
    *((pa.duration(unit), signed(64)) for unit in UNITS),
    (pa.dictionary(pa.int8(), pa.string()), TEXTS),
]
Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


@st.composite
def nested_types(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    form = draw(st.sampled_from(["struct", "list", "large_list", "fixed", "view", "large_view", "map"]))
    if form == "struct":
        names = draw(st.lists(TEXTS, max_size=3, unique=True))
        parts = {name: draw(inner) for name in names}
        kind = pa.struct([(name, part[0]) for name, part in parts.items()])
        return kind, st.fixed_dictionaries({name: nullable(part[1]) for name, part in parts.items()})
    kind, values = draw(inner)
    if form == "fixed":
        size = draw(st.integers(0, 3))
        return pa.list_(kind, size), st.lists(nullable(values), min_size=size, max_size=size)
    if form == "map":
        return pa.map_(pa.string(), kind), st.lists(st.tuples(TEXTS, nullable(values)), max_size=3)
    make = {
        "list": pa.list_,
        "large_list": pa.large_list,
        "view": pa.list_view,
        "large_view": pa.large_list_view,
    }[form]
    return make(kind), st.lists(nullable(values), max_size=3)


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


TYPES = st.recursive(st.sampled_from(LEAVES), nested_types, max_leaves=4)


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[list[Any]]]:
    """Return a batch, cut out of a longer one, and its columns as Python values."""
    rows = draw(st.integers(0, 6))
    start, stop = draw(st.integers(0, rows)), draw(st.integers(0, rows))
    names = draw(st.lists(TEXTS, min_size=1, max_size=3, unique=True))
    arrays, columns = [], []
    for _ in names:
        kind, values = draw(TYPES)
        columns.append(draw(st.lists(nullable(values), min_size=rows, max_size=rows)))
        arrays.append(pa.array(columns[-1], kind))
    whole = pa.record_batch(arrays, names)
    return whole.slice(start, stop - start if stop > start else 0), [column[start:stop] for column in columns]


@settings(max_examples=examples(240), deadline=None)
@given(batches())
def test_lines_say_what_the_columns_hold(made: tuple[pa.RecordBatch, list[list[Any]]]) -> None:
    batch, columns = made
    check_schema(batch.schema)
    lines = encode_lines(batch, nan_as_null=False)
    lines.validate(full=True)
    assert len(lines) == batch.num_rows
    for row, line in enumerate(lines.to_pylist()):
        assert line.endswith(b"}\n")
        assert line.count(b"\n") == 1
        found = json.loads(line, parse_float=lambda text: (text,))
        assert list(found) == batch.schema.names
        for field, column in zip(batch.schema, columns, strict=True):
            assert_says(found[field.name], column[row], field.type)


def test_rows_without_columns_are_empty_objects() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert encode_lines(batch, nan_as_null=False).to_pylist() == [b"{}\n", b"{}\n"]
    assert encode_lines(batch.slice(0, 0), nan_as_null=False).to_pylist() == []


def test_floats_are_the_shortest_that_read_back() -> None:
    assert encode(pa.array([1.0, 0.1, -0.0, 1e300, 5e-324])) == [
        b"1.0",
        b"0.1",
        b"-0.0",
        b"1e+300",
        b"5e-324",
    ]
    assert encode(pa.array([0.1, 16777216.0], pa.float32())) == [b"0.1", b"16777216.0"]
    assert encode(pa.array(np.array([0.1, 100], np.float16))) == [b"0.1", b"100.0"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.float16(), "nan"), (pa.float32(), "inf"), (pa.float64(), "-inf"), (pa.float64(), "nan")],
)
def test_what_is_no_number_is_refused_or_null_at_any_depth(kind: pa.DataType, value: str) -> None:
    values = pa.array(
        np.array([1.5, float(value), 2.5], f"f{kind.bit_width // 8}"), kind, mask=np.array([0, 0, 1], bool)
    )
    assert encode(values, nan_as_null=True) == [b"1.5", b"null", b"null"]
    structs = pa.StructArray.from_arrays([values], ["y"])
    offsets = pa.array([0, 1, 2, 3], pa.int32())
    maps = pa.MapArray.from_arrays(offsets, pa.array(["k"] * 3), values)
    for nested, field, form in (
        (structs, "x.y", '{"y":%s}'),
        (pa.ListArray.from_arrays(offsets, structs), "x[].y", '[{"y":%s}]'),
        (maps, "x.value", '[{"key":"k","value":%s}]'),
        (values.dictionary_encode() if kind != pa.float16() else values, "x", "%s"),
    ):
        with pytest.raises(ConversionError, match="--nan-as-null") as caught:
            encode(nested)
        assert caught.value.field.startswith(field.partition(".")[0])
        expected = [(form % text).encode() for text in ("1.5", "null", "null")]
        assert encode(nested, nan_as_null=True) == expected


def test_values_behind_nulls_do_not_matter() -> None:
    hidden = pa.array([1.0, float("nan")])
    masked = pa.Array.from_buffers(pa.float64(), 2, [pa.py_buffer(b"\x01"), hidden.buffers()[1]])
    assert encode(masked) == [b"1.0", b"null"]
    parent = pa.StructArray.from_arrays([hidden], ["y"], mask=pa.array([False, True]))
    assert encode(parent) == [b'{"y":1.0}', b"null"]


def test_text_that_is_not_utf8_is_refused() -> None:
    for kind in (pa.string(), pa.large_string()):
        raw = pa.array([b"ok", b"\xff"], pa.binary() if pt.is_string(kind) else pa.large_binary())
        broken = pa.Array.from_buffers(kind, 2, raw.buffers())
        assert encode(broken[:1]) == [b'"ok"']
        with pytest.raises(ConversionError, match="UTF-8") as caught:
            encode(pa.StructArray.from_arrays([broken], ["y"]))
        assert caught.value.field == "x.y"


def is_canonical(text: bytes) -> bool:
    try:
        return base64.b64encode(base64.b64decode(text, validate=True)) == text
    except ValueError:
        return False


@settings(max_examples=examples(260), deadline=None)
@given(
    st.lists(
        st.binary(max_size=9).map(base64.b64encode) | st.text("AQg+/=-_\n", max_size=8).map(str.encode),
        min_size=1,
        max_size=3,
    )
)
@example([b"A=AA"])
@example([b"AQ==", b"", b"AAE=", b"AB=="])
def test_base64_is_read_where_it_is_what_would_be_written(texts: list[bytes]) -> None:
    lengths = np.array([len(text) for text in texts], np.int64)
    decoded = decode_base64(np.frombuffer(b"".join(texts), np.uint8), lengths)
    assert (decoded is not None) == all(map(is_canonical, texts))
    if decoded is not None:
        assert decoded[0].tobytes() == b"".join(map(base64.b64decode, texts))
        assert decoded[1].tolist() == [len(base64.b64decode(text)) for text in texts]


def test_times_that_no_text_can_say_are_refused() -> None:
    for array in (
        pa.array([253_402_300_800], pa.timestamp("s")),
        pa.array([-62_167_219_201_000], pa.timestamp("ms", "UTC")),
        pa.array([(1 << 63) - 1], pa.timestamp("us")),
        pa.array([-(1 << 63)], pa.int64()).view(pa.timestamp("ns")),
        pa.array([FIRST_READ - 1], pa.timestamp("ns", "UTC")),
        pa.array([2_932_897], pa.date32()),
        pa.array([-719_529], pa.date32()),
        pa.array([86_400], pa.int32()).view(pa.time32("s")),
        pa.array([-1], pa.int64()).view(pa.time64("ns")),
        pa.array([1], pa.int64()).view(pa.date64()),
    ):
        with pytest.raises(ConversionError) as caught:
            encode(array)
        assert caught.value.field == "x"


def test_run_ends_and_extensions_show_their_values() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), pa.array(["a", None]))
    assert encode(runs[1:4]) == [b'"a"', b"null", b"null"]
    tensor = pa.fixed_shape_tensor(pa.int8(), [2, 2])
    stored = pa.ExtensionArray.from_storage(tensor, pa.array([[1, 2, 3, 4], None], pa.list_(pa.int8(), 4)))
    assert encode(stored[:2]) == [b"[1,2,3,4]", b"null"]
    assert encode(stored[1:]) == [b"null"]


def test_what_json_cannot_hold_is_refused_by_name() -> None:
    interval, union = pa.month_day_nano_interval(), [pa.field("u", pa.int8())]
    for fields, name in (
        ([("a", interval)], "a"),
        ([("a", pa.list_(pa.struct([("b", interval)])))], "a[].b"),
        ([("a", pa.dense_union(union))], "a"),
        ([("a", pa.map_(pa.string(), pa.sparse_union(union)))], "a.value"),
        ([("a", pa.int8()), ("a", pa.int8())], "a"),
        ([("a", pa.struct([("b", pa.int8()), ("b", pa.int8())]))], "a.b"),
    ):
        with pytest.raises(ConversionError) as caught:
            check_schema(pa.schema(fields))
        assert caught.value.field == name
        assert caught.value.remedy
