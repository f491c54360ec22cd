"""Fingerprints of records: functions of the value alone, different for different values, with nothing linear in them."""

import datetime
import decimal
import itertools
import operator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import ConversionError
from recshuf.records.hashing import hash_rows
from recshuf.records.word_hashing import ByteStrings, HashKey, hash_bytes
from tests.support.effort import examples
from tests.support.formats.format_tools import cut_batch

KEY = HashKey(7)


def hash_array(array: pa.Array, key: HashKey = KEY, **options: Any) -> list[tuple[int, int]]:
    """Return the hashes of an array's values, each as the only field of a record."""
    batch = pa.RecordBatch.from_arrays([array], names=["x"])
    return [tuple(pair) for pair in hash_rows(batch, key, **options).tolist()]


def hash_values(values: list[Any], kind: pa.DataType, **options: Any) -> list[tuple[int, int]]:
    return hash_array(pa.array(values, kind), **options)


# Equal where values are equal, different where not: the oracle is Python's own equality of values

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-3, 3),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.sampled_from([0, 1, 2**63, 2**64 - 1]),
    pa.float32(): st.sampled_from([0.0, 1.5, -1.5, 1e30]),
    pa.large_string(): st.text(max_size=3),
    pa.binary(): st.sampled_from([b"", b"\0", b"\0\0", b"a", b"a\0", b"\0a", b"x" * 8, b"x" * 9, b"x" * 600]),
    pa.binary(3): st.sampled_from([b"abc", b"abd", b"\0\0\0"]),
    pa.decimal128(20, 2): st.sampled_from([decimal.Decimal(text) for text in ("0", "-1", "1.50", "123456789012345678.25")]),
    pa.timestamp("ms"): st.sampled_from([datetime.datetime(2020, 1, 1), datetime.datetime(1969, 12, 31, 23, 59, 59, 999000)]),
}  # fmt: skip


def nest(inner: tuple[pa.DataType, Any]) -> st.SearchStrategy[tuple[pa.DataType, Any]]:
    kind, values = inner
    values = st.one_of(st.none(), values)
    entry = st.lists(st.tuples(st.text("kl", max_size=1), values), max_size=2, unique_by=lambda pair: pair[0])
    return st.sampled_from(
        [
            (pa.list_(kind), st.lists(values, max_size=3)),
            (pa.large_list(kind), st.lists(values, max_size=3)),
            (pa.list_(kind, 2), st.lists(values, min_size=2, max_size=2)),
            (pa.struct({"a": kind, "b": pa.int8()}), st.fixed_dictionaries({"a": values, "b": st.integers(0, 1)})),
            (pa.map_(pa.string(), kind), entry),
        ]
    )  # fmt: skip


TYPES = st.recursive(
    st.sampled_from(sorted(VALUES.items(), key=str)), lambda inner: inner.flatmap(nest), max_leaves=3
)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    kind, values = draw(TYPES)
    return pa.array(draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=12)), kind)


@settings(max_examples=examples(100))
@given(columns(), st.integers(1, 5), st.integers(0, 99), st.booleans())
def test_hashes_are_equal_exactly_where_values_are_whatever_the_cuts(
    array: pa.Array, pieces: int, seed: int, is_converted: bool
):
    hashes = hash_array(array, is_converted=is_converted)
    for (mine, value), (theirs, other) in itertools.combinations(
        zip(hashes, map(repr, array.to_pylist()), strict=True), 2
    ):
        assert (mine == theirs) == (value == other)
        assert (mine[0] == theirs[0]) == (mine[1] == theirs[1])
    batch = pa.RecordBatch.from_arrays([array, array], names=["x", "y"])
    whole = hash_rows(batch, KEY, is_converted=is_converted)
    cut = [hash_rows(piece, KEY, is_converted=is_converted) for piece in cut_batch(batch, pieces, seed)]
    assert np.concatenate(cut).tolist() == whole.tolist()


def test_hashes_do_not_depend_on_how_much_is_hashed_at_once():
    """Records of more than a piece of memory, more of them than a block of rows, or several columns of one type."""
    rows, rng = 30_000, np.random.default_rng(0)
    numbers = rng.integers(0, 2**63, rows)
    text = pa.array([f"{number:x}" * (number % 30) for number in numbers.tolist()])
    lists = pa.ListArray.from_arrays(np.arange(0, rows + 1, 3), numbers)
    lists = pa.concat_arrays([lists, lists, lists])
    long = pa.array([b"x" * 3_000_000 if row == 7 else b"y" for row in range(rows)], pa.large_binary())
    some = [pa.array(rng.integers(0, 50, rows), mask=rng.random(rows) < share) for share in (0, 0.3, 0.5)]
    columns = [pa.array(numbers), text, lists, long, *some, *(one.cast(pa.string()) for one in some)]
    columns += [pa.array(numbers, pa.timestamp(unit)) for unit in ("s", "ms")]
    batch = pa.RecordBatch.from_arrays(columns, names=[*"abcdefghijkl"])
    whole = hash_rows(batch, KEY)
    for count in (100, 750):
        cut = [hash_rows(batch.slice(start, count), KEY) for start in range(0, rows, count)]
        assert np.array_equal(np.concatenate(cut), whole)


