"""Arrays conform to a wider type at any slice, and dense types have no dictionaries and views."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from recshuf.formats.parquet.schema.types import conform, dense_type

if TYPE_CHECKING:
    from collections.abc import Callable

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
    array = pa.array(rows, NESTED)
    for start in range(len(rows)):
        for stop in range(start, len(rows) + 1):
            part = conform(array.slice(start, stop - start), WIDE)
            part.validate(full=True)
            expected = [
                None
                if row is None
                else [each and {"m": each["m"], "new": None, "a": each["a"]} for each in row]
                for row in rows[start:stop]
            ]
            assert part.to_pylist() == expected


@pytest.mark.parametrize(("view", "plain"), [(pa.list_view, pa.list_), (pa.large_list_view, pa.large_list)])
def test_list_views_become_lists_wherever_nulls_stand(
    view: Callable[[pa.DataType], pa.DataType], plain: Callable[[pa.DataType], pa.DataType]
) -> None:
    rows = [[1, 2], [], None, [3, None], None]
    array = pa.array(rows, view(pa.int32()))
    for start in range(len(rows) + 1):
        for stop in range(start, len(rows) + 1):
            part = conform(array.slice(start, stop - start), plain(pa.int32()))
            part.validate(full=True)
            assert part.to_pylist() == rows[start:stop]


def test_dense_types_have_no_dictionaries_and_views() -> None:
    assert dense_type(pa.list_(pa.dictionary(pa.int8(), pa.string()), 3)) == pa.list_(pa.string(), 3)
    assert dense_type(pa.dictionary(pa.int8(), pa.string_view())) == pa.large_string()
