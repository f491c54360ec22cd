"""Nodes of the indexes of chunks in HDF5 files: B-trees of version 1, as files have them by default."""

from __future__ import annotations

import numpy as np

_SIGNATURE = b"TREE\x01"  # of nodes for chunks
_HEADER_BYTES = 24
_ENTRIES = 64  # HDF5's default; a node has room for so many children between keys
_ADDRESS_BYTES = 8


def list_children(node: memoryview) -> list[int]:
    """Return where the nodes below a node lie in the file; none if the bytes are no inner node.

    The layout is that of "Version 1 B-trees" in the HDF5 File Format Specification. Damage is not noticed.
    """
    if node[: len(_SIGNATURE)] != _SIGNATURE or not node[len(_SIGNATURE)]:
        return []
    space = len(node) - _HEADER_BYTES - _ENTRIES * _ADDRESS_BYTES
    key_bytes, rest = divmod(space, _ENTRIES + 1)
    if rest or key_bytes <= 0:
        return []
    used = min(_ENTRIES, int.from_bytes(node[6:8], "little"))
    entries = np.frombuffer(node, np.uint8, _ENTRIES * (key_bytes + _ADDRESS_BYTES), _HEADER_BYTES)
    addresses = entries.reshape(_ENTRIES, -1)[:used, key_bytes:]
    places: list[int] = np.ascontiguousarray(addresses).view("<u8").ravel().tolist()
    return places
