"""Inventory of an input: its datasets of the record, checked, and their storage; and those of all inputs, united."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from h5py import h5t

from recshuf.dataclass import dataclass
from recshuf.errors import InputError
from recshuf.formats.files import DATASETS, KEEP_OTHERS, OTHERS
from recshuf.formats.hdf5.columns import (
    Column,
    Storage,
    check_access,
    read_column,
    read_pointers,
    read_storage,
    unite_columns,
)
from recshuf.formats.hdf5.contents import check_objects, content_of, reading, resolve_path
from recshuf.formats.hdf5.guards import check_chunks, find_index_root
from recshuf.formats.hdf5.roles import (
    PARTS,
    POINTERS,
    SAME_VARIABLES,
    SHAPE,
    WRITE_ANEW,
    Matrix,
    find_commonest,
    find_roles,
    list_others,
)
from recshuf.formats.hdf5.signs import check_independent, check_lengths, refuse_parts
from recshuf.formats.hdf5.types import Kind, find_copy_obstacle, find_obstacle, name_type
from recshuf.records.arrays import dotted, unknown_column

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import h5py

    from recshuf.formats.hdf5.contents import Contents
    from recshuf.interfaces import InputFile, ReadOptions, Stamp


# A file may declare far more data than it stores, which shards would then hold. Refused if even zeros deflated at the
# best ratio (1,032 to 1) would take more space. Small files of fill values stay below the first number.
_MOST_UNSTORED_BYTES = 4 << 30
_MOST_SHRINKAGE = 1100
_WIDEST_ROW_BYTES = 2**31 - 1
_MOST_NAMES = 20


class Lists(NamedTuple):
    """How a file stores the rows of a matrix."""

    matrix: Matrix
    item_count: int
    width: int
    """Length of the other axis."""
    pointers: Storage
    most_items: int
    """Largest number that the type of the pointers holds."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset of the record in one input."""

    column: Column
    """As all inputs have it, after a change of types."""
    own: Column
    """As this input has it."""
    storage: Storage
    lists: Lists | None
    """How its lists are stored, if they are rows of a sparse matrix."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The datasets of the record in one input."""

    input_file: InputFile
    stamp: Stamp
    row_count: int
    datasets: tuple[Dataset, ...]

    @property
    def name(self) -> str:
        return self.input_file.name

    @property
    def columns(self) -> list[Column]:
        return [each.column for each in self.datasets]

    @property
    def is_fixed(self) -> bool:
        return all(each.column.kind is Kind.FIXED for each in self.datasets)

    @property
    def fixed_bytes(self) -> int:
        return sum(each.column.fixed_bytes for each in self.datasets)

    @property
    def native_bytes(self) -> int:
        """Estimated size of all records as native batches; exact if all have a fixed length."""
        return self.fixed_bytes * self.row_count + self.variable_bytes

    @property
    def variable_bytes(self) -> int:
        """Estimated size of the values of all variable-length columns: the rest of the file; known of sparse matrices."""
        known = sum(
            each.column.items.row_bytes * each.lists.item_count for each in self.datasets if each.lists
        )
        others = [each for each in self.datasets if each.lists is None]
        if all(each.column.kind is Kind.FIXED for each in others):
            return known
        fixed = sum(
            each.own.row_bytes for each in others if each.own.kind is Kind.FIXED is not each.column.kind
        )
        rest = max(0, self.stamp.size - sum(each.storage.stored_bytes for each in self.datasets))
        return known + rest + fixed * self.row_count

    @property
    def changed_bytes(self) -> int:
        pairs = [(each.column, each.own) for each in self.datasets]
        return sum(new.row_bytes + own.row_bytes for new, own in pairs if new.type_code != own.type_code)

    @property
    def pointers(self) -> list[Storage]:
        """What says where the lists of a dataset begin, for each that has such lists."""
        return [each.lists.pointers for each in self.datasets if each.lists]


def choose_datasets(contents: Contents, options: ReadOptions) -> ReadOptions:
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


def find_records(contents: Contents, options: ReadOptions) -> dict[str, str]:
    """Return the path of each dataset of the record by name: the chosen ones, or all with a first axis."""
    if (datasets := DATASETS.of(options)) is not None:
        records = {name: path for each in datasets for name, path in _find_chosen(contents, each).items()}
        matrices = [contents.matrices[path] for path in records.values() if path in contents.matrices]
        return records | {part: part for each in matrices for part in each.parts}  # none without the other
    if options.refuses_foreign and find_roles(contents).copies:
        problem = "says which of its datasets have a row for each record, and the first input does not"
        raise InputError(contents.name, problem, remedy="shuffle the files apart")
    check_objects(contents, copies_nulls=False)
    if options.refuses_foreign:
        is_list = len({shape[0] for shape in contents.shapes.values()}) == 1
        refuse_parts(contents, contents.arrays if is_list else find_commonest(contents, contents.arrays))
    return {path: path for path in contents.arrays}


