"""Arrays as arrays of other types that hold the same values: fields by name, values in place of dictionaries.

Decimals with the digits of their types: Arrow makes, reads and writes decimals that have more, or alters them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import ConversionError
from recshuf.records.arrays import (
    concat_one,
    has_offsets,
    is_list_view,
    is_variable_list,
    uncut,
    view_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


_MOST_DIGITS = {128: 38, 256: 76}


class MisfitError(pa.ArrowInvalid):  # type: ignore[misc] # pyarrow has no types
    """A value that the type which its column shall have does not hold."""


def with_value_field(kind: pa.DataType, field: pa.Field) -> pa.DataType:
    """Return the list type like `kind` (list, large list, their views, fixed size) with this value field."""
    if pt.is_fixed_size_list(kind):
        return pa.list_(field, kind.list_size)
    return pa.large_list(field) if str(kind).startswith("large") else pa.list_(field)


def conform(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same values as an array of type `kind`, a type that unification found to hold them.

    Fields of structs are found by name, unless they have the same names in the same order; those that are missing become
    null. Nothing is copied where types agree. `MisfitError` says that a value does not fit, such as a time outside the range
    of a finer unit.
    """
    if array.type == kind:
        return array
    if isinstance(array.type, pa.BaseExtensionType) or isinstance(kind, pa.BaseExtensionType):
        return _conform_extension(array, kind)
    if pt.is_dictionary(array.type):
        # First the values, because Arrow takes no views of text and bytes, and decodes nothing nested.
        return uncut(conform(array.dictionary, kind)).take(array.indices)
    if is_list_view(array.type):
        return conform(_view_as_list(array), kind)
    if is_list_view(kind):
        return _conform_list_view(array, kind)
    if pt.is_struct(kind) and pt.is_struct(array.type):
        return _conform_struct(array, kind)
    if is_variable_list(kind) and is_variable_list(array.type):
        return _conform_list(_compact(array), kind)
    if pt.is_map(kind) and pt.is_map(array.type):
        return _conform_map(_compact(array), kind)
    if pt.is_fixed_size_list(kind) and pt.is_fixed_size_list(array.type):
        array = _compact(array)
        return _with_children(array, kind, [conform(array.values, kind.value_type)], buffer_count=1)
    return _cast(array, kind)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)
    try:
        converted = array.cast(kind)
    except pa.ArrowInvalid as error:
        raise MisfitError(str(error)) from error
    # Arrow does not see that a time overflows.
    if pt.is_time(array.type) and pt.is_time(kind) and not converted.cast(array.type).equals(array):
        raise MisfitError(f"a time does not fit {kind}")
    return converted


def _compact(array: pa.Array) -> pa.Array:
    """Return lists that begin where their memory does, without the values of others, which a slice shares with them."""
    if has_offsets(array.type):
        offsets = view_offsets(array)
        used = int(offsets[-1]) - int(offsets[0])
    else:
        used = len(array) * array.type.list_size
    return array if used == len(array.values) and not array.offset else pa.concat_arrays([array])


def _conform_extension(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(array.type, pa.BaseExtensionType):
        return conform(array.storage, kind)
    return kind.wrap_array(conform(array, kind.storage_type))


def encode_dictionary(array: pa.Array, values: pa.Array, kind: pa.DictionaryType) -> pa.DictionaryArray:
    """Return values, or nulls, as a dictionary array of a type, by their places among all `values`."""
    return pa.DictionaryArray.from_arrays(find_indices(array, values, kind), values, ordered=kind.ordered)


def find_indices(
    found: pa.Array | pa.ChunkedArray, values: pa.Array, kind: pa.DictionaryType
) -> pa.Array | pa.ChunkedArray:
    """Return the places of what was found, or nulls, among all `values`, which take time to prepare in each call."""
    import pyarrow.compute as pc  # takes long, and few files have dictionaries

    if pt.is_float16(values.type):  # for which Arrow has no `index_in`
        found, values = _view_as_bits(found), _view_as_bits(values)
    return pc.index_in(found, value_set=values, skip_nulls=True).cast(kind.index_type)


def _view_as_bits(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([_view_as_bits(chunk) for chunk in array.chunks], pa.uint16())
    return array.view(pa.uint16())


def _view_as_list(array: pa.Array) -> pa.Array:
    """Return the same lists with offsets; `cast` fails if the last one is null."""
    nulls = array.is_null()
    sizes = np.where(nulls, 0, array.sizes.to_numpy(zero_copy_only=False))
    offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))), array.sizes.type)
    make = pa.LargeListArray if str(array.type).startswith("large") else pa.ListArray
    kind = with_value_field(array.type, array.type.value_field)
    return make.from_arrays(offsets, array.flatten(), type=kind, mask=nulls if array.null_count else None)


