"""Archives of arrays as people have them: lengths that differ, orders and types, damage, conversions."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, InputError, RecshufWarning, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

ROWS = 400
Arrays = dict[str, "NDArray[Any]"]


def make_arrays(rows: int = ROWS) -> Arrays:
    numbers = np.arange(rows)
    return {
        "id": numbers,
        "image": np.asfortranarray(np.arange(rows * 12, dtype=">f4").reshape(rows, 3, 4)),
        "label": numbers % 3 == 0,
        "name": np.array([f"é{number}" for number in numbers]),
        "pair/of": np.array([(n, n / 2) for n in range(rows)], [("a", "<i2"), ("b", ">f8")]),
    }


def save(path: Path, arrays: Arrays, write: Callable[..., None] = np.savez) -> Path:
    write(path, **arrays)
    return path


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_all_arrays_get_one_order_and_stay_what_they_are(tmp_path: Path, write: Callable[..., None]) -> None:
    arrays = make_arrays()
    source = save(tmp_path / "in.npz", arrays, write)
    recshuf.shuffle(source, tmp_path / "out.npz", seed=3, verify=True)
    with np.load(tmp_path / "out.npz") as found:
        assert found.files == [*arrays]
        for name, array in arrays.items():
            assert (found[name].dtype, found[name].tolist()) == (array.dtype, array[found["id"]].tolist())
    methods = {info.compress_type for info in zipfile.ZipFile(tmp_path / "out.npz").infolist()}
    assert methods == {zipfile.ZIP_STORED if write is np.savez else zipfile.ZIP_DEFLATED}
    np.save(tmp_path / "rows.npy", arrays["id"])
    recshuf.shuffle(tmp_path / "rows.npy", tmp_path / "order.npy", seed=3)
    assert np.load(tmp_path / "order.npy").tolist() == np.load(tmp_path / "out.npz")["id"].tolist()


def test_compression_can_be_chosen(tmp_path: Path) -> None:
    source = save(tmp_path / "in.npz", make_arrays())
    recshuf.shuffle(source, tmp_path / "out.npz", compression="gzip:9")
    assert (tmp_path / "out.npz").stat().st_size < source.stat().st_size / 2
    with pytest.raises(
        UsageError, match="compression zstd is not possible for npz; choose one of none, gzip"
    ):
        recshuf.shuffle(source, tmp_path / "other.npz", compression="zstd")


def test_arrays_of_other_lengths_are_refused_left_out_or_copied(tmp_path: Path) -> None:
    arrays = {
        **make_arrays(),
        "classes": np.array(["cat", "dog"]),
        "step": np.array(7),
        "held": np.arange(90),
    }
    sources = [save(tmp_path / f"{number}.npz", arrays) for number in range(2)]
    with pytest.raises(
        InputError,
        match=r"lengths: id 400, .* classes 2, step a single value.*; choose .*as datasets id,.*keep_others",
    ):
        recshuf.shuffle(sources, tmp_path / "out.npz")
    recshuf.shuffle(sources, tmp_path / "out.npz", datasets="id,*a*e")
    assert np.load(tmp_path / "out.npz").files == ["id", "image", "name"]
    with pytest.warns(RecshufWarning, match="'held': copied as they are; if they count records, they count"):
        recshuf.shuffle(sources, tmp_path / "out", keep_others=True, shards=40, verify=True)
    for path in (tmp_path / "out").iterdir():
        with np.load(path) as found:
            assert {*found.files} == {*arrays}
            assert [found[name].tolist() for name in ("classes", "step", "held")] == [
                ["cat", "dog"],
                7,
                [*range(90)],
            ]
            assert len(found["id"]) < 21
    save(sources[1], {**arrays, "classes": np.array(["dog", "cat"])})
    with pytest.raises(InputError, match=r"1\.npz: array 'classes': differs from that of"):
        recshuf.shuffle(sources, tmp_path / "other", keep_others=True, shards=2)
    with pytest.raises(UsageError, match=r"no array 'imag' in .*; there are id, image"):
        recshuf.shuffle(sources, tmp_path / "other.npz", datasets="imag")


def test_archives_become_tables_and_tables_archives(tmp_path: Path) -> None:
    arrays = make_arrays()
    source = save(tmp_path / "in.npz", arrays)
    recshuf.shuffle(source, tmp_path / "out.parquet", verify=True)
    table = pq.read_table(tmp_path / "out.parquet").sort_by("id")
    assert table["image"].to_pylist() == arrays["image"].tolist()
    assert table["pair/of"].to_pylist()[3] == {"a": 3, "b": 1.5}
    assert table["label"].to_pylist() == arrays["label"].tolist()
    recshuf.shuffle(tmp_path / "out.parquet", tmp_path / "back.npz", columns="id,image,label", verify=True)
    with np.load(tmp_path / "back.npz") as found:
        assert (found["image"].dtype, found["image"].shape, found["label"].dtype) == (
            "f4",
            (ROWS, 3, 4),
            bool,
        )
        assert (found["image"] == arrays["image"][found["id"]]).all()
    with pytest.raises(ConversionError, match="'name': an array does not hold type string; choose to='hdf5'"):
        recshuf.shuffle(tmp_path / "out.parquet", tmp_path / "texts.npz", columns="name")


def put(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def flip(path: Path, content: bytes, place: int) -> None:
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


def test_what_is_no_sound_archive_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "in.npz", {"a": np.arange(5000), "b": np.arange(5000)})
    sound = path.read_bytes()

    def refuse(said: str) -> None:
        with pytest.raises(InputError, match=rf"in\.npz: {said}"):
            recshuf.shuffle(path, tmp_path / "out.parquet", format="npz")

    flip(path, sound, 20_000)
    refuse(r"array 'a': cannot be read .*Bad CRC-32.*; fetch or write")
    flip(path, sound, sound.index(b"b.npy") + 300)
    refuse("array 'b': ")
    save(path, {"a": np.arange(5000)}, np.savez_compressed)
    packed = path.read_bytes()
    flip(path, packed, packed.index(b"PK\1\2") + 16)
    refuse("array 'a': .*Bad CRC-32")
    for size in (0, 1, 100, len(sound) - 9):
        path.write_bytes(sound[:size])
        refuse("is empty|cannot be read as an archive")
    # Bit 0 of the flags, in the header of the array and in the directory, says that it is encrypted.
    crypt = bytearray(sound)
    for place in (sound.index(b"PK\3\4") + 6, sound.index(b"PK\1\2") + 8):
        crypt[place] |= 1
    path.write_bytes(crypt)
    refuse("array 'a': is encrypted; decrypt it")
    np.savez(path, a=np.array([{}, 1], object))
    refuse("array 'a': holds Python objects, which only pickle reads")
    put(path, {"readme.txt": b"x"})
    refuse("array 'readme.txt': is no array of NumPy by its name")
    put(path, {})
    refuse("holds no arrays")
    np.savez(path, a=np.array(1), b=np.array(2))
    refuse("holds single values only")
    np.savez(path, a=np.arange(3))
    first = zipfile.ZipFile(path).read("a.npy")
    put(path, {"a.npy": first[:-1]})
    refuse("array 'a': holds 23 bytes, and its values take 24")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", first)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.npy", first)
    refuse("holds two arrays 'a'")


def test_an_array_in_fortran_s_order_fits_the_memory_or_is_refused(tmp_path: Path) -> None:
    source = save(tmp_path / "in.npz", {"a": np.zeros((4_000_000, 2), "f8", order="F")})
    with pytest.raises(
        InputError, match=r"Fortran's order are read whole, which takes 64,000,000 bytes .*raise memory"
    ):
        recshuf.shuffle(source, tmp_path / "out.npz", memory="200MB")
