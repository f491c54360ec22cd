"""All inputs of a run, read as native batches."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from h5py import h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.chunks import SizeLimit
from recshuf.formats.hdf5.contents import looking_into
from recshuf.formats.hdf5.decoder import Hdf5ValueReader, RowDecoder
from recshuf.formats.hdf5.inventory import (
    HoldsOthers,
    Inventory,
    check_scalars,
    choose_datasets,
    find_records,
    read_inventory,
    refuse_changed_types,
    unite_inventories,
)
from recshuf.formats.hdf5.metadata import MetadataReader
from recshuf.formats.hdf5.others import (
    check_same,
    check_whole,
    choose_others,
    describe_choice,
    drop_indexes,
    hash_others,
)
from recshuf.formats.hdf5.rows import RowFragment, RowReader, item_column
from recshuf.formats.hdf5.signs import describe_doubt
from recshuf.formats.hdf5.template import ImageCopier
from recshuf.formats.metadata import MetadataUnion
from recshuf.formats.options import DATASETS, KEEP_OTHERS, OTHERS
from recshuf.interfaces import Decoder, Fragment, InputSummary, Source
from recshuf.storage.reading.objects import look_ahead
from recshuf.storage.reading.read_ahead import UNIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recshuf.formats.hdf5.template import Layout
    from recshuf.interfaces import InputFile, ReadOptions, ValueReader


_MOST_BLOCKS = 4
"""Most blocks of a fragment, to let it begin and end with a chunk."""
_VARIABLE_COPIES = 4
"""Copies of variable-length values: in the library, as Python objects, in Arrow, and one for peaks."""
_CHUNK_COPIES = 3
"""Copies of a chunk: stored, inflated in pieces, and joined."""


class Hdf5Source(Source):
    """Inputs with the same datasets; chunks may differ. If none are chosen, all with a first axis are of the record."""

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        if any(each.opener is not None for each in inputs):
            # HDF5 waits for bytes of objects with the lock of h5py held. A thread that is to fetch them, and happens to collect
            # garbage there, waits for that lock to free objects of h5py, as those of an earlier error: neither goes on.
            gc.collect()
        if options.field is not None:
            datasets = choose_datasets(inputs[0], options, options.field)
            options = options.found({DATASETS: datasets, KEEP_OTHERS: False})
        try:
            self._open(inputs, options)
        except HoldsOthers:
            self._open(inputs, options.found({KEEP_OTHERS: True}))

    def _open(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        is_doubted = options.refuses_foreign and DATASETS.of(options) is None
        union = MetadataUnion(is_lenient=options.first_metadata)
        if KEEP_OTHERS.of(options):
            is_known = OTHERS.of(options) is not None
            self.options = options = options if is_known else choose_others(inputs[0], options)
            self.repeated = hash_others(inputs[0], options)
            for each in inputs[1:]:
                check_same(union, hash_others(each, options), self.repeated, inputs[0].name, each.name)
        self._name_limit = options.name_limit
        ahead = look_ahead(inputs[1:], head_bytes=UNIT_BYTES, tail_bytes=UNIT_BYTES)
        copies = OTHERS.of(options) or ()
        reader = MetadataReader(copies, partial(check_whole, options)) if options.field is None else None
        rest = [_take_inventory(each, options, union, reader, index) for index, each in enumerate(ahead, 1)]
        copies_of_others, notes = self._open_first(inputs[0], options, rest, union, reader)
        self.notes = tuple(filter(None, notes if is_doubted else notes[:1]))
        for path, file in copies_of_others.items():
            self.repeated = {**self.repeated, path: hash_others(file, options)[path]}
        first = self._inventories[0]
        self._widens = options.widens
        self.schema = pa.schema([column.field for column in first.columns])
        self.inputs = tuple(
            InputSummary(each.name, each.stamp.size, each.row_count, True, each.native_bytes)
            for each in self._inventories
        )

    def _open_first(
        self,
        input_file: InputFile,
        options: ReadOptions,
        rest: list[Inventory],
        union: MetadataUnion,
        reader: MetadataReader | None,
    ) -> tuple[dict[str, InputFile], list[str | None]]:
        """Make inventories, layout and metadata of all inputs.

        Return the copies that are those of another input, what differs, and what is doubtful if nobody named the datasets.
        """
        with looking_into(input_file) as contents:
            records = find_records(contents, options)
            first = read_inventory(contents, input_file, records)
            self._inventories = inventories = unite_inventories([first, *rest], widens=options.widens)
            lenient = DATASETS.of(options) is not None and not KEEP_OTHERS.of(options)
            check_scalars(contents, lenient=lenient)
            notes = describe_choice(options, input_file.name)
            if KEEP_OTHERS.of(options):
                notes |= drop_indexes(contents, records.values())
            if reader is not None:
                union.add(0, contents.name, reader.read(contents, records), origin=input_file)
            metadata, taken = union.merge()
            left_out = {*contents.arrays} - {*records.values()} if lenient else set()
            values = metadata.values
            if reader is not None and left_out:  # groups of left-out datasets are copied, too
                values = {**reader.read(contents, records, is_whole=True), **values}
            written = {key: text for key, text in values.items() if left_out.isdisjoint(key.path)}
            taken = {key: file for key, file in taken.items() if key in written}
            row_count = sum(each.row_count for each in inventories)
            types = _find_changed_types(inventories)
            copier = ImageCopier(contents, records, row_count, lenient, changed_types=types, replaced=taken)
            layout = copier.copy()
            doubt = describe_doubt(contents, list(records.values()))
        self._layout = replace(layout, notes=notes | layout.notes)
        self.metadata = metadata._replace(values=written)
        wholes = {key.path[0]: file for key, file in taken.items() if not key.name}
        copies = {path: wholes[path] for path in OTHERS.of(options) or () if path in wholes}
        return copies, [metadata.differences, doubt]

    @property
    def layout(self) -> Layout:  # type: ignore[override] # asked for by outputs of HDF5 alone
        if not self._widens:
            refuse_changed_types(self._inventories)
        return self._layout

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        """Yield the fragments of one input: as many whole chunks as fit a block."""
        inventory = self._inventories[input_index]
        if inventory.row_count == 0:
            return
        limit = SizeLimit(max_record_bytes, self._name_limit(max_record_bytes))
        _check_limits(inventory, limit)
        rows = _rows_of_fragment(inventory, block_bytes)
        reader = RowReader(inventory, self.schema, _find_cached(inventory, rows))
        for start in range(0, inventory.row_count, rows):
            stop = min(start + rows, inventory.row_count)
            yield RowFragment(reader, start, stop, block_bytes, limit)

    def skips_fragments(self, input_index: int) -> bool:  # noqa: ARG002 # all inputs are alike
        return True

    def reading_bytes(self, block_bytes: int) -> int:
        """Return the memory of a fragment, of the chunks kept between reads, and of the chunk being inflated."""
        return max(_reading_bytes(each, block_bytes) for each in self._inventories)

    def decoder(self) -> Decoder:
        return RowDecoder(self._inventories[0].columns, [each.name for each in self._inventories])

    def value_reader(self, paths: Sequence[str]) -> ValueReader:
        names = [each.name for each in self._inventories]
        return Hdf5ValueReader(self._inventories[0].columns, names, paths)


def _take_inventory(
    input_file: InputFile,
    options: ReadOptions,
    union: MetadataUnion,
    reader: MetadataReader | None,
    index: int,
) -> Inventory:
    with looking_into(input_file) as contents:
        records = find_records(contents, options)
        inventory = read_inventory(contents, input_file, records)
        if reader is not None and inventory.row_count:
            union.add(index, contents.name, reader.read(contents, records), origin=input_file)
    return inventory


def _find_changed_types(inventories: Sequence[Inventory]) -> dict[str, h5t.TypeID]:
    """Return the types of shards that are not those of the first input: of columns, and of pointers to more items."""
    first, types = inventories[0], {}
    for column, own in zip(first.columns, first.own, strict=True):
        if column is not own:
            types[column.name] = (item_column(column) if column.name in first.lists else column).tid
    for name, lists in first.lists.items():
        if sum(each.lists[name].item_count for each in inventories) > lists.most_items:
            types[lists.matrix.pointers] = h5t.STD_I64LE
    return types


def _check_limits(inventory: Inventory, limit: SizeLimit) -> None:
    sizes = [("row 0", "record", inventory.fixed_bytes)]
    storages = [*inventory.storages, *(each.pointers for each in inventory.lists.values())]
    sizes += [(f"dataset {each.path!r}", "chunk", each.chunk_bytes) for each in storages]
    for place, what, byte_count in sizes:
        if byte_count > limit.max_bytes:
            problem = f"a {what} has {byte_count} bytes, more than the {limit.max_bytes} allowed"
            raise InputError(inventory.name, problem, place=place, remedy=f"raise {limit.option}")


def _rows_of_fragment(inventory: Inventory, block_bytes: int) -> int:
    """Return the rows of a fragment.

    Fragments end with a chunk of the heaviest dataset, so that its chunks are inflated once. If such a chunk is far larger
    than a block, they do not, and the chunk is kept between reads.
    """
    record_bytes = max(
        1, inventory.native_bytes // max(1, inventory.row_count)
    )  # or the average if it varies
    rows = max(1, block_bytes // record_bytes)
    pairs = zip(inventory.columns, inventory.storages, strict=True)
    _, chunk_rows = max((column.row_bytes, storage.chunk_rows or 1) for column, storage in pairs)
    if chunk_rows * record_bytes > _MOST_BLOCKS * block_bytes:
        return rows
    return max(1, rows // chunk_rows) * chunk_rows


def _find_cached(inventory: Inventory, rows: int) -> list[bool]:
    """Tell for which datasets a chunk is kept between reads: those whose chunks span fragments."""
    return [
        storage.chunk_rows is not None and (not inventory.is_fixed or rows % storage.chunk_rows > 0)
        for storage in inventory.storages
    ]


def _reading_bytes(inventory: Inventory, block_bytes: int) -> int:
    rows = _rows_of_fragment(inventory, block_bytes)
    fixed = rows * (inventory.fixed_bytes + 2 * inventory.changed_bytes)
    variable = _VARIABLE_COPIES * block_bytes if inventory.variable_bytes else 0
    chunks = [storage.chunk_bytes for storage in inventory.storages]
    kept = sum(size for size, keep in zip(chunks, _find_cached(inventory, rows), strict=True) if keep)
    kept += sum(each.pointers.chunk_bytes for each in inventory.lists.values())
    return fixed + variable + kept + _CHUNK_COPIES * max(chunks)
