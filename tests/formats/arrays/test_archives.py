"""Archives of arrays as people have them: lengths that differ, orders and types, damage, conversions."""

import re
import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, InputError, MemoryLimitError, RecshufWarning, UsageError
from tests.conftest import Run
from tests.support.formats.file_suite import refused

ROWS = 400
NUMBERS = np.arange(ROWS)
ARRAYS = {
    "id": NUMBERS,
    "image": np.asfortranarray(np.arange(ROWS * 12, dtype=">f4").reshape(ROWS, 3, 4)),
    "label": NUMBERS % 3 == 0,
    "name": np.array([f"é{number}" for number in NUMBERS]),
    "pair/of": np.array([(n, n / 2) for n in NUMBERS], [("a", "<i2"), ("b", ">f8")]),
}
OTHERS = {
    "classes": np.array(["cat", "dog"]),
    "step": np.array(7),
    "none": np.zeros(0),
    "held": np.arange(90),
}
"""Arrays of other lengths."""


def save(path: Path, arrays: dict[str, Any], write: Callable[..., None] = np.savez) -> Path:
    write(path, **arrays)
    return path


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_all_arrays_get_one_order_and_stay_what_they_are(tmp_path: Path, write: Callable[..., None]) -> None:
    source = save(tmp_path / "in.npz", ARRAYS, write)
    recshuf.shuffle(source, tmp_path / "out.npz", seed=3, verify=True)
    with np.load(tmp_path / "out.npz") as found:
        assert found.files == [*ARRAYS]
        for name, array in ARRAYS.items():
            assert (found[name].dtype, found[name].tolist()) == (array.dtype, array[found["id"]].tolist())
    methods = {info.compress_type for info in zipfile.ZipFile(tmp_path / "out.npz").infolist()}
    assert methods == {zipfile.ZIP_STORED if write is np.savez else zipfile.ZIP_DEFLATED}
    np.save(tmp_path / "rows.npy", NUMBERS)
    recshuf.shuffle(tmp_path / "rows.npy", tmp_path / "order.npy", seed=3)
    assert np.load(tmp_path / "order.npy").tolist() == np.load(tmp_path / "out.npz")["id"].tolist()
    recshuf.shuffle(source, tmp_path / "small.npz", compression="gzip:9")
    assert (tmp_path / "small.npz").stat().st_size < sum(array.nbytes for array in ARRAYS.values()) / 2
    said = "compression zstd is not possible for npz; choose one of none, gzip"
    refused(UsageError, said, source, tmp_path / "other.npz", compression="zstd")


def test_headers_of_any_length_are_read_and_written(tmp_path: Path) -> None:
    """NumPy 1.13 and older ones end them at multiples of 16 bytes."""
    text = b"{'descr': '<i8', 'fortran_order': False, 'shape': (400,), }".ljust(69) + b"\n"
    content = b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + NUMBERS.astype("<i8").tobytes()
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive:
        archive.writestr("id.npy", content)
    (tmp_path / "in.npy").write_bytes(content)
    for suffix in (".npz", ".npy"):
        recshuf.shuffle(tmp_path / f"in{suffix}", tmp_path / f"out{suffix}", seed=3, verify=True)
    found = np.load(tmp_path / "out.npy").tolist()
    assert found == np.load(tmp_path / "out.npz")["id"].tolist()
    assert sorted(found) == NUMBERS.tolist()
    # The number of rows, which is known at last, has room in all.
    save(tmp_path / "in.npz", {f"{size}": NUMBERS.astype([(size * "x", "i4")]) for size in range(1, 65)})
    recshuf.shuffle(tmp_path / "in.npz", tmp_path / "all.npz", seed=3)
    with np.load(tmp_path / "all.npz") as arrays:
        assert all(arrays[f"{size}"][size * "x"].tolist() == found for size in range(1, 65))


