"""The image of an HDF5 file without records, with which every shard of a run begins.

It has all groups, attributes, scalars, named types and links of the first input, and the datasets of the
record with their types, filters and fill values, but no rows. A sink writes it to disk and appends rows.
"""

from __future__ import annotations

import io
import secrets
from contextlib import contextmanager
from dataclasses import field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5ds, h5g, h5p, h5s, h5t

from recshuf.dataclass import dataclass
from recshuf.errors import InputError
from recshuf.formats.hdf5.columns import select_rows
from recshuf.formats.hdf5.contents import find_address, list_scales, looking_into, reading, walk_file
from recshuf.formats.hdf5.filters import replace_unusable_filters, set_compression
from recshuf.formats.hdf5.roles import SHAPE
from recshuf.formats.hdf5.types import find_chunk, holds_variable_length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from recshuf.formats.hdf5.contents import Contents
    from recshuf.interfaces import InputFile, MetadataKey

    _Spaces = tuple[h5s.SpaceID, h5s.SpaceID]


CHUNK_BYTES = 256 * 1024
"""Chunk size of datasets without chunks."""
_MAX_CHUNK_ROW_BYTES = 64 << 20
"""Most bytes of all chunks of the same rows."""
_PIECE_BYTES = 8 << 20
_VARIABLE_ROWS = 4096
"""Rows of a piece with variable-length values."""
_MOST_ATTRIBUTE_BYTES = 1 << 16  # with its name, type and shape
BOOKKEEPING = ("DIMENSION_LIST", "REFERENCE_LIST")
"""Attributes that attach dimension scales to datasets."""
LINK = h5p.create(h5p.LINK_CREATE)
"""Link properties: UTF-8 names, and missing groups are created."""
LINK.set_create_intermediate_group(True)
LINK.set_char_encoding(h5t.CSET_UTF8)


@dataclass(frozen=True, slots=True)
class Layout:
    """An image made from the inputs, and its datasets of the record."""

    image: bytes
    names: tuple[str, ...]
    """Paths of the datasets in the order of the native fields."""
    notes: dict[str, str] = field(default_factory=dict)
    """What differs from the inputs, besides the order: a sentence about an object, by its path."""
    source: str = "the output"
    """Name of the file that the image was made from, for messages."""


@contextmanager
def new_image(*, track_order: bool = False) -> Iterator[tuple[h5py.File, list[bytes]]]:
    """Provide an HDF5 file in memory, and a list that receives its bytes at the end."""
    result: list[bytes] = []
    name = f"image-{secrets.token_hex(8)}"  # HDF5 takes files of one name for the same file
    with h5py.File(name, "w", driver="core", backing_store=False, track_order=track_order) as file:
        yield file, result
        file.flush()
        result.append(file.id.get_file_image())


def open_image(image: bytes) -> h5py.File:
    return h5py.File(io.BytesIO(image), "r")


