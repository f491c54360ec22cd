"""Random arrays of any type: lists, structs, maps and dictionaries of each other, with nulls, and slices at every depth."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

LEAVES: dict[pa.DataType, Callable[[int], Any]] = {
    pa.int8(): lambda k: k % 100,
    pa.int64(): lambda k: k << 40,
    pa.float32(): lambda k: k / 2,
    pa.decimal256(40, 0): int,
    pa.timestamp("us", "UTC"): int,
    pa.month_day_nano_interval(): lambda k: (k, 1, 2),
    pa.bool_(): lambda k: k % 3 == 0,
    pa.binary(3): lambda k: b"%03d" % (k % 1000),
    pa.binary(0): lambda _: b"",
    pa.string(): lambda k: "ü" * (k % 5),
    pa.large_binary(): lambda k: b"x" * (k % 7),
    pa.null(): lambda _: None,
}
VIEWS: dict[pa.DataType, Callable[[int], Any]] = {
    pa.string_view(): lambda k: "ü" * (k % 19),
    pa.binary_view(): lambda k: b"%d" % k,
}
SHAPES = ("leaf", "list", "large list", "fixed list", "fixed list", "struct", "map")


def draw_array(chance: np.random.Generator, most: int, *, is_plain: bool = True) -> pa.Array:
    """Return an array of at most so many values; unless it is to be plain, also of dictionaries and views."""
    count, depth = chance.integers(most + 1), chance.integers(1, 4)
    return _draw_slice(chance, int(count), int(depth), is_plain)


def _draw_slice(chance: np.random.Generator, count: int, depth: int, is_plain: bool) -> pa.Array:
    before, after = chance.integers(3, size=2).tolist()
    return _draw_whole(chance, before + count + after, depth, is_plain).slice(before, count)


def _draw_whole(chance: np.random.Generator, count: int, depth: int, is_plain: bool) -> pa.Array:
    def draw_inner(size: int) -> pa.Array:
        return _draw_slice(chance, size, depth - 1, is_plain)

    shape = chance.choice([*SHAPES, *["dictionary"] * (0 if is_plain else 2)]) if depth else "leaf"
    nulls = chance.random(count) < chance.choice([0, 0.3])
    if shape == "leaf":
        leaves = [*LEAVES.items(), *(() if is_plain else VIEWS.items())]
        kind, make = leaves[chance.integers(len(leaves))]
        values = [make(k) for k in chance.integers(500, size=count).tolist()]
        return pa.array([None if is_null else one for one, is_null in zip(values, nulls, strict=True)], kind)
    if shape == "dictionary":
        places = pa.array(chance.integers(3, size=count), pa.int8(), mask=nulls)
        return pa.DictionaryArray.from_arrays(places, draw_inner(3))
    mask = pa.array(nulls)
    if shape == "struct":
        children = [draw_inner(count) for _ in range(2)]
        fields = [pa.field(name, one.type) for name, one in zip("ab", children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    if shape == "fixed list":
        return pa.FixedSizeListArray.from_arrays(draw_inner(2 * count), 2, mask=mask)
    edges = [0, *np.cumsum(chance.integers(4, size=count)).tolist()]
    items = draw_inner(edges[-1])
    if shape == "map":
        return pa.MapArray.from_arrays(edges, pa.array(map(str, range(edges[-1])), pa.string()), items)
    make_list = pa.ListArray if shape == "list" else pa.LargeListArray
    return make_list.from_arrays(edges, items, mask=mask)
