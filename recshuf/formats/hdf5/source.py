"""All inputs of a run, looked into once and read as native batches."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from h5py import h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.beside import Copies, check_same, describe_choice, drop_indexes, list_others
from recshuf.formats.hdf5.contents import check_objects, looking_into
from recshuf.formats.hdf5.decoder import Hdf5ValueReader, RowDecoder
from recshuf.formats.hdf5.guards import SizeLimit
from recshuf.formats.hdf5.inventory import (
    Inventory,
    check_scalars,
    find_records,
    read_inventory,
    refuse_changed_types,
    unite_inventories,
)
from recshuf.formats.hdf5.roles import find_commonest, find_roles
from recshuf.formats.hdf5.rows import RowFragment, RowReader
from recshuf.formats.hdf5.signs import check_independent, check_lengths, describe_doubt, refuse_parts
from recshuf.formats.hdf5.template import ImageCopier
from recshuf.formats.metadata import MetadataUnion
from recshuf.formats.options import DATASETS, KEEP_OTHERS, OTHERS
from recshuf.interfaces import Decoder, Fragment, InputSummary, Source
from recshuf.records.arrays import dotted, unknown_column
from recshuf.storage.reading.objects import look_ahead
from recshuf.storage.reading.read_ahead import UNIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recshuf.formats.hdf5.contents import Contents
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
        self._widens = options.widens
        self._name_limit = options.name_limit
        union = MetadataUnion(is_lenient=options.first_metadata)
        with looking_into(inputs[0]) as contents:
            is_doubted = options.refuses_foreign and DATASETS.of(options) is None and options.field is None
            options = _choose_datasets(contents, options)
            records = find_records(contents, options)
            lenient = DATASETS.of(options) is not None and not KEEP_OTHERS.of(options)
            check_scalars(contents, lenient=lenient)
            notes = describe_choice(options, contents.name)
            if KEEP_OTHERS.of(options):
                self.options = options
                self.repeated = Copies(contents, options).hash_others(records.values())
                notes |= drop_indexes(contents, records.values())
            first = read_inventory(contents, inputs[0], records)
            if options.field is None:
                said = Copies(contents, options).read_metadata(records)
                union.add(0, contents.name, said, origin=inputs[0])
            rest = self._look_into_others(inputs, options, union)
            self._inventories = unite_inventories([first, *rest], widens=options.widens)
            metadata, taken = union.merge()
            left_out = {*contents.arrays} - {*records.values()} if lenient else set()
            values = metadata.values
            if options.field is None and left_out:  # groups of left-out datasets are copied, too
                values = {**Copies(contents, options).read_metadata(records, is_whole=True), **values}
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
                    self.repeated = {**self.repeated, path: Copies(contents, options).hash(path)}
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
                records, copies = find_records(contents, options), Copies(contents, options)
                if KEEP_OTHERS.of(options):
                    hashes = copies.hash_others(records.values())
                    check_same(union, hashes, self.repeated, inputs[0].name, contents.name)
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


def _choose_datasets(contents: Contents, options: ReadOptions) -> ReadOptions:
    """Return options that name the datasets of the record and the copies, by the first input, unless all with a first axis are of it."""
    datasets = DATASETS.of(options)
    if options.field is not None:
        if datasets is None or any("*" in name for name in datasets):
            datasets = tuple(contents.arrays if datasets is None else find_records(contents, options))
        wanted, paths = f"{dotted(options.field)}.", {name: f"{dotted(name)}." for name in datasets}
        chosen = [name for name, path in paths.items() if path.startswith(wanted) or wanted.startswith(path)]
        if not chosen:
            raise unknown_column(options.field, datasets)
        return options.found({DATASETS: tuple(chosen), KEEP_OTHERS: False})
    if not KEEP_OTHERS.of(options):
        if datasets is not None or not options.refuses_foreign or not (roles := find_roles(contents)).copies:
            return options
        check_lengths(contents, {path: path for path in contents.arrays if path in roles.rows})
    elif OTHERS.of(options) is not None:
        return options
    else:
        roles = find_roles(contents)
    check_objects(contents, copies_nulls=True)
    if datasets is None:
        datasets = tuple(find_commonest(contents, contents.arrays))
        if options.refuses_foreign and not roles.rows:
            refuse_parts(contents, datasets)
    options = options.found({DATASETS: datasets, KEEP_OTHERS: True})
    records = tuple(dict.fromkeys(find_records(contents, options).values()))
    others = list_others(contents, records)
    check_independent(contents, records, others, roles)
    return options.found({DATASETS: records, OTHERS: others})


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


def _check_limits(inventory: Inventory, limit: SizeLimit) -> None:
    sizes = [("row 0", "record", inventory.fixed_bytes)]
    storages = [*(each.storage for each in inventory.datasets), *inventory.pointers]
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
    # Or the average if it varies.
    record_bytes = max(1, inventory.native_bytes // max(1, inventory.row_count))
    rows = max(1, block_bytes // record_bytes)
    _, chunk_rows = max((each.column.row_bytes, each.storage.chunk_rows or 1) for each in inventory.datasets)
    if chunk_rows * record_bytes > _MOST_BLOCKS * block_bytes:
        return rows
    return max(1, rows // chunk_rows) * chunk_rows


def _find_cached(inventory: Inventory, rows: int) -> list[bool]:
    """Tell for which datasets a chunk is kept between reads: those whose chunks span fragments."""
    chunk_rows = [each.storage.chunk_rows for each in inventory.datasets]
    return [each is not None and (not inventory.is_fixed or rows % each > 0) for each in chunk_rows]


def _reading_bytes(inventory: Inventory, block_bytes: int) -> int:
    rows = _rows_of_fragment(inventory, block_bytes)
    fixed = rows * (inventory.fixed_bytes + 2 * inventory.changed_bytes)
    variable = _VARIABLE_COPIES * block_bytes if inventory.variable_bytes else 0
    chunks = [each.storage.chunk_bytes for each in inventory.datasets]
    kept = sum(size for size, keep in zip(chunks, _find_cached(inventory, rows), strict=True) if keep)
    kept += sum(each.chunk_bytes for each in inventory.pointers)
    return fixed + variable + kept + _CHUNK_COPIES * max(chunks)
