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
from typing import TYPE_CHECKING

import h5py
from h5py import h5d, h5g, h5p, h5s, h5t

from recshuf.dataclass import dataclass
from recshuf.formats.hdf5.attributes import attach_scales, copy_attributes, copy_values, find_type
from recshuf.formats.hdf5.contents import find_address, looking_into, opened, reading, walk_file
from recshuf.formats.hdf5.filters import replace_unusable_filters, set_compression
from recshuf.formats.hdf5.roles import SHAPE
from recshuf.formats.hdf5.types import find_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from recshuf.formats.hdf5.contents import Contents
    from recshuf.interfaces import InputFile, MetadataKey


CHUNK_BYTES = 256 * 1024
"""Chunk size of datasets without chunks."""
_MAX_CHUNK_ROW_BYTES = 64 << 20
"""Most bytes of all chunks of the same rows."""


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
        ways = dict.fromkeys(self.contents.groups, self._copy_group)
        ways |= dict.fromkeys(self.contents.types, self._copy_type)
        ways |= dict.fromkeys(self._list_wholes(), self._copy_whole)
        matrices = [matrix for part, matrix in self.contents.matrices.items() if part in self.records]
        ways |= {matrix.pointers: self._copy_dataset for matrix in matrices}
        shapes = [f"{matrix.path}/{SHAPE}" for matrix in matrices if matrix.is_10x]
        ways |= dict.fromkeys(shapes, self._copy_whole)
        ways |= dict.fromkeys(self._list_hard_links(ways), self._copy_hard_link)
        if not self.lenient:
            ways |= dict.fromkeys(self.contents.soft_links, self._copy_soft_link)
        return ways | dict.fromkeys(self.records, self._copy_dataset)

    def _list_wholes(self) -> list[str]:
        """Return the datasets that are copied as they are: all but those of the record, or those without a first axis."""
        every = (*self.contents.arrays, *self.contents.scalars, *self.contents.nulls)
        taken = {*self.records.values()}
        return self.contents.scalars if self.lenient else [path for path in every if path not in taken]

    def _list_hard_links(self, copied: Mapping[str, object]) -> list[str]:
        present = {"", *copied, *(path for name, path in self.records.items() if name == path)}
        return [path for path, first in self.contents.hard_links.items() if first in present]

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
        own = [key for key in source.attrs if key not in others] if others else None
        copy_attributes(source, copy, self.contents.name, self._types, lenient=self.lenient, keys=own)
        for key, file in others.items():
            with opened(file) as other:
                copy_attributes(other["/" + name], copy, file.name, {}, lenient=self.lenient, keys=[key])

    def _copy_group(self, path: str, target: h5py.File) -> None:
        target.create_group(path, track_order=_tracks_order(self.contents.file[path]))
        self._copy_attributes(path, path, target)

    def _copy_type(self, path: str, target: h5py.File) -> None:
        target[path] = h5py.Datatype(self._types[find_address(self.contents.file[path].id)])
        self._copy_attributes(path, path, target)

    def _copy_whole(self, path: str, target: h5py.File) -> None:
        file = next(
            (file for key, file in self.replaced.items() if (key.path, key.name) == ((path,), "")), None
        )
        if file is not None:
            with looking_into(file) as other:
                replace(self, contents=other, replaced={}, _types={}).copy_whole(path, target)
            return
        self.copy_whole(path, target)

    def copy_whole(self, path: str, target: h5py.File) -> None:
        source = self.contents.file[path].id
        plist = source.get_create_plist().copy()
        if plist.get_external_count():
            plist = h5p.create(h5p.DATASET_CREATE)
        # HDF5's own copy tracks times if its source does, and then holds the time of the run.
        plist.set_obj_track_times(False)
        self._note_filter(path, path, replace_unusable_filters(plist))
        tid = find_type(source, self._types)
        copy = h5d.create(target.id, path.encode(), tid, source.get_space(), plist, link_plist())
        copy_values(source, copy, tid)
        self._copy_attributes(path, path, target)

    def _copy_soft_link(self, path: str, target: h5py.File) -> None:
        target[path] = h5py.SoftLink(self.contents.soft_links[path])

    def _copy_hard_link(self, path: str, target: h5py.File) -> None:
        target[path] = target["/" + self.contents.hard_links[path]]

    def _copy_dataset(self, path: str, target: h5py.File) -> None:
        own = self.records.get(path, path)
        dataset = self.contents.file[own].id
        space = h5s.create_simple((0, *dataset.shape[1:]), _find_most(dataset))
        plist = _shard_plist(dataset, max(self.row_count, dataset.shape[0]))
        replaced = replace_unusable_filters(plist)
        if self.compression is not None:
            set_compression(plist, *self.compression)
        else:
            self._note_filter(path, own, replaced)
        tid = self.changed_types.get(path) or find_type(dataset, self._types)
        h5d.create(target.id, path.encode(), tid, space, plist, link_plist())
        self._copy_attributes(own, path, target)

    def _note_filter(self, name: str, path: str, replaced: str | None) -> None:
        if replaced is not None:
            self._notes[name] = (
                f"{self.contents.name}: dataset {path!r}: gzip replaces the filter {replaced}, which may change values when it is "
                "applied again"
            )

    def _attach_scales(self, target: h5py.File) -> None:
        wholes = [path for path in self._list_wholes() if path in target]
        pairs = {path: path for path in wholes} | {path: name for name, path in self.records.items()}
        copies = {find_address(self.contents.file[path].id): target[name] for path, name in pairs.items()}
        for path, name in pairs.items():
            attach_scales(self.contents.file[path], target[name], copies)


