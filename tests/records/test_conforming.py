"""Arrays conform to other types at any slice, and keep their values; decimals with more digits than their type has are found."""

import re
from collections.abc import Callable
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from recshuf.piles.planes import plain_type
from recshuf.records.conforming import (
    check_digits,
    conform,
    has_decimals,
)
from tests.support.effort import some
from tests.support.formats.decimal_tools import make_decimals
from tests.support.typed_arrays import draw_array

NESTED = pa.list_(
    pa.struct(
        [("a", pa.dictionary(pa.int8(), pa.string())), ("m", pa.map_(pa.string(), pa.list_(pa.int8())))]
    )
)
WIDE = pa.large_list(
    pa.struct(
        [("m", pa.map_(pa.string(), pa.list_(pa.int64()))), ("new", pa.int8()), ("a", pa.large_string())]
    )
)


def test_nested_arrays_conform_at_any_slice() -> None:
    rows = [
        [{"a": "x", "m": [("k", [1, None])]}],
        None,
        [],
        [None, {"a": None, "m": None}],
        [{"a": "y", "m": []}],
    ]
    for chosen, kind in product((rows, [[], None, rows[0], []]), (WIDE, pa.list_(WIDE.value_field))):
        array = pa.array(chosen, NESTED)
        for start in range(len(chosen)):
            for stop in range(start, len(chosen) + 1):
                part = conform(array.slice(start, stop - start), kind)
                part.validate(full=True)
                expected = [
                    None
                    if row is None
                    else [each and {"m": each["m"], "new": None, "a": each["a"]} for each in row]
                    for row in chosen[start:stop]
                ]
                assert part.to_pylist() == expected


def test_values_stand_in_place_of_dictionaries() -> None:
    for seed in some(range(6000), 10):
        chance = np.random.default_rng(seed)
        array = draw_array(chance, 6, is_plain=False)
        kind = plain_type(array.type)
        found = conform(array, kind)
        found.validate(full=True)
        assert found.type == kind
        assert found.to_pylist() == array.to_pylist(), seed


def test_fields_that_share_a_name_are_found_by_their_places() -> None:
    children = [pa.array(["x", None]).dictionary_encode(), pa.array([1, 2])]
    array = pa.StructArray.from_arrays(children, ["a", "a"])
    found = conform(array, plain_type(array.type))
    assert [found.field(place).to_pylist() for place in (0, 1)] == [["x", None], [1, 2]]


def test_extensions_conform_by_their_storage() -> None:
    texts = pa.array(["x", None, "yy"])
    extension = pa.ExtensionArray.from_storage(pa.opaque(pa.string(), "text", "tests"), texts)
    assert conform(extension, pa.large_string()).equals(texts.cast(pa.large_string()))
    assert conform(texts.cast(pa.large_string()), extension.type).equals(extension)


def test_a_dictionary_may_be_a_slice_of_fixed_lists_of_fixed_lists() -> None:
    lists = pa.array([[[4 * k, 4 * k + 1], [4 * k + 2, 4 * k + 3]] for k in range(10)])
    kind = pa.list_(pa.list_(pa.int64(), 2), 2)
    array = pa.DictionaryArray.from_arrays([2, 0], lists.cast(kind).slice(3))
    assert conform(array, kind).to_pylist() == array.to_pylist()


def test_views_of_lists_conform_with_values_under_nulls() -> None:
    expected = [["c"], None, ["b", "c"], []]
    mask, items = pa.array([row is None for row in expected]), pa.array(["a", "b", "c"])
    views = pa.ListViewArray.from_arrays([2, 0, 1, 0], [1, 2, 2, 0], items, mask=mask)
    for make in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view):
        kind = make(pa.large_string())
        for start in range(4):
            part = conform(views.slice(start), kind)
            part.validate(full=True)
            assert (part.type, part.to_pylist()) == (kind, expected[start:])


def test_a_time_that_a_finer_unit_cannot_hold_is_an_error() -> None:
    for unit, finer in ((pa.time32("s"), pa.time32("ms")), (pa.time64("us"), pa.time64("ns"))):
        most = pa.array([1 << (unit.bit_width - 2)], f"int{unit.bit_width}").view(unit)
        with pytest.raises(pa.ArrowInvalid):
            conform(most, finer)


@pytest.mark.parametrize("shape", ["list", "map", "fixed"])
def test_slices_leave_the_values_of_others_alone(shape: str) -> None:
    items = pa.array(["a", "b"] * 500).dictionary_encode()
    if shape == "fixed":
        whole = pa.FixedSizeListArray.from_arrays(items, 2)
    elif shape == "map":
        whole = pa.MapArray.from_arrays(list(range(0, 1001, 2)), pa.array(map(str, range(1000))), items)
    else:
        whole = pa.ListArray.from_arrays(list(range(0, 1001, 2)), items)
    for start in (0, 7):
        part = conform(whole.slice(start, 3), plain_type(whole.type))
        assert len(part.values) == 6
        assert part.to_pylist() == whole.slice(start, 3).to_pylist()


# Decimals, at any depth, and text that is read as decimals


NESTINGS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "plain": lambda array: array,
    "slice": lambda array: array.slice(1),
    "list": lambda array: pa.ListArray.from_arrays([0, 1, len(array)], array),
    "fixed list": lambda array: pa.FixedSizeListArray.from_arrays(array, 3),
    "struct": lambda array: pa.StructArray.from_arrays([array], ["d"]),
    "map": lambda array: pa.MapArray.from_arrays([0, len(array)], pa.array([1, 2, 3]), array),
    "dictionary": lambda array: pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), array),
    "extension": lambda array: pa.ExtensionArray.from_storage(pa.opaque(array.type, "d", "test"), array),
    "list view": lambda array: pa.ListViewArray.from_arrays([0], [3], array),
}


EXAMPLES = (pa.decimal32(5, 2), pa.decimal64(5, 2), pa.decimal128(5, 2), pa.decimal256(5, 2))


def test_surplus_digits_are_found_at_any_depth() -> None:
    for nesting, kind in product(NESTINGS, EXAMPLES):
        nest = NESTINGS[nesting]
        check_digits(nest(make_decimals([100, 99_999, -99_999], kind)))
        for wrong in (100_000, -100_000):
            array = nest(make_decimals([100, 99_999, wrong], kind))
            assert has_decimals(array.type)
            with pytest.raises(
                pa.ArrowInvalid, match=re.escape(f"{wrong // 100}.00 has more digits than {kind}")
            ):
                check_digits(array)


def test_values_under_nulls_do_not_count() -> None:
    wrong = make_decimals([100, 100_000], pa.decimal128(5, 2))
    nulls = pa.array([False, True])
    check_digits(pa.StructArray.from_arrays([wrong], ["d"], mask=nulls))
    check_digits(pa.ListArray.from_arrays([0, 1, 2], wrong, mask=nulls))
    maps = pa.MapArray.from_arrays([0, 1, 2], pa.array([1, 2]), wrong)
    check_digits(maps.slice(0, 1))
    with pytest.raises(pa.ArrowInvalid):
        check_digits(maps.slice(1, 1))
