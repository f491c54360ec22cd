"""Decimals and the digits of their types: Arrow makes, reads and writes decimals that have more, or alters them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_DIGITS = {128: 38, 256: 76}


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
    """Check the digits of all decimals of an array, at any depth.

    Raises
    ------
    pyarrow.ArrowInvalid
        When a value has more digits than its type.
    """
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
    """
    shifted = kind.precision + abs(kind.scale)
    is_wide = shifted > _MOST_DIGITS[128] or kind.bit_width > 128
    precision = min(kind.precision - min(kind.scale, 0), _MOST_DIGITS[256])
    return (pa.decimal256 if is_wide else pa.decimal128)(precision, kind.scale)


def fit_digits(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return text, or decimals of the `roomy_type` of a type, in that type.

    Raises
    ------
    pyarrow.ArrowInvalid
        When a value is no decimal, or has more digits than the type.
    """
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
    """Return decimals that Arrow writes with all digits before the point: `12300`, where a negative scale gives `1.23E+4`.

    Raises
    ------
    ConversionError
        When the type has more digits before the point than Arrow writes.
    """
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
    made = array.cast(roomy_type(kind)).cast(kind)
    _validate(made)
    return made


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
