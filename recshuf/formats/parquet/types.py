"""Dense types, the native form of Parquet columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.records.arrays import FLAT, is_any_list
from recshuf.records.conforming import with_value_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Path = tuple[str, ...]
    """Names of a column and of the fields below it that lead to a Parquet column."""


# Arrays of these types share values between records, so a slice of a few records would keep all values.
_DENSE = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
_HELD = {"date64[ms]": pa.date32(), "time32[s]": pa.time32("ms")}

_OFFSET_BITS = 32


def is_extension(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


def is_ordered(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind) and kind.ordered)


def is_narrow(kind: pa.DataType) -> bool:
    """Tell whether a type is a dictionary whose index may be too small for the values of many files."""
    return bool(pa.types.is_dictionary(kind) and kind.index_type.bit_width < 32)


def map_leaves(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with what is inside of it changed, at any depth; extension types have nothing inside."""
    if kind.id in FLAT:
        return kind
    children = [] if is_extension(kind) else child_fields(kind)
    changed = [child.with_type(map_leaves(child.type, change)) for child in children]
    return with_children(kind, changed) if changed else change(kind)


def dense_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values without dictionaries and views, at any depth.

    >>> dense_type(pa.struct({"a": pa.dictionary(pa.int8(), pa.string())}))
    StructType(struct<a: string>)
    """
    return map_leaves(kind, _dense_leaf)


def _dense_leaf(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.JsonType) and str(kind.storage_type) in _DENSE:
        return pa.json_(_DENSE[str(kind.storage_type)])
    return dense_type(kind.value_type) if pa.types.is_dictionary(kind) else _DENSE.get(str(kind), kind)


def dense_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(dense_type(field.type)) for field in schema], metadata=schema.metadata)


def held_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that Parquet has for a dense type: the coarsest units are days for dates, milliseconds for times.

    >>> held_type(pa.list_(pa.timestamp("s"))).value_type
    TimestampType(timestamp[ms])
    """
    return map_leaves(kind, _held_leaf)


def _held_leaf(kind: pa.DataType) -> pa.DataType:
    is_coarse = pa.types.is_timestamp(kind) and kind.unit == "s"
    return pa.timestamp("ms", kind.tz) if is_coarse else _HELD.get(str(kind), kind)


def without_required_vectors(schema: pa.Schema, held: pa.Schema | None = None) -> pa.Schema:
    """Return a schema whose lists of a fixed size may be null where a struct around them may be: pyarrow reads no others back.

    Columns that are the same in a schema which is `held` stay as they are.

    >>> vector = pa.field("v", pa.list_(pa.int8(), 2), nullable=False)
    >>> without_required_vectors(pa.schema({"s": pa.struct([vector])})).types
    [StructType(struct<v: fixed_size_list<item: int8>[2]>)]
    """
    known = {field.name: field.type for field in held or ()}
    fields = [
        field if known.get(field.name) == field.type else _loosen(field, in_null=False) for field in schema
    ]
    return pa.schema(fields, schema.metadata)


def _loosen(field: pa.Field, *, in_null: bool) -> pa.Field:
    kind = field.type
    if in_null and pa.types.is_fixed_size_list(kind.storage_type if is_extension(kind) else kind):
        field = field.with_nullable(True)
    children = [] if is_extension(kind) else child_fields(kind)
    in_null = pa.types.is_struct(kind) and (in_null or field.nullable)
    changed = [_loosen(child, in_null=in_null) for child in children]
    return field if changed == children else field.with_type(with_children(kind, changed))


def child_fields(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields one level down, none for a leaf."""
    if kind.id in FLAT:
        return []
    if is_extension(kind):
        return child_fields(kind.storage_type)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_struct(kind):
        return list(kind)
    if is_any_list(kind):
        return [kind.value_field]
    return []


def with_children(kind: pa.DataType, children: list[pa.Field]) -> pa.DataType:
    """Return the nested type like `kind` with these fields one level down; extension types stay as they are."""
    if pa.types.is_map(kind):
        return pa.map_(*children, keys_sorted=kind.keys_sorted)
    if pa.types.is_struct(kind):
        return pa.struct(children)
    return with_value_field(kind, children[0]) if is_any_list(kind) else kind


def leaf_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the types of the Parquet columns of a type, in the file's order."""
    children = child_fields(kind)
    if not children:
        yield kind
    for child in children:
        yield from leaf_types(child.type)


def null_bits(kind: pa.DataType) -> int:
    """Return the bits that a null takes in an Arrow array, beside its validity.

    >>> null_bits(pa.list_(pa.float32(), 3))
    96
    """
    if is_extension(kind):
        return null_bits(kind.storage_type)
    if pa.types.is_struct(kind):
        return sum(null_bits(child.type) for child in kind)
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * null_bits(kind.value_type)
    try:
        return int(kind.bit_width)
    except ValueError:
        return 0 if pa.types.is_null(kind) else _OFFSET_BITS


def is_joinable(kind: pa.DataType) -> bool:
    """Tell whether row groups of a column may be read together.

    Lists may not: a damaged level is a row more or less, and would move the rows of the next row groups. pyarrow cannot
    read nested dictionaries over several row groups.
    """
    storage = kind.storage_type if is_extension(kind) else kind
    if not pa.types.is_nested(storage):
        return True
    return pa.types.is_struct(storage) and all(
        not pa.types.is_dictionary(child.type) and is_joinable(child.type) for child in storage
    )


def fit_index(kind: pa.DictionaryType, count: int | None) -> pa.DictionaryType:
    """Return the type, with a wider index if it has no room for so many values; None for any number.

    >>> str(fit_index(pa.dictionary(pa.uint8(), pa.string()), 256).index_type)
    'uint8'
    >>> str(fit_index(pa.dictionary(pa.int8(), pa.string()), 129).index_type)
    'int32'
    """
    room = 1 << (kind.index_type.bit_width - pa.types.is_signed_integer(kind.index_type))
    if not is_narrow(kind) or (count is not None and count <= room):
        return kind
    return pa.dictionary(pa.int32(), kind.value_type, ordered=kind.ordered)


def fit_indices(field: pa.Field, path: Path, counts: dict[Path, int] | None) -> pa.Field:
    """Return the field with index types, at any depth, that have room for these numbers of values, or any; `path` leads to it."""
    kind = field.type
    if is_narrow(kind):
        return field.with_type(fit_index(kind, None if counts is None else counts.get(path, 0)))
    children = [fit_indices(child, (*path, step), counts) for step, child in name_children(kind)]
    return field.with_type(with_children(kind, children)) if children else field


def widen_indices(schema: pa.Schema) -> pa.Schema:
    """Return the schema with index types, at any depth, that have room for any number of values."""
    return pa.schema([fit_indices(field, (field.name,), None) for field in schema], schema.metadata)


def walk(field: pa.Field, path: Path) -> Iterator[tuple[Path, pa.Field]]:
    """Yield a field and all inside of it, each with its path; `path` leads to it."""
    yield path, field
    for step, child in name_children(field.type):
        yield from walk(child, (*path, step))


def name_children(kind: pa.DataType) -> list[tuple[str, pa.Field]]:
    """Return the part of a path for each child; files name the values of lists as they like."""
    storage = kind.storage_type if is_extension(kind) else kind
    names = ("key", "value") if pa.types.is_map(storage) else ("element",)
    is_struct = pa.types.is_struct(storage)
    return [
        (child.name if is_struct else names[place], child) for place, child in enumerate(child_fields(kind))
    ]
