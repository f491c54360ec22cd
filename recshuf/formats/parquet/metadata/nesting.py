"""Nesting depth of the schema of a Parquet file, checked before the library builds it.

pyarrow 20 to 25 build it recursively and crash over 50,000 levels; 26 refuses more than 100 itself. This module can go
when no older one is supported.

The schema is the list in field 2 of the footer: groups and columns in order. Field 5 of a group is the number of its
children, which follow it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats.parquet.metadata.annotations import find_schema
from recshuf.formats.parquet.metadata.thrift import ThriftReader

if TYPE_CHECKING:
    from typing import BinaryIO

_MOST_LEVELS = 100
_FEW_ELEMENTS = 1000
"""A schema of at most so many elements is not checked."""
_HEAD_BYTES = 32
_CHILDREN = 5


def check_nesting(name: str, stream: BinaryIO, file_bytes: int) -> None:
    """Refuse a file whose schema nests too deep; a footer that cannot be parsed is left to the library.

    Raises
    ------
    InputError
        When the schema has more than 100 levels.
    """
    stream.seek(file_bytes - 8)
    footer_bytes = int.from_bytes(stream.read(4), "little")
    stream.seek(max(0, file_bytes - 8 - footer_bytes))
    try:
        if find_schema(ThriftReader(stream.read(min(footer_bytes, _HEAD_BYTES)))) <= _FEW_ELEMENTS:
            return
        stream.seek(max(0, file_bytes - 8 - footer_bytes))
        depth = _find_depth(ThriftReader(stream.read(footer_bytes)))
    except (IndexError, RecursionError):
        return
    if depth > _MOST_LEVELS:
        raise InputError(name, f"its schema nests more than {_MOST_LEVELS} levels deep")


def _find_depth(footer: ThriftReader) -> int:
    """Return the number of levels, at most one more than allowed."""
    open_groups: list[int] = []  # how many elements each group still lacks
    deepest = 0
    for _ in range(find_schema(footer)):
        if open_groups:
            open_groups[-1] -= 1
        if (children := footer.read_struct().numbers.get(_CHILDREN, 0)) > 0:
            open_groups.append(children)
        deepest = max(deepest, len(open_groups))
        while open_groups and open_groups[-1] <= 0:
            open_groups.pop()
        if deepest > _MOST_LEVELS:
            break
    return deepest
