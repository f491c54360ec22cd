from __future__ import annotations

import pyarrow as pa
import pytest

from recshuf.records.arrays import (
    has_offsets,
    is_any_list,
    is_contiguous_list,
    is_list_view,
    is_variable_list,
    view_bytes,
    view_data,
    view_offsets,
)

ITEM = pa.int8()


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()], ids=str)
def test_a_slice_of_texts_gives_its_own_offsets_and_bytes(kind: pa.DataType) -> None:
    array = pa.array(["ab", "", None, "cde"], pa.string()).cast(kind)[1:]
    assert view_offsets(array).tolist() == [2, 2, 2, 5]
    assert view_bytes(array).tobytes() == b"cde"
    assert view_data(array).tobytes() == b"abcde"


def test_an_empty_array_has_one_offset_and_no_bytes() -> None:
    for array in (pa.array([], pa.string()), pa.array(["ab"])[1:]):
        assert view_offsets(array).tolist() == [0]
        assert not view_bytes(array).size


def test_offsets_of_lists_and_maps() -> None:
    for kind in (pa.list_(ITEM), pa.large_list(ITEM)):
        assert view_offsets(pa.array([[1], [2, 3], []], kind)[1:]).tolist() == [1, 3, 3]
    assert view_offsets(pa.array([[(1, 2)], []], pa.map_(ITEM, ITEM))).tolist() == [0, 1, 1]


def test_values_of_fixed_width() -> None:
    assert view_bytes(pa.array([1, 2, 3], pa.int16())[1:]).tolist() == [2, 0, 3, 0]
    assert view_bytes(pa.array([b"ab", b"cd"], pa.binary(2))[1:]).tobytes() == b"cd"


def test_views_share_memory_with_the_array() -> None:
    array = pa.array(["ab", "cde"], pa.large_string())
    _, offsets, data = array.buffers()
    assert view_offsets(array).ctypes.data == offsets.address
    assert view_bytes(array).ctypes.data == data.address


@pytest.mark.parametrize(
    ("kind", "variable", "contiguous", "view"),
    [
        (pa.list_(ITEM), True, True, False),
        (pa.large_list(ITEM), True, True, False),
        (pa.list_(ITEM, 2), False, True, False),
        (pa.list_view(ITEM), False, False, True),
        (pa.large_list_view(ITEM), False, False, True),
        (pa.map_(ITEM, ITEM), False, False, False),
        (pa.struct({"a": pa.list_(ITEM)}), False, False, False),
        (pa.string(), False, False, False),
    ],
    ids=str,
)
def test_kinds_of_lists(kind: pa.DataType, variable: bool, contiguous: bool, view: bool) -> None:
    assert (is_variable_list(kind), is_contiguous_list(kind), is_list_view(kind)) == (
        variable,
        contiguous,
        view,
    )
    assert is_any_list(kind) == (contiguous or view)


def test_which_types_have_offsets() -> None:
    assert all(map(has_offsets, [pa.string(), pa.large_binary(), pa.list_(ITEM), pa.map_(ITEM, ITEM)]))
    assert not any(map(has_offsets, [pa.int8(), pa.string_view(), pa.list_view(ITEM), pa.list_(ITEM, 2)]))
