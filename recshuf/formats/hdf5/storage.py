"""Datasets of the record: type, field in native batches, storage in a file; and checks of the chunks that an index lists.

HDF5 trusts the index: for a chunk too short for its checksum or rows, it reads beyond its buffers.

HDF5 spreads the nodes of an index over the file, between the chunks. In an object, reading all of them first would take a
request for each. There, `RowGuard` reads those of some rows when these are read, and they come with the chunks. It knows
B-trees of version 1, as files have them by default, from "Version 1 B-trees" in the HDF5 File Format Specification::

    TREE 1 level count | left right sibling | key child key child ... key
    4    1 1     2     | 8    8             | key: stored size 4, filter mask 4, place in each axis 8, and 8 more
"""

from __future__ import annotations

from functools import cache, lru_cache, partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5a, h5d, h5i, h5p, h5s, h5t, h5z

from recshuf.dataclass import dataclass
from recshuf.errors import InputError
from recshuf.formats.hdf5.filters import CHECKSUM_BYTES, list_filters, refuse_unknown_filters
from recshuf.formats.hdf5.types import (
    ADDRESS_BYTES,
    Kind,
    describe_type,
    find_chunk,
    kind_of,
    measure_element,
    name_type,
)
from recshuf.storage.reading.objects import ObjectStream

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from numpy.typing import NDArray

    from recshuf.interfaces import Handle


