"""What the datasets of a file are by known layouts: rows of the record, copies beside them, parts of a sparse matrix.

AnnData and pandas say by attributes which datasets have a row for each record, and which describe all of them. Those may
have the same length by chance, as the names of variables beside a square matrix.

AnnData and 10x keep cells in sparse matrices whose compressed rows are those of the record. The items of a row are a list in
each of two datasets, and a third says where the lists begin and end::

    data:     5  1  9 |  2 |    |  7  7         indptr:  0  3  4  4  6
    indices:  0  4  8 |  3 |    |  1  2

As datasets of the record, `data` and `indices` have a list in each row; `indptr` is no dataset then, but made anew.
"""

from __future__ import annotations

import json
import re
import shlex
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import h5py

    from recshuf.formats.hdf5.contents import Contents


MARKS = (b"encoding-type", b"pandas_type")
PARTS = ("data", "indices")
POINTERS = "indptr"
SHAPE = "shape"
BARCODES = "barcodes"
LAYOUT_MARK = "encoding-type"
ANNDATA = "anndata"
MUDATA = "MuData"
WRITE_ANEW = "write the matrix anew"
SAME_VARIABLES = "give all files the same variables in the same order"
_PLACES = re.compile(r"(?P<raw>raw/)?X|(?P<folder>layers|obsm)/(?P<key>.+)")
"""Groups of AnnData that hold a matrix with a row for each observation."""
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
_INDEX = re.compile(r"((?:.*?/)?)_i_([^/]+)")
"""Path of what PyTables keeps about a table: the folder and the name of the table."""


class Matrix(NamedTuple):
    """A matrix whose rows are of the record."""

    path: str
    is_10x: bool
    """Whether its rows are barcodes, and it is one of features and barcodes by name: a dataset has its shape."""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(f"{self.path}/{part}" for part in PARTS)

    @property
    def pointers(self) -> str:
        """Path of the dataset that says where lists begin and end."""
        return f"{self.path}/{POINTERS}"


def read_text(group: h5py.Group, key: str) -> str:
    """Return an attribute of text; empty if there is none."""
    value = group.attrs.get(key)
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return text if isinstance(text, str) else ""


def adopt_matrices(contents: Contents) -> None:
    """Note the matrices whose rows are of the record; their parts then have a list in each row, and are as long as it."""
    folders = [path.rpartition("/")[0] for path in contents.arrays if path.endswith(f"/{POINTERS}")]
    names, shapes = (*PARTS, POINTERS), contents.shapes
    groups = [each for each in folders if all(len(shapes.get(f"{each}/{name}", ())) == 1 for name in names)]
    matrices = [Matrix(group, False) for group in groups if _find_place(contents, group, "csr_matrix")]
    of_10x = [Matrix(group, True) for group in groups if _is_10x(contents, group)]
    matrices += of_10x if len(of_10x) == 1 else []  # several may have barcodes of their own
    hidden = set()
    for matrix in matrices:
        row_count = max(0, contents.shapes[matrix.pointers][0] - 1)
        contents.shapes |= dict.fromkeys(matrix.parts, (row_count,))
        hidden |= {matrix.pointers, f"{matrix.path}/{SHAPE}"} if matrix.is_10x else {matrix.pointers}
        contents.matrices |= dict.fromkeys(matrix.parts, matrix)
    for path in hidden:
        del contents.shapes[path]
    contents.arrays[:] = [path for path in contents.arrays if path in contents.shapes]


def _is_10x(contents: Contents, group: str) -> bool:
    row_count = max(0, contents.shapes[f"{group}/{POINTERS}"][0] - 1)
    barcodes, shape = (contents.shapes.get(f"{group}/{name}") for name in (BARCODES, SHAPE))
    return barcodes == (row_count,) and shape == (2,)


def _find_place(contents: Contents, group: str, encoding: str) -> re.Match[str] | None:
    """Return the place of a matrix of observations in AnnData, if it is encoded so."""
    if group not in contents.marked or read_text(contents.file[group], LAYOUT_MARK) != encoding:
        return None
    folders = [path for path in contents.marked if not path or group.startswith(f"{path}/")]
    for path in folders:
        if read_text(contents.file[f"/{path}"], LAYOUT_MARK) == ANNDATA:
            return _PLACES.fullmatch(group, len(path) + 1 if path else 0)
    return None


def explain_storage(contents: Contents, groups: Sequence[str]) -> tuple[str, str] | None:
    """Return why AnnData has not stored the first of some matrices by rows, and the command that does; None if it is another."""
    places = [_find_place(contents, group, "csc_matrix") for group in groups]
    code = [f"import anndata; a = anndata.read_h5ad({json.dumps(contents.name)})"]
    for place in filter(None, places):
        matrix = f"a.{place['folder']}[{json.dumps(place['key'])}]" if place["folder"] else "a.X"
        of_raw = "raw = a.raw.to_adata(); raw.X = raw.X.tocsr(); a.raw = raw"
        code.append(of_raw if place["raw"] else f"{matrix} = {matrix}.tocsr()")
    code.append('a.write_h5ad("changed.h5ad")')
    command = f"python -c {shlex.quote('; '.join(code))}"
    if places[0] is not None and not places[0].start():
        problem = "is a sparse matrix stored by columns, and a record is a row of it"
        return problem, f"store it by rows: {command}"
    if _PLACES.fullmatch(groups[0]) and "" not in contents.marked and {"obs", "var"} <= {*contents.order}:
        return "is a sparse matrix of AnnData before 0.8, which does not say so", f"store it anew: {command}"
    return None


