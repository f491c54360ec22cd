"""Inventory of an input: its datasets of the record, checked, and their storage."""

from __future__ import annotations

from dataclasses import field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from recshuf.dataclass import dataclass
from recshuf.errors import InputError
from recshuf.formats.hdf5.contents import (
    Contents,
    find_address,
    looking_into,
    read_stamp,
    reading,
    refuse_leftovers,
    require_arrays,
    resolve_path,
)
from recshuf.formats.hdf5.forms import ARROW_TYPE_ATTRIBUTE
from recshuf.formats.hdf5.roles import SAME_VARIABLES, Roles, find_commonest, find_roles
from recshuf.formats.hdf5.rows import Lists, find_pointers, item_column, list_column, read_lists
from recshuf.formats.hdf5.signs import check_lengths, refuse_parts
from recshuf.formats.hdf5.storage import (
    Column,
    Storage,
    check_access,
    check_chunks,
    find_index_root,
    read_column,
    read_storage,
)
from recshuf.formats.hdf5.types import Kind, find_copy_obstacle, find_obstacle, name_type
from recshuf.formats.hdf5.uniting import unite_columns
from recshuf.formats.options import DATASETS
from recshuf.records.arrays import dotted, unknown_column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import h5py

    from recshuf.interfaces import InputFile, ReadOptions, Stamp


# A file may declare far more data than it stores, which shards would then hold. Refused if even zeros deflated at the
# best ratio (1,032 to 1) would take more space. Small files of fill values stay below the first number.
_MOST_UNSTORED_BYTES = 4 << 30
_MOST_SHRINKAGE = 1100
_WIDEST_ROW_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Inventory:
    """The datasets of the record in one input."""

    input_file: InputFile
    stamp: Stamp
    row_count: int
    columns: tuple[Column, ...]
    storages: tuple[Storage, ...]
    own: tuple[Column, ...]
    """Columns as this input has them; their types may differ from those of other inputs."""
    lists: Mapping[str, Lists] = field(default_factory=dict)
    """How the lists of a column are stored, by its name, if they are rows of a sparse matrix."""

    @property
    def name(self) -> str:
        return self.input_file.name

    @property
    def is_fixed(self) -> bool:
        return all(column.kind is Kind.FIXED for column in self.columns)

    @property
    def fixed_bytes(self) -> int:
        return sum(column.fixed_bytes for column in self.columns)

    @property
    def native_bytes(self) -> int:
        """Estimated size of all records as native batches; exact if all have a fixed length."""
        return self.fixed_bytes * self.row_count + self.variable_bytes

    @property
    def variable_bytes(self) -> int:
        """Estimated size of the values of all variable-length columns: the rest of the file; known of sparse matrices."""
        listed = [column for column in self.columns if column.name in self.lists]
        known = sum(item_column(each).row_bytes * self.lists[each.name].item_count for each in listed)
        pairs = [pair for pair in zip(self.columns, self.own, strict=True) if pair[0] not in listed]
        if all(column.kind is Kind.FIXED for column, _ in pairs):
            return known
        fixed = sum(own.row_bytes for column, own in pairs if own.kind is Kind.FIXED is not column.kind)
        rest = max(0, self.stamp.size - sum(storage.stored_bytes for storage in self.storages))
        return known + rest + fixed * self.row_count

    @property
    def changed_bytes(self) -> int:
        """Bytes of a record in columns whose types are changed, before and after that."""
        pairs = zip(self.columns, self.own, strict=True)
        return sum(
            column.row_bytes + own.row_bytes for column, own in pairs if column.type_code != own.type_code
        )


class HoldsOthers(Exception):  # noqa: N818 # no error
    """Attributes of a file say which datasets are of the record, and which are copied. Never reaches the user."""


def find_records(contents: Contents, options: ReadOptions) -> dict[str, str]:
    """Return the path of each dataset of the record by name: the chosen ones, or all with a first axis."""
    if (datasets := DATASETS.of(options)) is not None:
        chosen = [_find_chosen(contents, path) for path in datasets]
        records = {name: path for paths in chosen for name, path in paths.items()}
        matrices = [contents.matrices[path] for path in records.values() if path in contents.matrices]
        return records | {part: part for each in matrices for part in each.parts}  # none without the other
    roles = find_roles(contents) if options.refuses_foreign else Roles()
    if roles.copies:
        check_lengths(contents, {path: path for path in contents.arrays if path in roles.rows})
        raise HoldsOthers
    refuse_leftovers(contents)
    require_arrays(contents)
    if options.refuses_foreign:
        lengths = {shape[0] for shape in contents.shapes.values()}
        is_list = len(lengths) == 1
        refuse_parts(contents, contents.arrays if is_list else find_commonest(contents, contents.arrays))
    return {path: path for path in contents.arrays}