def _find_chosen(contents: Contents, path: str) -> dict[str, str]:
    array = resolve_path(contents, path)
    if array in contents.arrays:
        return {array if array in contents.matrices else path.strip("/"): array}
    matching = {each: each for each in contents.arrays if fnmatchcase(each, path.strip("/"))}
    if not matching:
        names = ", ".join(contents.arrays[:_MOST_NAMES]) or "none"
        more = ", ..." if len(contents.arrays) > _MOST_NAMES else ""
        problem = f"has no dataset {path!r} with a first axis"
        raise InputError(contents.name, problem, remedy=f"there are: {names}{more}")
    return matching


def read_inventory(contents: Contents, input_file: InputFile, records: dict[str, str]) -> Inventory:
    file, name, stamp = contents.file, input_file.name, content_of(contents.file).stamp
    opened = []
    for label, path in records.items():
        with reading(name, f"dataset {path!r}"):
            dataset = file[path].id
            check_access(dataset, path, name)
            opened.append((path, dataset, read_column(dataset, label)))
    check_lengths(contents, records)
    # The size of variable-length values is that of the file without what is stored of the datasets.
    is_fixed = all(each.kind is Kind.FIXED and path not in contents.matrices for path, _, each in opened)
    pairs = []
    for path, dataset, column in opened:
        with reading(name, f"dataset {path!r}"):
            root = find_index_root(file, dataset) if is_fixed else None
            pairs.append((column, read_storage(dataset, path, root)))
            _check_column(column, path, name, is_alone=len(contents.arrays) == 1)
            if root is None:
                check_chunks(dataset, path, name, stamp.size)
    _check_sizes(pairs, name, stamp.size)
    matrices = {contents.matrices[path] for path in records.values() if path in contents.matrices}
    lists = {part: found for matrix in matrices for part, found in _read_lists(contents, matrix).items()}
    datasets = []
    for column, storage in pairs:
        own = lists.get(storage.path)
        if own is None:
            datasets.append(Dataset(column, column, storage, None))
        else:  # a chunk of items has no known number of rows
            kept = replace(storage, chunk_rows=storage.chunk_rows and 1)
            datasets.append(Dataset(column.lists, column.lists, kept, own))
    return Inventory(input_file, stamp, contents.shapes[opened[0][0]][0], tuple(datasets))


def _check_column(column: Column, path: str, name: str, *, is_alone: bool) -> None:
    obstacle = find_obstacle(column.tid)
    if obstacle is None and column.kind is not Kind.FIXED and column.row_shape:
        obstacle = f"holds variable-length values of shape {column.row_shape} in a row"
    remedy = "write its parts as datasets of their own" if is_alone else "name other datasets with --datasets"
    if obstacle is None and column.row_bytes > _WIDEST_ROW_BYTES:
        obstacle = f"a row has {column.row_bytes} bytes, and at most {_WIDEST_ROW_BYTES} are possible"
    if obstacle is not None:
        raise InputError(name, obstacle, place=f"dataset {path!r}", remedy=remedy)


def _check_sizes(pairs: list[tuple[Column, Storage]], name: str, file_bytes: int) -> None:
    sizes = [
        (f"dataset {storage.path!r}", column.native_width * storage.row_count, storage.stored_bytes)
        for column, storage in pairs
    ]
    totals = ("all datasets", sum(size[1] for size in sizes), sum(size[2] for size in sizes))
    for place, declared, stored in [*sizes, totals]:
        stored_bytes = min(stored, file_bytes)
        if declared > _MOST_UNSTORED_BYTES and declared > _MOST_SHRINKAGE * stored_bytes:
            problem = f"declares {declared} bytes but stores {stored_bytes}"
            raise InputError(name, problem, place=place, remedy="write a file that has its data")


def _read_lists(contents: Contents, matrix: Matrix) -> dict[str, Lists]:
    """Return how an open file stores the rows of a matrix, by its parts; `InputError` if its datasets do not fit each other."""
    with reading(contents.name, f"group {matrix.path!r}"):
        pointers = contents.open_checked(matrix.pointers)
        axes = np.asarray(contents.file[matrix.path].attrs.get(SHAPE))
        if matrix.is_10x:
            axes = contents.open_checked(f"{matrix.path}/{SHAPE}")[()][::-1]
        parts = [read_column(contents.file[part].id, part) for part in matrix.parts]
        counts = [contents.file[part].shape[0] for part in matrix.parts]
        if axes.shape != (2,) or axes.dtype.kind not in "iu":
            problem = "has no shape of two axes"
        elif any(part.kind is not Kind.FIXED for part in parts):
            problem = "holds values of variable length"
        elif pointers.id.get_type().get_class() != h5t.INTEGER or not len(pointers):
            problem = f"holds no integers in {POINTERS}"
        else:
            rows, last_row = int(axes[0]), len(pointers) - 1
            begin, end = (int(read_pointers(pointers.id, row, 1)[0]) for row in (0, last_row))
            if (begin, end, rows) == (0, counts[0], last_row) and counts[0] == counts[1]:
                storage = read_storage(pointers.id, matrix.pointers)
                lists = Lists(matrix, end, int(axes[1]), storage, int(np.iinfo(pointers.dtype).max))
                return dict.fromkeys(matrix.parts, lists)
            stored = f"{counts[0]} values, {counts[1]} indices, and {last_row} rows from {begin} to {end}"
            problem = f"has {rows} rows by its shape, but {stored}"
    raise InputError(contents.name, problem, place=f"group {matrix.path!r}", remedy=WRITE_ANEW)


