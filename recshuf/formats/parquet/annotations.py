"""Annotations of Parquet columns that Arrow types lack: TIME in UTC, INTERVAL, ENUM, VARIANT, types of the future...

Metadata of Arrow fields carry them from the footers of inputs into those of shards. An annotation is a `SchemaElement` of
parquet.thrift with the fields ``type``, ``type_length``, ``converted_type`` and ``logicalType`` only. That of a group such
as VARIANT is carried by the first column directly in the group.
"""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats.parquet.thrift import ThriftReader, encode_fields
from recshuf.formats.parquet.types import child_fields, is_extension, leaf_types, with_children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from recshuf.formats.parquet.thrift import RawFields, Struct


OWN, GROUP = b"recshuf:annotation", b"recshuf:group_annotation"
"""Keys in the metadata of a field."""
_TYPE, _LENGTH, _NAME, _CHILDREN, _CONVERTED, _LOGICAL = 1, 2, 4, 5, 6, 10
_MOST_LEVELS = 100
_COMPARED = (_TYPE, _LENGTH)
_KEPT = (_CONVERTED, _LOGICAL)
_TIME = 7
INT96, FIXED = 3, 7
"""Numbers of physical types: times of 12 bytes, and values of a given length."""
# What Arrow types carry: STRING, DECIMAL, DATE, TIMESTAMP, INTEGER, UNKNOWN, FLOAT16; of groups, MAP and LIST.
_KNOWN_LOGICAL = {1, 5, 6, 8, 10, 11, 15}
_KNOWN_LOGICAL_GROUPS = {2, 3}
# Times without a logical type are in UTC by the specification, and become local times in Arrow.
_LOST_CONVERTED = {
    4: "ENUM",
    7: "TIME",
    8: "TIME",
    9: "TIMESTAMP",
    10: "TIMESTAMP",
    19: "JSON",
    20: "BSON",
    21: "INTERVAL",
}
_KNOWN_CONVERTED_GROUPS = {1, 2, 3}
_NAMES = {
    4: "ENUM",
    7: "TIME in UTC",
    12: "JSON",
    13: "BSON",
    14: "UUID",
    16: "VARIANT",
    17: "GEOMETRY",
    18: "GEOGRAPHY",
}
# Annotations of the same bytes with no other meaning, which may be left out.
_LOOSE = {"ENUM", "JSON", "BSON", "UUID", "TIME", "TIMESTAMP"}
Marks = dict[bytes, bytes]
"""Metadata for the field of a column: `OWN` and `GROUP` with annotations."""


class Leaf(NamedTuple):
    """What the schema in a footer says of a Parquet column."""

    physical: int
    """Number of its type."""
    length: int
    """Bytes of each value, if all have the same."""
    marks: Marks


class StoredSchema(NamedTuple):
    """The schema in a footer."""

    head: bytes
    """The footer up to the end of the schema. A footer that begins with it has the same one."""
    leaves: list[Leaf]

    def annotate(self, schema: pa.Schema) -> pa.Schema:
        all_marks = [leaf.marks for leaf in self.leaves]
        if not any(all_marks) or sum(1 for kind in schema.types for _ in leaf_types(kind)) != len(all_marks):
            return schema
        places = iter(all_marks)

        def annotate(leaf: pa.Field) -> pa.Field:
            marks = next(places)
            return leaf.with_metadata({**(leaf.metadata or {}), **marks}) if marks else leaf

        return pa.schema([_map_leaves(field, annotate) for field in schema], metadata=schema.metadata)


