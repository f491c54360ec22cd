r"""What HDF5 would not survive is checked before it reads: chunks that an index lists, and references to values.

HDF5 trusts the index: for a chunk too short for its checksum or rows, it reads beyond its buffers.

HDF5 spreads the nodes of an index over the file, between the chunks. In an object, reading all of them first would take a
request for each. There, `RowGuard` reads those of some rows when these are read, and they come with the chunks. It knows
B-trees of version 1, as files have them by default, from "Version 1 B-trees" in the HDF5 File Format Specification::

    TREE 1 level count | left right sibling | key child key child ... key
    4    1 1     2     | 8    8             | key: stored size 4, filter mask 4, place in each axis 8, and 8 more

Values of variable length lie in global heaps, and HDF5 walks through the objects of a heap when it loads one. If zeros replaced
its contents, as after a lost sector, the walk does not end, and no signal stops it.

A heap begins with its signature and size. The object with index 0 is the free space up to the end::

    GCOL\1\0\0\0 | size || index, count, 0 | size | value, up to 8 bytes || ... || 0, 0, 0 | size | anything
"""

from __future__ import annotations

from functools import cache, lru_cache, partial
from math import prod
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from h5py import h5d, h5i, h5z

from recshuf.errors import InputError
from recshuf.formats.hdf5.columns import IndexRoot
from recshuf.formats.hdf5.filters import CHECKSUM_BYTES, ChunkReader, find_pipeline, list_filters
from recshuf.formats.hdf5.types import ADDRESS_BYTES, find_chunk, measure_element
from recshuf.storage.reading.objects import ObjectStream

if TYPE_CHECKING:
    import h5py
    from _typeshed import WriteableBuffer
    from numpy.typing import NDArray

    from recshuf.formats.hdf5.columns import Column
    from recshuf.interfaces import Handle

    _Bytes = NDArray[np.uint8]


