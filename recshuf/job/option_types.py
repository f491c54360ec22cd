"""Values of options as plain values of Python, of the types that `recshuf.job.options` declares."""

from __future__ import annotations

import io
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, BinaryIO, Union, get_args, get_origin

import numpy as np

from recshuf.errors import UsageError
from recshuf.job.options import ArrowSchema


def make_plain(options: Mapping[str, object], kind: type) -> dict[str, Any]:
    """Return options with numbers, text and flags of NumPy as those of Python. Ranges and words are not checked.

    Parameters
    ----------
    kind
        Class of the options, which declares their types.

    Raises
    ------
    UsageError
        When a value has another type; names the option.
    """
    return {name: _make_plain(name, value, kind.__annotations__[name]) for name, value in options.items()}


def describe_type(value: object) -> str:
    """Return the name of the type of a value.

    >>> describe_type(io.BytesIO()), describe_type(1)
    ('_io.BytesIO', 'int')
    """
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _make_plain(name: str, value: object, declared: Any) -> object:
    kinds = _list_kinds(declared)
    if ArrowSchema in kinds or {os.PathLike, Iterable} <= kinds:
        return value  # a schema or a list of paths, which have parsers of their own
    for kind, (_, convert) in _KINDS.items():
        if kind in kinds and (found := convert(value)) is not NotImplemented:
            return found
    *words, last = [word for kind, (word, _) in _KINDS.items() if kind in kinds]
    wanted = f"{', '.join(words)} or {last}" if words else last
    raise UsageError(f"{name}: give {wanted}; here: {describe_type(value)}")


def _list_kinds(declared: Any) -> set[Any]:
    """Return the classes of a declared type.

    >>> _list_kinds(str | Iterable[str] | None) == {str, Iterable, NoneType}
    True
    """
    inner = get_args(declared)[0] if hasattr(declared, "__metadata__") else declared
    members = get_args(inner) if get_origin(inner) in (Union, UnionType) else (inner,)
    return {get_origin(one) or one for one in members}


def _to_path(value: object) -> object:
    return value if isinstance(value, os.PathLike) and isinstance(os.fspath(value), str) else NotImplemented


def _to_names(value: object) -> object:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        return NotImplemented
    try:
        names = tuple(value)
    except TypeError:  # an array without axes
        return NotImplemented
    return tuple(map(str, names)) if all(isinstance(one, str) for one in names) else NotImplemented


def _to_mapping(value: object) -> object:
    if isinstance(value, list | tuple):  # NAME=VALUE, from the command line
        return _to_names(value)
    return value if isinstance(value, Mapping) else NotImplemented


def _to_number(value: object) -> object:
    if isinstance(value, bool | str):
        return value  # refused with the range
    if isinstance(value, float | np.floating):
        return float(value)
    try:
        return operator.index(value)  # type: ignore[arg-type] # this is what it finds out
    except TypeError:
        return NotImplemented


def _to_stream(value: object) -> object:
    is_binary = hasattr(value, "read") or hasattr(value, "write")
    return value if is_binary and not isinstance(value, io.TextIOBase) else NotImplemented


_KINDS: Mapping[Any, tuple[str, Callable[[object], object]]] = {
    bool: (
        "True or False",
        lambda value: bool(value) if isinstance(value, bool | np.bool_) else NotImplemented,
    ),
    str: ("text", lambda value: str(value) if isinstance(value, str) else NotImplemented),
    bytes: ("bytes", lambda value: bytes(value) if isinstance(value, bytes | bytearray) else NotImplemented),
    os.PathLike: ("a path", _to_path),
    Iterable: ("a list of names", _to_names),
    Mapping: ("a dict", _to_mapping),
    int: ("a whole number", _to_number),
    BinaryIO: ("a stream of bytes", _to_stream),
    NoneType: ("None", lambda value: None if value is None else NotImplemented),
}
"""What to call each kind of value, and what returns such a value as a plain one, or NotImplemented."""
