"""Sparse matrices whose compressed rows are those of the record: AnnData keeps cells so, and 10x.

The items of a row are a list in each of two datasets, and a third says where the lists begin and end::

    data:     5  1  9 |  2 |    |  7  7         indptr:  0  3  4  4  6
    indices:  0  4  8 |  3 |    |  1  2

As datasets of the record, `data` and `indices` have a list in each row; `indptr` is no dataset then, but made anew.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import h5py

    from recshuf.formats.hdf5.contents import Contents


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


class Matrix(NamedTuple):
    """A matrix whose rows are of the record."""

    path: str
    """Of its group."""
    is_10x: bool
    """Whether its rows are barcodes, and it is one of features and barcodes by name: a dataset has its shape."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Paths of the datasets that have a list for each record."""
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
    found = [path.rpartition("/")[0] for path in contents.arrays if path.endswith(f"/{POINTERS}")]
    names, shapes = (*PARTS, POINTERS), contents.shapes
    groups = [each for each in found if all(len(shapes.get(f"{each}/{name}", ())) == 1 for name in names)]
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
