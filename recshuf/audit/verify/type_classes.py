"""Classes of types: values of two types can be compared if both have one class, which lossless conversions keep."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import ConversionError
from recshuf.records.arrays import is_any_list, is_bytes, is_contiguous_list, storage_of
from recshuf.records.conforming import with_value_field
from recshuf.records.hashing import sorted_fields

if TYPE_CHECKING:
    from collections.abc import Callable


_CLASSES: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
    ("null", pt.is_null),
    ("boolean", pt.is_boolean),
    ("uint64", pt.is_uint64),
    ("integer", pt.is_integer),
    ("float", pt.is_floating),
    ("date", pt.is_date),
    ("time", pt.is_time),
    ("duration", pt.is_duration),
    ("interval", pt.is_interval),
)


def _name_class(kind: pa.DataType, field: str) -> str:
    """Return the class of a type that is no list, map or struct; errors name `field`."""
    if pt.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamp with a zone"
    if pt.is_decimal(kind):
        return f"decimal of scale {kind.scale}"
    if is_bytes(kind):
        return "bytes"
    name = next((name for name, accepts in _CLASSES if accepts(kind)), None)
    if name is None:
        raise ConversionError(field, f"values of type {kind} cannot be compared")
    return name


def find_exact_difference(left: pa.Schema, right: pa.Schema) -> str | None:
    """Return how two schemas of one format differ in fields, their order or metadata; None if they do not."""
    if left.names != right.names:
        alone = set(left.names) ^ set(right.names)
        if alone:
            name = min(alone)
            return f"field {name!r} is in the {'inputs' if name in left.names else 'output'} only"
        return "the fields stand in another order or number"
    for ours, theirs in zip(left, right, strict=True):
        if _is_same_field(ours, theirs):
            continue
        if ours.type != theirs.type:
            return f"field {ours.name!r} is {ours.type} in the inputs and {theirs.type} in the output"
        if ours.nullable != theirs.nullable:
            return f"field {ours.name!r} may hold nulls in the {'inputs' if ours.nullable else 'output'} only"
        return f"field {ours.name!r} has metadata that differ"
    return None


def _is_same_field(left: pa.Field, right: pa.Field) -> bool:
    """Return whether fields are equal, metadata included; names of list elements and map entries do not count."""
    return bool(left.equals(right)) and _list_metadata(left) == _list_metadata(right)


def _list_metadata(field: pa.Field) -> list[Any]:
    """Return the metadata of a field and of those inside, nested as these are."""
    inner = map(field.type.field, range(field.type.num_fields))
    return [field.metadata or {}, *map(_list_metadata, inner)]


def find_difference(left: pa.Schema, right: pa.Schema, *, has_names: bool) -> str | None:
    """Return how two schemas differ so that records cannot be compared by value; None if they can.

    Fields are matched by name, in any order; if a format stores no names, the only field matches any only field.
    """
    if not has_names and len(left) == len(right) == 1:
        return _compare_types(left.field(0).type, right.field(0).type, left.names[0])
    return _compare_fields(list(left), list(right), "")


def _compare_fields(left: list[pa.Field], right: list[pa.Field], parent: str) -> str | None:
    ours, theirs = (Counter(field.name for field in fields) for fields in (left, right))
    for alone, where in ((ours - theirs, "inputs"), (theirs - ours, "output")):
        if alone:
            return f"field {parent + min(alone)!r} is in the {where} only"
    pairs = zip(sorted_fields(left, by_name=True), sorted_fields(right, by_name=True), strict=True)
    differences = (
        _compare_types(left[ours].type, right[theirs].type, parent + left[ours].name)
        for ours, theirs in pairs
    )
    return next(filter(None, differences), None)


def _compare_types(left: pa.DataType, right: pa.DataType, path: str) -> str | None:
    left, right = storage_of(left), storage_of(right)
    if pt.is_null(left) or pt.is_null(right):
        return None
    if pt.is_struct(left) and pt.is_struct(right):
        return _compare_fields(list(left), list(right), f"{path}.")
    items = [_item_types(kind) for kind in (left, right)]
    if items[0] and items[1] and len(items[0]) == len(items[1]):
        pairs = zip(*items, strict=True)
        return next(filter(None, (_compare_types(ours, theirs, f"{path}[]") for ours, theirs in pairs)), None)
    nested = pt.is_nested(left) or pt.is_nested(right)
    if nested or _name_class(left, path) != _name_class(right, path):
        return f"field {path!r} is {left} in the inputs and {right} in the output"
    return None


def fill_types(mine: pa.Schema, theirs: pa.Schema, *, has_names: bool) -> dict[str, pa.DataType]:
    """Return the types of columns of `mine` that hold no values, or parts without values, as `theirs` has them, by name.

    A null is hashed as the words of its type, so both sides need one. For `has_names` see `find_difference`.
    """
    if not has_names and len(mine) == len(theirs) == 1:
        theirs = pa.schema([theirs.field(0).with_name(mine.names[0])])
    filled = {}
    for field in mine:
        place = theirs.get_field_index(field.name)
        kind = field.type if place < 0 else _fill_type(field.type, theirs.field(place).type)
        if kind != field.type:
            filled[field.name] = kind
    return filled


def _fill_type(mine: pa.DataType, theirs: pa.DataType) -> pa.DataType:
    theirs = storage_of(theirs)
    if pt.is_null(mine):
        return theirs
    if pt.is_struct(mine) and pt.is_struct(theirs):
        places = [theirs.get_field_index(field.name) for field in mine]
        return pa.struct(
            [
                field if place < 0 else field.with_type(_fill_type(field.type, theirs.field(place).type))
                for field, place in zip(mine, places, strict=True)
            ]
        )
    if pt.is_map(mine) and pt.is_map(theirs):
        key, item = mine.key_field, mine.item_field
        return pa.map_(
            key.with_type(_fill_type(key.type, theirs.key_type)),
            item.with_type(_fill_type(item.type, theirs.item_type)),
            mine.keys_sorted,
        )
    if is_contiguous_list(mine) and is_any_list(theirs):
        value = mine.value_field
        return with_value_field(mine, value.with_type(_fill_type(value.type, theirs.value_type)))
    return mine


def _item_types(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of a list's items, of keys and values if it is a map; nothing for other types."""
    if pt.is_map(kind):
        return [kind.key_type, kind.item_type]
    if not is_any_list(kind):
        return []
    value = storage_of(kind.value_type)
    if pt.is_struct(value) and [field.name for field in value] == ["key", "value"]:
        return [field.type for field in value]
    return [value]