def propose_without(contents: Contents, path: str) -> str:
    """Return the command that copies a file without an object of it."""
    copy = f'shutil.copy({json.dumps(contents.name)}, "changed.h5")'
    code = f'import h5py, shutil; del h5py.File({copy}, "a")[{json.dumps(path)}]'
    return f"make a copy without it: python -c {shlex.quote(code)}"


def propose_parts(name: str) -> str:
    """Return the command that writes each part of a file of MuData as one of AnnData."""
    parts = f"mudata.read_h5mu({json.dumps(name)}).mod.items()"
    code = f'import mudata; [part.write_h5ad(f"{{key}}.h5ad") for key, part in {parts}]'
    return f"shuffle its parts, with one --seed so that those of the same cells stay aligned: python -c {shlex.quote(code)}"


class Roles(NamedTuple):
    """What attributes say about the datasets of a file, by path; nothing is said of those in neither set."""

    rows: frozenset[str] = frozenset()
    """Their rows are those of the record, unless they have another length."""
    copies: frozenset[str] = frozenset()
    """Their rows are not, whatever their number."""


class Sparse(NamedTuple):
    """A sparse matrix in a group, as SciPy, AnnData and Cell Ranger write it."""

    path: str
    parts: tuple[str, ...]
    axes: tuple[int, ...]
    """Empty if they are not known."""


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
        own = {each for each in contents.arrays if each.startswith(prefix)}
        if kind is not None and not is_hidden(prefix):
            moved = {each for each in own if kind.fullmatch(each, len(prefix))}
        elif layout == ANNDATA:
            sparse = [each for each in find_sparse(contents) if not is_of_variables(each.path)]
            own -= {part for each in sparse for part in each.parts}
            own = {each for each in own if not _PAIRS.match(each, len(prefix))}
            moved = {each for each in own if _OBSERVATIONS.match(each, len(prefix))} | own & {
                *contents.matrices
            }
            for torn in sorted(each for each in own - moved if _TORN.match(each, len(prefix))):
                problem = "is of a sparse matrix of which another part is missing, or a link"
                raise InputError(contents.name, problem, place=f"dataset {torn!r}", remedy=WRITE_ANEW)
        else:
            continue
        rows |= moved
        copies |= own - moved
    for matrix in {each for each in contents.matrices.values() if each.is_10x}:
        rows |= {*matrix.parts, f"{matrix.path}/{BARCODES}"}
        own = {each for each in contents.arrays if each.startswith(f"{matrix.path}/")}
        copies |= {each for each in own if _FEATURES.match(each, len(matrix.path))}
    return Roles(frozenset(rows), frozenset(copies - rows))


def find_sparse(contents: Contents) -> Iterator[Sparse]:
    """Yield the sparse matrices of a file, of compressed rows or columns."""
    arrays = set(contents.arrays)
    for path in contents.arrays:
        group, _, name = path.rpartition("/")
        *parts, shape = (f"{group}/{part}".lstrip("/") for part in (*PARTS, POINTERS, SHAPE))
        if name == POINTERS and arrays.issuperset(parts):
            attributes = contents.file[f"/{group}"].attrs
            shapes = [attributes[key] for key in ("shape", "h5sparse_shape") if key in attributes]
            if shape in arrays:
                shapes.append(contents.read_integers(shape))
                parts.append(shape)
            axes = tuple(int(axis) for axis in shapes[0]) if shapes and shapes[0] is not None else ()
            yield Sparse(group, tuple(parts), axes)


def find_commonest(contents: Contents, paths: Iterable[str]) -> list[str]:
    """Return the datasets of the commonest length; of several such lengths, that with the most bytes.

    Only those count of which attributes say that their rows are of the record, if there are any. Datasets of one row or none
    count only if there are no others, indexes of PyTables and categories of pandas only if there are not even these.
    """
    shapes = {path: contents.shapes[path] for path in paths}
    rows = find_roles(contents).rows
    visible = [path for path in shapes if not is_hidden(path)]
    seen = [path for path in shapes if path in rows] or [path for path in visible if shapes[path][0] > 1]
    by_length: dict[int, list[str]] = {}
    for path in seen or visible or shapes:
        by_length.setdefault(shapes[path][0], []).append(path)
    if len(by_length) == 1:
        return next(iter(by_length.values()))

    def rank(chosen: list[str]) -> tuple[int, int]:
        # h5py's own count of bytes needs a type of NumPy.
        sizes = (prod(shapes[path]) * contents.file[path].id.get_type().get_size() for path in chosen)
        return len(chosen), int(sum(sizes))

    return max(by_length.values(), key=rank)


def is_hidden(path: str) -> bool:
    """Tell whether PyTables or pandas keeps something for itself at a path."""
    return _HIDDEN.search(path) is not None


def drop_indexes(contents: Contents, records: Iterable[str]) -> dict[str, str]:
    """Drop what PyTables keeps about the order of the records, and return a sentence about each by its path."""
    tables, dropped = {*records}, {}
    for path in contents.groups:
        table = find_table(path)
        if table in tables and _INDEX.fullmatch(path):
            note = f"group {path!r}: left out, because it indexes the former order of {table!r}"
            dropped[path] = f"{contents.name}: {note}"
    for paths in (contents.order, contents.groups, contents.arrays):
        paths[:] = [path for path in paths if find_table(path) not in tables]
    return dropped


def find_table(path: str) -> str | None:
    """Return the path of the table that PyTables describes at a path; None if there is none."""
    parts = _INDEX.match(path)
    return parts and parts[1] + parts[2]


def list_others(contents: Contents, records: Iterable[str]) -> tuple[str, ...]:
    taken, every = {*records}, (*contents.arrays, *contents.nulls)
    return tuple(path for path in every if path not in taken and find_table(path) not in taken)
