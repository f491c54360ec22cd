"""Writes and reads sparse matrices of cells by h5py alone: AnnData, and 10x."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

VARIABLES = 12

Cell = tuple[bytes, ...]
"""Name of a cell, and for each matrix the bytes of its values and of their places."""


def make_rows(numbers: NDArray[np.int64], shift: int = 0) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return values, places and bounds of rows; places are in no order, some twice, and some rows are empty."""
    lengths = (numbers + shift) % 5
    bounds = np.append(0, np.cumsum(lengths))
    items = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
    owners = np.repeat(numbers, lengths)
    return owners + items / 8, (owners * 7 + items * 8) % VARIABLES, bounds


def write_matrix(
    group: h5py.Group, rows: tuple[NDArray[Any], ...], types: tuple[str, str, str], **storage: Any
) -> None:
    for name, values, kind in zip(("data", "indices", "indptr"), rows, types, strict=True):
        group.create_dataset(name, data=values.astype(kind), maxshape=(None,), **storage)


def write_anndata(
    path: Path,
    count: int,
    first: int = 0,
    groups: tuple[str, ...] = ("X", "layers/counts", "obsm/near", "raw/X"),
    types: tuple[str, str, str] = ("<f4", "<i4", "<i4"),
    names: Any = None,
    **storage: Any,
) -> Path:
    """Write cells `first` and later as AnnData does; a matrix of variables lies beside them. `names` is the type of their names."""
    numbers = np.arange(first, first + count)
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        for shift, name in enumerate(groups):
            group = file.create_group(name)
            group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0"})
            group.attrs["shape"] = np.array([count, VARIABLES])
            write_matrix(group, make_rows(numbers, shift), types, **storage)
        labels = [f"cell {number}" for number in numbers]
        file.create_dataset("obs/_index", data=labels, dtype=names or h5py.string_dtype())
        file["obs/kind/codes"] = (numbers % 3).astype("i1")
        file["obs/kind/categories"] = np.array([b"B", b"T", b"NK"])
        file["obs"].attrs.update({"encoding-type": "dataframe", "_index": "_index"})
        file["var/_index"] = np.array([f"gene {index}" for index in range(VARIABLES)], "S8")
        write_matrix(file.create_group("varp/near"), make_rows(np.arange(VARIABLES)), types)
        file["varp/near"].attrs.update({"encoding-type": "csr_matrix", "shape": [VARIABLES, VARIABLES]})
        file["uns/colors"] = np.array([b"red", b"blue"])
    return path


def write_10x(path: Path, count: int, first: int = 0) -> Path:
    """Write cells as Cell Ranger does."""
    storage = {"chunks": (16,), "compression": 4, "shuffle": True}
    numbers = np.arange(first, first + count)
    with h5py.File(path, "w") as file:
        file.attrs.update({"filetype": "matrix", "version": 2})
        matrix = file.create_group("matrix")
        write_matrix(matrix, make_rows(numbers), ("<i4", "<i8", "<i8"), **storage)
        matrix["shape"] = np.array([VARIABLES, count], "i4")
        names = np.array([f"cell {number}" for number in numbers], "S18")
        matrix.create_dataset("barcodes", data=names, maxshape=(None,), **storage)
        matrix["features/id"] = np.array([f"gene {index}" for index in range(VARIABLES)], "S16")
    return path


def read_cells(path: Path) -> list[Cell]:
    """Return the cells of a file; its matrices must have the shape that they say."""
    with h5py.File(path) as file:
        is_10x = "matrix" in file
        names = [bytes(name) for name in file["matrix/barcodes" if is_10x else "obs/_index"][:]]
        found: list[str] = []
        file.visit(lambda name: found.append(name.removesuffix("/data")) if name.endswith("/data") else None)
        columns = []
        for path_in_file in found:
            group = file[path_in_file]
            if path_in_file.startswith(("varp/", "obsp/", "uns/")):
                continue
            shape = (
                group["shape"][()][::-1]
                if "shape" in group
                else group.attrs.get("shape", (len(names), VARIABLES))
            )
            assert tuple(shape) == (len(names), VARIABLES)
            columns += [_cut(group, part) for part in ("data", "indices")]
        return list(zip(names, *columns, strict=True))


def _cut(group: h5py.Group, part: str) -> list[bytes]:
    values = group[part][:]
    if "indptr" not in group:  # lists of variable length, as a conversion writes them
        return [row.tobytes() for row in values]
    bounds = group["indptr"][:]
    assert bounds[0] == 0
    assert bounds[-1] == len(values)
    return [values[low:high].tobytes() for low, high in pairwise(bounds)]
