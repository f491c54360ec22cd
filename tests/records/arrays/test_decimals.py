"""Decimals with more digits than their type has are found at any depth, and text is read without overflow."""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recshuf.errors import ConversionError
from recshuf.records.conforming import check_digits, find_misfit, fit_digits, has_decimals, plain_decimals
from tests.support.formats.decimal_tools import EXACT, KINDS, make_decimals

if TYPE_CHECKING:
    from collections.abc import Callable

PAIR = pa.struct([("n", pa.int8()), ("d", pa.decimal128(5, 2))])
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


@given(st.data(), st.sampled_from(KINDS))
def test_text_is_read_as_the_decimals_that_fit(data: st.DataObject, kind: pa.DataType) -> None:
    integers = st.integers(-(10 ** min(kind.precision, 38)), 10 ** min(kind.precision, 38))
    numbers = data.draw(st.lists(integers, min_size=1, max_size=5))
    fits = [abs(number) * 10**kind.scale < 10**kind.precision for number in numbers]
    texts = pa.array([str(number) for number in numbers])
    if all(fits):
        assert fit_digits(texts, kind).to_pylist() == numbers
        assert fit_digits(texts, kind).type == kind
    else:
        assert find_misfit(texts, kind) == fits.index(False)
        with pytest.raises(pa.ArrowInvalid):
            fit_digits(texts, kind)


def test_decimals_of_a_negative_scale_are_written_as_integers() -> None:
    for kind in [pa.decimal32(3, -2), pa.decimal128(3, -2), pa.decimal128(38, -20)]:
        array = make_decimals([123, -4, 0], kind)
        written = plain_decimals(array, "a").cast(pa.string()).to_pylist()
        assert written == [f"{number.quantize(Decimal(1), context=EXACT):f}" for number in array.to_pylist()]


def test_decimals_of_too_many_digits_are_refused() -> None:
    with pytest.raises(ConversionError, match=r"'a': .* 78 digits .*cast"):
        plain_decimals(make_decimals([1], pa.decimal128(38, -40)), "a")
