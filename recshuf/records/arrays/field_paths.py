"""Paths of columns and fields: ``label``, ``meta.label``, ``meta/label``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.types as pt

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa


def split_path(path: str, columns: Sequence[str]) -> tuple[str, list[str]]:
    """Split a path into its column and the names of the fields below it.

    >>> split_path("meta.time", ["label", "meta"])
    ('meta', ['time'])
    >>> split_path("meta.time", ["meta", "meta.time"])
    ('meta.time', [])

    Raises
    ------
    UsageError
        When there is no such column.
    """
    column, *fields = [path] if path in columns else dotted(path).split(".")
    if column not in columns:
        raise unknown_column(column, columns)
    return column, fields


def check_path(path: str, schema: pa.Schema) -> None:
    """Check that a schema has a field.

    Raises
    ------
    UsageError
        When it does not.
    """
    column, fields = split_path(path, schema.names)
    kind = schema.field(schema.names.index(column)).type
    for name in fields:
        index = kind.get_field_index(name) if pt.is_struct(kind) else -1
        if index < 0:
            raise UsageError(f"column {path!r}: there is no field {name!r} in {kind}")
        kind = kind.field(index).type


def dotted(path: str) -> str:
    """Return a path with dots as separators.

    >>> dotted("/meta/time")
    'meta.time'
    """
    return path.strip("/").replace("/", ".")


def unknown_column(name: str, columns: Iterable[str]) -> UsageError:
    """Return the error for a missing column."""
    return UsageError(f"there is no column {name!r}; there are: {', '.join(columns) or 'none'}")
