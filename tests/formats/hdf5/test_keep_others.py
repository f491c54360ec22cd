"""Datasets of other lengths, copied as they are beside shuffled ones: which may be, and whole runs on files of other libraries."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5s, h5t

import recshuf
from recshuf.errors import InputError
from recshuf.formats.hdf5 import FORMAT
from recshuf.interfaces import Source, WriteOptions
from tests.support.formats.format_tools import reading
from tests.support.formats.hdf5_tools import given, read_all, store
from tests.support.processes.killed_runs import run, run_and_die

ROWS = 30


def open_kept(*paths: Path, **options: Any) -> Source:
    return FORMAT.open_source([given(path) for path in paths], reading(keep_others=True, **options))


def write(path: Path, **datasets: Any) -> Path:
    """Write a file with two datasets of 30 rows, and others."""
    return store(path, {"x": np.arange(ROWS), "y": np.arange(ROWS)} | datasets)


def refusal(*paths: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        open_kept(*paths, **options)
    return str(caught.value)


def test_what_may_follow_the_order_of_the_records_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "in.h5", other=np.arange(4))
    assert "in.h5: dataset 'y': has 30 rows, as the records" in refusal(path, datasets=("x",))
    assert open_kept(path, datasets=("x", "y")).repeated.keys() == {"other"}
    assert open_kept(path).schema.names == ["x", "y"]
    for dtype in ("i8", "u4", "f8"):
        path = write(tmp_path / "in.h5", offsets=np.arange(ROWS + 1, dtype=dtype))
        assert "dataset 'offsets': has 31 numbers, one more than the records" in refusal(path)


def test_inputs_must_agree(tmp_path: Path) -> None:
    first = write(tmp_path / "1.h5", other=np.arange(4), text=["a", "b"])
    same = write(tmp_path / "2.h5", other=np.arange(4), text=["a", "b"], x=np.ones(4, int), y=np.ones(4, int))
    assert [one.record_count for one in open_kept(first, same).inputs] == [ROWS, 4]
    for name, others in (
        ("other", {"other": np.array([0, 1, 2, 4]), "text": ["a", "b"]}),
        ("text", {"other": np.arange(4), "text": ["a", "c"]}),
        ("text", {"other": np.arange(4), "text": ["ab", ""]}),
    ):
        found = refusal(first, write(tmp_path / "3.h5", **others))
        assert f"3.h5: dataset {name!r}: differs from that in {first}" in found
    for others in ({"other": np.arange(4, dtype="u8")}, {"other": np.arange(4).reshape(2, 2)}):
        assert "dataset 'other': differs" in refusal(
            first, write(tmp_path / "3.h5", text=["a", "b"], **others)
        )
    assert "3.h5: has no dataset 'text'" in refusal(first, write(tmp_path / "3.h5", other=np.arange(4)))
    more = write(tmp_path / "3.h5", other=np.arange(4), text=["a", "b"], third=1 + np.arange(3))
    assert "3.h5: has a dataset 'third', unlike the first input" in refusal(first, more)


@pytest.mark.parametrize(
    ("names", "value", "options"),
    [
        ("a", np.zeros(10**6), {}),
        ("a", ["long" * 10_000] * 29, {}),
        ("a", np.zeros((1, 10**6)), {}),
        ("ab", np.array(["ab" * 1000] * 500, "S2000"), {}),
        ("a", np.zeros(3), {"chunks": (10**7,), "maxshape": (None,)}),
    ],
)
def test_more_than_fits_is_refused(tmp_path: Path, names: str, value: Any, options: dict[str, Any]) -> None:
    """By one dataset, or by several together."""
    path = write(tmp_path / "in.h5")
    with h5py.File(path, "r+") as file:
        for name in names:
            file.create_dataset(name, data=value, **options)
    assert open_kept(path, datasets=("x", "y"), memory_bytes=1 << 30)
    found = refusal(path, datasets=("x", "y"), memory_bytes=8 * 10**6)
    assert "hold more than the 1000000 bytes that fit; raise --memory, or name the datasets" in found


def test_references_and_other_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "in.h5")
    with h5py.File(path, "r+") as file:
        file["other"] = np.array([file["x"].ref], h5py.ref_dtype)
    assert "dataset 'other': holds references" in refusal(path)
    path = write(tmp_path / "in.h5", other=h5py.ExternalLink("elsewhere.h5", "/x"))
    assert "link 'other'" in refusal(path)
    path = write(tmp_path / "in.h5")
    with h5py.File(path, "r+") as file:
        file.create_dataset("other", (5,), "f4", external=[("elsewhere", 0, 20)])
    assert "dataset 'other': external storage reads other files" in refusal(path)


def test_copies_keep_their_filters_and_values_of_a_lossy_one_are_kept_under_gzip(tmp_path: Path) -> None:
    path = write(tmp_path / "in.h5", plain=np.arange(5))
    with h5py.File(path, "r+") as file:
        file.create_dataset("other", data=np.random.default_rng(1).random(500), scaleoffset=2)
        before = file["other"][()]
    source = open_kept(path)
    for compression in (None, "lzf"):
        target = FORMAT.open_target(source.schema, source.layout, WriteOptions(compression))
        assert any("dataset 'other': gzip replaces the filter scale-offset" in note for note in target.notes)
        with target.open(tmp_path / f"{compression}.h5", 1) as sink:
            sink.write(read_all(source)[0])
        with h5py.File(tmp_path / f"{compression}.h5") as file:
            assert np.array_equal(file["other"], before)
            assert (file["other"].compression, file["other"].scaleoffset) == ("gzip", None)
            assert (file["x"].compression, file["plain"].compression) == (compression, None)


@pytest.mark.parametrize("where", ["x/scalar", "other", "compound"])
def test_values_that_h5py_would_convert_are_refused(tmp_path: Path, where: str) -> None:
    """HDF5 cuts the last byte when it turns full strings without a terminator into terminated ones."""
    element = h5t.C_S1.copy()
    element.set_size(2)
    element.set_strpad(h5t.STR_NULLTERM)
    tid = h5t.vlen_create(element)
    if where == "compound":
        tid = h5t.create(h5t.COMPOUND, 18)
        tid.insert(b"text", 0, h5t.py_create(h5py.string_dtype(), logical=True))
        tid.insert(b"code", 16, element)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["a"] = np.arange(ROWS)
        space = h5s.create(h5s.SCALAR) if "scalar" in where else h5s.create_simple((3,))
        h5d.create(
            file.create_group("x").id if "/" in where else file.id, where.split("/")[-1].encode(), tid, space
        )
    assert f"dataset {where!r}: holds, in or beside variable-length values, a type" in refusal(
        tmp_path / "in.h5"
    )


# Whole runs


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


def test_a_table_of_pandas_comes_back(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("tables")
    frame = pandas.DataFrame({"a": np.arange(1000), "b": np.arange(1000) / 2, "c": np.arange(1000) % 7})
    for name in ("x", "y", "z"):  # more datasets of three categories than of the table
        frame[name] = pandas.Categorical(np.array(["r", "g", "b"])[frame.a % 3])
    frame.to_hdf(tmp_path / "in.h5", key="frame", format="table", data_columns=["a"])
    shuffle_kept(tmp_path / "in.h5", tmp_path / "out.h5")
    found = pandas.read_hdf(tmp_path / "out.h5")
    assert not (found.index == frame.index).all()
    pandas.testing.assert_frame_equal(found.sort_index(), frame)
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
    said = "\n".join(shuffle_kept(tmp_path / "in.h5", tmp_path / "out.h5").warnings)
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


def test_a_continued_run_gives_the_same_bytes(tmp_path: Path) -> None:
    inputs = [write_anndata(tmp_path / "in.h5")]
    run_and_die(2, inputs, tmp_path / "out", keep_others=True)
    run(inputs, tmp_path / "out", resume=True, keep_others=True)
    run(inputs, tmp_path / "whole", keep_others=True)
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "whole" / path.name).read_bytes()