def _conform_list_view(array: pa.Array, kind: pa.DataType) -> pa.Array:
    # Arrow casts lists to no views of lists.
    lists = _compact(conform(array, with_value_field(kind, kind.value_field)))
    make, width = (pa.LargeListViewArray, "i8") if str(kind).startswith("large") else (pa.ListViewArray, "i4")
    offsets = view_offsets(lists).astype(width)
    mask = lists.is_null() if lists.null_count else None
    return make.from_arrays(
        pa.array(offsets[:-1]), pa.array(np.diff(offsets)), lists.values, type=kind, mask=mask
    )


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
    if pt.is_large_list(kind) != pt.is_large_list(array.type):
        array = array.cast(with_value_field(kind, array.type.value_field))
    return _with_children(array, kind, [conform(array.values, kind.value_type)], buffer_count=2)


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


def settle(array: pa.Array) -> pa.Array:
    """Return the same values without nulls under the nulls of lists of a fixed size, and of structs in fields that take no nulls.

    In the lists, whether there are some after Arrow has taken values depends on those that were taken with them; Parquet
    refuses those in the fields.
    """
    return _settle(concat_one(array), None) if _has_nulls_below(array, is_below=False) else array


def _has_nulls_below(array: pa.Array, *, is_below: bool) -> bool:
    """Tell whether anything that `settle` may change is null."""
    if is_below and array.null_count:
        return True
    if isinstance(array.type, pa.BaseExtensionType):
        return _has_nulls_below(array.storage, is_below=is_below)
    return any(
        _has_nulls_below(child, is_below=is_below or (is_settled and array.null_count > 0))
        for child, is_settled in _children(array)
    )


def _children(array: pa.Array) -> list[tuple[pa.Array, bool]]:
    """Return what an array holds, each with whether it has no nulls under those of the array once that is settled."""
    kind = array.type
    if pt.is_struct(kind):
        return [(array.field(index), not kind.field(index).nullable) for index in range(kind.num_fields)]
    return [(array.values, pt.is_fixed_size_list(kind))] if kind.num_fields else []


def _settle(array: pa.Array, hidden: NDArray[np.bool_] | None) -> pa.Array:
    """Settle an array that begins where its memory does, of whose values some are `hidden` under nulls."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(_settle(array.storage, hidden))
    if pt.is_null(kind):
        return array
    is_fixed = pt.is_struct(kind) or pt.is_fixed_size_list(kind)
    validity, *buffers = array.buffers()[: (1 if is_fixed else 2) if kind.num_fields else None]
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    below = nulls if hidden is None else nulls | hidden
    if hidden is not None:
        nulls = nulls & ~hidden
        validity = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
    children = []
    for child, is_settled in _children(array):
        inner = below if is_settled else hidden if is_fixed else None
        if inner is not None and pt.is_fixed_size_list(kind):
            inner = np.repeat(inner, kind.list_size)
        children.append(_settle(child, inner))
    return pa.Array.from_buffers(kind, len(array), [validity, *buffers], int(nulls.sum()), children=children)


def has_required(kind: pa.DataType) -> bool:
    """Tell whether a type has a field that takes no nulls inside of a struct, at any depth."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_required(kind.storage_type)
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return any((pt.is_struct(kind) and not field.nullable) or has_required(field.type) for field in fields)


