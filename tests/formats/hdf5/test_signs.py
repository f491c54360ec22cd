"""Files that are no list of records are refused by what they are; attributes of AnnData and pandas say which rows move."""

import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

import recshuf
from recshuf.errors import InputError
from tests.formats.hdf5.test_keep_others import write_anndata
from tests.support.formats.hdf5_tools import store

ALL_WAYS: list[tuple[str, dict[str, Any]]] = [
    ("out.h5", {}),
    ("out.h5", {"keep_others": True}),
    ("out.jsonl", {}),
]


def many(form: str, count: int, *shape: int) -> dict[str, Any]:
    return {form.format(index): np.full(shape, index) for index in range(count)}


def shuffle(given: Path, out: Path, **options: Any) -> tuple[str, ...]:
    """Shuffle, and return the warnings."""
    return recshuf.shuffle(given, out, seed=1, overwrite=True, **options).warnings


def refusals(given: Path) -> list[str]:
    """Return why each way to shuffle a file is refused; nothing may be written."""
    said = []
    for name, options in ALL_WAYS:
        with pytest.raises(InputError) as caught:
            shuffle(given, given.parent / name, **options)
        assert not (given.parent / name).exists()
        assert "--keep-others" not in str(caught.value).replace("without --keep-others", "")
        said.append(str(caught.value))
    return said


def proposed(said: str) -> list[str] | None:
    """Return the datasets that a message proposes, as a shell would pass them."""
    found = re.search(r"(?:insist with|such as) datasets (.*)$", said)
    return shlex.split(found[1])[0].split(",") if found else None


