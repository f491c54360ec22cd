"""All inputs of a run, looked into once and read as native batches; and what they hold beside their records.

That is what every shard repeats: other datasets, attributes, scalars, and lists of the names of labels.
"""

from __future__ import annotations

import gc
import re
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash
from h5py import h5, h5a, h5d, h5o, h5s, h5t

from recshuf.errors import InputError
from recshuf.formats.files import DATASETS, KEEP_OTHERS, OTHERS, shorten
from recshuf.formats.hdf5.columns import read_column, read_storage
from recshuf.formats.hdf5.contents import content_of, looking_into, reading
from recshuf.formats.hdf5.decoder import Hdf5ValueReader, RowDecoder
from recshuf.formats.hdf5.guards import SizeLimit, ValueGuard
from recshuf.formats.hdf5.inventory import (
    Inventory,
    check_scalars,
    choose_datasets,
    find_records,
    find_scalar_obstacle,
    read_inventory,
    refuse_changed_types,
    unite_inventories,
)
from recshuf.formats.hdf5.roles import (
    SAME_VARIABLES,
    SHAPE,
    drop_indexes,
    explain_storage,
    find_table,
    is_of_variables,
    list_others,
)
from recshuf.formats.hdf5.rows import count_reading_bytes, list_fragments
from recshuf.formats.hdf5.signs import LEAVE_OUT, describe_doubt
from recshuf.formats.hdf5.template import BOOKKEEPING, ImageCopier, make_buffer, read_pieces
from recshuf.formats.hdf5.types import (
    Kind,
    describe_type,
    find_copy_obstacle,
    find_dtype,
    holds_variable_length,
)
from recshuf.formats.meaning import Weight, describe, is_counted, weigh
from recshuf.formats.metadata import MetadataUnion
from recshuf.interfaces import Decoder, Fragment, InputSummary, MetadataKey, Source
from recshuf.storage.reading.objects import look_ahead
from recshuf.storage.reading.read_ahead import UNIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from recshuf.formats.hdf5.contents import Contents
    from recshuf.formats.hdf5.template import Layout
    from recshuf.interfaces import InputFile, ReadOptions, ValueReader


_SHARE = 8
"""Share of the memory limit that the copies may have: the image of a shard, with copies of it, takes several times that."""
_NO_LIMIT = 1 << 62
_LIST_OF_TEXTS = re.compile(r"(variable-length string|\|S\d+) \(\d+,\) ")
"""Beginning of the hash of a list of strings."""