def has_decimals(kind: pa.DataType) -> bool:
    """Tell whether a type is or holds a decimal, at any depth."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_decimals(kind.storage_type)
    if pt.is_dictionary(kind):
        return has_decimals(kind.value_type)
    return pt.is_decimal(kind) or any(
        has_decimals(kind.field(index).type) for index in range(kind.num_fields)
    )


def check_digits(array: pa.Array) -> None:
    """Check the digits of all decimals of an array, at any depth: `pyarrow.ArrowInvalid` if a value has more than its type."""
    kind = array.type
    if not has_decimals(kind):
        return
    if isinstance(kind, pa.BaseExtensionType):
        check_digits(array.storage)
    elif pt.is_dictionary(kind):
        check_digits(array.dictionary)
    elif pt.is_struct(kind):
        for child in array.flatten():
            check_digits(child)
    elif pt.is_decimal(kind):
        misfit = _find_first(array, _validate)
        if misfit is not None:
            raise pa.ArrowInvalid(f"{array[misfit]} has more digits than {kind}")
    else:
        check_digits((_as_list(array) if pt.is_map(kind) else array).flatten())


def roomy_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow is to read decimals of 128 or 256 bits from text, before `fit_digits`.

    Arrow compares the digits that are written with the precision, and then shifts them by the scale without a check. The
    type has room for this, as far as there is a wider one.

    >>> roomy_type(pa.decimal128(30, 10))
    Decimal256Type(decimal256(30, 10))
    >>> roomy_type(pa.decimal128(5, -2))
    Decimal128Type(decimal128(7, -2))
    >>> roomy_type(pa.decimal128(37, -2))
    Decimal256Type(decimal256(39, -2))
    """
    shifted = kind.precision + abs(kind.scale)
    is_wide = shifted > _MOST_DIGITS[128] or kind.bit_width > 128
    precision = min(kind.precision - min(kind.scale, 0), _MOST_DIGITS[256])
    return (pa.decimal256 if is_wide else pa.decimal128)(precision, kind.scale)


def fit_digits(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return text, or decimals of the `roomy_type` of a type, in that type."""
    try:
        return _fit(array, kind)
    except pa.ArrowInvalid as error:
        misfit = find_misfit(array, kind)
        if misfit is None or not pt.is_decimal(array.type):
            raise
        raise pa.ArrowInvalid(f"{array[misfit]} has more digits") from error


def find_misfit(array: pa.Array, kind: pa.DataType) -> int | None:
    """Return the index of the first value for which `fit_digits` fails; None if there is none."""
    return _find_first(array, lambda part: _fit(part, kind))


def plain_decimals(array: pa.Array, field: str) -> pa.Array:
    """Return decimals that Arrow writes with all digits before the point: `12300`, where a negative scale gives `1.23E+4`."""
    kind = array.type
    if kind.scale >= 0:
        return array
    digits = kind.precision - kind.scale
    if digits > _MOST_DIGITS[256]:
        problem = f"{kind} has {digits} digits before the point, more than {_MOST_DIGITS[256]}"
        raise ConversionError(field, problem, remedy="cast the column to float64 first")
    return array.cast((pa.decimal128 if digits <= _MOST_DIGITS[128] else pa.decimal256)(digits, 0))


def _as_list(array: pa.MapArray) -> pa.ListArray:
    """Return a map as a list of its entries; Arrow flattens no maps."""
    entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
    kind, validity_and_offsets = pa.list_(entries.type), array.buffers()[:2]
    return pa.Array.from_buffers(
        kind, len(array), validity_and_offsets, offset=array.offset, children=[entries]
    )


def _fit(array: pa.Array, kind: pa.DataType) -> pa.Array:
    converted = array.cast(roomy_type(kind)).cast(kind)
    _validate(converted)
    return converted


def _validate(array: pa.Array) -> None:
    array.validate(full=True)


def _find_first(array: pa.Array, check: Callable[[pa.Array], object]) -> int | None:
    """Return the index of the first value for which a check fails; None if there is none."""
    first, count = 0, len(array)
    if _passes(array, check):
        return None
    while count > 1:
        half = count // 2
        if _passes(array.slice(first, half), check):
            first, half = first + half, count - half
        count = half
    return first


def _passes(array: pa.Array, check: Callable[[pa.Array], object]) -> bool:
    try:
        check(array)
    except pa.ArrowInvalid:
        return False
    return True