_SIZE_KEEPING_FILTERS = {h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
# No filter enlarges a chunk that much, and a reader holds the whole chunk in memory.
_MOST_GROWTH = 2
_MOST_EXTRA_BYTES = 64 << 10
_LEAST_ORDERED = 4
_KEPT_NODES = 16
"""Nodes below the root that a `RowGuard` keeps, of some kilobytes each."""
_NODE_SIGNATURE = b"TREE\x01"  # of nodes for chunks
_NODE_HEADER_BYTES = 24
_ENTRIES = 64  # HDF5's default; a node has room for so many children between keys
_NO_SIBLINGS = b"\xff" * 2 * ADDRESS_BYTES
_HEAP_SIGNATURE = b"GCOL\x01\0\0\0"
_SMALLEST_BYTES = 4096
_HEAP_HEADER_BYTES = 16
"""Those of a heap, and of an object in it."""
_read_header = Struct("<H6xQ").unpack_from
SMALL_FILE_BYTES = 4 << 20
"""Largest file whose heaps are all checked when it is opened."""
_REFERENCE_BYTES = 16
"""Bytes of a reference: a length of 4, an address of 8, and an index of 4."""
_STEP_ROWS = 1 << 16
_HEAP_EXTRA_BYTES = 1 << 20
"""Most bytes of a heap beyond its largest value."""


class _Node(NamedTuple):
    """A node of an index."""

    level: int
    """0 in a leaf, whose children are chunks."""
    is_root: bool
    entries: NDArray[np.void]
    """One for each child, with fields `size`, `mask`, `offset` and `child`, and one for the key behind the last."""

    @property
    def children(self) -> list[int]:
        places: list[int] = self.entries["child"][:-1].tolist()
        return places


def _parse_node(content: memoryview) -> _Node | None:
    """Return a node; None if the bytes are none. Other damage is not noticed."""
    if content[: len(_NODE_SIGNATURE)] != _NODE_SIGNATURE:
        return None
    key_bytes, rest = divmod(len(content) - _NODE_HEADER_BYTES - _ENTRIES * ADDRESS_BYTES, _ENTRIES + 1)
    axes, odd = divmod(key_bytes - 8, 8)
    if rest or odd or axes < 1:
        return None
    kind = [("size", "<u4"), ("mask", "<u4"), ("offset", "<u8", (axes,)), ("child", "<u8")]
    used = min(_ENTRIES, int.from_bytes(content[6:8], "little"))
    padded = b"".join((content, bytes(ADDRESS_BYTES)))
    entries = np.frombuffer(padded, kind, used + 1, _NODE_HEADER_BYTES)
    return _Node(content[5], content[8:_NODE_HEADER_BYTES] == _NO_SIBLINGS, entries)


class _FoundRoot(Exception):  # noqa: N818 # no error
    """Ends a walk through an index at its root, an `IndexRoot`."""


class IndexStream(ObjectStream):
    """An object whose indexes are read: all nodes below one are fetched at once, since HDF5 asks for one at a time."""

    root_axes = 0
    """Axes of the root at which a walk is to stop; 0 if it is not."""

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        place = self.tell()
        count = super().readinto(buffer)
        node = _parse_node(memoryview(buffer)[:count])
        if node is not None and node.level:
            if node.is_root and node.entries.dtype["offset"].shape == (self.root_axes,):
                raise _FoundRoot(IndexRoot(place, count))
            self.handle.expect([(child, child + count) for child in node.children])
        return count


def find_index_root(file: h5py.File, dataset: h5d.DatasetID) -> IndexRoot | None:
    """Return the root of the index of chunks of a dataset in an object.

    None also if the root is a leaf, has another layout than is usual, or has been read before.
    """
    stream = getattr(file, "stream", None)
    is_listed = find_chunk(dataset) is not None and hasattr(dataset, "chunk_iter")
    if not isinstance(stream, IndexStream) or not is_listed or file.userblock_size:
        return None
    stream.root_axes = len(dataset.shape) + 1
    try:
        dataset.chunk_iter(lambda _: True)
    except _FoundRoot as end:
        root: IndexRoot = end.args[0]
        return root
    finally:
        stream.root_axes = 0
    return None


class ChunkChecker:
    """Finds what is impossible about chunks that the index of a dataset lists."""

    def __init__(self, dataset: h5d.DatasetID, path: str, name: str, file_bytes: int) -> None:
        plist = dataset.get_create_plist()
        address_bytes, _ = h5i.get_file_id(dataset).get_create_plist().get_sizes()
        self.chunk: tuple[int, ...] = plist.get_chunk()
        self._codes = [code for code, _, _, _ in list_filters(plist)]
        self._shape: tuple[int, ...] = dataset.shape
        self._chunk_bytes: int = prod(self.chunk) * measure_element(dataset.get_type(), int(address_bytes))[0]
        self._most_bytes = _MOST_GROWTH * self._chunk_bytes + _MOST_EXTRA_BYTES
        self._place = f"dataset {path!r}"
        self._name = name
        self._file_bytes = file_bytes
        self._find_size = cache(self._count_bytes)

    def check(self, info: h5d.StoreInfo) -> None:
        end, expected = info.byte_offset + info.size, self._find_size(info.filter_mask)
        problem = ""
        if end > self._file_bytes:
            problem = f"ends at byte {end}, beyond the end of the file"
        elif expected is None:
            if not CHECKSUM_BYTES < info.size <= self._most_bytes:
                problem = f"has {info.size} bytes"
        elif info.size != expected and not self._is_cut(info):
            problem = f"has {info.size} bytes instead of {expected}"
        if problem:
            problem = f"the chunk at {info.chunk_offset} {problem}: the file is damaged"
            raise InputError(self._name, problem, place=self._place)

    def _count_bytes(self, mask: int) -> int | None:
        """Return the size of a chunk to which these filters were not applied; None if it varies."""
        codes = [code for index, code in enumerate(self._codes) if not mask >> index & 1]
        if not _SIZE_KEEPING_FILTERS.issuperset(codes):
            return None
        return self._chunk_bytes + CHECKSUM_BYTES * codes.count(h5z.FILTER_FLETCHER32)

    def _is_cut(self, info: h5d.StoreInfo) -> bool:
        """Tell whether a chunk is unfiltered and extends over the edge: HDF5 can leave such chunks so."""
        pairs = zip(info.chunk_offset, self.chunk, self._shape, strict=True)
        return info.size == self._chunk_bytes and any(start + width > end for start, width, end in pairs)


def check_chunks(dataset: h5d.DatasetID, path: str, name: str, file_bytes: int) -> None:
    # The oldest HDF5 libraries cannot list chunks.
    if find_chunk(dataset) is not None and hasattr(dataset, "chunk_iter"):
        dataset.chunk_iter(ChunkChecker(dataset, path, name, file_bytes).check)


def check_content(dataset: h5d.DatasetID) -> None:
    """Raise `ValueError` if a chunk of a dataset that HDF5 is to read is too short for a checksum below its compression."""
    pipeline = find_pipeline(dataset, dataset.get_type().get_size())
    if pipeline is None or h5z.FILTER_FLETCHER32 not in pipeline.codes[:-1]:
        return
    places: list[tuple[int, ...]] = []
    if hasattr(dataset, "chunk_iter"):  # as above
        dataset.chunk_iter(lambda chunk: places.append(chunk.chunk_offset))
    for place in places:
        mask, stored = dataset.read_direct_chunk(place)
        pipeline.decode(stored, mask)


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
        nodes = [self._root] if start < stop else []
        while nodes:
            below: set[tuple[int, int]] = set()
            for node in nodes:
                entries = self._choose(node, start, stop)
                if node.level:
                    below.update((place, node.level - 1) for place in entries["child"].tolist())
                    continue
                for size, mask, offset, place in entries.tolist():
                    self._checker.check(h5d.StoreInfo(tuple(offset[:-1].tolist()), mask, place, size))
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

    def _choose(self, node: _Node, start: int, stop: int) -> NDArray[np.void]:
        chunk_rows = self._checker.chunk[0]
        rows = node.entries["offset"][:, 0] // chunk_rows
        between = (rows[:-1] <= (stop - 1) // chunk_rows) & (rows[1:] >= start // chunk_rows)
        return node.entries[:-1][between]


def _load_node(content: Handle, size: int, place: int, level: int | None = None) -> _Node:
    node = _parse_node(memoryview(content.read_at(place, size)))
    if node is None or level not in (None, node.level):
        raise ValueError(f"the node of an index at byte {place} is damaged")
    return node


def check_small_file(file: Handle) -> None:
    """Raise `ValueError` if a heap of a small file is damaged.

    This is the only way to check heaps of attributes: HDF5 does not expose their references.
    """
    file_bytes = file.stamp.size
    content = file.read_at(0, file_bytes) if file_bytes <= SMALL_FILE_BYTES else b""
    place = content.find(_HEAP_SIGNATURE)
    while place >= 0:
        place = content.find(_HEAP_SIGNATURE, place + _check_heap(file, place, file_bytes))


def _check_heap(file: Handle, place: int, most_bytes: int) -> int:
    """Return the size of a heap; raise `ValueError` if it is damaged, has more bytes, or a walk through it does not end."""
    left = file.stamp.size - place
    heap = file.read_at(place, _SMALLEST_BYTES) if place >= 0 and left >= _SMALLEST_BYTES else b""
    size = int.from_bytes(heap[8:_HEAP_HEADER_BYTES], "little")
    if not heap.startswith(_HEAP_SIGNATURE) or not _SMALLEST_BYTES <= size <= left:
        raise _damage(place)
    if size > most_bytes:
        raise ValueError(f"a heap has {size} bytes, more than the {most_bytes} that fit")
    if size > _SMALLEST_BYTES:
        heap = file.read_at(place, size)
    if len(heap) < size:
        raise ValueError(f"the file ends before byte {place + size}")
    at = _HEAP_HEADER_BYTES
    while at <= size - _HEAP_HEADER_BYTES:
        index, value_bytes = _read_header(heap, at)
        if index:
            at += _HEAP_HEADER_BYTES + (value_bytes + 7 & -8)
        elif value_bytes and value_bytes % 8 == 0:  # else HDF5 skips free space byte by byte
            at += value_bytes
        else:
            raise _damage(place)
    if at > size:
        raise _damage(place)
    return size


def _damage(place: int) -> ValueError:
    return ValueError(f"the heap of variable-length values at byte {place} is damaged")


class SizeLimit(NamedTuple):
    """The longest record or variable-length value that is accepted."""

    max_bytes: int
    option: str

    def check(self, sizes: NDArray[np.int64], first_row: int, path: str, name: str) -> None:
        if sizes.max() > self.max_bytes:
            row = int(sizes.argmax())
            problem = f"{sizes[row]} bytes are more than the {self.max_bytes} allowed"
            place = f"row {first_row + row} of dataset {path!r}"
            remedy = f"raise {self.option}"
            raise InputError(name, problem, place=place, remedy=remedy, record_bytes=int(sizes[row]))


class ValueGuard:
    """Checks the variable-length values of a dataset.

    References that cannot be read are not checked: in datasets with filters other than HDF5's own, in dataset headers, and
    in files with unusual address sizes.
    """

    def __init__(
        self, file: h5py.File, content: Handle, dataset: h5d.DatasetID, column: Column, name: str
    ) -> None:
        self._content = content
        self._base = int(file.userblock_size)
        self._name = name
        self._label = column.name
        self._row_bytes, self._references = measure_element(column.tid)
        self._checked = 0
        self._chunks: ChunkReader | None = None
        self._offset: int | None = None
        if file.id.get_create_plist().get_sizes()[0] != ADDRESS_BYTES:
            return
        if find_chunk(dataset) is None:
            self._offset = dataset.get_offset()
        elif pipeline := find_pipeline(dataset, self._row_bytes):
            self._chunks = ChunkReader(dataset, pipeline, keeps=True)

    def check(self, start: int, stop: int, limit: SizeLimit) -> None:
        for low in range(start, stop, _STEP_ROWS):
            raw = self._read(low, min(low + _STEP_ROWS, stop))
            if raw is None:
                continue
            rows = raw.reshape(-1, self._row_bytes)
            for place, item_bytes in self._references:
                self._check_references(rows[:, place : place + _REFERENCE_BYTES], item_bytes, low, limit)

    def _check_references(self, references: _Bytes, item_bytes: int, start: int, limit: SizeLimit) -> None:
        lengths = references[:, :4].copy().view("<u4")[:, 0].astype(np.int64) * item_bytes
        addresses = references[:, 4:12].copy().view("<i8")[:, 0]
        lengths[addresses == 0] = 0  # no value
        limit.check(lengths, start, self._label, self._name)
        if self._content.stamp.size > SMALL_FILE_BYTES:
            unseen = (addresses != 0) & (addresses != self._checked)
            for place in np.unique(addresses[unseen] + self._base).tolist():
                _check_heap(self._content, place, limit.max_bytes + _HEAP_EXTRA_BYTES)
            self._checked = int(addresses[-1])  # the last heap, which the next rows may begin with

    def _read(self, start: int, stop: int) -> _Bytes | None:
        if self._chunks is not None:
            return self._chunks.read(start, stop)
        if self._offset is None:
            return None
        size = (stop - start) * self._row_bytes
        raw = self._content.read_at(self._offset + start * self._row_bytes, size)
        return np.frombuffer(raw, np.uint8) if len(raw) == size else None