def test_sums_of_byte_strings_are_those_of_integers():
    """Also with the items that make the largest sums, at every place of a buffer."""
    table = [row.astype(np.int64).tolist() for row in KEY.table(3, 257)]
    random = np.random.default_rng(5)
    values = [
        random.integers(0, 256, length).astype(np.uint8).tobytes() for length in (*range(140), 511, 512)
    ]
    values += [b"\x00\x80" * 256, b"\xff\x7f" * 256, b"\x00\x80" * 32, b"", b"a"]
    lengths = np.array([len(value) for value in values])
    strings = ByteStrings(np.frombuffer(b"".join(values), np.uint8), np.cumsum(lengths) - lengths, lengths)
    found = hash_bytes(strings, KEY, 3)
    for row, value in enumerate(values):
        whole = max(0, len(value) - 1) // 64 * 64
        items = [*value[:whole], *[0] * (448 - whole), *value[-64:], *[0] * max(0, 64 - len(value))]
        numbers = [*np.array(items, np.uint8).view(np.int16).tolist(), len(value)]
        sums = [sum(map(operator.mul, numbers, keys)) % 2**64 for keys in table]
        assert found[:, row].tolist() == sums
        assert hash_bytes(strings.take([row]), KEY, 3)[:, 0].tolist() == sums


def test_garbage_under_nulls_is_not_seen():
    valid = pa.array([True, False]).buffers()[1]
    lists = pa.array([[1, 2], [3]], pa.list_(pa.int64()))
    pairs = pa.array([{"a": 1}, {"a": 2}])
    for full, children in ((pa.array([5, 6]), []), (lists, [lists.values]), (pairs, [pairs.field(0)]), (pa.array(["x", "y"]), [])):  # fmt: skip
        buffers = [valid, *full.buffers()[1 : full.type.num_buffers]]
        masked = pa.Array.from_buffers(full.type, 2, buffers, children=children)
        assert masked.null_count == 1
        for is_converted in (False, True):
            inside = pa.ListArray.from_arrays([0, 2], masked)
            assert hash_array(masked, is_converted=is_converted) == hash_values([full[0].as_py(), None], full.type, is_converted=is_converted)  # fmt: skip
            assert hash_array(inside, is_converted=is_converted) == hash_values([[full[0].as_py(), None]], inside.type, is_converted=is_converted)  # fmt: skip


# Different where a careless hash would be equal

