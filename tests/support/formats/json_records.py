"""Records that JSON can hold, drawn, and the ways to write them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tests.support.formats.json_oracle import WHITESPACE

TEXTS = st.sampled_from(
    ["", "a", "2020-01-01", "2020-01-01T00:00:00Z", "1", 'é\u2028\x00"\\', "}{", "null"]
) | st.text(st.characters(codec="utf-8"), max_size=4)
NAMES = st.sampled_from(["a", "b", "c", "é", "", "a.b", "[]", 'q"', "x\x00y", "a/b"])
INTEGERS = st.integers(-(2**53), 2**53) | st.integers(-9, 9)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ANYTHING = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
VALUES_OF_ONE_TYPE = st.recursive(
    st.sampled_from([st.booleans(), INTEGERS, FLOATS, INTEGERS | FLOATS, TEXTS, st.none()]),
    lambda inner: (
        inner.map(lambda values: st.lists(st.none() | values, max_size=4))
        | st.dictionaries(NAMES, inner, max_size=3).map(lambda parts: some_of(parts))
    ),
    max_leaves=5,
)


def some_of(parts: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with any of the fields, in any order."""
    optional = {name: st.none() | values for name, values in parts.items()}
    objects = st.fixed_dictionaries({}, optional=optional)
    return objects.flatmap(lambda made: st.permutations(list(made.items())).map(dict))


RECORDS_OF_ONE_TYPE = st.dictionaries(NAMES, VALUES_OF_ONE_TYPE, max_size=4).flatmap(
    lambda parts: st.lists(some_of(parts), max_size=8)
)
ANY_RECORDS = st.lists(st.dictionaries(NAMES, ANYTHING, max_size=3), max_size=4)


@st.composite
def written(draw: st.DrawFn, record: dict[str, Any]) -> bytes:
    """Return one of the many ways to write a record."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :\r")]))
    text = json.dumps(record, ensure_ascii=draw(st.booleans()), separators=separators)
    spaces = st.text(WHITESPACE.replace("\n", ""), max_size=2)
    return (draw(spaces) + text + draw(spaces)).encode()
