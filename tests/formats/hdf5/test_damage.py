"""Damage that HDF5 would not survive, or not notice, is found before it reads."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

from recshuf.errors import InputError, UnavailableInputError
from recshuf.formats.hdf5 import chunks as references
from recshuf.formats.hdf5 import heap
from recshuf.formats.hdf5.opening import close_file, open_file, reading
from recshuf.interfaces import InputFile
from tests.support.formats.hdf5_bytes import find, patch, write_chunks
from tests.support.formats.hdf5_tools import open_source, read_all, read_values
from tests.support.formats.hostile_tools import TINY, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzzing.server import Server


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_disk_that_fails_is_no_damage(tmp_path: Path, is_damaged: bool):
    path = tmp_path / "in.h5"
    with h5py.File(path, "w") as made:
        made.create_dataset("x", data=np.arange(300), chunks=(100,), fletcher32=True)
        place = made["x"].id.get_chunk_info(1).byte_offset
    if is_damaged:
        patch(path, place, b"\xff")
    file = open_file(InputFile(str(path), path))
    dataset = file["x"]
    if not is_damaged:
        with Path(os.devnull).open("wb") as unreadable:
            os.dup2(unreadable.fileno(), file.id.get_vfd_handle(), inheritable=False)
    with pytest.raises(InputError, match="cannot be read as HDF5") as caught, reading(str(path)):
        dataset[150]
    assert isinstance(caught.value, UnavailableInputError) != is_damaged
    close_file(file)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_disk_that_fails_where_a_dataset_is_opened_is_no_damage(tmp_path: Path, is_damaged: bool):
    """h5py raises a `KeyError` in both cases."""
    path = tmp_path / "in.h5"
    with h5py.File(path, "w") as made:
        made["x"] = np.arange(300)
        place = h5py.h5o.get_info(made["x"].id).addr
    if is_damaged:
        patch(path, place, b"\xff")
    file = open_file(InputFile(str(path), path))
    if not is_damaged:
        with Path(os.devnull).open("wb") as unreadable:
            os.dup2(unreadable.fileno(), file.id.get_vfd_handle(), inheritable=False)
    with pytest.raises(InputError, match="cannot be read as HDF5") as caught, reading(str(path)):
        file["x"]
    assert isinstance(caught.value.__cause__, KeyError)
    assert isinstance(caught.value, UnavailableInputError) != is_damaged
    close_file(file)


def damage_chunk_size(path: Path) -> None:
    """Let the index say that a chunk with a checksum has one byte: HDF5 would end the process."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(300), chunks=(100,), fletcher32=True)
    patch(path, find(path, (804).to_bytes(4, "little") + bytes(4) + (100).to_bytes(8, "little")), b"\1\0\0\0")


def damage_chunk_place(path: Path) -> None:
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", data=np.arange(300), chunks=(100,))
        offset = made.id.get_chunk_info(1).byte_offset
    patch(path, find(path, offset.to_bytes(8, "little")), (1 << 40).to_bytes(8, "little"))


def damage_filter_mask(path: Path) -> None:
    """Let a chunk pass for one that is not compressed."""
    write_chunks(path, [zlib.compress(bytes(1024))], masks=1)


def damage_chunk_index(path: Path) -> None:
    """Break the checksum of a B-tree, over which HDF5 falls when it reckons up an object."""
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("x", data=np.zeros((30, 30)), chunks=(10, 10), maxshape=(None, None))
    place = find(path, b"BTHD")
    patch(path, place + 14, bytes([path.read_bytes()[place + 14] ^ 1]))


def damage_heap(path: Path) -> None:
    """Zero half of a heap, as a lost sector would: HDF5 would walk on the spot forever."""
    with h5py.File(path, "w") as file:
        file["x"] = ["variable length"] * 100
    patch(path, find(path, b"GCOL") + 1024, bytes(2048))


def damage_heap_sizes(path: Path) -> None:
    """Let an object seem longer, so that what follows is taken from inside of others."""
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", (100,), h5py.vlen_dtype("i8"))
        for row in range(100):
            made[row] = [0, 0, 0]
    place = find(path, b"GCOL")
    assert path.read_bytes()[place + 24] == 24
    patch(path, place + 24, b"\x20")


def damage_heap_index(path: Path) -> None:
    """Let an object pass for free space, after which a walk is out of step."""
    with h5py.File(path, "w") as file:
        file["x"] = ["variable length"] * 100
    patch(path, find(path, b"GCOL") + 16 + 32 * 50, b"\0")


def damage_heap_end(path: Path) -> None:
    """Let the last object reach over the end of its heap."""
    with h5py.File(path, "w") as file:
        file["x"] = ["variable length"]
    patch(path, find(path, b"GCOL") + 24, (4096).to_bytes(8, "little"))