def test_arrays_of_other_lengths_are_refused_left_out_or_copied(tmp_path: Path) -> None:
    sources, other = (
        [save(tmp_path / f"{number}.npz", ARRAYS | OTHERS) for number in range(3)],
        tmp_path / "x/",
    )
    said = r"lengths: id 400, .* classes 2, step a single value, none 0, held 90; choose .*as datasets id,.*keep_others"
    refused(InputError, said, sources, tmp_path / "out.npz")
    recshuf.shuffle(sources, tmp_path / "out.npz", datasets="id,*a*e")
    assert np.load(tmp_path / "out.npz").files == ["id", "image", "name"]
    few = save(tmp_path / "few.npz", {"id": NUMBERS, "held": OTHERS["held"]})
    warned = "'held': copied as they are; if they count records, they count"
    with pytest.warns(RecshufWarning, match=warned):
        recshuf.shuffle(sources[:2], tmp_path / "out", keep_others=True, shards=40, verify=True)
    # In its shards, the array of the record is the shorter one.
    with pytest.warns(RecshufWarning, match=warned):
        recshuf.shuffle(few, f"{tmp_path}/few/", keep_others=True, shards=5, verify=True)
    for path in (tmp_path / "out").iterdir():
        with np.load(path) as found:
            assert {*found.files} == {*ARRAYS, *OTHERS}
            assert {name: found[name].tolist() for name in OTHERS} == {
                name: array.tolist() for name, array in OTHERS.items()
            }
            assert len(found["id"]) < 21
    said = r"2\.npz: array 'classes': differs from that of"
    for arrays in (ARRAYS | OTHERS | {"classes": np.array(["dog", "cat"])}, ARRAYS):
        save(sources[2], arrays)
        refused(InputError, said, sources, other, keep_others=True, shards=2)
    chosen = {"keep_others": True, "datasets": "id,classes"}
    refused(InputError, "arrays of several lengths: id 400, classes 2", sources, other, **chosen)
    refused(UsageError, r"no array 'imag' in .*; there are id, image", sources, other, datasets="imag")
    save(sources[2], {"id": ARRAYS["id"]})
    said = r"2\.npz: has no array 'image', and the first input has one; shuffle"
    refused(InputError, said, sources, other, datasets="id,im*")