class Hdf5Source(Source):
    """Inputs with the same datasets; chunks may differ. If none are chosen, all with a first axis are of the record."""

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        if any(each.opener is not None for each in inputs):
            # HDF5 waits for bytes of objects with the lock of h5py held. A thread that is to fetch them, and happens to collect
            # garbage there, waits for that lock to free objects of h5py, as those of an earlier error: neither goes on.
            gc.collect()
        self._widens = options.widens
        self._name_limit = options.name_limit
        union = MetadataUnion(is_lenient=options.first_metadata)
        with looking_into(inputs[0]) as contents:
            is_doubted = options.refuses_foreign and DATASETS.of(options) is None and options.field is None
            options = choose_datasets(contents, options)
            records = find_records(contents, options)
            lenient = DATASETS.of(options) is not None and not KEEP_OTHERS.of(options)
            check_scalars(contents, lenient=lenient)
            notes = _describe_choice(options, contents.name)
            if KEEP_OTHERS.of(options):
                self.options = options
                self.repeated = _Copies(contents, options).hash_others(records.values())
                notes |= drop_indexes(contents, records.values())
            first = read_inventory(contents, inputs[0], records)
            if options.field is None:
                said = _Copies(contents, options).read_metadata(records)
                union.add(0, contents.name, said, origin=inputs[0])
            rest = self._look_into_others(inputs, options, union)
            self._inventories = unite_inventories([first, *rest], widens=options.widens)
            metadata, taken = union.merge()
            left_out = {*contents.arrays} - {*records.values()} if lenient else set()
            values = metadata.values
            if options.field is None and left_out:  # groups of left-out datasets are copied, too
                values = {**_Copies(contents, options).read_metadata(records, is_whole=True), **values}
            written = {key: text for key, text in values.items() if left_out.isdisjoint(key.path)}
            taken = {key: file for key, file in taken.items() if key in written}
            row_count = sum(each.row_count for each in self._inventories)
            types = _find_changed_types(self._inventories)
            copier = ImageCopier(contents, records, row_count, lenient, changed_types=types, replaced=taken)
            layout = copier.copy()
            doubt = describe_doubt(contents, list(records.values())) if is_doubted else None
        self._layout = replace(layout, notes=notes | layout.notes)
        self.metadata = metadata._replace(values=written)
        self.notes = tuple(filter(None, (metadata.differences, doubt)))
        wholes = {key.path[0]: file for key, file in taken.items() if not key.name}
        for path, file in wholes.items():
            if path in self.repeated:
                with looking_into(file) as contents:
                    self.repeated = {**self.repeated, path: _Copies(contents, options).hash(path)}
        self.schema = pa.schema([column.field for column in self._inventories[0].columns])
        self.inputs = tuple(
            InputSummary(each.name, each.stamp.size, each.row_count, True, each.native_bytes)
            for each in self._inventories
        )

    def _look_into_others(
        self, inputs: Sequence[InputFile], options: ReadOptions, union: MetadataUnion
    ) -> list[Inventory]:
        """Return the inventories of all inputs but the first, whose copies are hashed; the union gets what they say."""
        inventories = []
        ahead = look_ahead(inputs[1:], head_bytes=UNIT_BYTES, tail_bytes=UNIT_BYTES)
        for index, input_file in enumerate(ahead, 1):
            with looking_into(input_file) as contents:
                records, copies = find_records(contents, options), _Copies(contents, options)
                if KEEP_OTHERS.of(options):
                    hashes = copies.hash_others(records.values())
                    _check_same(union, hashes, self.repeated, inputs[0].name, contents.name)
                inventories.append(read_inventory(contents, input_file, records))
                if options.field is None and inventories[-1].row_count:
                    union.add(index, contents.name, copies.read_metadata(records), origin=input_file)
        return inventories

    @property
    def layout(self) -> Layout:  # type: ignore[override] # asked for by outputs of HDF5 alone
        if not self._widens:
            refuse_changed_types(self._inventories)
        return self._layout

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        limit = SizeLimit(max_record_bytes, self._name_limit(max_record_bytes))
        yield from list_fragments(self._inventories[input_index], self.schema, block_bytes, limit)

    def skips_fragments(self, input_index: int) -> bool:  # noqa: ARG002 # all inputs are alike
        return True

    def reading_bytes(self, block_bytes: int) -> int:
        """Return the memory of a fragment, of the chunks kept between reads, and of the chunk being inflated."""
        return max(count_reading_bytes(each, block_bytes) for each in self._inventories)

    def decoder(self) -> Decoder:
        return RowDecoder(self._inventories[0].columns, [each.name for each in self._inventories])

    def value_reader(self, paths: Sequence[str]) -> ValueReader:
        names = [each.name for each in self._inventories]
        return Hdf5ValueReader(self._inventories[0].columns, names, paths)


def _find_changed_types(inventories: Sequence[Inventory]) -> dict[str, h5t.TypeID]:
    """Return the types of shards that are not those of the first input: of columns, and of pointers to more items."""
    types = {}
    for place, first in enumerate(inventories[0].datasets):
        if first.column is not first.own:
            types[first.column.name] = (first.column.items if first.lists else first.column).tid
        counts = [lists.item_count for each in inventories if (lists := each.datasets[place].lists)]
        if first.lists and sum(counts) > first.lists.most_items:
            types[first.lists.matrix.pointers] = h5t.STD_I64LE
    return types


def _describe_choice(options: ReadOptions, name: str) -> dict[str, str]:
    """Return a sentence about the datasets of the record and the others, by the path of what it is about."""
    datasets, others = DATASETS.of(options), OTHERS.of(options)
    if not others or not datasets:
        return {}
    by_use = sorted(others, key=lambda path: find_table(path) is not None)
    shuffled, copied = shorten(datasets), shorten(by_use)
    return {"": f"{name}: shuffled are the rows of {shuffled}; copied unchanged are {copied}"}