def write_scales(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"], file["t"] = np.zeros((3, 2)), np.arange(3)
        file["t"].make_scale("t")
        file["x"].dims[0].attach_scale(file["t"])


def damage_scales(path: Path) -> None:
    """Give the list of scales a kind of variable length that there is not."""
    write_scales(path)
    name = find(path, b"DIMENSION_LIST\0")
    assert path.read_bytes()[name + 16 : name + 18] == b"\x19\0"
    patch(path, name + 17, b"\4")


def damage_scale_mark(path: Path) -> None:
    write_scales(path)
    patch(path, find(path, b"DIMENSION_SCALE\0") + 2, b"\0")


def damage_shuffle(path: Path) -> None:
    """Let bytes have been shuffled for another size of elements."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(300), chunks=(100,), compression=4, shuffle=True)
    name = find(path, b"shuffle\0")
    assert path.read_bytes()[name + 8 : name + 16] == b"\x08" + bytes(7)
    patch(path, name + 8, b"\0")


def damage_attribute_heap(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
        file.attrs["text"] = "of variable length"
    patch(path, find(path, b"GCOL") + 16, bytes(4080))


def damage_length(path: Path) -> None:
    """Let a value claim gigabytes, which HDF5 would reserve before it looks."""
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", data=["variable length"] * 100)
        offset = made.id.get_offset()
    patch(path, offset + 16 * 70, b"\xff\xff\xff\x7f")


DAMAGES: dict[Callable[[Path], None], str] = {
    damage_chunk_size: r"dataset 'x': the chunk at \(100,\) has 1 bytes instead of 804",
    damage_chunk_place: r"dataset 'x': the chunk at \(100,\) ends at byte \d+, beyond the end",
    damage_filter_mask: r"dataset 'x': the chunk at \(0, 0\) has \d+ bytes instead of 1024",
    damage_chunk_index: "checksum",
    damage_heap: r"heap of variable-length values at byte \d+ is damaged",
    damage_heap_sizes: r"heap of variable-length values at byte \d+ is damaged",
    damage_heap_index: r"heap of variable-length values at byte \d+ is damaged",
    damage_heap_end: r"heap of variable-length values at byte \d+ is damaged",
    damage_scales: "a type of variable length is damaged",
    damage_scale_mark: "a dimension scale is damaged",
    damage_shuffle: "rows 0 to 300 of dataset 'x': cannot be read",
    damage_attribute_heap: r"heap of variable-length values at byte \d+ is damaged",
    damage_length: r"row 70 of dataset 'x': 2147483647 bytes are more than",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_that_hdf5_would_not_survive_is_found_before(
    tmp_path: Path, child: Server, damage: Callable[[Path], None]
) -> None:
    damage(tmp_path / "in.h5")
    refusal(child.run(TINY, tmp_path), tmp_path)
    with pytest.raises(InputError, match=DAMAGES[damage]):
        read_limited(tmp_path / "in.h5")


def read_limited(path: Path) -> None:
    for fragment in open_source(path).fragments(0, 1 << 16, 1 << 20):
        list(fragment.batches())


@pytest.fixture
def no_small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the heaps to the checks of references, as in large files."""
    monkeypatch.setattr(heap, "SMALL_FILE_BYTES", 0)
    monkeypatch.setattr(references, "SMALL_FILE_BYTES", 0)


@pytest.mark.usefixtures("no_small_files")
@pytest.mark.parametrize(
    "damage", [damage_heap, damage_heap_sizes, damage_heap_index, damage_heap_end, damage_length]
)
def test_damaged_heaps_are_found_by_references_too(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(tmp_path / "in.h5")
    with pytest.raises(InputError, match=f"{DAMAGES[damage]}"):
        read_limited(tmp_path / "in.h5")


@pytest.mark.usefixtures("no_small_files")
def test_references_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    for address in (8, 1 << 20, 1 << 63, (1 << 64) - 1):
        with h5py.File(tmp_path / "in.h5", "w", userblock_size=512) as file:
            made = file.create_dataset("x", data=["variable length"] * 100)
            offset = made.id.get_offset()
        patch(tmp_path / "in.h5", offset + 16 * 70 + 4, address.to_bytes(8, "little"))
        with pytest.raises(InputError, match=r"rows 0 to 100 of dataset 'x'.*heap of variable-length values"):
            read_limited(tmp_path / "in.h5")


@pytest.mark.usefixtures("no_small_files")
@pytest.mark.parametrize("userblock", [0, 512])
@pytest.mark.parametrize(
    "options", [{}, {"chunks": (30,)}, {"chunks": (9,), "compression": 1, "shuffle": True}]
)
def test_heaps_with_holes_are_no_damage(tmp_path: Path, userblock: int, options: dict[str, object]) -> None:
    """Values that were written over, and such of zeros, which look like free space."""
    rng = np.random.default_rng(userblock)
    with h5py.File(tmp_path / "in.h5", "w", userblock_size=userblock) as file:
        numbers = file.create_dataset("n", (100,), h5py.vlen_dtype("i8"), **options)
        texts = file.create_dataset("t", (100,), h5py.string_dtype(), **options)
        for row, most in zip(rng.integers(0, 100, 300), rng.choice([3, 50, 3000], 300), strict=True):
            numbers[row] = np.zeros(rng.integers(0, most), "i8")
            texts[row] = "x" * int(rng.integers(0, most))
            file.attrs[f"a{row % 7}"] = texts[row]
        expected = {"n": read_values(numbers), "t": read_values(texts)}
    source = open_source(tmp_path / "in.h5")
    for block_bytes in (1000, 1 << 20):
        batches = read_all(source, block_bytes)
        for name, values in expected.items():
            assert [each for batch in batches for each in batch.column(name).to_pylist()] == values


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "whole.h5", "w", userblock_size=512) as file:
        file["x"] = np.arange(500)
        file.create_dataset("y", data=np.arange(500), chunks=(100,), compression=1)
        file["z"] = ["text"] * 500
    whole = (tmp_path / "whole.h5").read_bytes()
    for size in [*range(0, len(whole), 97), len(whole) - 1]:
        (tmp_path / "in.h5").write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"in\.h5: "):
            open_source(tmp_path / "in.h5")