def find_pointers(image: h5py.File, names: Collection[str]) -> dict[str, Storage]:
    """Return the pointers of each part of a matrix among the datasets of the record, by its name."""
    pointers = {}
    for name in names:
        group, _, leaf = name.rpartition("/")
        path = f"{group}/{POINTERS}"
        # A whole matrix beside the records has no part among them, and at least one pointer.
        if group and leaf in PARTS and path not in names and path in image and image[path].shape == (0,):
            pointers[name] = read_storage(image[path].id, path)
    return pointers


def read_columns(image: h5py.File, names: list[str]) -> list[Column]:
    """Return the columns of shards that begin with an image."""
    lists = find_pointers(image, names)
    columns = [read_column(image[name].id, name) for name in names]
    return [column.lists if column.name in lists else column for column in columns]


def check_scalars(contents: Contents, *, lenient: bool) -> None:
    """Raise `InputError` if a dataset without a first axis cannot be copied, or, if lenient, leave it out."""
    obstacles = {path: find_scalar_obstacle(contents.file[path]) for path in contents.scalars}
    contents.scalars = [path for path, obstacle in obstacles.items() if obstacle is None]
    remedy = "name the datasets of the record with --datasets, without --keep-others, which leaves it out"
    for path, obstacle in obstacles.items():
        if obstacle and not lenient:
            raise InputError(contents.name, obstacle, place=f"dataset {path!r}", remedy=remedy)


def find_scalar_obstacle(dataset: h5py.Dataset) -> str | None:
    """Return why a dataset without a first axis cannot be copied; None if it can."""
    if dataset.id.get_create_plist().get_external_count() > 0:
        return "external storage reads other files"
    return find_copy_obstacle(dataset.id.get_type())


def unite_inventories(inventories: Sequence[Inventory], *, widens: bool) -> list[Inventory]:
    """Return inventories with the same columns, in the order of the first; `InputError` if they do not hold the same datasets."""
    first = inventories[0]
    ordered = [first, *(_order_as(first, other) for other in inventories[1:])]
    united = []
    for place in range(len(first.datasets)):
        columns = [each.datasets[place].own for each in ordered]
        column = unite_columns(columns, widens=widens)
        if column is None:
            wider = None if widens else unite_columns(columns, widens=True)
            change = (
                f"give --widen to make both {name_type(wider.tid)}" if wider else "write it with one type"
            )
            clashing = [unite_columns([columns[0], each], widens=widens) is None for each in columns]
            raise _describe_clash(ordered, place, clashing, f"{change}, or shuffle the files apart")
        united.append(column)
    if all(column is each.own for column, each in zip(united, first.datasets, strict=True)):
        return ordered
    pairs = [(each, zip(each.datasets, united, strict=True)) for each in ordered]
    return [
        replace(each, datasets=tuple(replace(own, column=new) for own, new in both)) for each, both in pairs
    ]


def _order_as(first: Inventory, other: Inventory) -> Inventory:
    """Return an inventory with its columns in the order of the first; files may list the same datasets in another one."""
    names, own = ({each.own.name: each for each in inventory.datasets} for inventory in (first, other))
    for name in sorted({*names} ^ {*own}):
        have, lack = (first, other) if name in names else (other, first)
        problem = f"has no dataset {name!r}, but {have.name} has"
        raise InputError(lack.name, problem, remedy="name those in all files with --datasets")
    for name, dataset in names.items():
        if dataset.lists is not None:
            theirs = own[name].lists
            width = "no" if theirs is None else theirs.width
            if width != dataset.lists.width:
                problem = f"has rows of {width} columns, but {dataset.lists.width} in {first.name}"
                place = f"group {dataset.lists.matrix.path!r}"
                raise InputError(other.name, problem, place=place, remedy=SAME_VARIABLES)
    return replace(other, datasets=tuple(own[name] for name in names))


def refuse_changed_types(inventories: Sequence[Inventory]) -> None:
    for place, first in enumerate(inventories[0].datasets):
        differing = [not first.own.holds_same(each.datasets[place].own) for each in inventories]
        if any(differing):
            remedy = (
                f"give --widen to make both {name_type(first.column.tid)}, as output of another format does"
            )
            raise _describe_clash(inventories, place, differing, remedy)


def _describe_clash(
    inventories: Sequence[Inventory], place: int, differing: Sequence[bool], remedy: str
) -> InputError:
    """Return an error about the first input whose dataset differs from that of the first, or about another if none does."""
    columns = [each.datasets[place].own for each in inventories]
    changed = [not columns[0].holds_same(each) for each in columns]
    index = differing.index(True) if any(differing) else changed.index(True)
    problem = f"{columns[index].name_rows()}, but {columns[0].name_rows()} in {inventories[0].name}"
    return InputError(inventories[index].name, problem, place=f"dataset {columns[0].name!r}", remedy=remedy)