CONFUSED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["", None]),
    (pa.int64(), [0, None]),
    (pa.list_(pa.int64()), [None, [], [None], [0], [None, None], [0, None], [None, 0]]),
    (pa.list_(pa.list_(pa.int64())), [[[1], [2, 3]], [[1, 2], [3]], [[], [1, 2, 3]], [[1, 2, 3]], [[1, 2, 3], []]]),
    (pa.list_(pa.string()), [["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], ["abc", None]]),
    (pa.list_(pa.string()), [["a", "b"], ["b", "a"]]),
    (pa.struct({"a": pa.string(), "b": pa.string()}), [{"a": "x", "b": "y"}, {"a": "y", "b": "x"}, {"a": None, "b": "x"}, {"a": "x", "b": None}, {"a": None, "b": None}, None]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", 2)], [("b", 2), ("a", 1)], [("a", 2), ("b", 1)], [("a", None)], [], None]),
    (pa.float64(), [0.0, -0.0, float("nan"), float("inf"), -float("inf")]),
    (pa.month_day_nano_interval(), [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 1 << 32), None]),
]  # fmt: skip


def test_values_that_are_easily_confused_have_different_hashes() -> None:
    for kind, values in CONFUSED:
        for is_converted in (False, True):
            assert len(set(hash_values(values, kind, is_converted=is_converted))) == len(values)


def test_columns_that_trade_places_change_the_hash():
    left = pa.RecordBatch.from_pydict({"a": [1, 2], "b": [3, 3]})
    right = pa.RecordBatch.from_pydict({"a": [3, 3], "b": [1, 2]})
    assert not (hash_rows(left, KEY) == hash_rows(right, KEY)).any()
    by_name = [hash_rows(batch, KEY, is_converted=True) for batch in (left, left.select(["b", "a"]), right)]
    assert (by_name[0] == by_name[1]).all()
    assert not (by_name[0] == by_name[2]).any()


def test_each_of_many_flat_columns_counts_in_each_of_many_records() -> None:
    count, rows = 19, np.arange(20_000)  # more than are hashed, and summed, at once
    owners = rows % count  # the only column that tells a record from those of the same owner
    columns = [np.where(owners == column, rows + 1, 0) for column in range(count)]
    arrays = [pa.array(values, mask=owners == column - 1) for column, values in enumerate(columns)]
    arrays[5] = arrays[5].cast(pa.string())
    arrays[6] = arrays[6].cast(pa.string()).dictionary_encode()
    batch = pa.RecordBatch.from_arrays(arrays, names=[f"c{column}" for column in range(count)])
    cut = [hash_rows(batch.slice(start, 7_001), KEY) for start in range(0, len(rows), 7_001)]
    assert np.array_equal(hash_rows(batch, KEY), np.concatenate(cut))
    assert len(np.unique(hash_rows(batch, KEY)[:, 0])) == len(rows)


def test_a_batch_without_columns_has_hashes_and_one_without_rows_has_none():
    rows = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert hash_rows(rows, KEY).shape == (2, 2)
    assert hash_rows(pa.RecordBatch.from_pydict({"x": pa.array([], pa.string())}), KEY).shape == (0, 2)


# No sum of hashes stays the same when records trade parts


def sum_hashes(values: list[Any], kind: pa.DataType, key: HashKey) -> tuple[int, int]:
    hashes = hash_array(pa.array(values, kind), key)
    return sum(one[0] for one in hashes) % 2**64, sum(one[1] for one in hashes) % 2**64


TRADES: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "words": (pa.binary(), [b"A" * 8 + b"B" * 8, b"C" * 8 + b"D" * 8], [b"C" * 8 + b"B" * 8, b"A" * 8 + b"D" * 8]),
    "halves": (pa.binary(), [b"AAAABBBB", b"CCCCDDDD"], [b"CCCCBBBB", b"AAAADDDD"]),
    "top-bits": (pa.uint64(), [0, 2**63], [2**63, 2**63]),
    "top-bits-in-pairs": (pa.uint64(), [0, 0], [2**63, 2**63]),
    "bytes": (pa.binary(), [b"ab", b"cd"], [b"ad", b"cb"]),
    "elements": (pa.list_(pa.int64()), [[1, 2], [3, 4]], [[3, 2], [1, 4]]),
    "fields": (pa.struct({"a": pa.int8(), "b": pa.int8()}), [{"a": 1, "b": 2}, {"a": 3, "b": 4}], [{"a": 3, "b": 2}, {"a": 1, "b": 4}]),
    "blocks": (pa.binary(), [b"A" * 512 + b"B" * 512, b"C" * 512 + b"D" * 512], [b"C" * 512 + b"B" * 512, b"A" * 512 + b"D" * 512]),
    "nulls": (pa.list_(pa.int64()), [[None, 1], [1, None]], [[None, None], [1, 1]]),
}  # fmt: skip


def test_parts_that_trade_places_between_records_change_the_sums():
    for name, (kind, before, after) in TRADES.items():
        for seed in range(20):
            one, other = (sum_hashes(values, kind, HashKey(seed)) for values in (before, after))
            assert one[0] != other[0], name
            assert one[1] != other[1], name


# Alike across types


def each(values: list[Any], *kinds: pa.DataType) -> list[pa.Array]:
    return [pa.array(values, kind) for kind in kinds]


TEXTS = ["x", None, "y", "x"]
PAIRS = [[("a", 1), ("b", None)], [], None]
ENTRIES = [pairs and [{"key": key, "value": value} for key, value in pairs] for pairs in PAIRS]
UNITS = ("s", "ms", "us", "ns")
ALIKE: dict[str, list[pa.Array]] = {
    "numbers": each([1, 0, 100], pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
    "negative numbers": each([-1, None], pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    "floats": [
        *each([1.5, -0.0, None, float("inf")], pa.float32(), pa.float64()),
        pa.array([np.float16(1.5), np.float16(-0.0), None, np.float16("inf")]),
    ],
    "texts": [
        *each([b"abc", b"xyz", None], pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary(3)),
        *each([b"abc", b"xyz", None], pa.string_view(), pa.binary_view()),
    ],
    "what stands for texts": [
        pa.array(TEXTS),
        pa.array(TEXTS).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0, 1], pa.int8()), pa.array(TEXTS[:3]))[:4],
        pa.DictionaryArray.from_arrays(pa.array([0, None, 2, 0], pa.int8()), pa.array(TEXTS[:3])),
        pa.RunEndEncodedArray.from_arrays([1, 2, 3, 4], pa.array(TEXTS)),
        pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(TEXTS)),
    ],
    "nothing": [
        pa.array([None], pa.string()),
        pa.DictionaryArray.from_arrays(pa.array([None], pa.int8()), pa.array([], pa.string())),
    ],
    "lists": each([[1, 2], [3, None], None, [4, 5]], pa.list_(pa.int8()), pa.large_list(pa.int64()), pa.list_(pa.uint16(), 2), pa.list_view(pa.int32()), pa.large_list_view(pa.int32())),
    "nested lists": each([[["a"], ["b", None]]], pa.list_(pa.list_(pa.string())), pa.large_list(pa.large_list(pa.binary()))),
    "maps": [
        pa.array(ENTRIES, pa.list_(pa.struct({"key": pa.string(), "value": pa.int8()}))),
        pa.array(PAIRS, pa.map_(pa.string(), pa.int64())),
    ],
    "moments": each([datetime.datetime(2020, 1, 2, 3, 4, 5), datetime.datetime(1960, 1, 1), None], *map(pa.timestamp, UNITS)),
    "days": each([datetime.date(1960, 2, 29), None], pa.date32(), pa.date64()),
    "times": each([datetime.time(1, 2, 3), None], pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    "durations": each([datetime.timedelta(seconds=-3), None], *map(pa.duration, UNITS)),
    "decimals": each([decimal.Decimal("-1.25"), None], pa.decimal32(5, 2), pa.decimal64(5, 2), pa.decimal128(5, 2), pa.decimal256(40, 2)),
    "structs": each([{"a": 1, "b": None}, None], pa.struct({"a": pa.int8(), "b": pa.string()}), pa.struct({"b": pa.large_string(), "a": pa.int64()})),
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_equal_values_of_different_types_hash_alike_in_a_conversion(name: str):
    """And what stands for values hashes like them in any case."""
    arrays = ALIKE[name]
    if name in ("what stands for texts", "nothing"):
        assert len({str(hash_array(array)) for array in arrays}) == 1
    hashes = [hash_array(array, is_converted=True) for array in arrays if has_known_size(array)]
    assert len(set(hashes[0])) == len({repr(value) for value in arrays[0].to_pylist()})
    assert all(found == hashes[0] for found in hashes)
    for array in arrays:
        if has_known_size(array) and not pa.types.is_run_end_encoded(array.type):  # which Arrow does not join
            behind = pa.concat_arrays([array, array])[len(array) :]
            assert hash_array(behind, is_converted=True) == hashes[0]
            assert hash_array(behind) == hash_array(array)


@pytest.mark.parametrize(("width", "exponent", "fraction"), [(16, 5, 10), (32, 8, 23), (64, 11, 52)])
def test_what_is_no_number_hashes_by_its_bits_or_as_null_if_that_is_asked_for(
    width: int, exponent: int, fraction: int
):
    top, half = ((1 << exponent) - 1) << fraction, 1 << fraction >> 1
    bits = [top, top + 1, top + half, top + half + 1, 2 ** (width - 1) + top + 1, 0]
    odd = pa.array(np.array(bits, f"u{width // 8}").view(f"f{width // 8}"))
    for is_converted in (False, True):
        assert len(set(hash_array(odd, is_converted=is_converted))) == 6
    holes = pa.array(odd.to_numpy(), mask=np.arange(6) < 5)
    found = hash_array(odd, is_converted=True, nan_as_null=True)
    assert found == hash_array(holes, is_converted=True)


def has_known_size(array: pa.Array) -> bool:
    """Tell whether Arrow knows the size of an array: of views, which no adapter gives, only newer versions do."""
    try:
        return array.nbytes >= 0
    except pa.ArrowTypeError:
        return False


def test_types_that_cannot_be_compared_are_named():
    dense = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    nested = pa.array([[1]], pa.list_(pa.int8()))
    for array, name in ((dense, "x"), (pa.StructArray.from_arrays([nested, dense], ["a", "b"]), r"x\.b")):
        with pytest.raises(
            ConversionError, match=rf"'{name}'.*sparse_union.*cannot be compared; leave it out"
        ):
            hash_array(array)
