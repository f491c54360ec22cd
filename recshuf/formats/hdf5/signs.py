"""Signs that datasets are no columns of a list of records, or that copies beside shuffled rows would no longer fit them.

A file does not say what its rows are. What looks as if shuffling would tear it is refused unless users name the datasets.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from posixpath import commonpath
from typing import TYPE_CHECKING, NamedTuple

from h5py import h5t

from recshuf.errors import InputError
from recshuf.formats.files import shorten, write_flag
from recshuf.formats.hdf5.contents import list_scales
from recshuf.formats.hdf5.roles import (
    Roles,
    explain_storage,
    find_commonest,
    find_roles,
    find_sparse,
    is_hidden,
    is_of_variables,
    propose_without,
)
from recshuf.system.units import count_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from recshuf.formats.hdf5.contents import Contents


LEAVE_OUT = "name the datasets of the record with --datasets, without --keep-others"
_NUMBER = re.compile(
    r"[^/]+(?=\.(?:jpe?g|png|bmp|tiff?|npy|txt|wav|flac|mp3|nii|dcm)(?:/|$))"
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|(?=[a-f]*\d)[0-9a-f]{8,}"
    r"|\d+"
)
"""What tells samples apart in names: a name of a file, a UUID, a hash or a number."""
_LEAST_SAMPLES = 3
_PAIR = re.compile(r"(?:.*/)?obsp/[^/]+")
_STARTS = re.compile(r"offset|start|begin|ptr|first", re.IGNORECASE)


def _such_as(names: Sequence[str]) -> str:
    flag = write_flag(names)
    return "" if flag is None else f", such as {flag}"


class _Family(NamedTuple):
    """Datasets with names that differ only by a number, and values of one type; text may differ in length."""

    paths: list[str]
    has_codes: bool
    """Whether what differs is no plain number."""
    is_deep: bool
    """Whether a row holds several values, or groups have the numbers."""

    @property
    def is_sure(self) -> bool:
        """Whether they are so many, or named so, that they seem to be samples."""
        return self.has_codes or len(self.paths) >= _LEAST_SAMPLES


def refuse_parts(contents: Contents, records: Sequence[str]) -> None:
    """Raise `InputError` if datasets that nobody has named seem to be no columns of a list of records.

    They are columns if another dataset of the record has no row for each of them.
    """
    _refuse_sparse(contents, records, Roles())
    _refuse_axes(contents, records, records)
    samples = [family for family in _find_families(contents) if family.is_sure]
    lengths = {path: shape[0] for path, shape in contents.shapes.items()}
    # A dataset with a row for each member says nothing about the rows of the members, if none or all of these are as long.
    pairs = ((len(family.paths), family.paths) for family in samples)
    counts = {count for count, paths in pairs if len({lengths[path] == count for path in paths}) == 1}
    members = {*_list_members(samples)}
    if samples and all(path in members or lengths[path] in counts for path in records):
        _refuse_samples(contents, samples)


def _list_members(families: Sequence[_Family]) -> list[str]:
    return [path for family in families for path in family.paths]


def _find_families(contents: Contents) -> list[_Family]:
    by_name: dict[tuple[str, int], list[str]] = {}
    for path, shape in contents.shapes.items():
        if not is_hidden(path):
            by_name.setdefault((_NUMBER.sub("#", path), len(shape)), []).append(path)
    by_type: dict[tuple[object, ...], list[str]] = {}
    for name, paths in by_name.items():
        for path in paths if len(paths) > 1 else ():
            tid = contents.file[path].id.get_type()
            size = 0 if tid.get_class() == h5t.STRING else tid.get_size()
            by_type.setdefault((*name, tid.get_class(), size), []).append(path)
    families = []
    for paths in (paths for paths in by_type.values() if len(paths) > 1):
        columns = zip(*(_NUMBER.findall(path) for path in paths), strict=True)
        differing = [each for column in columns if len({*column}) > 1 for each in column]
        has_codes = any(not each.isdigit() or (each[0] == "0" and len(each) > 1) for each in differing)
        in_groups = len({path.rpartition("/")[0] for path in paths}) > 1
        families.append(_Family(paths, has_codes, in_groups or len(contents.shapes[paths[0]]) > 1))
    return families


def _refuse_samples(contents: Contents, samples: Sequence[_Family]) -> None:
    members = {*_list_members(samples)}
    parts = [path.split("/") for path in samples[0].paths]
    depth = next(index for index, column in enumerate(zip(*parts, strict=True)) if len({*column}) > 1)
    what = "dataset" if depth == len(parts[0]) - 1 else "group"
    names = ["/".join(each[: depth + 1]) for each in parts]
    problem = (
        f"{what}s {shorten(names)} differ only by a number or code, as samples do that have a {what} each; a row of them is no "
        "record, and those of all samples would be shuffled alike"
    )
    remedy = "write one dataset with a row for each sample"
    firsts = [family.paths[0] for family in samples] if what == "dataset" else [names[0] + "/"]
    patterns = [_NUMBER.sub("*", first) + "*" * first.endswith("/") for first in firsts]
    matched = {path for path in contents.arrays if any(fnmatchcase(path, each) for each in patterns)}
    has_one_length = len({contents.shapes[path][0] for path in members}) == 1
    flag = write_flag(patterns) if has_one_length and matched == members else None
    raise InputError(contents.name, problem, remedy=f"{remedy}, or insist with {flag}" if flag else remedy)


def describe_doubt(contents: Contents, records: Sequence[str]) -> str | None:
    """Return a sentence about datasets that nobody has named and that may be lists of their own; None if there are none."""
    families = _find_families(contents)
    is_all = {*_list_members(families)}.issuperset(records)
    alike = [each for each in families if is_all or (each.is_sure and (each.has_codes or each.is_deep))]
    doubtful = alike[0].paths if alike else _find_twins(records)
    if not doubtful:
        return None
    remedy = "if they are lists of their own, name one with --datasets"
    return f"{contents.name}: row i of {shorten(doubtful)} is taken for one record; {remedy}"


def _find_twins(records: Sequence[str]) -> list[str] | None:
    """Return one dataset of each group, if all are in groups that hold the same names."""
    folder = commonpath(records)
    inside: dict[str, set[str]] = {}
    for path in records:
        group, _, rest = path[len(folder) :].lstrip("/").partition("/")
        inside.setdefault(group, set()).add(rest)
    first, *others = inside.values()
    is_same = others and "" not in first and all(each == first for each in others)
    return [f"{folder}/{group}/{min(first)}".lstrip("/") for group in inside] if is_same else None


def check_lengths(contents: Contents, records: Mapping[str, str]) -> None:
    """Raise `InputError` if datasets, paths by name, differ in length; it proposes those that may belong together."""
    examples: dict[int, str] = {}
    for name, path in records.items():
        shape = contents.shapes[path]
        examples.setdefault(shape[0], f"{name} {shape}")
    if len(examples) <= 1:
        return
    problem = f"datasets differ in length: {shorten(list(examples.values()), len(records))}"
    chosen = find_commonest(contents, records.values())
    remedy = f"name those that belong together with --datasets{_such_as(chosen)}"
    others = [path for path in records.values() if path not in chosen]
    try:
        check_independent(contents, chosen, others, find_roles(contents))
    except InputError as error:
        if error.place:
            problem, remedy = f"{problem}; {error.place} {error.problem}", f"{error.remedy}{_such_as(chosen)}"
    else:
        remedy = f"for HDF5 output, --keep-others copies those of other lengths unchanged; else {remedy}"
    raise InputError(contents.name, problem, remedy=remedy)


def check_independent(
    contents: Contents, records: Sequence[str], others: Sequence[str], roles: Roles
) -> None:
    """Raise `InputError` if the rows of another dataset seem to belong to those of the record."""
    if roles.rows:
        _refuse_strangers(contents, [path for path in others if path not in roles.copies])
    _refuse_sparse(contents, records, roles)
    _refuse_axes(contents, records, others)
    row_count = contents.shapes[records[0]][0]
    folders = {path.rpartition("/")[0] for path in records}
    for path in others:
        dataset, problem = contents.file[path], ""
        if dataset.shape is None:
            continue
        is_number = dataset.id.get_type().get_class() in (h5t.INTEGER, h5t.FLOAT)
        if dataset.shape[0] == row_count and path not in roles.copies:
            problem = f"has {count_of(row_count, 'row')}, as the records, but is not one of their datasets"
        elif dataset.shape == (row_count + 1,) and is_number and path not in roles.copies:
            numbers = count_of(row_count + 1, "number")
            problem = f"has {numbers}, one more than the records, as their offsets or edges would"
        elif path.rpartition("/")[0] in folders and dataset.attrs.get("PSEUDOATOM") == b"object":
            problem = "holds pickled objects, which may be rows of the records"
        if problem:
            raise InputError(contents.name, problem, place=f"dataset {path!r}", remedy=LEAVE_OUT)
    if not roles.rows:
        _refuse_lists(contents, records, others)


def _refuse_strangers(contents: Contents, others: Sequence[str]) -> None:
    """Raise `InputError` if AnnData or 10x leaves open which rows of other datasets belong to those of the record."""
    of_10x = any(matrix.is_10x for matrix in contents.matrices.values())
    for path in others:
        name, problem = (
            path,
            "is none of the datasets that 10x describes, and may follow the order of its barcodes",
        )
        if pair := _PAIR.match(path):
            name, problem = pair[0], "is of pairs of records, and each shard has only some of them"
        if pair or of_10x:
            raise InputError(contents.name, problem, place=repr(name), remedy=propose_without(contents, name))


def _refuse_sparse(contents: Contents, records: Sequence[str], roles: Roles) -> None:
    row_count, chosen = contents.shapes[records[0]][0], {*records}
    matrices = list(find_sparse(contents))
    for index, sparse in enumerate(matrices):
        if not chosen.isdisjoint(sparse.parts):
            problem = "is a sparse matrix, and its stored values are no records"
        elif (row_count in sparse.axes or not sparse.axes) and not (
            roles.rows and is_of_variables(sparse.path)
        ):
            problem = (
                f"is a sparse matrix with an axis of {row_count}, as the records, and cannot be shuffled"
            )
        else:
            continue
        parts = {part for each in matrices for part in each.parts}
        left = [path for path in contents.arrays if path not in parts]
        known = explain_storage(contents, [each.path for each in matrices[index:]])
        problem, remedy = known or (problem, "write it as a dense one")
        if roles.rows and "uns" in sparse.path.split("/"):
            remedy = propose_without(contents, sparse.path)
        if left and not roles.rows:
            remedy += f", or leave it out: {LEAVE_OUT}{_such_as(find_commonest(contents, left))}"
        raise InputError(contents.name, problem, place=f"group {sparse.path or '/'!r}", remedy=remedy)


def _refuse_axes(contents: Contents, records: Sequence[str], paths: Sequence[str]) -> None:
    """Raise `InputError` if a dataset has a dimension of the records elsewhere than the records have it, as it may in netCDF."""
    attached = {path: [*list_scales(contents.file[path].id)] for path in {*records, *paths}}
    own = {address for path in records for axis, address in attached[path] if axis == 0}
    own |= {address for address, path in contents.addresses.items() if path in {*records}}
    for path in paths:
        axes = [axis for axis, address in attached[path] if address in own and (axis or path not in records)]
        if axes:
            problem = f"has axis {axes[0] + 1} along the dimension of the records, and would keep its former order there"
            raise InputError(contents.name, problem, place=f"dataset {path!r}", remedy=LEAVE_OUT)


def _refuse_lists(contents: Contents, records: Sequence[str], others: Sequence[str]) -> None:
    """Raise `InputError` if a dataset holds lengths or offsets of lists in another, and one of both is of the record."""
    shapes, chosen = contents.shapes, {*records}
    parts = {part for each in find_sparse(contents) for part in each.parts}
    lengths = {shapes[path][0]: path for path in (*others, *records) if path in shapes}
    for path in (path for path in (*records, *others) if path in shapes and path not in parts):
        count = shapes[path][0]
        longer = {length for length, other in lengths.items() if length > count and chosen & {path, other}}
        numbers = contents.read_integers(path) if longer and count > 1 else None
        cut = None if numbers is None else _find_cut(numbers, longer, path)
        if cut is not None:
            problem = f"seems to hold {cut[1]} of lists in {lengths[cut[0]]!r}, which has {cut[0]} rows: a record is one of them"
            remedy = f"write a dataset of lists (h5py.vlen_dtype), a row for each record, or {LEAVE_OUT}"
            raise InputError(contents.name, problem, place=f"dataset {path!r}", remedy=remedy)


def _find_cut(numbers: NDArray[np.integer], longer: Collection[int], path: str) -> tuple[int, str] | None:
    """Return how many rows integers cut into lists, of these numbers of rows, and what they are; None if they do not."""
    begins, ends = (numbers[:, 0], numbers[:, 1]) if numbers.ndim > 1 else (numbers, numbers)
    if begins.min() < 0:
        return None
    rises = bool((ends[1:] >= ends[:-1]).all())
    last, total = int(ends[-1]), int(ends.sum(dtype="u8"))
    if rises and last in longer:
        return last, "offsets"
    if total in longer:
        return total, "lengths"
    starts = rises and begins[0] == 0 and last >= len(numbers) and _STARTS.search(path)
    above = min((length for length in longer if length > last), default=None)
    return (above, "offsets") if starts and above is not None else None
