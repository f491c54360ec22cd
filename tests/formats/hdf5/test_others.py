"""Which datasets may be copied beside shuffled ones, and that they are copied as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5s, h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5 import FORMAT
from recshuf.interfaces import Source, WriteOptions
from tests.support.effort import mostly_slow
from tests.support.formats.given_options import reading
from tests.support.formats.hdf5_tools import given, outline, read_all, write_shard

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 30


def open_kept(*paths: Path, **options: Any) -> Source:
    return FORMAT.open_source([given(path) for path in paths], reading(keep_others=True, **options))


def write(path: Path, **datasets: Any) -> Path:
    """Write a file with two datasets of 30 rows, and others."""
    with h5py.File(path, "w") as file:
        for name, values in ({"x": np.arange(ROWS), "y": np.arange(ROWS)} | datasets).items():
            file[name] = values
    return path


def refusal(*paths: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        open_kept(*paths, **options)
    return str(caught.value)


def test_a_dataset_as_long_as_the_record_must_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "in.h5", other=np.arange(4))
    assert "in.h5: dataset 'y': has 30 rows, as the records" in refusal(path, datasets=("x",))
    assert open_kept(path, datasets=("x", "y")).repeated.keys() == {"other"}
    assert open_kept(path).schema.names == ["x", "y"]


def test_offsets_and_edges_of_records_are_refused(tmp_path: Path) -> None:
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
    "value",
    [np.zeros(10**6), ["long" * 10_000] * 29, np.zeros((1, 10**6)), np.array(["ab" * 1000] * 500, "S2000")],
)
def test_more_than_fits_is_refused(tmp_path: Path, value: Any) -> None:
    path = write(tmp_path / "in.h5", other=value, third=value)
    assert open_kept(path, datasets=("x", "y"), memory_bytes=1 << 30)
    found = refusal(path, datasets=("x", "y"), memory_bytes=8 * 10**6)
    assert "hold more than the 1000000 bytes that fit; raise --memory, or name the datasets" in found


def test_a_small_dataset_in_large_chunks_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "in.h5")
    with h5py.File(path, "r+") as file:
        file.create_dataset("other", (3,), "f8", chunks=(10**7,), maxshape=(None,))
    assert "hold more than the 1000000 bytes" in refusal(path, memory_bytes=8 * 10**6)


def test_references_and_other_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "in.h5")
    with h5py.File(path, "r+") as file:
        file["other"] = np.array([file["x"].ref], h5py.ref_dtype)
    assert "dataset 'other': holds references" in refusal(path)
    path = write(tmp_path / "in.h5", other=h5py.ExternalLink("elsewhere.h5", "/x"))
    assert "link 'other'" in refusal(path)
    path = write(tmp_path / "in.h5")
    with h5py.File(path, "r+") as file:
        file.create_dataset("other", (5,), "u1", external=[("elsewhere", 0, 5)])
    assert "dataset 'other': external storage reads other files" in refusal(path)


KINDS: dict[str, Any] = {
    "many numbers": np.arange(1_100_000).reshape(-1, 11),
    "many strings": np.array([f"{index}" for index in range(5000)], h5py.string_dtype()),
    "numbers": np.arange(700, dtype=">i2").reshape(100, 7),
    "empty": np.zeros((0, 3)),
    "narrow": np.zeros((4, 0)),
    "complex": np.arange(90) * 1j,
    "bytes": np.array([b"abc", b""]),
    "strings": np.array(["ä" * index for index in range(200)], h5py.string_dtype()),
    "grid of strings": np.array([["a", "b"], ["", "cd"]], h5py.string_dtype()),
    "arrays": np.array([np.arange(3.0), np.zeros(0)], h5py.vlen_dtype("f8")),
    "compound": np.array([(1, "x"), (2, "")], [("a", "i2"), ("b", h5py.string_dtype())]),
    "enum": np.array([0, 1], h5py.enum_dtype({"no": 0, "yes": 1}, "i1")),
    "opaque": np.array([b"12", b"34"], "V2"),
    "null": h5py.Empty("i4"),
}


@pytest.mark.parametrize("compression", mostly_slow([None, "lzf"], "lzf"))
def test_copies_are_equal(tmp_path: Path, compression: str | None) -> None:
    """Also of more values than are copied at once."""
    path = write(tmp_path / "in.h5", x=np.arange(9), y=np.arange(9))
    with h5py.File(path, "r+") as file:
        for name, value in KINDS.items():
            chunked = compression and getattr(value, "size", 0)
            kwargs = {"compression": compression, "maxshape": (None,) * value.ndim} if chunked else {}
            file.create_dataset(name, data=value, **kwargs).attrs["note"] = name
        file["type"] = np.dtype([("v", "i4")])
        file.create_dataset("group/other", (3,), file["type"], fillvalue=np.array((7,), file["type"].dtype))
        file["hard"], file["soft"] = file["group/other"], h5py.SoftLink("group/other")
    source = open_kept(path, datasets=("x", "y"))
    out = write_shard(source, tmp_path / "out.h5", read_all(source))
    assert open_kept(out, datasets=("x", "y")).repeated == source.repeated
    before, after = outline(path, "x", "y"), outline(out, "x", "y")
    assert list(after) == list(before)
    for name, described in before.items():
        assert (name, after[name]) == (name, described)


def test_values_of_a_lossy_filter_are_kept_under_gzip(tmp_path: Path) -> None:
    path = write(tmp_path / "in.h5")
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
            assert file["x"].compression == compression


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
