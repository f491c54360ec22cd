"""What HDF5 files say beside their records: attributes of all objects, scalars, copies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import recshuf
from recshuf.errors import InputError, RecshufWarning
from tests.support.formats.hdf5_tools import open_source

Change = Callable[[h5py.File], object]


def write(path: Path, *changes: Change, rows: int = 4, **settings: Any) -> Path:
    with h5py.File(path, "w", **settings) as file:
        file["x"] = np.arange(rows)
        file["group/label"] = np.arange(rows) % 2
        for change in changes:
            change(file)
    return path


def attribute(owner: str, name: str, value: object) -> Change:
    return lambda file: (file.get(owner) or file.require_group(owner)).attrs.__setitem__(name, value)


def dataset(name: str, value: Any, **settings: Any) -> Change:
    return lambda file: file.create_dataset(name, data=value, **settings)


def labels(*names: str) -> Change:
    return dataset("classes", list(names), dtype=h5py.string_dtype())


CONTRADICTIONS = {
    "of the file": (attribute("/", "fs", 1), attribute("/", "fs", 2)),
    "of a group": (attribute("group", "fs", 1), attribute("group", "fs", 2)),
    "of a group without datasets": (attribute("meta", "fs", 1), attribute("meta", "fs", 2)),
    "of a scalar": (dataset("fs", 1), dataset("fs", 2)),
    "of a scalar in a group": (dataset("meta/classes", "a,b"), dataset("meta/classes", "b,a")),
    "of a type": (
        lambda file: file["x"].attrs.create("arrow_type", "date32[day]"),
        lambda file: file["x"].attrs.create("arrow_type", "time32[s]"),
    ),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_wherever_it_stands_what_decides_the_meaning_must_agree(tmp_path: Path, kind: str) -> None:
    paths = [write(tmp_path / f"{index}.h5", change) for index, change in enumerate(CONTRADICTIONS[kind])]
    with pytest.raises(InputError, match=r"1\.h5: .* here and .* in .*0\.h5; so equal values"):
        recshuf.shuffle(paths, tmp_path / "out.h5")
    with pytest.warns(RecshufWarning, match=r"those of .*0\.h5 are taken"):
        recshuf.shuffle(paths, tmp_path / "out.h5", first_metadata=True, verify=True)


def test_what_belongs_to_left_out_datasets_does_not_matter(tmp_path: Path) -> None:
    def other(value: int) -> list[Change]:
        return [
            dataset("other/y", np.arange(9)),
            attribute("other", "fs", value),
            dataset("other/gain", value),
        ]

    paths = [write(tmp_path / f"{value}.h5", *other(value)) for value in range(2)]
    result = recshuf.shuffle(paths, tmp_path / "out.h5", datasets="x,group/label", verify=True)
    assert not result.warnings  # and its groups are those of the first input
    with pytest.raises(InputError, match="'other', attribute 'fs'"):
        recshuf.shuffle(paths, tmp_path / "kept.h5", keep_others=True)


@pytest.mark.parametrize("chosen", [{"datasets": "x,group/label"}, {"keep_others": True}])
def test_a_dataset_of_label_names_is_compared_as_a_list(tmp_path: Path, chosen: dict[str, Any]) -> None:
    """Also if it is left out: the labels of all inputs get into one dataset."""
    short, long, other = (
        write(tmp_path / f"{name}.h5", labels(*names))
        for name, names in (("short", "ab"), ("long", "abc"), ("other", "ba"))
    )
    for order in ([short, long], [long, short]):
        out = tmp_path / f"{order[0].stem} first.h5"
        recshuf.shuffle(order, out, verify=True, **chosen)
        with h5py.File(out) as file:
            assert "classes" not in file or file["classes"][:].tolist() == [b"a", b"b", b"c"]
    with pytest.raises(InputError, match=r"dataset 'classes': is \[\"b\", \"a\"\] here"):
        recshuf.shuffle([short, other], tmp_path / "out.h5", **chosen)
    with pytest.warns(RecshufWarning, match="dataset 'classes'"):
        recshuf.shuffle([short, other], tmp_path / "out.h5", first_metadata=True, verify=True, **chosen)


def test_each_object_gets_the_longer_one_of_its_own_lists_of_labels(tmp_path: Path) -> None:
    said = {"x": (["a"], ["a", "b"]), "group": (["c", "d"], ["c"]), "group/label": (["a"], ["a"])}
    paths = [
        write(
            tmp_path / f"{index}.h5",
            *[attribute(owner, "classes", one[index]) for owner, one in said.items()],
        )
        for index in range(2)
    ]
    for order in (paths, paths[::-1]):
        recshuf.shuffle(order, tmp_path / "out.h5", verify=True, overwrite=True)
        with h5py.File(tmp_path / "out.h5") as file:
            found = {owner: file[owner].attrs["classes"].tolist() for owner in said}
        assert found == {owner: max(lists, key=len) for owner, lists in said.items()}


def test_of_other_copies_that_differ_the_first_can_be_taken(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{value}.h5", dataset("table", [1, 2, value])) for value in range(2)]
    with pytest.raises(InputError, match=r"dataset 'table': differs .* first_metadata=True"):
        recshuf.shuffle(paths, tmp_path / "out.h5", keep_others=True)
    with pytest.warns(RecshufWarning, match="dataset 'table'"):
        recshuf.shuffle(paths, tmp_path / "out.h5", keep_others=True, first_metadata=True, verify=True)
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["table"][:].tolist() == [1, 2, 0]


EQUAL = {
    "byte order": (np.array(258, "<i4"), np.array(258, ">i4")),
    "width": (np.float32(0.01), 0.01),
    "integer": (1.0, np.uint8(1)),
    "shape": ([5], 5),
    "nan": (np.nan, np.float32("nan")),
    "text": (np.bytes_("m"), "m"),
    "texts": (np.array(["a", "b"], "S7"), ["a", "b"]),
    "padding": (np.bytes_("m  "), "m"),
    "boolean": (True, np.int8(1)),
    "number in text": ("16000", 16000.0),
}


def test_values_that_read_alike_are_equal(tmp_path: Path) -> None:
    def write_units(name: str, values: dict[str, object]) -> Path:
        return write(tmp_path / name, *[attribute(kind, "units", value) for kind, value in values.items()])

    first, second = (
        write_units(f"{index}.h5", {kind: pair[index] for kind, pair in EQUAL.items()}) for index in range(2)
    )
    assert not recshuf.shuffle([first, second], tmp_path / "out.h5", verify=True).warnings
    for kind in EQUAL:
        other = write_units("2.h5", {kind: pair[1] for kind, pair in EQUAL.items()} | {kind: 7})
        with pytest.raises(InputError, match=f"group '{kind}', attribute 'units': is 7 here"):
            open_source(first, other)


VALUES = {
    "text": "text",
    "texts": ["a", "", "b" * 300],
    "fixed": np.bytes_("abc"),
    "number": 1.5,
    "array": np.arange(12).reshape(3, 4),
    "enum": np.array([1, 0], h5py.enum_dtype({"a": 0, "b": 1})),
    "compound": np.array((1, 2.5), "i4,f8"),
    "nothing": h5py.Empty("f4"),
    "lists": np.arange(3, dtype="i2"),
}


@pytest.mark.parametrize("settings", [{}, {"libver": "latest"}, {"track_order": True}])
def test_attributes_of_any_type_are_read(tmp_path: Path, settings: dict[str, Any]) -> None:
    def annotate(file: h5py.File) -> None:
        for owner in (file, file["group"], file["x"]):
            for name, value in VALUES.items():
                owner.attrs[name] = value
            owner.attrs.create(
                "vlen", np.array([np.arange(3), np.arange(1)], object), dtype=h5py.vlen_dtype("i4")
            )
        file["group/label"].attrs["reference"] = file.ref
        file["x"].dims[0].attach_scale(scale := file["group/label"])
        scale.make_scale()

    path = write(tmp_path / "in.h5", annotate, **settings)
    same = write(tmp_path / "same.h5", annotate, rows=9, **settings)
    other = write(tmp_path / "other.h5", annotate, attribute("group", "text", "another"), rows=9, **settings)
    chosen = ("x", "group/label")  # so that references may be left out
    found, alike, unlike = (open_source(one, datasets=chosen).metadata.values for one in (path, same, other))
    assert found == alike != unlike
    assert len(found) == 3 * (len(VALUES) + 1) + 1
