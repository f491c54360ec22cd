"""Inventory of an input: its datasets of the record, checked, and their storage."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats.hdf5.chunk_index import check_chunks
from recshuf.formats.hdf5.contents import (
    Contents,
    find_address,
    looking_into,
    refuse_elsewhere,
    refuse_leftovers,
    require_arrays,
    resolve_path,
)
from recshuf.formats.hdf5.filters import refuse_unknown_filters
from recshuf.formats.hdf5.forms import ARROW_TYPE_ATTRIBUTE
from recshuf.formats.hdf5.heap import check_small_file
from recshuf.formats.hdf5.opening import content_of, find_index_root, read_stamp, reading
from recshuf.formats.hdf5.types import (
    Column,
    Kind,
    Storage,
    find_copy_obstacle,
    find_obstacle,
    read_column,
    read_storage,
)
from recshuf.records.arrays import dotted, unknown_column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import h5py

    from recshuf.interfaces import InputFile, Stamp


_MOST_SHOWN = 3
# PyTables keeps its indexes under such names, and more of them than the table has datasets; pandas keeps categories so.
_HIDDEN = re.compile(r"(^|/)(_[pi]_|meta/[^/]+/meta/)")
_OBSERVATIONS = re.compile(r"(obs|obsm|layers)/(?!.*/categories$)|(raw/)?X$")
"""Datasets of AnnData whose rows are observations, unless they have another length."""


def check_lengths(datasets: Mapping[str, h5py.Dataset], name: str) -> None:
    """Raise `InputError` if datasets, by name, differ in length; it proposes those that may belong together."""
    examples: dict[int, str] = {}
    for path, dataset in datasets.items():
        examples.setdefault(dataset.shape[0], f"{path} {dataset.shape}")
    if len(examples) > 1:
        problem = f"datasets differ in length: {shorten(list(examples.values()), len(datasets))}"
        raise InputError(name, problem, remedy=_propose(find_commonest(datasets)))


def find_commonest(datasets: Mapping[str, h5py.Dataset]) -> list[str]:
    """Return the names of the datasets of the commonest length; of several such lengths, that with the most bytes.

    In files of AnnData, only datasets of observations count. Datasets of one row or none, indexes of PyTables, and
    categories of pandas count only if there are no others.
    """
    by_length: dict[int, list[str]] = {}
    seen = [path for path, each in datasets.items() if each.shape[0] > 1 and not _HIDDEN.search(path)]
    if is_anndata(datasets[next(iter(datasets))]):
        seen = [path for path in seen if _OBSERVATIONS.match(path)]
    for path in seen or datasets:
        by_length.setdefault(datasets[path].shape[0], []).append(path)
    return max(
        by_length.values(),
        key=lambda paths: (len(paths), sum(_count_bytes(datasets[path]) for path in paths)),
    )


def _count_bytes(dataset: h5py.Dataset) -> int:
    # h5py's own count needs a type of NumPy.
    return int(prod(dataset.shape) * dataset.id.get_type().get_size())


def is_anndata(dataset: h5py.Dataset) -> bool:
    """Tell whether a dataset is in a file of AnnData."""
    return bool(dataset.file.attrs.get("encoding-type") == "anndata")


def may_have_observations(dataset: h5py.Dataset, path: str) -> bool:
    """Tell whether rows of a dataset may be those of the record, if they are as many: in AnnData, not those of variables."""
    return not is_anndata(dataset) or path.startswith("obsp/") or bool(_OBSERVATIONS.match(path))


def shorten(names: Sequence[str], count: int | None = None) -> str:
    """Return the first names and the number of further ones, of `count` in all, for a message."""
    shown = names[:_MOST_SHOWN]
    rest = (len(names) if count is None else count) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _propose(names: list[str]) -> str:
    shown = names[:_MOST_SHOWN]
    remedy = "for HDF5 output, --keep-others copies those of other lengths unchanged; else name those that belong together with --datasets"
    if any("," in name or not name.isprintable() for name in shown):
        return remedy  # the command line cannot name them
    example = shorten([shlex.quote(",".join(shown))], len(names) - len(shown) + 1)
    return f"{remedy}, such as --datasets {example}"


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
    """Storage of each column."""

    @property
    def name(self) -> str:
        return self.input_file.name

    @property
    def is_fixed(self) -> bool:
        """Whether all records have the same length."""
        return all(column.kind is Kind.FIXED for column in self.columns)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of a record that do not depend on its value."""
        return sum(column.fixed_bytes for column in self.columns)

    @property
    def native_bytes(self) -> int:
        """Estimated size of all records as native batches; exact if all have a fixed length."""
        return self.fixed_bytes * self.row_count + self.variable_bytes

    @property
    def variable_bytes(self) -> int:
        """Estimated size of the values of all variable-length columns: the rest of the file."""
        if self.is_fixed:
            return 0
        return max(0, self.stamp.size - sum(storage.stored_bytes for storage in self.storages))