def recompress_image(layout: Layout, compression: str, level: int | None) -> Layout:
    """Return a layout with another compression of the datasets of the record."""
    with open_image(layout.image) as source:
        records = {name: name for name in layout.names}
        contents = walk_file(source, layout.source)
        copier = ImageCopier(contents, records, 1, compression=(compression, level))
        kept = {path: note for path, note in layout.notes.items() if path not in records}
        return replace(copier.copy(), notes=kept)


def _shard_plist(dataset: h5d.DatasetID, row_count: int) -> h5p.PropDCID:
    """Return the creation properties of a dataset of a shard, given its model."""
    plist = dataset.get_create_plist().copy()
    plist.set_chunk(_shard_chunk(dataset, row_count))
    plist.set_alloc_time(h5d.ALLOC_TIME_INCR)
    plist.set_fill_time(h5d.FILL_TIME_IFSET)
    plist.set_obj_track_times(False)
    return plist


def _shard_chunk(dataset: h5d.DatasetID, row_count: int) -> tuple[int, ...]:
    row_shape = dataset.shape[1:]
    row_bytes = max(1, prod(row_shape) * dataset.get_type().get_size())
    chunk = find_chunk(dataset)
    if chunk is None:
        rows = min(CHUNK_BYTES // row_bytes, row_count)
        return (max(1, rows), *(max(1, width) for width in row_shape))
    return (max(1, min(chunk[0], _MAX_CHUNK_ROW_BYTES // row_bytes)), *chunk[1:])


def _find_most(dataset: h5d.DatasetID) -> tuple[int, ...]:
    """Return the largest shape of a dataset of a shard: unlimited rows, and room for chunks without bytes."""
    _, *widths = dataset.get_space().get_simple_extent_dims(maxdims=True)
    return (h5s.UNLIMITED, *(width or h5s.UNLIMITED for width in widths))


def _tracks_order(group: h5py.Group) -> bool:
    return bool(group.id.get_create_plist().get_link_creation_order())


def link_plist() -> h5p.PropLCID:
    """Return link properties: UTF-8 names, and missing groups are created."""
    plist = h5p.create(h5p.LINK_CREATE)
    plist.set_create_intermediate_group(True)
    plist.set_char_encoding(h5t.CSET_UTF8)
    return plist
