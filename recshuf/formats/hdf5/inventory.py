"""Inventory of one HDF5 input: its datasets of the record, checked, and their storage.

Lengths of datasets that are to be one record.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from h5py import h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.chunk_index import check_chunks
from recshuf.formats.hdf5.contents import (
    Contents,
    find_address,
    refuse_elsewhere,
    refuse_leftovers,
    require_arrays,
    resolve_path,
    walk_file,
)
from recshuf.formats.hdf5.filters import refuse_unknown_filters
from recshuf.formats.hdf5.forms import ARROW_TYPE_ATTRIBUTE
from recshuf.formats.hdf5.heap import check_small_file
from recshuf.formats.hdf5.opening import content_of, find_index_root, opened, read_stamp, reading
from recshuf.formats.hdf5.types import (
    Column,
    Kind,
    Storage,
    find_copy_obstacle,
    find_obstacle,
    kind_of,
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
    """Raise `InputError` if datasets, by name, differ in length; it proposes those that may belong together.

    Parameters
    ----------
    name
        Name of the file for messages.
    """
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
        by_length.values(), key=lambda paths: (len(paths), sum(_count_bytes(datasets[one]) for one in paths))
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
    if any("," in one or not one.isprintable() for one in shown):
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
    def file_bytes(self) -> int:
        """Size of the file."""
        return self.stamp.size

    @property
    def native_bytes(self) -> int:
        """Estimated size of all records as native batches; exact if all have a fixed length."""
        fixed = sum(column.fixed_bytes for column in self.columns) * self.row_count
        return fixed + self.variable_bytes

    @property
    def variable_bytes(self) -> int:
        """Estimated size of the values of all variable-length columns: the rest of the file."""
        if all(column.kind is Kind.FIXED for column in self.columns):
            return 0
        return max(0, self.file_bytes - sum(storage.stored_bytes for storage in self.storages))


def find_records(
    file: h5py.File, name: str, contents: Contents, datasets: tuple[str, ...] | None
) -> dict[str, str]:
    """Return the path of each dataset of the record by name: the chosen ones, or all with a first axis."""
    if datasets is not None:
        return {path.strip("/"): _find_chosen(file, name, contents, path) for path in datasets}
    refuse_leftovers(contents, name)
    require_arrays(contents, name)
    return {path: path for path in contents.arrays}


def _find_chosen(file: h5py.File, name: str, contents: Contents, path: str) -> str:
    resolved = resolve_path(file, path, name)
    found = contents.addresses.get(find_address(file[resolved].id)) if resolved else None
    if found not in contents.arrays:
        known = contents.list_datasets() or "none"
        raise InputError(name, f"has no dataset {path!r} with a first axis", remedy=f"there are: {known}")
    return found


def choose_datasets(input_file: InputFile, datasets: tuple[str, ...] | None, field: str) -> tuple[str, ...]:
    """Return the datasets, of the record or with a first axis, that hold a field or are part of it."""
    if datasets is None:
        with opened(input_file) as file:
            datasets = tuple(walk_file(file, input_file.name).arrays)
    wanted = f"{dotted(field)}."
    paths = [f"{dotted(name)}." for name in datasets]
    chosen = [
        name
        for name, path in zip(datasets, paths, strict=True)
        if path.startswith(wanted) or wanted.startswith(path)
    ]
    if not chosen:
        raise unknown_column(field, datasets)
    return tuple(chosen)


def take_inventory(input_file: InputFile, datasets: tuple[str, ...] | None) -> Inventory:
    """Return the inventory of one input."""
    with opened(input_file) as file:
        return read_inventory(
            file, input_file, find_records(file, input_file.name, walk_file(file, input_file.name), datasets)
        )


def read_inventory(file: h5py.File, input_file: InputFile, records: dict[str, str]) -> Inventory:
    """Return the inventory of an open input with these datasets of the record."""
    stamp = read_stamp(file)
    check_small_file(content_of(file), stamp.size)
    columns, storages = [], []
    for name, path in records.items():
        with reading(input_file.name, f"dataset {path!r}"):
            dataset = file[path]
            _check_dataset(dataset, path, input_file.name)
            columns.append(read_column(dataset.id, name, _read_arrow_type(dataset)))
    # The size of variable-length values is that of the file without what is stored of the datasets.
    is_fixed = all(column.kind is Kind.FIXED for column in columns)
    for path in records.values():
        with reading(input_file.name, f"dataset {path!r}"):
            dataset = file[path].id
            root = find_index_root(file, dataset) if is_fixed else None
            storages.append(read_storage(dataset, path, root))
    check_lengths({record: file[path] for record, path in records.items()}, input_file.name)
    for column, storage in zip(columns, storages, strict=True):
        with reading(input_file.name, f"dataset {storage.path!r}"):
            _check_column(column, storage, input_file.name)
            if storage.index_root is None:
                item_bytes = find_item_bytes(file, column)
                check_chunks(file[storage.path].id, item_bytes, storage.path, input_file.name, stamp.size)
    _check_sizes(columns, storages, input_file.name, stamp.size)
    return Inventory(input_file, stamp, storages[0].row_count, tuple(columns), tuple(storages))


def read_columns(file: h5py.File, names: list[str]) -> list[Column]:
    """Return the columns of some datasets."""
    return [read_column(file[name].id, name, _read_arrow_type(file[name])) for name in names]


def drop_scalars(file: h5py.File, contents: Contents) -> None:
    """Drop the datasets without a first axis that cannot be copied."""
    contents.scalars = [path for path in contents.scalars if _find_scalar_obstacle(file[path]) is None]


def check_scalars(file: h5py.File, contents: Contents, name: str) -> None:
    """Raise `InputError` if a dataset without a first axis cannot be copied."""
    for path in contents.scalars:
        obstacle = _find_scalar_obstacle(file[path])
        if obstacle:
            remedy = (
                "name the datasets of the record with --datasets, without --keep-others, which leaves it out"
            )
            raise InputError(name, obstacle, place=f"dataset {path!r}", remedy=remedy)


def _find_scalar_obstacle(dataset: h5py.Dataset) -> str | None:
    kind_of(dataset.id.get_type())
    if dataset.id.get_type().detect_class(h5t.REFERENCE):
        return "holds references, which mean nothing in another file"
    if dataset.id.get_create_plist().get_external_count() > 0:
        return "external storage reads other files"
    return find_copy_obstacle(dataset.id.get_type())


def _check_dataset(dataset: h5py.Dataset, path: str, name: str) -> None:
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
    totals = (
        "all datasets",
        sum(declared for _, declared, _ in sizes),
        sum(stored for _, _, stored in sizes),
    )
    for place, declared, stored in [*sizes, totals]:
        stored_bytes = min(stored, file_bytes)
        if declared > _MOST_UNSTORED_BYTES and declared > _MOST_SHRINKAGE * stored_bytes:
            problem = f"declares {declared} bytes but stores {stored_bytes}"
            raise InputError(name, problem, place=place, remedy="write a file that has its data")