@dataclass(slots=True)
class ImageCopier:
    """Makes an image from an open file."""

    contents: Contents
    records: Mapping[str, str]
    """Path in the source of each dataset of the record, by its name."""
    row_count: int
    """Records in all inputs, which limits the chunks of datasets without chunks."""
    lenient: bool = False
    """Leave out links, and attributes that hold references."""
    compression: tuple[str, int | None] | None = None
    """Name and level of another compression."""
    changed_types: Mapping[str, h5t.TypeID] = field(default_factory=dict)
    """Types of datasets of the record, by name, that are not those of this file; also those of pointers."""
    replaced: Mapping[MetadataKey, InputFile] = field(default_factory=dict)
    """Attributes and whole datasets that are taken from other files."""
    _types: dict[int, h5t.TypeID] = field(default_factory=dict)
    """Named types of the image, by their address in the source."""
    _holder: h5g.GroupID | None = None
    """A group without a name that holds them until they have theirs."""
    _notes: dict[str, str] = field(default_factory=dict)

    def copy(self) -> Layout:
        ways = self._find_ways()
        with new_image(track_order=_tracks_order(self.contents.file["/"])) as (target, result):
            self._commit_types(target)
            with reading(self.contents.name, "'/'"):
                self._copy_attributes("", "", target)
            paths = [path for path in self.contents.order if path in ways]
            for path in dict.fromkeys((*paths, *self.records)):
                with reading(self.contents.name, repr(path)):
                    if path in paths or path not in target:
                        ways[path](path, target)
            self._attach_scales(target)
        return Layout(result[0], tuple(self.records), self._notes, self.contents.name)

    def _find_ways(self) -> dict[str, Callable[[str, h5py.File], None]]:
        """Return the copying function of each object by path; datasets of the record come last, as they may be links."""
        contents = self.contents
        ways = dict.fromkeys(contents.groups, self._copy_group)
        ways |= dict.fromkeys(contents.types, self._copy_type)
        ways |= dict.fromkeys(self._list_wholes(), self.copy_whole)
        for matrix in (matrix for part, matrix in contents.matrices.items() if part in self.records):
            ways[matrix.pointers] = self._copy_dataset
            if matrix.is_10x:
                ways[f"{matrix.path}/{SHAPE}"] = self.copy_whole
        present = {"", *ways, *(path for name, path in self.records.items() if name == path)}
        linked = [path for path, first in contents.hard_links.items() if first in present]
        ways |= dict.fromkeys(linked, self._copy_hard_link)
        if not self.lenient:
            ways |= dict.fromkeys(contents.soft_links, self._copy_soft_link)
        return ways | dict.fromkeys(self.records, self._copy_dataset)

    def _list_wholes(self) -> list[str]:
        """Return the datasets that are copied as they are: all but those of the record, or those without a first axis."""
        every = (*self.contents.arrays, *self.contents.scalars, *self.contents.nulls)
        taken = {*self.records.values()}
        return self.contents.scalars if self.lenient else [path for path in every if path not in taken]

    def _commit_types(self, target: h5py.File) -> None:
        """Commit all named types before the datasets that use them; each gets its path in its turn."""
        if not self.contents.types:
            return  # the group would change the bytes of files without named types
        self._holder = h5g.create(target.id, None)
        for index, path in enumerate(self.contents.types):
            tid = self.contents.file[path].id.copy()
            tid.commit(self._holder, str(index).encode())
            self._types[find_address(self.contents.file[path].id)] = tid

    def _copy_attributes(self, path: str, name: str, target: h5py.File) -> None:
        source, copy = self.contents.file["/" + path], target["/" + name]
        shown = (name,) if name else ()
        others = {key.name: file for key, file in self.replaced.items() if key.name and key.path == shown}
        for key in source.attrs:
            if key not in others:
                self.copy_attribute(source, copy, self.contents.name, key)
        for key, file in others.items():
            with looking_into(file) as other:
                replace(self, _types={}).copy_attribute(other.file["/" + name], copy, file.name, key)

    def copy_attribute(self, source: h5py.HLObject, target: h5py.HLObject, name: str, key: str) -> None:
        """Copy an attribute of an object of a file of this name, unless it attaches dimension scales."""
        place, code = f"attribute {key!r} of {source.name!r}", key.encode("utf-8", "surrogateescape")
        with reading(name, place):
            attribute = h5a.open(source.id, code)
            tid = self._find_type(attribute)
            if not tid.detect_class(h5t.REFERENCE):
                count = attribute.get_space().get_simple_extent_npoints()
                try:
                    copy = h5a.create(target.id, code, tid, attribute.get_space())
                except (OSError, RuntimeError, ValueError) as error:
                    # Shards have the form of files that all versions of HDF5 read, in which it is part of a header.
                    if count * tid.get_size() < _MOST_ATTRIBUTE_BYTES // 2:
                        raise
                    problem = "is larger than an attribute that recshuf can write, 64 KB"
                    remedy = "delete it, or make it a dataset and give --keep-others"
                    raise InputError(name, problem, place=place, remedy=remedy) from error
                if count:
                    values, memory_type = make_buffer(attribute.shape, tid)
                    attribute.read(values, memory_type)
                    copy.write(values, memory_type)
            elif key not in BOOKKEEPING and not self.lenient:
                problem = "holds references, which mean nothing in another file"
                remedy = "delete it, or name the datasets of the record with --datasets, without --keep-others, which leaves it out"
                raise InputError(name, problem, place=place, remedy=remedy)

    def _find_type(self, source: h5a.AttrID | h5d.DatasetID) -> h5t.TypeID:
        """Return the type of the copy of an attribute or a dataset: the same named type, or a copy of its own."""
        tid = source.get_type()
        return (self._types.get(find_address(tid)) if tid.committed() else None) or tid.copy()

    def _copy_group(self, path: str, target: h5py.File) -> None:
        target.create_group(path, track_order=_tracks_order(self.contents.file[path]))
        self._copy_attributes(path, path, target)

    def _copy_type(self, path: str, target: h5py.File) -> None:
        target[path] = h5py.Datatype(self._types[find_address(self.contents.file[path].id)])
        self._copy_attributes(path, path, target)

    def copy_whole(self, path: str, target: h5py.File) -> None:
        for key, file in self.replaced.items():
            if (key.path, key.name) == ((path,), ""):
                with looking_into(file) as other:
                    replace(self, contents=other, replaced={}, _types={}).copy_whole(path, target)
                return
        source = self.contents.file[path].id
        plist = source.get_create_plist().copy()
        if plist.get_external_count():
            plist = h5p.create(h5p.DATASET_CREATE)
        # HDF5's own copy tracks times if its source does, and then holds the time of the run.
        plist.set_obj_track_times(False)
        self._note_filter(path, path, replace_unusable_filters(plist))
        tid = self._find_type(source)
        copy = h5d.create(target.id, path.encode(), tid, source.get_space(), plist, LINK)
        for spaces, values, memory_type in read_pieces(source, tid):
            copy.write(*spaces, values, memory_type)
        self._copy_attributes(path, path, target)

    def _copy_soft_link(self, path: str, target: h5py.File) -> None:
        target[path] = h5py.SoftLink(self.contents.soft_links[path])

    def _copy_hard_link(self, path: str, target: h5py.File) -> None:
        target[path] = target["/" + self.contents.hard_links[path]]

    def _copy_dataset(self, path: str, target: h5py.File) -> None:
        own = self.records.get(path, path)
        dataset = self.contents.file[own].id
        plist = dataset.get_create_plist().copy()
        plist.set_chunk(_find_shard_chunk(dataset, max(self.row_count, dataset.shape[0])))
        plist.set_alloc_time(h5d.ALLOC_TIME_INCR)
        plist.set_fill_time(h5d.FILL_TIME_IFSET)
        plist.set_obj_track_times(False)
        replaced = replace_unusable_filters(plist)
        if self.compression is not None:
            set_compression(plist, *self.compression)
        else:
            self._note_filter(path, own, replaced)
        tid = self.changed_types.get(path) or self._find_type(dataset)
        # Unlimited rows, and room for chunks without bytes.
        _, *widths = dataset.get_space().get_simple_extent_dims(maxdims=True)
        most = (h5s.UNLIMITED, *(width or h5s.UNLIMITED for width in widths))
        space = h5s.create_simple((0, *dataset.shape[1:]), most)
        h5d.create(target.id, path.encode(), tid, space, plist, LINK)
        self._copy_attributes(own, path, target)

    def _note_filter(self, name: str, path: str, replaced: str | None) -> None:
        if replaced is not None:
            self._notes[name] = (
                f"{self.contents.name}: dataset {path!r}: gzip replaces the filter {replaced}, which may change values when it is "
                "applied again"
            )

    def _attach_scales(self, target: h5py.File) -> None:
        pairs = {path: path for path in self._list_wholes() if path in target}
        pairs |= {path: name for name, path in self.records.items()}
        copies = {find_address(self.contents.file[path].id): target[name] for path, name in pairs.items()}
        for path, name in pairs.items():
            for axis, address in list_scales(self.contents.file[path].id):
                if (copy := copies.get(address)) is not None:
                    marks = np.ravel(copy.attrs.get("CLASS", "DIMENSION_SCALE")).tolist()
                    if any(mark not in (b"DIMENSION_SCALE", "DIMENSION_SCALE") for mark in marks):
                        # HDF5 aborts on it.
                        problem = f"its scale {copy.name[1:]!r} has another CLASS than DIMENSION_SCALE: {marks[0]!r}"
                        place = f"dataset {path!r}"
                        remedy = "set or remove that attribute"
                        raise InputError(self.contents.name, problem, place=place, remedy=remedy)
                    h5ds.attach_scale(target[name].id, copy.id, axis)


