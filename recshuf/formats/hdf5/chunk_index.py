"""Checks the chunks that the index of a dataset lists, before they are read.

HDF5 trusts the index: for a chunk too short for its checksum or rows, it reads beyond its buffers.

HDF5 spreads the nodes of an index over the file, between the chunks. In an object, reading all of them first would take a
request for each. There, `RowGuard` reads those of some rows when these are read, and they come with the chunks.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod
from typing import TYPE_CHECKING

from h5py import h5d, h5z

from recshuf.errors import InputError
from recshuf.formats.hdf5.filters import CHECKSUM_BYTES
from recshuf.formats.hdf5.types import find_chunk, parse_node

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from recshuf.formats.hdf5.types import IndexRoot, Node
    from recshuf.interfaces import Handle


_SIZE_KEEPING_FILTERS = {h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
# No filter enlarges a chunk that much, and a reader holds the whole chunk in memory.
_MOST_GROWTH = 2
_MOST_EXTRA_BYTES = 64 << 10
_LEAST_ORDERED = 4
_KEPT_NODES = 16
"""Nodes below the root that a `RowGuard` keeps, of some kilobytes each."""


def check_chunks(dataset: h5d.DatasetID, item_bytes: int, path: str, name: str, file_bytes: int) -> None:
    """Raise `InputError` if the index of a dataset lists an impossible chunk.

    Parameters
    ----------
    item_bytes
        Size of an element in the file.
    """
    # The oldest HDF5 libraries cannot list chunks.
    if find_chunk(dataset) is None or not hasattr(dataset, "chunk_iter"):
        return
    found: list[InputError] = []
    checker = ChunkChecker(dataset, item_bytes, path, name, file_bytes)

    def visit(info: h5d.StoreInfo) -> bool | None:
        error = checker.find_error(info)
        if error is None:
            return None
        found.append(error)
        return True

    dataset.chunk_iter(visit)
    if found:
        raise found[0]


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
            nodes = [self._load(*one) for one in sorted(below)]

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
            error = self._checker.find_error(h5d.StoreInfo(tuple(offset[:-1].tolist()), mask, place, size))
            if error is not None:
                raise error


def _load_node(content: Handle, size: int, place: int, level: int | None = None) -> Node:
    """Return the node at a place, which has this level."""
    node = parse_node(memoryview(content.read_at(place, size)))
    if node is None or level not in (None, node.level):
        raise ValueError(f"the node of an index at byte {place} is damaged")
    return node


class ChunkChecker:
    """Finds what is impossible about chunks that the index of a dataset lists.

    Parameters
    ----------
    item_bytes
        Size of an element in the file.
    """

    def __init__(
        self, dataset: h5d.DatasetID, item_bytes: int, path: str, name: str, file_bytes: int
    ) -> None:
        plist = dataset.get_create_plist()
        self.chunk: tuple[int, ...] = plist.get_chunk()
        self._codes = [plist.get_filter(index)[0] for index in range(plist.get_nfilters())]
        self._shape: tuple[int, ...] = dataset.shape
        self._chunk_bytes: int = prod(self.chunk) * item_bytes
        self._most_bytes = _MOST_GROWTH * self._chunk_bytes + _MOST_EXTRA_BYTES
        self._place = f"dataset {path!r}"
        self._name = name
        self._file_bytes = file_bytes
        self._sizes: dict[int, int | None] = {}

    def find_error(self, info: h5d.StoreInfo) -> InputError | None:
        """Return what is wrong with a chunk, or None."""
        problem = self._find_problem(info)
        if problem is None:
            return None
        said = f"the chunk at {info.chunk_offset} {problem}: the file is damaged"
        return InputError(self._name, said, place=self._place)

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