SAMPLES: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "datasets": (
        many("img_{:04d}", 6, 4, 3),
        "datasets img_0000, img_0001, img_0002 and 3 more differ",
        "img_*",
    ),
    "two": (many("img_{:02d}", 2, 4), "datasets img_00, img_01 differ", "img_*"),
    "numbers": (many("{}", 3, 4, 3), "datasets 0, 1, 2 differ", "*"),
    "files": (
        {f"{name}.png": np.zeros((4, 3)) for name in ("cat", "dog")},
        "datasets cat.png, dog.png",
        "*.png",
    ),
    "hashes": (many("1f3a9c0{}d", 2, 4), "datasets 1f3a9c00d, 1f3a9c01d", "*"),
    "groups": (many("{}/x", 3, 4) | many("{}/y", 3, 4), "groups 0, 1, 2 differ", "*/*"),
    "nested groups": (
        many("train/{:04d}/image", 5, 4, 3) | many("train/{:04d}/mask", 5, 4, 3),
        "groups train/0000, train/0001, train/0002 and 2 more differ",
        "train/*/*",
    ),
    "beside labels": (many("img_{}", 6, 4, 3) | {"labels": np.arange(6)}, "datasets img_0, img_1", "img_*"),
    "as many as rows": (many("img_{}", 4, 4) | {"labels": np.arange(4)}, "datasets img_0, img_1", "img_*"),
    "of all lengths": ({f"utt_{i}": np.zeros(50 + i) for i in range(4)}, "datasets utt_0, utt_1", None),
    "demonstrations": (
        {
            f"data/demo_{i}/{name}": np.zeros((5 + i, 3))
            for i in range(4)
            for name in ("actions", "obs/robot0")
        },
        "groups data/demo_0, data/demo_1, data/demo_2 and 1 more differ",
        None,
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_dataset_for_each_sample_is_refused_unless_it_is_named(tmp_path: Path, name: str) -> None:
    datasets, expected, pattern = SAMPLES[name]
    given = store(tmp_path / "in.h5", datasets)
    for said in refusals(given):
        assert expected in said
        assert proposed(said) == (None if pattern is None else [pattern])
    if pattern is not None:
        shuffle(given, tmp_path / "out.h5", datasets=[pattern])
        with h5py.File(tmp_path / "out.h5") as file:
            assert sorted(set(datasets) - {"labels"}) == sorted(list_names(file))


def list_names(file: h5py.File) -> list[str]:
    names: list[str] = []
    file.visititems(lambda name, found: names.append(name) if isinstance(found, h5py.Dataset) else None)
    return names


COLUMNS: dict[str, tuple[dict[str, Any], str | None]] = {
    "with numbers": (many("x{}", 4, 9) | {"y": np.arange(9)}, None),
    "of weather": ({"t2m": np.arange(9), "u10": np.arange(9), "v10": np.arange(9)}, None),
    "of types": ({"x1": np.arange(9), "x2": np.ones(9), "x3": np.ones(9, "i8"), "x4": np.ones(9, "?")}, None),
    "two": (many("x{}", 2, 9), "row i of x0, x1 is taken for one record"),
    "of cameras": (
        many("camera{}/rgb", 3, 9, 2) | {"state": np.arange(9)},
        "row i of camera0/rgb, camera1/rgb",
    ),
    "of two groups": (
        {f"{group}/{name}": np.arange(9) for group in ("train", "test") for name in "xy"},
        "row i of test/x, train/x is taken for one record",
    ),
    "of transitions": (
        {f"{group}/{name}": np.arange(9) for group in ("obs", "next_obs") for name in "xy"}
        | {"action": np.arange(9)},
        None,
    ),
    "of coordinates": ({"row": np.arange(9), "col": np.arange(9), "data": np.ones(9)}, None),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_shuffled_and_doubt_is_said(tmp_path: Path, name: str) -> None:
    datasets, doubt = COLUMNS[name]
    notes = shuffle(store(tmp_path / "in.h5", datasets), tmp_path / "out.h5")
    assert [str(doubt) in note for note in notes] == [True] * (doubt is not None)


def sparse(folder: str, **shape: Any) -> dict[str, Any]:
    """Return a matrix of four rows or columns, and nine values."""
    parts = {"data": np.ones(9), "indices": np.arange(9) % 3, "indptr": [0, 3, 5, 8, 9], **shape}
    return {folder + name: values for name, values in parts.items()}


PARTS: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "nearly 10x": (
        sparse("matrix/", shape=[3, 4]) | {"matrix/cells": np.arange(4), "matrix/features/id": np.arange(3)},
        "group 'matrix': is a sparse matrix",
        ["matrix/cells"],
    ),
    "at the top": (sparse("") | {"label": np.arange(4)}, "group '/': is a sparse matrix", ["label"]),
    "two": (
        sparse("a/") | sparse("b/") | {"label": np.arange(4)},
        "group 'a': is a sparse matrix",
        ["label"],
    ),
    "lengths": (
        {"tokens": np.arange(100), "lengths": [10, 20, 70], "label": np.arange(3), "id": np.arange(3)},
        "dataset 'lengths'.* seems to hold lengths of lists in 'tokens', which has 100 rows",
        ["id", "label", "lengths"],
    ),
    "ends": (
        {"data/a": np.ones((100, 2)), "data/b": np.ones(100), "meta/ends": np.array([30, 60, 100], ">u2")},
        "dataset 'meta/ends'.* seems to hold offsets of lists in 'data/",
        ["data/a", "data/b"],
    ),
    "starts": (
        {"text": np.ones(90), "first": [0, 7, 40]},
        "dataset 'first'.* hold offsets of lists in 'text'",
        ["text"],
    ),
    "pairs": (
        {"text": np.ones(90), "span": [[0, 7], [7, 40], [40, 90]]},
        "dataset 'span'.* hold offsets of lists in 'text'",
        ["text"],
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_matrices_and_lists_are_refused(tmp_path: Path, name: str) -> None:
    datasets, expected, names = PARTS[name]
    given = store(tmp_path / "in.h5", datasets)
    for said, (out, options) in zip(refusals(given), ALL_WAYS, strict=True):
        assert re.search(expected, said)
        if not options or "such as" in said:
            assert proposed(said) == names
            shuffle(given, tmp_path / out, datasets=names)
            (tmp_path / out).unlink()


DIMENSIONS: dict[str, tuple[dict[str, tuple[str, ...]], list[str]]] = {
    "square": ({"x": ("s", "t"), "y": ("s",), "z": ("t",)}, ["x", "y", "s"]),
    "distances": ({"d": ("s", "s"), "y": ("s",)}, ["y", "s"]),
    "behind": ({"y": ("s",), "w": ("s",), "v": ("level", "s")}, ["y", "w", "s"]),
}
"""The dimensions of each dataset, and those whose rows can be shuffled; a scale has the name of its dimension."""


@pytest.mark.parametrize("name", DIMENSIONS)
def test_what_follows_the_order_of_the_records_along_another_axis_is_refused(
    tmp_path: Path, name: str
) -> None:
    dimensions, names = DIMENSIONS[name]
    scales = {each for axes in dimensions.values() for each in axes}
    lengths = {"s": 9, "t": 9, "level": 4}
    rows = {path: np.zeros([lengths[each] for each in axes]) for path, axes in dimensions.items()}
    given = store(tmp_path / "in.h5", rows | {each: np.arange(lengths[each]) for each in scales})
    with h5py.File(given, "a") as file:
        for each in scales:
            file[each].make_scale(each)
        for path, axes in dimensions.items():
            for axis, each in enumerate(axes):
                file[path].dims[axis].attach_scale(file[each])
    for said, (out, _) in zip(refusals(given), ALL_WAYS, strict=True):
        place = next(path for path, axes in dimensions.items() if len(axes) > 1)
        assert f"dataset '{place}'" in said
        assert "has axis 2 along the dimension of the records" in said
        shuffle(given, tmp_path / out, datasets=names)
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["y"].dims[0][0].name == "/s"


def test_what_only_looks_alike_is_copied(tmp_path: Path) -> None:
    rows = {"x": np.arange(30), "y": np.ones((30, 2))}
    others = sparse("graph/", shape=[4, 4]) | {"count": [30], "years": [1990, 1991], "ids": np.arange(3)}
    (note,) = shuffle(store(tmp_path / "in.h5", rows | others), tmp_path / "out.h5", keep_others=True)
    assert "shuffled are the rows of x, y; copied unchanged are count, graph/data" in note


# What attributes say


@pytest.mark.parametrize("folder", ["", "mod/rna/"])
@pytest.mark.parametrize("options", [{}, {"keep_others": True}])
def test_of_a_square_anndata_the_observations_move_alone(
    tmp_path: Path, folder: str, options: dict[str, Any]
) -> None:
    count = 30
    write_anndata(tmp_path / "flat.h5", count)
    with h5py.File(tmp_path / "flat.h5") as source, h5py.File(tmp_path / "in.h5", "w") as file:
        for name in source:
            source.copy(name, file.require_group(folder or "/"))
        file[folder or "/"].attrs["encoding-type"] = "anndata"
        file[folder + "varp/near"] = np.arange(count * count).reshape(count, count)
        file[folder + "obs/__categories/old"] = np.arange(count)
    notes = shuffle(tmp_path / "in.h5", tmp_path / "out.h5", **options)
    assert any(f"shuffled are the rows of {folder}X, {folder}layers/counts" in note for note in notes)
    with h5py.File(tmp_path / "in.h5") as before, h5py.File(tmp_path / "out.h5") as after:
        rows = after[folder + "X"][:, 0].astype(int)
        assert sorted(rows) == list(range(count)) != list(rows)
        for name in list_names(before):
            moves = re.search(r"(^|/)(obs|obsm|layers|raw)/(?!.*categories)|X$", name) is not None
            if before[name].shape and before[name].dtype.names is None:
                expected = before[name][()][rows] if moves else before[name][()]
                assert (name, after[name][()].tolist()) == (name, expected.tolist())


def test_a_later_input_that_says_more_than_the_first_is_refused(tmp_path: Path) -> None:
    given = [
        store(tmp_path / "first.h5", {"X": np.zeros((5, 4), "f4")}),
        write_anndata(tmp_path / "cells.h5"),
    ]
    with pytest.raises(InputError, match=r"cells\.h5: says which .* first input does not; shuffle .* apart"):
        recshuf.shuffle(given, tmp_path / "out.h5", seed=1)


def test_categories_that_a_conversion_leaves_out_are_named(tmp_path: Path) -> None:
    notes = shuffle(write_anndata(tmp_path / "in.h5"), tmp_path / "out.jsonl")
    assert any("left out are obs/cell_type/categories, uns/groups" in note for note in notes)
    recshuf.scatter(tmp_path / "in.h5", tmp_path / "store")
    with pytest.warns(recshuf.errors.RecshufWarning, match="left out are obs/cell_type/categories"):
        recshuf.gather(tmp_path / "store", tmp_path / "gathered.parquet", verify=True)


@pytest.mark.parametrize("where", ["layers/counts", "uns/near"])
def test_a_sparse_matrix_of_observations_is_refused_and_one_of_variables_is_kept(
    tmp_path: Path, where: str
) -> None:
    with h5py.File(write_anndata(tmp_path / "in.h5", 30), "r+") as file:
        file.pop(where, None)
        for part, values in (sparse(where + "/", shape=[30, 30]) | sparse("varp/near/")).items():
            file[part] = values
    for said in refusals(tmp_path / "in.h5"):
        assert f"{where!r}: is a sparse matrix with an axis of 30, as the records" in said
        assert said.endswith("write it as a dense one") == (where == "layers/counts")
    with h5py.File(tmp_path / "in.h5", "r+") as file:
        del file[where]
    shuffle(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["varp/near/indptr"][:].tolist() == [0, 3, 5, 8, 9]


def test_frames_of_pandas_keep_their_columns(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("tables")
    index = pandas.MultiIndex.from_product([["r", "s", "t"], range(3)])
    frames = {
        "square": pandas.DataFrame(np.arange(81.0).reshape(9, 9), columns=list("abcdefghi")),
        "levels": pandas.DataFrame({"a": np.arange(9), "b": np.arange(9) / 2}, index),
        "series": pandas.Series(np.arange(9), index),
    }
    for name, frame in frames.items():
        frame.to_hdf(tmp_path / "in.h5", key="deep/key", mode="w", format="fixed")
        shuffle(tmp_path / "in.h5", tmp_path / "out.h5")
        found = pandas.read_hdf(tmp_path / "out.h5")
        assert (name, found.index.equals(frame.index)) == (name, False)
        assert (name, found.sort_index().equals(frame)) == (name, True)
    frame.to_hdf(tmp_path / "in.h5", key="other", format="fixed")
    frame.head(4).to_hdf(tmp_path / "in.h5", key="short", format="fixed")
    with pytest.raises(InputError, match=r"differ in length: .*datasets deep/key/index_label0"):
        shuffle(tmp_path / "in.h5", tmp_path / "out2.h5")


def test_mudata_is_refused_by_name_and_its_parts_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "it's.h5mu"
    for name in ("rna", "prot"):
        write_anndata(tmp_path / f"{name}.h5")
        with h5py.File(tmp_path / f"{name}.h5") as part, h5py.File(given, "a", userblock_size=512) as file:
            part.copy("/", file.require_group("mod"), name)
            file.attrs["encoding-type"] = "MuData"
            file[f"obsmap/{name}"] = np.arange(len(part["X"]))
    written: list[str] = []
    part_of = SimpleNamespace(write_h5ad=written.append)
    module = SimpleNamespace(read_h5mu=lambda name: SimpleNamespace(mod={name: part_of, "prot": part_of}))
    monkeypatch.setitem(sys.modules, "mudata", module)  # type: ignore[arg-type]
    for said in refusals(given):
        assert "it's.h5mu: is MuData" in said
        program, *arguments = shlex.split(said.partition("stay aligned: ")[2])
        assert (program, arguments[0]) == ("python", "-c")
        exec(arguments[1])
    assert written[:2] == [f"{given}.h5ad", "prot.h5ad"]
    shuffle(given, tmp_path / "out.h5", datasets=["mod/*/X"])
