"""Arrays as arrays of other types that hold the same values: fields by name, values in place of dictionaries."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from recshuf.records.arrays.arrow_views import has_offsets, is_list_view, is_variable_list, view_offsets


def with_value_field(kind: pa.DataType, field: pa.Field) -> pa.DataType:
    """Return the list type like `kind` (list, large list, their views, fixed size) with this value field."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field, kind.list_size)
    return pa.large_list(field) if str(kind).startswith("large") else pa.list_(field)


def conform(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same values as an array of type `kind`, a type that unification found to hold them.

    Fields of structs are found by name, unless they have the same names in the same order; those that are missing become
    null. Nothing is copied where types agree.

    Raises
    ------
    pyarrow.ArrowInvalid
        When a value does not fit, such as a time outside the range of a finer unit.
    """
    if array.type == kind:
        return array
    if pa.types.is_dictionary(array.type):
        return _conform_dictionary(array, kind)
    if is_list_view(array.type):
        return conform(_view_as_list(array), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        return _conform_struct(array, kind)
    if is_variable_list(kind) and is_variable_list(array.type):
        return _conform_list(_compact(array), kind)
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        return _conform_map(_compact(array), kind)
    if pa.types.is_fixed_size_list(kind) and pa.types.is_fixed_size_list(array.type):
        return _conform_fixed_list(_compact(array), kind)
    made = array.cast(kind)
    # Arrow does not see that a time overflows.
    if pa.types.is_time(array.type) and pa.types.is_time(kind) and not made.cast(array.type).equals(array):
        raise pa.ArrowInvalid(f"a time does not fit {kind}")
    return made


def _compact(array: pa.Array) -> pa.Array:
    """Return lists that begin where their memory does, without the values of others, which a slice shares with them."""
    if has_offsets(array.type):
        offsets = view_offsets(array)
        used = int(offsets[-1]) - int(offsets[0])
    else:
        used = len(array) * array.type.list_size
    return array if used == len(array.values) and not array.offset else pa.concat_arrays([array])


def _conform_dictionary(array: pa.DictionaryArray, kind: pa.DataType) -> pa.Array:
    # First the values, because Arrow takes no views of text and bytes, and decodes nothing nested.
    values = conform(array.dictionary, kind)
    if values.offset:  # from which Arrow takes wrong values, see `take_rows`
        values = pa.concat_arrays([values])
    return values.take(array.indices)


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
    has_same_names = [field.name for field in array.type] == [field.name for field in kind]
    for place, field in enumerate(kind):
        # Two fields may share a name, and then none is found by it.
        index = place if has_same_names else array.type.get_field_index(field.name)
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


def _conform_fixed_list(array: pa.FixedSizeListArray, kind: pa.FixedSizeListType) -> pa.Array:
    return _with_children(array, kind, [conform(array.values, kind.value_type)], buffer_count=1)


def _conform_map(array: pa.MapArray, kind: pa.MapType) -> pa.Array:
    keys, items = conform(array.keys, kind.key_type), conform(array.items, kind.item_type)
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return _with_children(array, kind, [entries], buffer_count=2)


def _with_children(
    array: pa.Array, kind: pa.DataType, children: list[pa.Array], *, buffer_count: int
) -> pa.Array:
    """Return a compact array of lists with other values below its own validity and offsets."""
    buffers = array.buffers()[:buffer_count]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, children=children)