def _map_leaves(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """Return a field with its leaves changed in order; the same object if none is."""
    children = child_fields(field.type)
    if not children:
        return change(field)
    changed = [_map_leaves(child, change) for child in children]
    return field if all(map(is_, changed, children)) else field.with_type(with_children(field.type, changed))


def read_schema(name: str, footer: bytes) -> StoredSchema:
    """Return the schema in a footer; `IndexError` if that ends within it.

    A group whose annotation cannot be kept is an `InputError`, and so are more than 100 levels: pyarrow 26 refuses them, and
    older ones crash over 50,000, as they build the schema recursively.
    """
    reader = ThriftReader(footer)
    leaves: list[Leaf] = []
    lacking: dict[int, tuple[str, bytes]] = {}
    """Names and annotations of groups that no column carries yet."""
    for place, (element, raw, groups) in enumerate(_list_elements(reader, footer, reader.find_list(2))):
        numbers = element.numbers
        if len(groups) > _MOST_LEVELS:
            raise InputError(name, f"its schema nests more than {_MOST_LEVELS} levels deep")
        if groups and _TYPE in numbers and numbers.get(_CHILDREN, 0) <= 0:
            carried = lacking.pop(groups[-1], None)
            marks = _mark_leaf(element, raw) | ({GROUP: carried[1]} if carried else {})
            leaves.append(Leaf(numbers[_TYPE], numbers.get(_LENGTH, -1), marks))
        elif groups and numbers.get(_CHILDREN, 0) > 0 and _is_lost_group(element):
            fields = ThriftReader(raw).read_raw_fields()
            text = fields[_NAME][1][1:].decode(errors="replace") if _NAME in fields else ""
            lacking[place] = text, _pick(fields, _KEPT)
    if lacking:
        group, mark = next(iter(lacking.values()))
        problem = f"its type {_name_annotation(mark)} cannot be kept"
        remedy = "leave it out with --columns, or write it with another type"
        raise InputError(name, problem, place=f"field {group!r}", remedy=remedy)
    return StoredSchema(footer[: reader.place], leaves)


def _list_elements(
    reader: ThriftReader, footer: bytes, count: int
) -> Iterator[tuple[Struct, bytes, list[int]]]:
    """Yield the next `count` elements of the schema, as stored, too: groups and columns in order, with the places of groups around.

    A group says how many children follow it.
    """
    around: list[int] = []
    missing: list[int] = []
    for place in range(count):
        start = reader.place
        element = reader.read_struct()
        yield element, footer[start : reader.place], around
        if around:
            missing[-1] -= 1
        if (children := element.numbers.get(_CHILDREN, 0)) > 0:
            around.append(place)
            missing.append(children)
        while around and missing[-1] <= 0:
            around.pop()
            missing.pop()


def _logical_id(element: Struct) -> int:
    return next(iter(element.structs[_LOGICAL].structs), 0) if _LOGICAL in element.structs else 0


def _mark_leaf(element: Struct, raw: bytes) -> Marks:
    logical = _logical_id(element)
    if logical == _TIME:
        is_lost = element.structs[_LOGICAL].structs[_TIME].numbers.get(1, 0) > 0  # in UTC
    elif logical:
        is_lost = logical not in _KNOWN_LOGICAL
    else:
        is_lost = element.numbers.get(_CONVERTED) in _LOST_CONVERTED
    return {OWN: _pick(ThriftReader(raw).read_raw_fields(), (*_COMPARED, *_KEPT))} if is_lost else {}


def _is_lost_group(element: Struct) -> bool:
    if logical := _logical_id(element):
        return logical not in _KNOWN_LOGICAL_GROUPS
    return element.numbers.get(_CONVERTED, -1) not in (-1, *_KNOWN_CONVERTED_GROUPS)


def _pick(element: RawFields, fields: Sequence[int]) -> bytes:
    return encode_fields({field: element[field] for field in fields if field in element})


def _name_annotation(mark: bytes) -> str:
    element = ThriftReader(mark).read_struct()
    if logical := _logical_id(element):
        return _NAMES.get(logical, f"number {logical} of LogicalType")
    return _LOST_CONVERTED.get(
        number := element.numbers.get(_CONVERTED, -1), f"number {number} of ConvertedType"
    )


def name_type(field: pa.Field) -> str:
    """Return the type of a field for messages: Arrow's name, and its annotations."""
    return " ".join([str(field.type), *(f"({_name_annotation(mark)})" for mark in _marks_of(field).values())])


def merge_marks(left: pa.Field, right: pa.Field) -> Marks | None:
    """Return the annotations of a column of two files; None if they contradict each other.

    Annotations that change no value are left out where they differ, unless they are of the extension type of the first.
    """
    ours, theirs = _marks_of(left), _marks_of(right)
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return theirs if pa.types.is_null(left.type) else ours
    if ours == theirs and left.type == right.type:
        return ours
    marks = [*ours.values(), *theirs.values()]
    if not all(_name_annotation(mark) in _LOOSE for mark in marks):
        return None
    return ours if is_extension(left.type) else {}


def _marks_of(field: pa.Field) -> Marks:
    return {key: value for key, value in (field.metadata or {}).items() if key in (OWN, GROUP)}


def with_marks(field: pa.Field, marks: Marks) -> pa.Field:
    """Return a field with these annotations in place of its own."""
    other = {key: value for key, value in (field.metadata or {}).items() if key not in (OWN, GROUP)}
    return field.with_metadata({**other, **marks} or None)


def with_marks_of(field: pa.Field, other: pa.Field) -> pa.Field:
    """Return a field with the annotations of another one in place of its own."""
    ours, theirs = _marks_of(field), _marks_of(other)
    return field if ours == theirs else with_marks(field, theirs)


def take_marks(schema: pa.Schema) -> tuple[pa.Schema, dict[int, Marks]]:
    """Return a schema without annotations, and the annotations by the index of the Parquet column."""
    taken: list[Marks] = []

    def take(leaf: pa.Field) -> pa.Field:
        taken.append(_marks_of(leaf))
        return with_marks(leaf, {}) if taken[-1] else leaf

    fields = [_map_leaves(field, take) for field in schema]
    marks = {leaf: marks for leaf, marks in enumerate(taken) if marks}
    return (pa.schema(fields, metadata=schema.metadata) if marks else schema), marks


def put_marks(head: bytes, marks: Mapping[int, Marks]) -> bytes:
    """Return the beginning of a footer, which has the whole schema, with annotations for some columns."""
    if not marks:
        return head
    reader = ThriftReader(head)
    count = reader.find_list(2)
    start, leaf = reader.place, 0
    elements: list[bytes] = []
    for element, raw, groups in _list_elements(reader, head, count):
        elements.append(raw)
        if _CHILDREN not in element.numbers:
            own = marks.get(leaf, {})
            for key, place in ((OWN, -1), (GROUP, groups[-1])):
                elements[place] = _put(elements[place], own[key]) if key in own else elements[place]
            leaf += 1
    return head[:start] + b"".join(elements) + head[reader.place :]


def _put(raw: bytes, mark: bytes) -> bytes:
    element, wanted = (ThriftReader(each).read_raw_fields() for each in (raw, mark))
    if any(wanted.get(field) != element.get(field) for field in _COMPARED if field in wanted):
        raise RuntimeError(f"a column of type {_name_annotation(mark)} is stored in another physical type")
    kept = {field: value for field, value in wanted.items() if field in _KEPT}
    return encode_fields({field: value for field, value in element.items() if field not in _KEPT} | kept)