def _find_chosen(contents: Contents, path: str) -> dict[str, str]:
    """Return the path of the dataset by its name, or of those that match a pattern."""
    resolved = resolve_path(contents, path)
    array = contents.addresses.get(find_address(contents.file[resolved].id)) if resolved else None
    if array in contents.arrays:
        return {array if array in contents.matrices else path.strip("/"): array}
    matching = {each: each for each in contents.arrays if fnmatchcase(each, path.strip("/"))}
    if not matching:
        problem = f"has no dataset {path!r} with a first axis"
        raise InputError(contents.name, problem, remedy=f"there are: {contents.list_datasets() or 'none'}")
    return matching


def choose_datasets(input_file: InputFile, options: ReadOptions, field: str) -> tuple[str, ...]:
    """Return the datasets, of the record or with a first axis, that hold a field or are part of it."""
    datasets = DATASETS.of(options)
    if datasets is None or any("*" in name for name in datasets):
        with looking_into(input_file) as contents:
            datasets = tuple(contents.arrays if datasets is None else find_records(contents, options))
    wanted = f"{dotted(field)}."
    paths = {name: f"{dotted(name)}." for name in datasets}
    chosen = [name for name, path in paths.items() if path.startswith(wanted) or wanted.startswith(path)]
    if not chosen:
        raise unknown_column(field, datasets)
    return tuple(chosen)


def read_inventory(contents: Contents, input_file: InputFile, records: dict[str, str]) -> Inventory:
    """Return the inventory of an open input with these datasets of the record."""
    file, stamp = contents.file, read_stamp(contents.file)
    datasets, columns, storages = {}, [], []
    for name, path in records.items():
        with reading(input_file.name, f"dataset {path!r}"):
            datasets[name] = dataset = file[path]
            check_access(dataset.id, path, input_file.name)
            columns.append(read_column(dataset.id, name, _read_arrow_type(dataset)))
    # The size of variable-length values is that of the file without what is stored of the datasets.
    is_fixed = all(column.kind is Kind.FIXED and column.name not in contents.matrices for column in columns)
    for name, path in records.items():
        with reading(input_file.name, f"dataset {path!r}"):
            dataset = datasets[name].id
            root = find_index_root(file, dataset) if is_fixed else None
            storages.append(read_storage(dataset, path, root))
    check_lengths(contents, records)
    for column, storage in zip(columns, storages, strict=True):
        with reading(input_file.name, f"dataset {storage.path!r}"):
            _check_column(column, storage, input_file.name, is_alone=len(contents.arrays) == 1)
            if storage.index_root is None:
                check_chunks(datasets[column.name].id, storage.path, input_file.name, stamp.size)
    _check_sizes(columns, storages, input_file.name, stamp.size)
    parts = {name: contents.matrices[name] for name in records if name in contents.matrices}
    known = {matrix: read_lists(contents, matrix) for matrix in dict.fromkeys(parts.values())}
    lists = {name: known[matrix] for name, matrix in parts.items()}
    own = tuple(list_column(column) if column.name in lists else column for column in columns)
    row_count = contents.shapes[storages[0].path][0]
    # A chunk of items has no known number of rows.
    kept = (
        replace(each, chunk_rows=each.chunk_rows and 1) if each.path in lists else each for each in storages
    )
    return Inventory(input_file, stamp, row_count, own, tuple(kept), own, lists)


def read_columns(file: h5py.File, names: list[str]) -> list[Column]:
    columns = [read_column(file[name].id, name, _read_arrow_type(file[name])) for name in names]
    lists = find_pointers(file, names)
    return [list_column(column) if column.name in lists else column for column in columns]


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


def _read_arrow_type(dataset: h5py.Dataset) -> str | None:
    if ARROW_TYPE_ATTRIBUTE not in dataset.attrs:
        return None
    noted = dataset.attrs[ARROW_TYPE_ATTRIBUTE]
    return noted if isinstance(noted, str) else None