def recompress_image(layout: Layout, compression: str, level: int | None) -> Layout:
    with open_image(layout.image) as source:
        records = {name: name for name in layout.names}
        contents = walk_file(source, layout.source)
        copier = ImageCopier(contents, records, 1, compression=(compression, level))
        kept = {path: note for path, note in layout.notes.items() if path not in records}
        return replace(copier.copy(), notes=kept)


def _find_shard_chunk(dataset: h5d.DatasetID, row_count: int) -> tuple[int, ...]:
    row_shape = dataset.shape[1:]
    row_bytes = max(1, prod(row_shape) * dataset.get_type().get_size())
    chunk = find_chunk(dataset)
    if chunk is None:
        rows = min(CHUNK_BYTES // row_bytes, row_count)
        return (max(1, rows), *(max(1, width) for width in row_shape))
    return (max(1, min(chunk[0], _MAX_CHUNK_ROW_BYTES // row_bytes)), *chunk[1:])


def _tracks_order(group: h5py.Group) -> bool:
    return bool(group.id.get_create_plist().get_link_creation_order())


def read_pieces(source: h5d.DatasetID, tid: h5t.TypeID) -> Iterator[tuple[_Spaces, NDArray[Any], h5t.TypeID]]:
    """Yield all values in pieces of whole chunks, if they are not too large: their dataspaces in memory and file, the values, and their type in memory."""
    if not source.get_space().get_simple_extent_npoints():
        return
    if not source.shape:
        values, memory_type = make_buffer((), tid)
        source.read(h5s.ALL, h5s.ALL, values, memory_type)
        yield (h5s.ALL, h5s.ALL), values, memory_type
        return
    row_count, *row_shape = source.shape
    rows = max(1, _PIECE_BYTES // max(1, prod(row_shape) * tid.get_size()))
    if holds_variable_length(tid):
        rows = min(rows, _VARIABLE_ROWS)
    chunk_rows = (find_chunk(source) or (1,))[0]
    rows = max(1, rows // chunk_rows) * chunk_rows
    for start in range(0, row_count, rows):
        shape = (min(rows, row_count - start), *row_shape)
        values, memory_type = make_buffer(shape, tid)
        spaces = select_rows(source, start, shape[0], tuple(row_shape))
        source.read(*spaces, values, memory_type)
        yield spaces, values, memory_type


def make_buffer(shape: tuple[int, ...], tid: h5t.TypeID) -> tuple[NDArray[Any], h5t.TypeID]:
    """Return an array for values, and their type in it: the stored bytes, or objects of h5py if the length varies."""
    if holds_variable_length(tid):
        values = np.zeros(shape, tid.dtype)
        return values, h5t.py_create(values.dtype)
    return np.zeros(prod(shape) * tid.get_size(), np.uint8), tid
