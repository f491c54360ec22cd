"""Checks the chunks that the index of a dataset lists, before they are read.

HDF5 trusts the index: for a chunk too short for its checksum or rows, it reads beyond its buffers.

HDF5 spreads the nodes of an index over the file, between the chunks. In an object, reading all of them first would take a
request for each. There, `RowGuard` reads those of some rows when these are read, and they come with the chunks. It knows
B-trees of version 1, as files have them by default, from "Version 1 B-trees" in the HDF5 File Format Specification::

    TREE 1 level count | left right sibling | key child key child ... key
    4    1 1     2     | 8    8             | key: stored size 4, filter mask 4, place in each axis 8, and 8 more
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from h5py import h5d, h5z

from recshuf.errors import InputError
from recshuf.formats.hdf5.filters import CHECKSUM_BYTES, list_filters
from recshuf.formats.hdf5.types import find_chunk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.formats.hdf5.types import IndexRoot
    from recshuf.interfaces import Handle


_SIZE_KEEPING_FILTERS = {h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
# No filter enlarges a chunk that much, and a reader holds the whole chunk in memory.
_MOST_GROWTH = 2
_MOST_EXTRA_BYTES = 64 << 10
_LEAST_ORDERED = 4
_KEPT_NODES = 16
"""Nodes below the root that a `RowGuard` keeps, of some kilobytes each."""
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


def check_chunks(dataset: h5d.DatasetID, item_bytes: int, path: str, name: str, file_bytes: int) -> None:
    """Raise `InputError` if the index of a dataset lists an impossible chunk; an element has `item_bytes` in the file."""
    # The oldest HDF5 libraries cannot list chunks.
    if find_chunk(dataset) is None or not hasattr(dataset, "chunk_iter"):
        return
    dataset.chunk_iter(ChunkChecker(dataset, item_bytes, path, name, file_bytes).check)


class RowGuard:
    """Checks the chunks of some rows, by the nodes of the index that list them.

    HDF5 looks up a chunk from the root on, in one child of each node. Here all children are read whose keys have the rows
    between them, so that this one is among them even if keys are damaged.
    """

    def __init__(self, content: Handle, root: IndexRoot, checker: ChunkChecker) -> None:
        self._checker = checker
        load = partial(_load_node, content, root.size)
        self._root = load(root.place)
        self._load = lru_cache(_KEPT_NODES)(load)

    def check(self, start: int, stop: int) -> None:
        """Check the chunks of rows ``start:stop``."""
        nodes = [self._root] if start < stop else []
        while nodes:
            below: set[tuple[int, int]] = set()
            for node in nodes:
                entries = self._choose(node, start, stop)
                if node.level:
                    below.update((place, node.level - 1) for place in entries["child"].tolist())
                else:
                    self._check_entries(entries)
            nodes = [self._load(*place) for place in sorted(below)]

    def seems_ordered(self) -> bool:
        """Tell whether the chunks seem to lie in the file in the order of their rows.

        Then the nodes do, too, but for the first one, which HDF5 moves when it splits a root. A few are in order by chance.
        """
        node = self._root
        while node.level > 1 and node.children:
            node = self._load(node.children[0], node.level - 1)
        places = node.children[1:]
        return len(places) >= _LEAST_ORDERED and places == sorted(places)

    def _choose(self, node: Node, start: int, stop: int) -> NDArray[np.void]:
        """Return the entries of the children that may have some rows."""
        chunk_rows = self._checker.chunk[0]
        rows = node.entries["offset"][:, 0] // chunk_rows
        between = (rows[:-1] <= (stop - 1) // chunk_rows) & (rows[1:] >= start // chunk_rows)
        return node.entries[:-1][between]

    def _check_entries(self, entries: NDArray[np.void]) -> None:
        for size, mask, offset, place in entries.tolist():
            self._checker.check(h5d.StoreInfo(tuple(offset[:-1].tolist()), mask, place, size))


def _load_node(content: Handle, size: int, place: int, level: int | None = None) -> Node:
    node = parse_node(memoryview(content.read_at(place, size)))
    if node is None or level not in (None, node.level):
        raise ValueError(f"the node of an index at byte {place} is damaged")
    return node


class ChunkChecker:
    """Finds what is impossible about chunks that the index of a dataset lists; `item_bytes` is as of `check_chunks`."""

    def __init__(
        self, dataset: h5d.DatasetID, item_bytes: int, path: str, name: str, file_bytes: int
    ) -> None:
        plist = dataset.get_create_plist()
        self.chunk: tuple[int, ...] = plist.get_chunk()
        self._codes = [code for code, _, _, _ in list_filters(plist)]
        self._shape: tuple[int, ...] = dataset.shape
        self._chunk_bytes: int = prod(self.chunk) * item_bytes
        self._most_bytes = _MOST_GROWTH * self._chunk_bytes + _MOST_EXTRA_BYTES
        self._place = f"dataset {path!r}"
        self._name = name
        self._file_bytes = file_bytes
        self._sizes: dict[int, int | None] = {}

    def check(self, info: h5d.StoreInfo) -> None:
        """Raise `InputError` if a chunk is impossible."""
        problem = self._find_problem(info)
        if problem is not None:
            said = f"the chunk at {info.chunk_offset} {problem}: the file is damaged"
            raise InputError(self._name, said, place=self._place)

    def _find_problem(self, info: h5d.StoreInfo) -> str | None:
        if info.byte_offset + info.size > self._file_bytes:
            return f"ends at byte {info.byte_offset + info.size}, beyond the end of the file"
        mask = info.filter_mask
        if mask not in self._sizes:
            self._sizes[mask] = self._find_size(mask)
        expected = self._sizes[mask]
        if expected is None:
            return None if CHECKSUM_BYTES < info.size <= self._most_bytes else f"has {info.size} bytes"
        if info.size == expected or (info.size == self._chunk_bytes and self._is_cut(info.chunk_offset)):
            return None
        return f"has {info.size} bytes instead of {expected}"

    def _find_size(self, mask: int) -> int | None:
        """Return the size of a chunk to which these filters were not applied; None if it varies."""
        codes = [code for index, code in enumerate(self._codes) if not mask >> index & 1]
        if not _SIZE_KEEPING_FILTERS.issuperset(codes):
            return None
        return self._chunk_bytes + CHECKSUM_BYTES * codes.count(h5z.FILTER_FLETCHER32)

    def _is_cut(self, offset: tuple[int, ...]) -> bool:
        """Tell whether a chunk extends over the edge: HDF5 can leave such chunks unfiltered."""
        return any(
            start + width > end for start, width, end in zip(offset, self.chunk, self._shape, strict=True)
        )
