"""Cells of AnnData and 10x, with the rows of their sparse matrices: whole runs, and files that are refused."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError
from recshuf.formats.hdf5 import FORMAT
from recshuf.interfaces import InputFile, ReadOptions
from tests.support.formats.hdf5_tools import outline
from tests.support.formats.sparse_tools import VARIABLES, read_cells, write_10x, write_anndata, write_matrix

COUNT = 40

FILES: dict[str, Callable[[Path], Path]] = {
    "anndata": lambda path: write_anndata(path, COUNT),
    "wide": lambda path: write_anndata(
        path, COUNT, types=(">f8", "<i8", "<i8"), groups=("X", "raw/X"), chunks=(16,), compression=4
    ),
    "odd": lambda path: write_anndata(
        path, COUNT, types=("?", "<u2", ">u4"), groups=("layers/a/b",), chunks=(8,), fletcher32=True
    ),
    "empty": lambda path: write_anndata(path, COUNT, types=("<c8", "<i4", "<i8"), groups=("obsm/near",)),
    "square": lambda path: write_anndata(path, VARIABLES, groups=("X",)),
    "10x": lambda path: write_10x(path, COUNT),
    "square 10x": lambda path: write_10x(path, VARIABLES),
}


@pytest.mark.parametrize("name", FILES)
def test_cells_are_shuffled_and_all_else_is_kept(tmp_path: Path, name: str) -> None:
    given = FILES[name](tmp_path / "in.h5")
    recshuf.shuffle(given, f"{tmp_path}/out/", seed=1, shards=2, verify=name == "anndata")
    shards = sorted((tmp_path / "out").iterdir())
    assert {path.suffix for path in shards} == {".h5" if "10x" in name else ".h5ad"}
    with h5py.File(given) as file:
        names: list[str] = []
        file.visit(names.append)
    of_cells = [
        one for one in names if re.match(r"(obs|layers|obsm|raw|X|matrix)/(?!.*(categories|features))", one)
    ]
    assert [outline(path, *of_cells) for path in shards] == [outline(given, *of_cells)] * 2
    before, after = read_cells(given), [cell for path in shards for cell in read_cells(path)]
    assert sorted(after) == sorted(before)
    assert after != before


def test_several_inputs_follow_each_other_and_bounds_get_the_width_that_they_need(tmp_path: Path) -> None:
    small = [
        write_anndata(tmp_path / f"{first}.h5ad", 40, first, ("X",), ("f4", "i4", "i1")) for first in (0, 40)
    ]
    recshuf.shuffle(small[:1], tmp_path / "one.h5ad", seed=1)
    recshuf.shuffle(small, tmp_path / "two.h5ad", seed=1, compression="gzip", verify=True)
    kinds = []
    for name in ("one.h5ad", "two.h5ad"):
        with h5py.File(tmp_path / name) as file:
            kinds.append((file["X/indptr"].dtype.str, file["X/indices"].dtype.str))
    assert kinds == [("|i1", "<i4"), ("<i8", "<i4")]
    both = [cell for path in small for cell in read_cells(path)]
    assert sorted(read_cells(tmp_path / "two.h5ad")) == sorted(both)


def test_other_formats_get_lists_and_stores_get_cells(tmp_path: Path) -> None:
    given = write_anndata(tmp_path / "in.h5ad", COUNT, groups=("X",))
    recshuf.shuffle(given, tmp_path / "out.parquet", seed=1, verify=True)
    found = pq.read_table(tmp_path / "out.parquet", columns=["X", "obs"]).to_pylist()
    lists = {row["obs"]["_index"]: (row["X"]["data"], row["X"]["indices"]) for row in found}
    cells = {
        name.decode(): (np.frombuffer(data, "f4").tolist(), np.frombuffer(places, "i4").tolist())
        for name, data, places in read_cells(given)
    }
    assert lists == cells
    recshuf.shuffle(given, tmp_path / "part.h5", seed=1, datasets=["X/*", "obs/_index"])
    assert sorted(read_cells(tmp_path / "part.h5")) == sorted(read_cells(given))
    recshuf.scatter(given, tmp_path / "store")
    recshuf.gather(tmp_path / "store", tmp_path / "gathered.h5ad")
    assert sorted(read_cells(tmp_path / "gathered.h5ad")) == sorted(read_cells(given))
    loader = recshuf.PileLoader(tmp_path / "store", batch_size=COUNT, seed=1, columns=["X"], output="arrow")
    (batch,) = loader
    assert sorted(map(repr, batch["X"].to_pylist())) == sorted(repr(row["X"]) for row in found)


def write_lists(path: Path, lengths: Any, chunk: int = 64) -> Path:
    """Write cells with so many items in each row of their only matrix."""
    bounds = np.append(0, np.cumsum(lengths))
    items = np.arange(bounds[-1])
    with h5py.File(write_anndata(path, len(lengths), groups=("X",)), "r+") as file:
        for part in ("data", "indices", "indptr"):
            del file["X"][part]
        write_matrix(file["X"], (items, items % VARIABLES, bounds), ("f4", "i4", "i8"), chunks=(chunk,))
    return path


def test_batches_are_cut_by_the_bytes_of_rows(tmp_path: Path) -> None:
    """Rows of very different lengths come in batches that do not exceed a block, but for a single row."""
    path = write_lists(tmp_path / "in.h5ad", np.where(np.arange(400) % 100 < 90, 1, 500))
    source = FORMAT.open_source([InputFile(str(path), path)], ReadOptions(refuses_foreign=True))
    batches = [batch for part in source.fragments(0, 10_000, 1 << 20) for batch in part.batches()]
    assert sum(batch.num_rows for batch in batches) == 400
    assert max(batch.nbytes for batch in batches) < 20_000
    with pytest.raises(
        InputError, match="row 90 of dataset 'X/indptr': 2000 bytes are more than the 1000 allowed"
    ):
        [list(part.batches()) for part in source.fragments(0, 10_000, 1000)]


def test_lists_that_are_written_in_several_steps_follow_each_other(tmp_path: Path) -> None:
    given = write_lists(tmp_path / "in.h5ad", np.arange(60) * 1000, 1 << 16)  # 14 MB
    recshuf.shuffle(given, tmp_path / "out.h5ad", seed=1)
    assert sorted(read_cells(tmp_path / "out.h5ad")) == sorted(read_cells(given))


def change(**parts: Any) -> Callable[[h5py.File], None]:
    """Return what replaces datasets of X; a function is given the former values."""

    def apply(file: h5py.File) -> None:
        for name, made in parts.items():
            values = made(file["X"][name][:])
            del file["X"][name]
            file["X"][name] = values

    return apply


def swap(values: Any) -> Any:
    values[[7, 8]] = values[[8, 7]]
    return values


def set_shape(*shape: int) -> Callable[[h5py.File], None]:
    return lambda file: file["X"].attrs.create("shape", shape)


DAMAGES: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "descending": (
        change(indptr=swap),
        "row 7 of dataset 'X/indptr': a row that begins at 13 of 80 numbers cannot end at 11",
    ),
    "negative": (change(indptr=lambda old: np.where(old == 11, -1, old)), "row 6 of dataset 'X/indptr'"),
    "far": (
        change(indptr=lambda old: np.where(old == 11, np.int64(1 << 40), old)),
        "row 6 of dataset 'X/indptr': a row that begins at 10 of",
    ),
    "beyond": (
        change(indptr=lambda old: old + 3 * (old == old[-1])),
        "group 'X': has 40 rows by its shape, but 80 values, 80 indices, and 40 rows from 0 to 83",
    ),
    "rest": (change(indptr=lambda old: old - 3 * (old == old[-1])), "80 indices, and 40 rows from 0 to 77"),
    "begin": (change(indptr=lambda old: np.maximum(old, 1)), "80 indices, and 40 rows from 1 to 80"),
    "short": (change(indices=lambda old: old[:-1]), "80 values, 79 indices, and 40 rows from 0 to 80"),
    "floats": (change(indptr=lambda old: old * 1.0), "group 'X': holds no integers in indptr"),
    "no bounds": (change(indptr=lambda old: old[:0]), "datasets differ in length"),
    "few rows": (change(indptr=lambda old: np.delete(old, 3)), "datasets differ in length"),
    "texts": (
        change(data=lambda old: old.astype("S").astype(object)),
        "group 'X': holds values of variable length",
    ),
    "axes": (change(data=lambda old: old[:, None]), "group 'X': is a sparse matrix"),
    "torn": (
        lambda file: file["X"].__delitem__("indptr"),
        "dataset 'X/data': is of a sparse matrix of which another",
    ),
    "old": (
        lambda file: file.attrs.__delitem__("encoding-type"),
        "group 'X': is a sparse matrix of AnnData before 0.8",
    ),
    "shape": (set_shape(39, VARIABLES), "group 'X': has 39 rows by its shape, but 80"),
    "one axis": (set_shape(40), "group 'X': has no shape of two axes"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_matrices_that_contradict_themselves_are_refused_by_place(tmp_path: Path, name: str) -> None:
    damage, said = DAMAGES[name]
    with h5py.File(write_anndata(tmp_path / "in.h5ad", COUNT, groups=("X",)), "r+") as file:
        damage(file)
    with pytest.raises(InputError, match=rf"in\.h5ad: .*{said}"):
        recshuf.shuffle(tmp_path / "in.h5ad", tmp_path / "out.h5ad", seed=1)
    assert not (tmp_path / "out.h5ad").exists()


def test_inputs_of_other_variables_are_refused(tmp_path: Path) -> None:
    write_anndata(tmp_path / "a.h5ad", 3)
    for change_file, said in (
        (
            lambda file: file["var/_index"].write_direct(file["var/_index"][()][::-1].copy()),
            "'var/_index': differs from that in",
        ),
        (lambda file: file["X"].attrs.modify("shape", [3, 13]), "'X': has rows of 13 columns, but 12 in"),
    ):
        with h5py.File(write_anndata(tmp_path / "b.h5ad", 3, 3), "r+") as file:
            change_file(file)
        with pytest.raises(InputError, match=f"{said}.*give all files the same variables in the same order"):
            recshuf.shuffle([tmp_path / "a.h5ad", tmp_path / "b.h5ad"], tmp_path / "out.h5ad", seed=1)


@dataclass
class Matrix:
    """A matrix of SciPy, as far as remedies use it."""

    form: str = "csc"

    def tocsr(self) -> "Matrix":
        return Matrix("csr")


PLACES = ("X", "raw/X", "layers/counts", "obsm/near")


@pytest.mark.parametrize(
    ("inputs", "places"),
    [(["it's.h5ad"], PLACES), (["it's.h5ad"], ("X",)), (["a.h5ad", "it's.h5ad"], PLACES)],
)
def test_matrices_stored_by_columns_are_refused_with_what_stores_them_by_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: list[str], places: tuple[str, ...]
) -> None:
    write_anndata(tmp_path / "a.h5ad", 3)
    with h5py.File(write_anndata(tmp_path / "it's.h5ad", 3, 3), "r+") as file:
        for group in places:
            file[group].attrs["encoding-type"] = "csc_matrix"
    with pytest.raises(InputError, match=r"it's\.h5ad: group 'X': is a .* stored by columns") as caught:
        recshuf.shuffle([tmp_path / name for name in inputs], tmp_path / "out.h5ad", seed=1)
    raw = SimpleNamespace(X=Matrix(), to_adata=lambda: raw)
    parts: dict[str, Any] = {"layers": {"counts": Matrix()}, "obsm": {"near": Matrix()}}
    cells, names = SimpleNamespace(X=Matrix(), raw=raw, **parts), []
    cells.write_h5ad = names.append
    module = SimpleNamespace(read_h5ad=lambda name: names.append(name) or cells)
    monkeypatch.setitem(sys.modules, "anndata", module)
    exec(shlex.split(str(caught.value).partition("; store it by rows: python -c ")[2])[0])
    assert names == [f"{tmp_path}/it's.h5ad", "changed.h5ad"]
    stored = [cells.X, cells.raw.X, cells.layers["counts"], cells.obsm["near"]]
    assert [matrix.form for matrix in stored] == ["csr" if each in places else "csc" for each in PLACES]


def write_pairs(path: Path, name: str) -> None:
    with h5py.File(write_anndata(path, COUNT, groups=("X",)), "r+") as file:
        write_matrix(file.create_group(name), (np.ones(40), np.arange(40), np.arange(41)), ("f4", "i4", "i4"))
        file[name].attrs.update({"encoding-type": "csr_matrix", "shape": [40, 40]})


def write_latents(path: Path) -> None:
    with h5py.File(write_10x(path, COUNT), "r+") as file:
        file["latents/barcode_numbers"] = np.arange(7)


STRANGERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "obsp": (lambda path: write_pairs(path, "obsp/near"), "'obsp/near': is of pairs of records"),
    "uns": (lambda path: write_pairs(path, "uns/near"), "'uns/near': is a sparse matrix with an axis of 40"),
    "10x": (write_latents, "'latents/barcode_numbers': is none of the datasets that 10x describes"),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_what_may_follow_the_order_of_cells_is_refused_and_the_remedy_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write, said = STRANGERS[name]
    write(tmp_path / "it's.h5")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said) as caught:
        recshuf.shuffle("it's.h5", "out.h5", seed=1)
    program, *arguments = shlex.split(str(caught.value).partition("make a copy without it: ")[2])
    assert program == "python"
    subprocess.run([sys.executable, *arguments], check=True)
    recshuf.shuffle("changed.h5", "out.h5", seed=1)
    assert sorted(read_cells(tmp_path / "out.h5")) == sorted(read_cells(tmp_path / "it's.h5"))