def test_the_message_about_lengths_can_be_followed_whatever_the_names_and_their_number(
    tmp_path: Path, call: Run
) -> None:
    """A shell takes the option as it is shown; of thousands of arrays, as `savez` makes of a list, some are named."""
    save(tmp_path / "in.npz", {"my id": NUMBERS, "it's": NUMBERS, "other": np.zeros((9, ROWS))})
    command = (tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    found = re.search(r"of the record, as (--datasets .*); --keep-others", call(*command).stderr.decode())
    assert found is not None
    assert call(*command, *shlex.split(found[1])).returncode == 0
    assert np.load(tmp_path / "out.npz").files == ["my id", "it's"]
    save(tmp_path / "many.npz", {f"array {number}": np.zeros(number % 3 + 1) for number in range(2000)})
    for options, said in (
        ({}, "array 11 3 and 1,988 more; choose"),
        ({"datasets": "aray 7"}, "there are array 7, "),
    ):
        with pytest.raises((InputError, UsageError), match=said) as caught:
            recshuf.shuffle(tmp_path / "many.npz", tmp_path / "x.npz", **options)
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize("to", ["npy", "text", "tfrecord", "megatron"])
def test_one_of_several_arrays_is_chosen_as_the_message_says(tmp_path: Path, to: str) -> None:
    source = save(
        tmp_path / "in.npz", {"id": NUMBERS, "text": ARRAYS["name"], "tokens": np.ones((ROWS, 3), "i4")}
    )
    output = tmp_path / ("out.bin" if to == "megatron" else "out")
    refused(ConversionError, r"or datasets \(HDF5, npz\), or ", source, output, to=to)
    chosen = {"npy": "id", "megatron": "tokens"}.get(to, "text")
    recshuf.shuffle(source, output, to=to, datasets=chosen, verify=True)


def test_archives_become_tables_and_tables_archives(tmp_path: Path) -> None:
    source, out, back = save(tmp_path / "in.npz", ARRAYS), tmp_path / "out.parquet", tmp_path / "back.npz"
    recshuf.shuffle(source, out, verify=True)
    table = pq.read_table(out).sort_by("id")
    assert table["image"].to_pylist() == ARRAYS["image"].tolist()
    assert table["pair/of"].to_pylist()[3] == {"a": 3, "b": 1.5}
    assert table["label"].to_pylist() == ARRAYS["label"].tolist()
    recshuf.shuffle(out, back, columns="id,image,label", verify=True)
    with np.load(back) as found:
        for name, kind in (("image", "f4"), ("label", "?")):
            assert found[name].dtype == kind
            assert (found[name] == ARRAYS[name][found["id"]]).all()
    said = "'name': an array does not hold type string; choose to='hdf5'"
    refused(ConversionError, said, out, tmp_path / "texts.npz", columns="name")
    (tmp_path / "none.jsonl").write_bytes(b"")
    said = "records without a single field have no place in an archive; choose to='jsonl'"
    refused(ConversionError, said, tmp_path / "none.jsonl", tmp_path / "none.npz")


def put(path: Path, *members: tuple[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)


def flip(content: bytes, *places: int) -> bytes:
    changed = bytearray(content)
    for place in places:
        changed[place] ^= 1
    return bytes(changed)


def test_what_is_no_sound_archive_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "in.npz", {"a": np.arange(5000), "b": np.arange(5000)})
    sound = path.read_bytes()
    packed = save(path, {"a": np.arange(5000)}, np.savez_compressed).read_bytes()

    def refuse(said: str, content: bytes | None = None) -> None:
        if content is not None:
            path.write_bytes(content)
        refused(InputError, rf"in\.npz: {said}", path, tmp_path / "out.parquet", format="npz")

    refuse(r"array 'a': cannot be read .*Bad CRC-32.*; fetch or write", flip(sound, 20_000))
    refuse("array 'b': ", flip(sound, sound.index(b"b.npy") + 300))
    refuse("array 'a': .*Bad CRC-32", flip(packed, packed.index(b"PK\1\2") + 16))
    for size in (0, 1, 100, len(sound) - 9):
        refuse("cannot be read as an archive", sound[:size])
    # Bit 0 of the flags, in the header of the array and in the directory, says that it is encrypted; bit 8 says nothing.
    places = (sound.index(b"PK\3\4") + 6, sound.index(b"PK\1\2") + 8)
    for flags in (places, [place + byte for place in places for byte in (0, 1)]):
        refuse("array 'a': is encrypted; decrypt it", flip(sound, *flags))
    for array, said in (
        (np.array([{}, 1], object), "array 'a': holds Python objects, which only pickle reads"),
        (np.zeros(3, [("member", object)]), "array 'a': holds Python objects"),
        (np.array(1), "holds single values only"),
    ):
        save(path, {"a": array})
        refuse(said)
    first = zipfile.ZipFile(save(path, {"a": np.arange(3)})).read("a.npy")
    with pytest.warns(UserWarning, match="Duplicate name"):
        put(path, ("a.npy", first), ("a.npy", first))
    refuse("holds two arrays 'a'; write it again with one")
    for members, said in (
        ([("readme.txt", b"x")], "array 'readme.txt': is no array of NumPy by its name; leave it out"),
        ([("a", first)], "array 'a': is no array of NumPy by its name"),
        ([("a.npy", first), ("a", first)], "holds two arrays 'a'"),
        ([], "holds no arrays"),
        ([("a.npy", first[:-1])], "array 'a': holds 23 bytes behind its header, and its values take 24"),
        ([("a.npy", first + b"x")], "array 'a': holds 25 bytes behind its header, and its values take 24"),
    ):
        put(path, *members)
        refuse(said)


def test_an_array_in_fortran_s_order_fits_the_memory_or_is_refused(tmp_path: Path) -> None:
    source = save(tmp_path / "in.npz", {"a": np.zeros((4_000_000, 2), "f8", order="F")})
    said = r"whole arrays in Fortran's order, .* needs at least 276 MB of memory, .*raise memory"
    refused(MemoryLimitError, said, source, tmp_path / "out.npz", memory="200MB")
