"""Nodes of the indexes of chunks in HDF5 files: B-trees of version 1, as files have them by default.

The layout is that of "Version 1 B-trees" in the HDF5 File Format Specification:

    TREE 1 level count | left right sibling | key child key child ... key
    4    1 1     2     | 8    8             | key: stored size 4, filter mask 4, place in each axis 8, and 8 more
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIGNATURE = b"TREE\x01"  # of nodes for chunks
_HEADER_BYTES = 24
_ENTRIES = 64  # HDF5's default; a node has room for so many children between keys
_ADDRESS_BYTES = 8
_NO_SIBLINGS = b"\xff" * 2 * _ADDRESS_BYTES


@dataclass(frozen=True, slots=True)
class Node:
    """One node."""

    level: int
    """0 in a leaf, whose children are chunks."""
    is_root: bool
    entries: NDArray[np.void]
    """One for each child, with fields `size`, `mask`, `offset` and `child`, and one for the key behind the last."""

    @property
    def axes(self) -> int:
        """Axes of the dataset, and one for the bytes of an element."""
        return int(self.entries.dtype["offset"].shape[0])

    @property
    def children(self) -> list[int]:
        """Places of its children in the file."""
        places: list[int] = self.entries["child"][:-1].tolist()
        return places


@dataclass(frozen=True, slots=True)
class IndexRoot:
    """Where the root of an index lies in a file."""

    place: int
    size: int
    """Bytes of each node."""


def parse_node(content: memoryview) -> Node | None:
    """Return a node; None if the bytes are none. Other damage is not noticed."""
    if content[: len(_SIGNATURE)] != _SIGNATURE:
        return None
    key_bytes, rest = divmod(len(content) - _HEADER_BYTES - _ENTRIES * _ADDRESS_BYTES, _ENTRIES + 1)
    axes, odd = divmod(key_bytes - 8, 8)
    if rest or odd or axes < 1:
        return None
    kind = [("size", "<u4"), ("mask", "<u4"), ("offset", "<u8", (axes,)), ("child", "<u8")]
    used = min(_ENTRIES, int.from_bytes(content[6:8], "little"))
    padded = b"".join((content, bytes(_ADDRESS_BYTES)))
    entries = np.frombuffer(padded, kind, used + 1, _HEADER_BYTES)
    return Node(content[5], content[8:_HEADER_BYTES] == _NO_SIBLINGS, entries)
