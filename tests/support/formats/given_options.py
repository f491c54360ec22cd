"""Options for a format's `open_source` and `open_target`, as a run makes them of what is given."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from recshuf.interfaces import ReadOptions, WriteOptions

_Options = TypeVar("_Options", ReadOptions, WriteOptions)


def _make(kind: type[_Options], options: dict[str, Any]) -> _Options:
    shared = {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}
    own = tuple((name, value) for name, value in options.items() if value is not None)
    return kind(**{"own": own} | shared)


def reading(**options: Any) -> ReadOptions:
    """Return options for inputs, those of formats by their names."""
    return _make(ReadOptions, options)


def writing(**options: Any) -> WriteOptions:
    """Return options for shards."""
    return _make(WriteOptions, options)


def reading_csv(**options: Any) -> ReadOptions:
    """Return options for CSV of which nothing but the delimiter is to be found: it has no header, and double quotes."""
    return reading(**{"header": 0, "quote": b'"'} | options)
