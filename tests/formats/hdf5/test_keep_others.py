"""Datasets of other lengths, copied unchanged beside shuffled ones: whole runs on files as other libraries write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

import recshuf
from recshuf.errors import InputError, UsageError
from tests.support.effort import mostly_slow
from tests.support.formats.hdf5_tools import outline
from tests.support.processes.killed_runs import run, run_and_die

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 30


def shuffle_kept(path: Path, out: Path, **options: Any) -> recshuf.ShuffleReport:
    return recshuf.shuffle(path, out, seed=1, keep_others=True, **options)


def write_anndata(path: Path, variables: int = 4) -> Path:
    """Write a file as AnnData does; the first column of X and all of obs tell the row."""
    rows = np.arange(ROWS)
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = "anndata"
        file["X"] = np.outer(rows, np.ones(variables)).astype("f4")
        file["layers/counts"] = np.outer(rows, np.ones(variables)).astype("i4")
        file["raw/X"] = np.outer(rows, np.ones(7))
        file["obsm/X_pca"] = np.outer(rows, np.ones(2))
        names = [f"cell {row}" for row in rows]
        file.create_dataset("obs/_index", data=names, dtype=h5py.string_dtype())
        file["obs"].attrs["_index"] = "_index"
        file["obs/cell_type/codes"] = (rows % 3).astype("i1")
        file["obs/cell_type/categories"] = ["B", "T", "mönocyte"]
        file["obs/cell_type"].attrs["ordered"] = False
        for index in range(6):
            file[f"var/column {index}"] = np.arange(variables) + index
        file["varm/PCs"] = np.ones((variables, 2))
        file["uns/nested/colors"] = np.array([b"red", b"blue"])
        groups = np.dtype([("first", h5py.string_dtype()), ("second", h5py.vlen_dtype("i4"))])
        file["uns/groups"] = np.array(
            [("a", np.arange(3, dtype="i4")), ("", np.arange(0, dtype="i4"))], groups
        )
        file["uns/nothing"] = h5py.Empty("f4")
        file["uns/scalar"] = 3.5
        file["uns/link"] = h5py.SoftLink("/uns/nested/colors")
    return path


ALIGNED = ("X", "layers/counts", "obsm/X_pca", "raw/X", "obs/_index", "obs/cell_type/codes")


@pytest.mark.parametrize(
    ("options", "variables"),
    mostly_slow(
        [({}, 4), ({"datasets": ALIGNED}, ROWS), ({"compression": "lzf"}, ROWS)],
        ({"datasets": ALIGNED}, ROWS),
        ({}, 4),
    ),
)
def test_of_anndata_the_observations_are_shuffled(tmp_path: Path, options: dict[str, Any], variables: int):
    given = write_anndata(tmp_path / "in.h5", variables)
    shuffle_kept(given, tmp_path / "out/", shards=3, verify=True, **options)
    before, seen = outline(given, *ALIGNED), []
    for path in sorted((tmp_path / "out").iterdir()):
        after = outline(path, *ALIGNED)
        assert list(after) == list(before)
        assert after == before
        with h5py.File(given) as one, h5py.File(path) as other:
            rows = other["X"][:, 0].astype(int)
            assert len(rows) == ROWS // 3
            for name in ALIGNED:
                assert other[name][:].tolist() == one[name][:][rows].tolist()
        seen += rows.tolist()
    assert sorted(seen) == list(range(ROWS))
    assert seen != list(range(ROWS))


def warnings_of(path: Path, out: Path) -> str:
    notes: list[str] = []

    class Listener(recshuf.Progress):
        def warn(self, message: str) -> None:
            notes.append(message)

    shuffle_kept(path, out, progress=Listener())
    return "\n".join(notes)


def test_sparse_observations_are_refused(tmp_path: Path) -> None:
    write_anndata(tmp_path / "in.h5")
    with h5py.File(tmp_path / "in.h5", "r+") as file:
        del file["X"]
        file["X/data"], file["X/indices"] = np.ones(9), np.ones(9, "i4")
        file["X/indptr"] = np.arange(5)
        file["X"].attrs.update({"encoding-type": "csc_matrix", "shape": np.array([ROWS, 4])})
    with pytest.raises(InputError, match=r"in\.h5: group 'X': is a sparse matrix stored by columns"):
        shuffle_kept(tmp_path / "in.h5", tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()
    with h5py.File(write_anndata(tmp_path / "in.h5"), "r+") as file:
        file["obsp/distances"] = np.ones((ROWS, ROWS))
    with pytest.raises(InputError, match=r"in\.h5: 'obsp/distances': is of pairs of records"):
        shuffle_kept(tmp_path / "in.h5", tmp_path / "out.h5")


@pytest.mark.parametrize("kind", mostly_slow(["table", "fixed"], "table"))
def test_a_frame_of_pandas_comes_back(tmp_path: Path, kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("tables")
    frame = pandas.DataFrame({"a": np.arange(1000), "b": np.arange(1000) / 2, "c": np.arange(1000) % 7})
    if kind == "table":
        for name in ("x", "y", "z"):  # more datasets of three categories than of the table
            frame[name] = pandas.Categorical(np.array(["r", "g", "b"])[frame.a % 3])
    options = {"data_columns": ["a"]} if kind == "table" else {}
    frame.to_hdf(tmp_path / "in.h5", key="frame", format=kind, **options)
    shuffle_kept(tmp_path / "in.h5", tmp_path / "out.h5")
    found = pandas.read_hdf(tmp_path / "out.h5")
    assert not (found.index == frame.index).all()
    pandas.testing.assert_frame_equal(found.sort_index(), frame)
    if kind == "table":
        some = pandas.read_hdf(tmp_path / "out.h5", where="a > 990")
        assert sorted(some.a) == list(range(991, 1000))


def test_a_stale_index_of_pytables_is_left_out_and_others_are_kept(tmp_path: Path) -> None:
    tables = pytest.importorskip("tables")
    with tables.open_file(tmp_path / "in.h5", "w") as file:
        for name, count in (("large", 1000), ("small", 20)):
            table = file.create_table("/", name, obj=np.array([(i,) for i in range(count)], [("v", "i8")]))
            table.cols.v.create_index()
    with h5py.File(tmp_path / "in.h5", "r+") as file:
        file["link"] = file["_i_large"]
        file["link to values"] = file["_i_large/v/sorted"]
    said = warnings_of(tmp_path / "in.h5", tmp_path / "out.h5")
    assert "copied unchanged are small, _i_small/v/abounds" in said
    assert "group '_i_large': left out, because it indexes the former order of 'large'" in said
    with tables.open_file(tmp_path / "out.h5") as file:
        assert file.root.large.nrows == 1000
        assert not file.root.large.cols.v.is_indexed
        assert file.root.small.cols.v.is_indexed
        assert [row["v"] for row in file.root.large.where("v == 77")] == [77]
        assert [row["v"] for row in file.root.small.where("v == 7")] == [7]
        assert "/link" not in file


def test_pickled_rows_of_pandas_are_refused(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("tables")
    frame = pandas.DataFrame({"a": np.arange(50), "s": [{"row": i} for i in range(50)]})
    with pytest.warns(pandas.errors.PerformanceWarning):
        frame.to_hdf(tmp_path / "in.h5", key="frame", format="fixed")
    with pytest.raises(InputError, match="'frame/block1_values': holds pickled objects"):
        shuffle_kept(tmp_path / "in.h5", tmp_path / "out.h5")


def test_verify_names_a_copy_that_differs(tmp_path: Path) -> None:
    write_anndata(tmp_path / "in.h5")
    shuffle_kept(tmp_path / "in.h5", tmp_path / "out.h5")
    assert recshuf.verify(tmp_path / "in.h5", tmp_path / "out.h5", keep_others=True)
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        file["var/column 3"][1] = 77
    report = recshuf.verify(tmp_path / "in.h5", tmp_path / "out.h5", keep_others=True)
    assert not report
    assert report.differences == ("dataset 'var/column 3', which every shard repeats, differs",)
    assert report.missing == report.extra == 0


def test_a_continued_run_takes_the_option_and_gives_the_same_bytes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["x"] = np.arange(ROWS)
    run_and_die(2, [tmp_path / "plain.h5"], tmp_path / "plain", keep_others=True)
    said = "the keep_others=True was True in the unfinished run and is not given"
    with pytest.raises(UsageError, match=said):
        run([tmp_path / "plain.h5"], tmp_path / "plain", resume=True)
    given = [write_anndata(tmp_path / "in.h5")]
    run_and_die(2, given, tmp_path / "out", keep_others=True)
    run(given, tmp_path / "out", resume=True, keep_others=True)
    run(given, tmp_path / "whole", keep_others=True)
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "whole" / path.name).read_bytes()
