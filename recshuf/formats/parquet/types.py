"""Dense types, the native form of Parquet columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.records.arrays import FLAT, is_any_list
from recshuf.records.conforming import with_value_field

if TYPE_CHECKING:
    from collections.abc import Iterator


# Arrays of these types share values between records, so a slice of a few records would keep all values.
_DENSE = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
_HELD = {"date64[ms]": pa.date32(), "time32[s]": pa.time32("ms")}


def is_extension(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


def is_time_stamp(kind: pa.DataType) -> bool:
    """Tell whether a type is a time stamp, also in a dictionary or as the storage of an extension type."""
    if pa.types.is_dictionary(kind):
        return is_time_stamp(kind.value_type)
    return is_time_stamp(kind.storage_type) if is_extension(kind) else bool(pa.types.is_timestamp(kind))


def is_ordered(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind) and kind.ordered)


def is_narrow(kind: pa.DataType) -> bool:
    """Tell whether a type is a dictionary whose index may be too small for the values of many files."""
    return bool(pa.types.is_dictionary(kind) and kind.index_type.bit_width < 32)


def dense_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values without dictionaries and views, at any depth.

    >>> dense_type(pa.struct({"a": pa.dictionary(pa.int8(), pa.string())}))
    StructType(struct<a: string>)
    """
    if kind.id in FLAT:
        return kind
    if pa.types.is_dictionary(kind):
        return dense_type(kind.value_type)
    if pa.types.is_nested(kind) and not is_extension(kind):
        return with_children(kind, [_dense_field(child) for child in child_fields(kind)])
    return _DENSE.get(str(kind), kind)


def _dense_field(field: pa.Field) -> pa.Field:
    kind = field.type
    return field if kind.id in FLAT else field.with_type(dense_type(kind))


def dense_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_dense_field(field) for field in schema], metadata=schema.metadata)


def held_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that Parquet has for a dense type: the coarsest units are days for dates, milliseconds for times.

    >>> held_type(pa.list_(pa.timestamp("s"))).value_type
    TimestampType(timestamp[ms])
    """
    if kind.id in FLAT:
        return kind
    if pa.types.is_nested(kind) and not is_extension(kind):
        held = [child.with_type(held_type(child.type)) for child in child_fields(kind)]
        return with_children(kind, held)
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    return _HELD.get(str(kind), kind)


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