class _Copies:
    """Reads what every shard repeats of an open file, as long as all of it fits the memory for that."""

    def __init__(self, contents: Contents, options: ReadOptions) -> None:
        self._contents = contents
        self._name = contents.name
        self._others = OTHERS.of(options) or ()
        self._most_bytes = _NO_LIMIT if options.memory_bytes is None else options.memory_bytes // _SHARE
        self._byte_count = 0

    def hash_others(self, records: Iterable[str]) -> dict[str, str]:
        """Return the hash of each dataset that is not of the record; `InputError` if they are not those of the first input."""
        others = list_others(self._contents, records)
        differing = sorted({*others} ^ {*self._others})
        for place, path in enumerate(differing):
            groups = [*dict.fromkeys(map(_folder, differing[place:]))]
            if known := explain_storage(self._contents, groups):
                raise InputError(self._name, known[0], place=f"group {groups[0]!r}", remedy=known[1])
            problem = f"has {'a' if path in others else 'no'} dataset {path!r}, unlike the first input"
            raise InputError(self._name, problem, remedy=LEAVE_OUT)
        return {path: self.hash(path) for path in others}

    def hash(self, path: str) -> str:
        """Return the hash of type, shape and values of a dataset, and check its storage first."""
        dataset, digest = self._contents.file[path], xxhash.xxh3_128()
        with reading(self._name, f"dataset {path!r}"):
            tid = dataset.id.get_type()
            if dataset.shape is None:
                return f"{describe_type(tid)} null"
            self._check(path, self._byte_count)
            for _, values, _ in read_pieces(dataset.id, tid):
                for part in _list_bytes(values):
                    digest.update(part)
                    self._byte_count += memoryview(part).nbytes
                self._check_size(self._byte_count)
            return f"{describe_type(tid)} {dataset.shape} {digest.hexdigest()}"

    def _check(self, path: str, held_bytes: int = 0) -> None:
        dataset = self._contents.open_checked(path)
        tid = dataset.id.get_type()
        problem = find_copy_obstacle(tid)
        if problem:
            raise InputError(self._name, problem, place=f"dataset {path!r}", remedy=LEAVE_OUT)
        column, storage = read_column(dataset.id, path), read_storage(dataset.id, path)
        own_bytes = max(prod(dataset.shape) * tid.get_size(), storage.chunk_bytes, storage.stored_bytes)
        self._check_size(held_bytes + own_bytes)
        if column.kind is not Kind.FIXED and not column.row_shape:
            file = self._contents.file
            guard = ValueGuard(file, content_of(file), dataset.id, column, self._name)
            guard.check(0, dataset.shape[0], SizeLimit(self._most_bytes, "--memory"))

    def _check_size(self, byte_count: int) -> None:
        if byte_count > self._most_bytes:
            problem = f"the datasets of other lengths hold more than the {self._most_bytes} bytes that fit"
            raise InputError(self._name, problem, remedy=f"raise --memory, or {LEAVE_OUT}")

    def read_metadata(self, records: Mapping[str, str], *, is_whole: bool = False) -> dict[MetadataKey, str]:
        """Return what the file says of some datasets of the record, by its name and path, and of all records.

        What belongs to other datasets only is left out, unless it `is_whole`: the attributes and scalars of groups that hold
        no dataset of the record, but others.
        """
        contents, taken = self._contents, {*records.values()}
        sparse = {matrix.path for matrix in contents.matrices.values()}
        others = [path for path in contents.arrays if path not in taken]
        left_out = _list_folders(path for path in others if path not in self._others)
        foreign = left_out - _list_folders([*taken, *self._others])

        def is_ours(path: str) -> bool:
            return is_whole or not foreign or foreign.isdisjoint(_list_folders([f"{path}/"]))

        owners = [("file", "", "")]
        owners += [("group", path, path) for path in contents.groups if is_ours(path)]
        owners += [("dataset", name, path) for name, path in records.items()]
        owners += [("dataset", path, path) for path in others if path in self._others]
        values: dict[MetadataKey, str] = {}
        for owner, name, path in owners:
            shown = (name,) if name else ()
            with reading(self._name, repr(f"/{path}")):
                for key, text in _read_attributes(h5o.open(contents.file.id, _encode(f"/{path}"))):
                    if key != SHAPE or path not in sparse:  # which counts records
                        values[MetadataKey(owner, shown, key)] = text
        wholes = [path for path in contents.scalars if is_counted(_leaf(path)) and is_ours(_folder(path))]
        wholes += [path for path in others if weigh(_leaf(path)) is Weight.LABELS and is_ours(_folder(path))]
        for path in wholes:
            with reading(self._name, repr(path)), suppress(InputError):
                values |= self._read_whole(path)
        return values

    def _read_whole(self, path: str) -> Iterator[tuple[MetadataKey, str]]:
        """Yield the values of a scalar or a list of labels, and its attributes; raise `InputError` if it cannot be read."""
        dataset = self._contents.file[path]
        if dataset.shape:
            self._check(path)
        elif (problem := find_scalar_obstacle(dataset)) is not None:
            raise InputError(self._name, problem)
        is_text = dataset.id.get_type().get_class() == h5t.STRING
        if dataset.shape and not (
            len(dataset.shape) == 1 and is_text and weigh(_leaf(path)) is Weight.LABELS
        ):
            return
        text = _describe(dataset.id, lambda values, kind: dataset.id.read(h5s.ALL, h5s.ALL, values, kind))
        if text is not None:
            yield MetadataKey("dataset", (path,), ""), text
        for key, inner in _read_attributes(dataset.id):
            yield MetadataKey("dataset", (path,), key), inner