def find_records(contents: Contents, datasets: tuple[str, ...] | None) -> dict[str, str]:
    """Return the path of each dataset of the record by name: the chosen ones, or all with a first axis."""
    if datasets is not None:
        return {path.strip("/"): _find_chosen(contents, path) for path in datasets}
    refuse_leftovers(contents)
    require_arrays(contents)
    return {path: path for path in contents.arrays}


def _find_chosen(contents: Contents, path: str) -> str:
    resolved = resolve_path(contents, path)
    array = contents.addresses.get(find_address(contents.file[resolved].id)) if resolved else None
    if array not in contents.arrays:
        problem = f"has no dataset {path!r} with a first axis"
        raise InputError(contents.name, problem, remedy=f"there are: {contents.list_datasets() or 'none'}")
    return array


def choose_datasets(input_file: InputFile, datasets: tuple[str, ...] | None, field: str) -> tuple[str, ...]:
    """Return the datasets, of the record or with a first axis, that hold a field or are part of it."""
    if datasets is None:
        with looking_into(input_file) as contents:
            datasets = tuple(contents.arrays)
    wanted = f"{dotted(field)}."
    paths = {name: f"{dotted(name)}." for name in datasets}
    chosen = [name for name, path in paths.items() if path.startswith(wanted) or wanted.startswith(path)]
    if not chosen:
        raise unknown_column(field, datasets)
    return tuple(chosen)


def read_inventory(file: h5py.File, input_file: InputFile, records: dict[str, str]) -> Inventory:
    """Return the inventory of an open input with these datasets of the record."""
    stamp = read_stamp(file)
    check_small_file(content_of(file), stamp.size)
    datasets, columns, storages = {}, [], []
    for name, path in records.items():
        with reading(input_file.name, f"dataset {path!r}"):
            datasets[name] = dataset = file[path]
            check_access(dataset, path, input_file.name)
            columns.append(read_column(dataset.id, name, _read_arrow_type(dataset)))
    # The size of variable-length values is that of the file without what is stored of the datasets.
    is_fixed = all(column.kind is Kind.FIXED for column in columns)
    for name, path in records.items():
        with reading(input_file.name, f"dataset {path!r}"):
            dataset = datasets[name].id
            root = find_index_root(file, dataset) if is_fixed else None
            storages.append(read_storage(dataset, path, root))
    check_lengths(datasets, input_file.name)
    for column, storage in zip(columns, storages, strict=True):
        with reading(input_file.name, f"dataset {storage.path!r}"):
            _check_column(column, storage, input_file.name)
            if storage.index_root is None:
                item_bytes = find_item_bytes(file, column)
                check_chunks(datasets[column.name].id, item_bytes, storage.path, input_file.name, stamp.size)
    _check_sizes(columns, storages, input_file.name, stamp.size)
    return Inventory(input_file, stamp, storages[0].row_count, tuple(columns), tuple(storages))


def read_columns(file: h5py.File, names: list[str]) -> list[Column]:
    """Return the columns of some datasets."""
    return [read_column(file[name].id, name, _read_arrow_type(file[name])) for name in names]


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


def check_access(dataset: h5py.Dataset, path: str, name: str) -> None:
    """Raise `InputError` if the values of a dataset lie in other files or need a filter that is not installed."""
    refuse_elsewhere(dataset.id, path, name)
    refuse_unknown_filters(dataset.id.get_create_plist(), name, f"dataset {path!r}")


def _read_arrow_type(dataset: h5py.Dataset) -> str | None:
    if ARROW_TYPE_ATTRIBUTE not in dataset.attrs:
        return None
    noted = dataset.attrs[ARROW_TYPE_ATTRIBUTE]
    return noted if isinstance(noted, str) else None


def _check_column(column: Column, storage: Storage, name: str) -> None:
    place = f"dataset {storage.path!r}"
    obstacle = find_obstacle(column.tid)
    if obstacle is None and column.kind is not Kind.FIXED and column.row_shape:
        obstacle = f"holds variable-length values of shape {column.row_shape} in a row"
    if obstacle:
        remedy = "name other datasets with --datasets"
        raise InputError(name, obstacle, place=place, remedy=remedy)
    if column.row_bytes > _WIDEST_ROW_BYTES:
        problem = f"a row has {column.row_bytes} bytes, and at most {_WIDEST_ROW_BYTES} are possible"
        raise InputError(name, problem, place=place)


def find_item_bytes(file: h5py.File, column: Column) -> int:
    """Return the size of an element in the file; of a variable-length one, that of its length, address and index."""
    if column.kind is Kind.FIXED:
        return int(column.tid.get_size())
    address_bytes, _ = file.id.get_create_plist().get_sizes()
    return 4 + int(address_bytes) + 4


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
