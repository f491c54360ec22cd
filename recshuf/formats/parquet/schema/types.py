"""Dense types, the native form of Parquet columns, and the conversion of arrays to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.records.arrow_views import is_any_list, is_list_view, is_variable_list

if TYPE_CHECKING:
    from collections.abc import Iterator

# Arrays of these types share values between records, so a slice of a few records would keep all values.
_DENSE = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}


def is_extension(kind: pa.DataType) -> bool:
    """Tell whether a type is a registered extension type."""
    return isinstance(kind, pa.BaseExtensionType)


def is_time_stamp(kind: pa.DataType) -> bool:
    """Tell whether a type is a time stamp, also in a dictionary or as the storage of an extension type."""
    if pa.types.is_dictionary(kind):
        return is_time_stamp(kind.value_type)
    return is_time_stamp(kind.storage_type) if is_extension(kind) else bool(pa.types.is_timestamp(kind))


def is_ordered(kind: pa.DataType) -> bool:
    """Tell whether a type is an ordered dictionary."""
    return bool(pa.types.is_dictionary(kind) and kind.ordered)


def with_value_field(kind: pa.DataType, field: pa.Field) -> pa.DataType:
    """Return the list type like `kind` (list, large list, their views, fixed size) with this value field."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field, kind.list_size)
    return pa.large_list(field) if str(kind).startswith("large") else pa.list_(field)


def dense_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values without dictionaries and views, at any depth.

    >>> dense_type(pa.struct({"a": pa.dictionary(pa.int8(), pa.string())}))
    StructType(struct<a: string>)
    """
    if pa.types.is_dictionary(kind):
        return dense_type(kind.value_type)
    if pa.types.is_nested(kind) and not is_extension(kind):
        return with_children(kind, [dense_field(child) for child in child_fields(kind)])
    return _DENSE.get(str(kind), kind)


def dense_field(field: pa.Field) -> pa.Field:
    """Return the field with its type made dense; name, nullability and metadata stay."""
    return field.with_type(dense_type(field.type))


def dense_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with every type made dense."""
    return pa.schema([dense_field(field) for field in schema], metadata=schema.metadata)


def child_fields(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields one level down, none for a leaf."""
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


def conform(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same values as an array of type `kind`, a type that unification found to hold them.

    Fields of structs are found by name; those that are missing become null. Nothing is copied where types agree.

    Raises
    ------
    pyarrow.ArrowInvalid
        When a value does not fit, such as a time outside the range of a finer unit.
    """
    if array.type == kind:
        return array
    if pa.types.is_dictionary(array.type):
        return conform(array.dictionary_decode(), kind)
    if is_list_view(array.type):
        return conform(_view_as_list(array), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        return _conform_struct(array, kind)
    if is_variable_list(kind) and is_variable_list(array.type):
        return _conform_list(array, kind)
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        return _conform_map(array, kind)
    if pa.types.is_fixed_size_list(kind) and pa.types.is_fixed_size_list(array.type):
        return _with_children(array, kind, [conform(array.values, kind.value_type)], buffer_count=1)
    return array.cast(kind)


def _view_as_list(array: pa.Array) -> pa.Array:
    """Return the same lists with offsets; `cast` fails if the last one is null."""
    nulls = array.is_null()
    sizes = np.where(nulls, 0, array.sizes.to_numpy(zero_copy_only=False))
    offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))), array.sizes.type)
    make = pa.LargeListArray if str(array.type).startswith("large") else pa.ListArray
    kind = with_value_field(array.type, array.type.value_field)
    return make.from_arrays(offsets, array.flatten(), type=kind, mask=nulls if array.null_count else None)


def _conform_struct(array: pa.StructArray, kind: pa.StructType) -> pa.Array:
    children = []
    for field in kind:
        index = array.type.get_field_index(field.name)
        children.append(
            pa.nulls(len(array), field.type) if index < 0 else conform(array.field(index), field.type)
        )
    if not children:
        return array
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _conform_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_large_list(kind) != pa.types.is_large_list(array.type):
        array = array.cast(with_value_field(kind, array.type.value_field))
    return _with_children(array, kind, [conform(array.values, kind.value_type)], buffer_count=2)


def _conform_map(array: pa.MapArray, kind: pa.MapType) -> pa.Array:
    keys, items = conform(array.keys, kind.key_type), conform(array.items, kind.item_type)
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return _with_children(array, kind, [entries], buffer_count=2)


def _with_children(
    array: pa.Array, kind: pa.DataType, children: list[pa.Array], *, buffer_count: int
) -> pa.Array:
    """Return the list array with other values below its own validity and offsets."""
    buffers = array.buffers()[:buffer_count]
    return pa.Array.from_buffers(
        kind, len(array), buffers, array.null_count, offset=array.offset, children=children
    )