def _check_same(
    union: MetadataUnion, hashes: Mapping[str, str], first: Mapping[str, str], first_name: str, name: str
) -> None:
    """Raise `InputError` if the other datasets of two inputs differ, by their hashes; a lenient union takes a note.

    Lists of labels are left to the union.
    """
    for path in hashes:
        both = (first[path], hashes[path])
        is_list = weigh(_leaf(path)) is Weight.LABELS and all(map(_LIST_OF_TEXTS.match, both))
        if both[0] == both[1] or is_list:
            continue
        if union.is_lenient:
            union.note(MetadataKey("dataset", (path,), ""), *both, name)
            continue
        problem = f"differs from that in {first_name}, and every shard repeats only one"
        same = f"{SAME_VARIABLES}, " if is_of_variables(path) or "/features/" in path else ""
        remedy = f"{same}{LEAVE_OUT}, or give --first-metadata for those of the first input"
        raise InputError(name, problem, place=f"dataset {path!r}", remedy=remedy)


def _list_bytes(values: NDArray[Any]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of values; those of variable length after their numbers of elements."""
    if not values.dtype.hasobject:
        yield np.ascontiguousarray(values).data
    elif values.dtype.names:
        for name in values.dtype.names:
            yield from _list_bytes(values[name])
    else:
        items = values.ravel().tolist()
        yield np.fromiter(map(len, items), np.int64, len(items)).data
        if items and isinstance(items[0], bytes):
            yield b"".join(items)
        elif items:
            yield from _list_bytes(np.concatenate(items))


def _read_attributes(owner: Any) -> Iterator[tuple[str, str]]:
    names: list[bytes] = []
    h5a.iterate(owner, names.append, order=h5.ITER_NATIVE)  # as they were written, where the file tells
    for name in names:
        shown = name.decode("utf-8", "surrogateescape")
        if shown not in BOOKKEEPING and is_counted(shown):
            attribute = h5a.open(owner, name)
            text = _describe(attribute, attribute.read)
            if text is not None:
                yield shown, text


def _describe(source: h5a.AttrID | h5d.DatasetID, read: Callable[[Any, Any], object]) -> str | None:
    """Return the text of all values; None if they are references, or have a type that is not copied."""
    tid, shape = source.get_type(), source.shape
    if shape is None:
        return describe(None)
    if tid.detect_class(h5t.REFERENCE):
        return None
    is_variable = holds_variable_length(tid)
    if is_variable and find_copy_obstacle(tid):
        return None
    values, memory_type = make_buffer(shape, tid)
    read(values, memory_type)
    if is_variable:
        return describe(values)
    dtype = find_dtype(tid)
    return describe(values.tobytes().hex() if dtype is None else values.view(dtype).reshape(shape))


def _list_folders(paths: Iterable[str]) -> set[str]:
    """Return all groups that some paths lead through, without the first one."""
    folders: set[str] = set()
    for path in paths:
        folder = path
        while folder := _folder(folder):
            folders.add(folder)
    return folders


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _leaf(path: str) -> str:
    return path.rpartition("/")[2]


def _encode(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