ARROW_TYPE = "arrow_type"
"""Attribute with the Arrow type of values that HDF5 stores as another one."""
_SIZE_KEEPING_FILTERS = {h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
# No filter enlarges a chunk that much, and a reader holds the whole chunk in memory.
_MOST_GROWTH = 2
_MOST_EXTRA_BYTES = 64 << 10
_LEAST_ORDERED = 4
_CACHE_SLOTS = 521
_KEPT_NODES = 16
"""Nodes below the root that a `RowGuard` keeps, of some kilobytes each."""
_SIGNATURE = b"TREE\x01"  # of nodes for chunks
_HEADER_BYTES = 24
_ENTRIES = 64  # HDF5's default; a node has room for so many children between keys
_NO_SIBLINGS = b"\xff" * 2 * ADDRESS_BYTES


@dataclass(frozen=True, slots=True)
class Column:
    """A dataset of the record, the same in all files of a run."""

    name: str
    """Path in the file, without the leading slash; the name of its native field."""
    kind: Kind
    type_code: bytes
    row_shape: tuple[int, ...]
    """Shape without the first axis."""
    row_bytes: int
    """Bytes of a row in the file, without variable-length values."""
    arrow_type: str | None = None

    @property
    def tid(self) -> h5t.TypeID:
        return h5t.decode(self.type_code)

    @property
    def native_width(self) -> int:
        """Bytes of a row in a native batch, at least 1 so that rows without bytes can be counted."""
        return max(self.row_bytes, 1)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of a row that do not depend on its value: all of them, or the offset of a variable-length value."""
        return self.native_width if self.kind is Kind.FIXED else 8

    @property
    def field(self) -> pa.Field:
        """The native field, with type and row shape as informative metadata."""
        metadata = {"hdf5.type": describe_type(self.tid), "hdf5.row_shape": str(self.row_shape)}
        kind = pa.binary(self.native_width) if self.kind is Kind.FIXED else pa.large_binary()
        return pa.field(self.name, kind, nullable=False, metadata=metadata)

    @property
    def lists(self) -> Column:
        """The column of lists whose items are the rows of this one."""
        return make_column(h5t.vlen_create(self.tid), self.name, (), self.arrow_type)

    @property
    def items(self) -> Column:
        """The column whose rows are the items of lists in this one."""
        return make_column(self.tid.get_super(), self.name, (), self.arrow_type)

    def name_rows(self) -> str:
        return f"{name_type(self.tid)}{f' rows of shape {self.row_shape}' if self.row_shape else ''}"

    def holds_same(self, other: Column) -> bool:
        is_same = self.type_code == other.type_code or self.tid.equal(other.tid)
        return self.row_shape == other.row_shape and bool(is_same)


class IndexRoot(NamedTuple):
    """Where the root of an index lies in a file."""

    place: int
    size: int
    """Bytes of each node."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a column in one file."""

    path: str
    """Path of the dataset without links."""
    row_count: int
    chunk_rows: int | None
    """Rows of a chunk; None without chunks."""
    chunk_bytes: int
    """Size of a chunk before compression; 0 without chunks."""
    stored_bytes: int
    """Size in the file, without the values of variable-length rows; uncompressed if there is an `index_root`."""
    begin: int | None
    """Place in the file where the rows begin, if that is known."""
    index_root: IndexRoot | None
    """The root of the index of chunks, if the index is read and checked with the rows."""


def read_column(dataset: h5d.DatasetID, name: str) -> Column:
    noted = None
    if h5a.exists(dataset, ARROW_TYPE.encode()):
        noted = h5py.Dataset(dataset).attrs[ARROW_TYPE]
    arrow_type = noted if isinstance(noted, str) else None
    return make_column(dataset.get_type().copy(), name, tuple(dataset.shape[1:]), arrow_type)


def make_column(
    tid: h5t.TypeID, name: str, row_shape: tuple[int, ...], arrow_type: str | None = None
) -> Column:
    return Column(name, kind_of(tid), tid.encode(), row_shape, prod(row_shape) * tid.get_size(), arrow_type)


def read_storage(dataset: h5d.DatasetID, path: str, index_root: IndexRoot | None = None) -> Storage:
    """Return the storage of a dataset with a first axis; reads its index of chunks, unless it is given its root."""
    chunk = find_chunk(dataset)
    item_bytes = dataset.get_type().get_size()
    chunk_bytes = prod(chunk) * item_bytes if chunk else 0
    chunk_rows = chunk[0] if chunk else None
    if index_root is None:
        begin, stored_bytes = dataset.get_offset(), dataset.get_storage_size()
    else:
        # A dataset gets its index just before its first chunk.
        begin, stored_bytes = index_root.place, prod(dataset.shape) * item_bytes
    return Storage(path, dataset.shape[0], chunk_rows, chunk_bytes, stored_bytes, begin, index_root)


def open_dataset(file: h5py.File, path: str, cache_bytes: int) -> h5d.DatasetID:
    """Open a dataset with a chunk cache of so many bytes, which evicts fully used chunks first."""
    plist = h5p.create(h5p.DATASET_ACCESS)
    plist.set_chunk_cache(_CACHE_SLOTS, cache_bytes, 1.0)
    return h5d.open(file.id, path.encode(), plist)


def select_rows(
    dataset: h5d.DatasetID, start: int, row_count: int, row_shape: tuple[int, ...]
) -> tuple[h5s.SpaceID, h5s.SpaceID]:
    """Return the dataspaces, in memory and in the file, of `row_count` rows from `start` on."""
    shape = (row_count, *row_shape)
    in_file = dataset.get_space()
    in_file.select_hyperslab((start, *(0 for _ in row_shape)), shape)
    return h5s.create_simple(shape), in_file


def read_pointers(dataset: h5d.DatasetID, start: int, count: int) -> NDArray[np.int64]:
    values = np.zeros(count, np.int64)
    dataset.read(*select_rows(dataset, start, count, ()), values, h5t.NATIVE_INT64)
    return values


def check_access(dataset: h5d.DatasetID, path: str, name: str) -> None:
    """Raise `InputError` if the values of a dataset lie in other files or need a filter that is not installed."""
    plist = dataset.get_create_plist()
    is_virtual = plist.get_layout() == h5d.VIRTUAL
    if is_virtual or plist.get_external_count() > 0:
        problem = f"{'virtual datasets read' if is_virtual else 'external storage reads'} other files"
        raise InputError(name, problem, place=f"dataset {path!r}", remedy="make a copy of the data")
    refuse_unknown_filters(plist, name, f"dataset {path!r}")


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
    if content[: len(_SIGNATURE)] != _SIGNATURE:
        return None
    key_bytes, rest = divmod(len(content) - _HEADER_BYTES - _ENTRIES * ADDRESS_BYTES, _ENTRIES + 1)
    axes, odd = divmod(key_bytes - 8, 8)
    if rest or odd or axes < 1:
        return None
    kind = [("size", "<u4"), ("mask", "<u4"), ("offset", "<u8", (axes,)), ("child", "<u8")]
    used = min(_ENTRIES, int.from_bytes(content[6:8], "little"))
    padded = b"".join((content, bytes(ADDRESS_BYTES)))
    entries = np.frombuffer(padded, kind, used + 1, _HEADER_BYTES)
    return _Node(content[5], content[8:_HEADER_BYTES] == _NO_SIBLINGS, entries)


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