def unite_inventories(inventories: Sequence[Inventory], *, widens: bool) -> list[Inventory]:
    """Return inventories with the same columns, in the order of the first; `InputError` if they do not hold the same datasets."""
    first = inventories[0]
    ordered = [first, *(_order_as(first, other) for other in inventories[1:])]
    united: list[Column] = []
    for columns in zip(*(each.own for each in ordered), strict=True):
        column = unite_columns(columns, widens=widens)
        if column is None:
            raise _type_error(ordered, columns, widens=widens)
        united.append(column)
    if all(column is own for column, own in zip(united, first.own, strict=True)):
        return ordered
    return [replace(each, columns=tuple(united)) for each in ordered]


def _order_as(first: Inventory, other: Inventory) -> Inventory:
    """Return an inventory with its columns in the order of the first; files may list the same datasets in another one."""
    names, own = ([column.name for column in each.own] for each in (first, other))
    for name in sorted({*names} ^ {*own}):
        have, lack = (first, other) if name in names else (other, first)
        problem = f"has no dataset {name!r}, but {have.name} has"
        raise InputError(lack.name, problem, remedy="name those in all files with --datasets")
    for name, lists in first.lists.items():
        width = other.lists[name].width if name in other.lists else "no"
        if width != lists.width:
            problem = f"has rows of {width} columns, but {lists.width} in {first.name}"
            raise InputError(other.name, problem, place=f"group {lists.matrix.path!r}", remedy=SAME_VARIABLES)
    if own == names:
        return other
    places = [own.index(name) for name in names]
    columns = tuple(other.own[place] for place in places)
    storages = tuple(other.storages[place] for place in places)
    return replace(other, columns=columns, own=columns, storages=storages)


def _type_error(inventories: Sequence[Inventory], columns: Sequence[Column], *, widens: bool) -> InputError:
    wider = None if widens else unite_columns(columns, widens=True)
    remedy = "write it with one type, or shuffle the files apart"
    if wider is not None:
        remedy = f"give --widen to make both {name_type(wider.tid)}, or shuffle the files apart"
    differing = [index for index, each in enumerate(columns) if not columns[0].holds_same(each)]
    clashing = (
        index for index in differing if unite_columns([columns[0], columns[index]], widens=widens) is None
    )
    return _describe_clash(inventories, columns, next(clashing, differing[0]), remedy)


def _describe_clash(
    inventories: Sequence[Inventory], columns: Sequence[Column], index: int, remedy: str
) -> InputError:
    first, other = columns[0], columns[index]
    problem = f"{other.name_rows()}, but {first.name_rows()} in {inventories[0].name}"
    return InputError(inventories[index].name, problem, place=f"dataset {first.name!r}", remedy=remedy)


def refuse_changed_types(inventories: Sequence[Inventory]) -> None:
    """Raise `InputError` if the type of a dataset differs between inputs."""
    first = inventories[0]
    for place, column in enumerate(first.columns):
        columns = [each.own[place] for each in inventories]
        differing = [index for index, each in enumerate(columns) if not columns[0].holds_same(each)]
        if differing:
            remedy = f"give --widen to make both {name_type(column.tid)}, as output of another format does"
            raise _describe_clash(inventories, columns, differing[0], remedy)


def _check_column(column: Column, storage: Storage, name: str, *, is_alone: bool) -> None:
    place = f"dataset {storage.path!r}"
    obstacle = find_obstacle(column.tid)
    if obstacle is None and column.kind is not Kind.FIXED and column.row_shape:
        obstacle = f"holds variable-length values of shape {column.row_shape} in a row"
    if obstacle:
        remedy = (
            "write its parts as datasets of their own" if is_alone else "name other datasets with --datasets"
        )
        raise InputError(name, obstacle, place=place, remedy=remedy)
    if column.row_bytes > _WIDEST_ROW_BYTES:
        problem = f"a row has {column.row_bytes} bytes, and at most {_WIDEST_ROW_BYTES} are possible"
        raise InputError(name, problem, place=place)


def _check_sizes(columns: list[Column], storages: list[Storage], name: str, file_bytes: int) -> None:
    sizes = [
        (f"dataset {storage.path!r}", column.native_width * storage.row_count, storage.stored_bytes)
        for column, storage in zip(columns, storages, strict=True)
    ]
    totals = ("all datasets", sum(size[1] for size in sizes), sum(size[2] for size in sizes))
    for place, declared, stored in [*sizes, totals]:
        stored_bytes = min(stored, file_bytes)
        if declared > _MOST_UNSTORED_BYTES and declared > _MOST_SHRINKAGE * stored_bytes:
            problem = f"declares {declared} bytes but stores {stored_bytes}"
            raise InputError(name, problem, place=place, remedy="write a file that has its data")
