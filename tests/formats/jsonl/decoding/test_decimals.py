"""A number that the decimal of the schema does not hold is refused with line and field, at any depth."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.formats.decimal_tools import KINDS
from tests.support.formats.json_decoding import decode, failure

FORMS = {
    "value": ("%s", lambda kind: kind, lambda value: value),
    "list": ("[null, %s]", pa.list_, lambda value: value[1]),
    "large list": ("[%s]", pa.large_list, lambda value: value[0]),
    "struct": ('{"b": %s}', lambda kind: pa.struct([("b", kind)]), lambda value: value["b"]),
}


@pytest.mark.parametrize("form", FORMS)
@given(
    st.sampled_from([*KINDS, pa.decimal256(38, 37), pa.decimal256(60, 10)]),
    st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-(10**5), 10**5),
)
def test_whole_numbers_fit_or_are_refused(form: str, kind: pa.DataType, number: int) -> None:
    shape, make, unwrap = FORMS[form]
    line = f'{{"a": {shape % number}}}'.encode()
    schema = pa.schema([("a", make(kind))])
    if abs(number) * 10**kind.scale < 10**kind.precision:
        table = decode([b"{}", line], schema)
        assert table.schema == schema
        assert unwrap(table["a"][1].as_py()) == number
    else:
        message = str(failure([b"{}", line], schema))
        assert "line 2" in message
        assert "field 'a" in message
