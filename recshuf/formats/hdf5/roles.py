"""What the datasets of a file are by known layouts: rows of the record, copies beside them, parts of a sparse matrix.

AnnData and pandas say by attributes which datasets have a row for each record, and which describe all of them. Those may
have the same length by chance, as the names of variables beside a square matrix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from h5py import h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.chunk_index import check_chunks
from recshuf.formats.hdf5.contents import MARKS, check_access
from recshuf.formats.hdf5.opening import read_stamp, reading
from recshuf.formats.hdf5.sparse import ANNDATA, BARCODES, MUDATA, WRITE_ANEW, propose_parts, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from recshuf.formats.hdf5.contents import Contents


_OBSERVATIONS = re.compile(r"(obs|obsm|layers)/(?!.*/categories$|__categories/)|(raw/)?X$")
"""Datasets of AnnData whose rows are observations, unless they have another length."""
_TORN = re.compile(r"(raw/)?X/")
_PAIRS = re.compile(r"obsp/")
"""Those with two axes of observations."""
_VARIABLES = re.compile(r"(^|/)var[mp]?/")
_FEATURES = re.compile(r"/(features/|genes$|gene_names$)")
"""Datasets of 10x, beside its matrix, that have no axis of barcodes."""
_FRAMES = {
    "frame": re.compile(r"axis1(_label\d+)?|block\d+_values"),
    "series": re.compile(r"index(_label\d+)?|values"),
}
"""Datasets with a row for each record in a group of pandas, by its `pandas_type`."""
# PyTables keeps its indexes under such names, and more of them than the table has datasets; pandas keeps categories so.
_HIDDEN = re.compile(r"(^|/)(_[pi]_|meta/[^/]+/meta/)")
_PARTS = ("data", "indices", "indptr")
_MOST_READ = 1 << 24


@dataclass(frozen=True, slots=True)
class Roles:
    """What attributes say about the datasets of a file, by path; nothing is said of those in neither set."""

    rows: frozenset[str] = frozenset()
    """Their rows are those of the record, unless they have another length."""
    copies: frozenset[str] = frozenset()
    """Their rows are not, whatever their number."""


@dataclass(frozen=True, slots=True)
class Sparse:
    """A sparse matrix in a group, as SciPy, AnnData and Cell Ranger write it."""

    path: str
    parts: tuple[str, ...]
    """Paths of its datasets."""
    axes: tuple[int, ...]
    """Empty if they are not known."""

    @property
    def is_of_variables(self) -> bool:
        """Whether it is where AnnData keeps what has no axis of observations."""
        return is_of_variables(self.path)


def is_of_variables(path: str) -> bool:
    """Tell whether AnnData keeps there what has an axis of variables, and none of observations."""
    return _VARIABLES.search(f"{path}/") is not None


def find_roles(contents: Contents) -> Roles:
    """Return what attributes of AnnData and pandas say about the datasets of a file."""
    rows: set[str] = set()
    copies: set[str] = set()
    for path in contents.marked:
        group, prefix = contents.file[f"/{path}"], f"{path}/" if path else ""
        layout, frame = (read_text(group, key.decode()) for key in MARKS)
        if layout == MUDATA:
            problem = "is MuData: several matrices of cells, and what ties them together, which is not shuffled with them"
            raise InputError(contents.name, problem, remedy=propose_parts(contents.name))
        kind = _FRAMES.get(frame)
        if kind is not None and not _HIDDEN.search(prefix):
            own = _list_inside(contents, prefix)
            found = {each for each in own if kind.fullmatch(each, len(prefix))}
        elif layout == ANNDATA:
            parts = {
                part for each in find_sparse(contents) if not each.is_of_variables for part in each.parts
            }
            own = {each for each in _list_inside(contents, prefix) if not _PAIRS.match(each, len(prefix))}
            own -= parts
            found = {each for each in own if _OBSERVATIONS.match(each, len(prefix))} | own & {
                *contents.matrices
            }
            for torn in sorted(each for each in own - found if _TORN.match(each, len(prefix))):
                problem = "is of a sparse matrix of which another part is missing, or a link"
                raise InputError(contents.name, problem, place=f"dataset {torn!r}", remedy=WRITE_ANEW)
        else:
            continue
        rows |= found
        copies |= own - found
    for matrix in {each for each in contents.matrices.values() if each.is_10x}:
        rows |= {*matrix.parts, f"{matrix.path}/{BARCODES}"}
        own = _list_inside(contents, f"{matrix.path}/")
        copies |= {each for each in own if _FEATURES.match(each, len(matrix.path))}
    return Roles(frozenset(rows), frozenset(copies - rows))


def _list_inside(contents: Contents, prefix: str) -> set[str]:
    return {each for each in contents.arrays if each.startswith(prefix)}


def find_sparse(contents: Contents) -> Iterator[Sparse]:
    """Yield the sparse matrices of a file, of compressed rows or columns."""
    arrays = set(contents.arrays)
    for path in contents.arrays:
        group, _, name = path.rpartition("/")
        parts = tuple(f"{group}/{part}".lstrip("/") for part in (*_PARTS, "shape"))
        if name == _PARTS[-1] and arrays.issuperset(parts[:-1]):
            yield Sparse(group, tuple(part for part in parts if part in arrays), _find_axes(contents, group))


def _find_axes(contents: Contents, group: str) -> tuple[int, ...]:
    attributes, shape = contents.file[f"/{group}"].attrs, f"{group}/shape".lstrip("/")
    found = [attributes[key] for key in ("shape", "h5sparse_shape") if key in attributes]
    found += [read_integers(contents, shape)] if shape in contents.arrays else []
    return tuple(int(axis) for axis in found[0]) if found and found[0] is not None else ()


def read_integers(contents: Contents, path: str) -> NDArray[np.integer[Any]] | None:
    """Return a dataset of integers, of one axis or of pairs; None if it is another one, or a very large one."""
    dataset = contents.file[path]
    shape, tid = dataset.shape, dataset.id.get_type()
    if (
        tid.get_class() != h5t.INTEGER
        or len(shape) > 2
        or shape[1:] not in ((), (2,))
        or prod(shape) > _MOST_READ
    ):
        return None
    with reading(contents.name, f"dataset {path!r}"):
        check_access(dataset, path, contents.name)
        check_chunks(dataset.id, tid.get_size(), path, contents.name, read_stamp(contents.file).size)
        values: NDArray[np.integer[Any]] = dataset[()]
        return values


def find_commonest(contents: Contents, paths: Iterable[str]) -> list[str]:
    """Return the datasets of the commonest length; of several such lengths, that with the most bytes.

    Only those count of which attributes say that their rows are of the record, if there are any. Datasets of one row or none,
    indexes of PyTables, and categories of pandas count only if there are no others.
    """
    shapes = {path: contents.shapes[path] for path in paths}
    rows = find_roles(contents).rows
    seen = [path for path in shapes if path in rows] or [
        path for path, shape in shapes.items() if shape[0] > 1 and not is_hidden(path)
    ]
    by_length: dict[int, list[str]] = {}
    for path in seen or shapes:
        by_length.setdefault(shapes[path][0], []).append(path)
    if len(by_length) == 1:
        return next(iter(by_length.values()))
    return max(
        by_length.values(),
        key=lambda paths: (len(paths), sum(_count_bytes(contents, path) for path in paths)),
    )


def _count_bytes(contents: Contents, path: str) -> int:
    # h5py's own count needs a type of NumPy.
    return int(prod(contents.shapes[path]) * contents.file[path].id.get_type().get_size())


def is_hidden(path: str) -> bool:
    """Tell whether PyTables or pandas keeps something for itself at a path."""
    return _HIDDEN.search(path) is not None
