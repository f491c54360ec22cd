"""The oracle of JSON lines: soundness, types and values of records, one by one with `json`."""

import json
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

WHITESPACE = " \t\r\n"


class DoesNotFitError(Exception):
    pass


def type_of(value: Any) -> pa.DataType:
    if isinstance(value, dict):
        return pa.struct([(name, type_of(child)) for name, child in value.items()])
    if isinstance(value, list):
        element = pa.null()
        for child in value:
            element = merged(element, type_of(child))
        return pa.list_(element)
    kinds = {type(None): pa.null(), bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    return kinds[type(value)]


def merged(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pt.is_null(one) or one == other:
        return other
    if pt.is_null(other):
        return one
    if pt.is_struct(one) and pt.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = merged(fields.get(field.name, pa.null()), field.type)
        return pa.struct(list(fields.items()))
    if pt.is_list(one) and pt.is_list(other):
        return pa.list_(merged(one.value_type, other.value_type))
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    raise DoesNotFitError


def as_typed(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pt.is_struct(kind):
        return {field.name: as_typed(value.get(field.name), field.type) for field in kind}
    if pt.is_map(kind):
        return {name: as_typed(child, kind.item_type) for name, child in value.items()}
    if pt.is_list(kind):
        return [as_typed(child, kind.value_type) for child in value]
    return float(value) if pt.is_floating(kind) else value


def is_sound(line: bytes) -> bool:
    """Tell whether a line is one object by the letter of RFC 8259, names unique, and within float64."""
    try:
        value = json.loads(line.decode(), parse_constant=refuse, parse_float=finite, object_pairs_hook=unique)
        json.dumps(value, ensure_ascii=False).encode()
        type_of(value)
    except (ValueError, RecursionError, DoesNotFitError):
        return False
    return isinstance(value, dict) and set(line.decode()[:1]) <= {"{", *WHITESPACE}


def refuse(_: str) -> Any:
    raise ValueError


def finite(text: str) -> float:
    if not np.isfinite(float(text)):
        raise ValueError
    return float(text)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError
    return dict(pairs)


def fit_together(lines: list[bytes]) -> bool:
    try:
        reduce(merged, (type_of(json.loads(line)) for line in lines))
    except DoesNotFitError:
        return False
    return True
