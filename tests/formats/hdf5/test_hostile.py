"""HDF5 files made to do harm, and files that are damaged or change while they are read."""

from __future__ import annotations

import os
import shutil
import zlib
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest
from h5py import h5s

import recshuf
from recshuf.errors import InputError
from recshuf.formats.hdf5.filters.fletcher32 import has_right_checksum
from recshuf.formats.hdf5.reading import heap, references
from tests.fuzzing.server import Server
from tests.support.hdf5_tools import copy_through, open_source, read_all, read_raw, read_values
from tests.support.hostile_tools import GB, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TINY = ["in.h5", "-o", "out.h5", "--memory", "300MB"]


@pytest.fixture(scope="module")
def child() -> Iterator[Server]:
    """Return what runs the command line in a process with 2 GB of address space and half a minute of time."""
    with Server(seconds=30, memory_bytes=2 * GB) as server:
        yield server


def patch(path: Path, place: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def find(path: Path, wanted: bytes) -> int:
    """Return the only place of some bytes."""
    content = path.read_bytes()
    assert content.count(wanted) == 1
    return content.index(wanted)


# Links


def test_groups_in_a_circle_are_copied_as_such(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["g/x"] = [1, 2, 3]
        file["g/loop"], file["g/root"] = file["g"], file["/"]
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as after:
        assert after["g/loop/root/g/root/g/loop/x"][:].tolist() == [1, 2, 3]


@pytest.mark.parametrize("target", ["external link", "virtual dataset", "external storage"])
def test_no_chain_of_links_leads_out_of_the_file(tmp_path: Path, target: str) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = np.arange(3)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["y"] = np.arange(3)
        if target == "external link":
            file["a/b/outside"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/x")
        elif target == "virtual dataset":
            layout = h5py.VirtualLayout((3,), "i8")
            layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "x", (3,))
            file.create_virtual_dataset("a/b/outside", layout)
        else:
            file.create_dataset("a/b/outside", (3,), "i8", external=[(str(tmp_path / "secret.h5"), 0, 24)])
        file["c/first"] = h5py.SoftLink("../a/b")  # HDF5 knows no parent folder
        file["c/second"] = h5py.SoftLink("/a/./b//outside")
        file["third"] = h5py.SoftLink("c/second")
        file["to group"] = h5py.SoftLink("a")
    for chosen in ("third", "c/second", "to group/b/outside", "a/b/outside", "c/first/outside"):
        with pytest.raises(InputError, match=r"outside|c/first"):
            open_source(tmp_path / "in.h5", datasets=("y", chosen))
    with pytest.raises(InputError, match="outside"):
        open_source(tmp_path / "in.h5")
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5", datasets=("y",))
    with h5py.File(tmp_path / "out.h5") as after:
        assert sorted(after) == ["a", "c", "y"]
        assert sorted(after["a/b"]) + sorted(after["c"]) == []


def test_long_chains_of_soft_links_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["link0"] = np.arange(3)
        for index in range(200):
            file[f"link{index + 1}"] = h5py.SoftLink(f"link{index}")
    assert open_source(tmp_path / "in.h5", datasets=("link50",)).inputs[0].record_count == 3
    with pytest.raises(InputError, match="has no dataset 'link200'"):
        open_source(tmp_path / "in.h5", datasets=("link200",))


def test_groups_nested_too_deep_are_refused(tmp_path: Path, child: Server) -> None:
    for depth in (100, 2000):
        with h5py.File(tmp_path / "in.h5", "w") as file:
            group = file
            for _ in range(depth):
                group = group.create_group("g")
            group["x"] = [1, 2, 3]
        if depth == 100:
            copy_through(tmp_path / "in.h5", tmp_path / "copy.h5")
    with h5py.File(tmp_path / "copy.h5") as after:
        assert after["g/" * 100 + "x"][:].tolist() == [1, 2, 3]
    assert "in.h5: group 'g/g/" in refusal(child.run(TINY, tmp_path), tmp_path)


# Names and attributes


def test_odd_names_survive_and_stay_in_one_line(tmp_path: Path, child: Server) -> None:
    names = ["a\nb", "..", "...", " ", "C:\\x", "\x1b[2J", "é" * 300]
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name in names:
            file[name] = np.arange(3)
            file[name].attrs[name] = name
    assert child.run(["in.h5", "-o", "copy.h5"], tmp_path).status == 0
    with h5py.File(tmp_path / "copy.h5") as after:
        assert set(after) == set(names)
        assert all(after[name].attrs[name] == name for name in names)
    with h5py.File(tmp_path / "in.h5", "a") as file:
        del file["a\nb"]
        file["a\nb"] = np.arange(4)
    line = refusal(child.run(TINY, tmp_path), tmp_path)
    assert "datasets differ in length" in line
    assert "\x1b" not in line


def test_attributes_of_any_size_are_copied(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w", libver="latest") as file:
        file["x"] = np.arange(3)
        file["x"].attrs["wide"] = np.zeros(1, "V60000")
        file["x"].attrs["empty"] = h5py.Empty("f8")
        file["x"].attrs["none"] = np.zeros((0, 5))
        for index in range(1000):
            file.attrs[f"a{index}"] = index
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as after:
        assert after["x"].attrs["wide"].tobytes() == bytes(60000)
        assert after["x"].attrs["none"].shape == (0, 5)
        assert len(after.attrs) == 1000


def test_an_attribute_too_large_for_the_usual_format_is_refused_by_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w", libver="latest") as file:
        file["x"] = np.arange(3)
        file["x"].attrs["large"] = np.arange(1 << 18)
    with pytest.raises(InputError, match="attribute 'large' of '/x'"):
        open_source(tmp_path / "in.h5")


# Bombs


def write_chunks(path: Path, chunks: list[bytes], rows: int = 64, masks: int = 0, **options: object) -> Path:
    """Write a dataset ``x`` of gzip chunks of 64 rows of 16 bytes that hold these bytes."""
    with h5py.File(path, "w") as file:
        kind = {"compression": "gzip", **options}
        made = file.create_dataset("x", (rows * len(chunks), 16), "u1", chunks=(rows, 16), **kind)
        for index, stored in enumerate(chunks):
            made.id.write_direct_chunk((index * rows, 0), stored, masks)
    return path


def test_a_tiny_file_that_declares_terabytes_is_refused_at_once(tmp_path: Path, child: Server) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", (1 << 33, 1 << 10), "u1", chunks=(1 << 10, 1 << 10))
    assert (tmp_path / "in.h5").stat().st_size < 1500
    line = refusal(child.run(TINY, tmp_path), tmp_path)
    assert "dataset 'x': declares 8796093022208 bytes but stores 0" in line


@pytest.mark.parametrize(
    ("rows", "said"), [(1 << 18, "--memory"), (1 << 14, "dataset 'x': a chunk has 16777216")]
)
def test_a_chunk_larger_than_the_limit_is_refused_before_it_is_read(
    tmp_path: Path, child: Server, rows: int, said: str
) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((rows, 1 << 10), "u1"), chunks=(rows, 1 << 10), compression=1)
    assert (tmp_path / "in.h5").stat().st_size < 1 << 21
    assert said in refusal(child.run(TINY, tmp_path), tmp_path)


def test_a_gzip_chunk_inflates_no_further_than_its_size(tmp_path: Path, child: Server) -> None:
    stream = zlib.compressobj(9)
    bomb = b"".join([*(stream.compress(bytes(1 << 26)) for _ in range(4)), stream.flush()])
    whole = zlib.compress(bytes(1 << 20))
    with h5py.File(tmp_path / "in.h5", "w") as file:
        made = file.create_dataset("x", (2 << 16, 16), "u1", chunks=(1 << 16, 16), compression=1)
        made.id.write_direct_chunk((0, 0), whole)
        made.id.write_direct_chunk((1 << 16, 0), bomb)  # 256 MiB instead of 1 MiB
    with pytest.raises(InputError, match="a chunk of 1048576 bytes inflates to more"):
        read_all(open_source(tmp_path / "in.h5"))
    ended = child.run(TINY, tmp_path)
    assert "a chunk of 1048576 bytes inflates to more" in refusal(ended, tmp_path)


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"fletcher32": True}])
@pytest.mark.parametrize("held", [0, 1, 1023, 1025])
def test_a_gzip_chunk_must_fill_its_size(tmp_path: Path, held: int, options: dict[str, bool]) -> None:
    """HDF5 itself hands out whatever lies behind a chunk in memory."""
    stored = zlib.compress(bytes(held))
    if options.get("fletcher32"):
        stored += checksum(stored)
    whole = zlib.compress(bytes(1024))
    whole += checksum(whole) if options.get("fletcher32") else b""
    path = write_chunks(tmp_path / "in.h5", [whole, stored], **options)
    with pytest.raises(InputError, match=r"'x'.*a chunk of 1024 bytes inflates to"):
        read_all(open_source(path))


def checksum(stored: bytes) -> bytes:
    """Return Fletcher's checksum, word by word."""
    first = second = 0
    for place in range(0, len(stored), 2):
        first = (first + int.from_bytes(stored[place : place + 2].ljust(2, b"\0"), "big")) % 65535
        second = (second + first) % 65535
    return (second << 16 | first).to_bytes(4, "little")


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 70_001])
def test_checksums_are_those_of_hdf5(tmp_path: Path, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        made = file.create_dataset("x", data=data, chunks=(size,), fletcher32=True)
        stored = made.id.read_direct_chunk((0,))[1]
    assert has_right_checksum(stored)
    assert has_right_checksum(data.tobytes() + checksum(data.tobytes()))
    for place in range(0, len(stored), 1 + size // 10):
        wrong = bytearray(stored)
        wrong[place] ^= 1
        assert not has_right_checksum(bytes(wrong))


@pytest.mark.parametrize("shape", [(100,), (50, 6, 5), (10, 3)])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("fletcher32", [False, True])
def test_gzip_chunks_read_as_hdf5_reads_them(
    tmp_path: Path, shape: tuple[int, ...], shuffle: bool, fletcher32: bool
) -> None:
    """Also chunks over the edge, chunks never written, and those that a mask leaves out of some filters."""
    chunk = (7, 4, 2)[: len(shape)]
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name, kind in (("a", "u1"), ("b", "i4"), ("c", "S13")):
            options = {
                "compression": 1,
                "shuffle": shuffle,
                "fletcher32": fletcher32,
                "fillvalue": b"fill" if kind == "S13" else 7,
            }
            made = file.create_dataset(
                name, shape, kind, chunks=chunk, maxshape=(None,) * len(shape), **options
            )
            raw = np.random.default_rng(1).integers(0, 5, made.nbytes, np.uint8)
            made.id.write(h5s.ALL, h5s.ALL, raw, made.id.get_type())
            plain = bytes(range(7)) * (np.prod(chunk) * made.dtype.itemsize // 7)
            made.id.write_direct_chunk((7,) + (0,) * (len(shape) - 1), plain, 0b111)
            made.resize(shape[0] + 30, 0)
    with h5py.File(tmp_path / "in.h5") as file:
        expected = {name: read_raw(file[name]) for name in file}
    source = open_source(tmp_path / "in.h5")
    for block_bytes in (1, 700, 1 << 20):
        batches = read_all(source, block_bytes)
        for index, name in enumerate(source.schema.names):
            read = b"".join(each for batch in batches for each in batch.column(index).to_pylist())
            assert read == expected[name]


# Damage


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


# Files that change


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def write_over(path: Path) -> None:
    status = path.stat()
    patch(path, status.st_size - 8, b"new data")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def replace(path: Path) -> None:
    other = path.with_name("other.h5")
    shutil.copyfile(path, other)
    other.replace(path)


def vanish(path: Path) -> None:
    path.unlink()


def write_large(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["x"] = np.ones((1 << 12, 1 << 8), "u1")
    return path


@pytest.mark.parametrize("change", [shrink, write_over])
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """HDF5 reads zeros where a file ended before."""
    path = write_large(tmp_path / "in.h5")
    fragments = open_source(path).fragments(0, 1 << 16, GB)
    list(next(fragments).batches())
    change(path)
    with pytest.raises(InputError, match=r"in\.h5: changed while it was read"):
        [list(fragment.batches()) for fragment in fragments]


@pytest.mark.parametrize("change", [replace, vanish])
def test_a_file_that_loses_its_name_is_read_to_the_end(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = write_large(tmp_path / "in.h5")
    fragments = open_source(path).fragments(0, 1 << 16, GB)
    list(next(fragments).batches())
    change(path)
    rows = sum(batch.num_rows for fragment in fragments for batch in fragment.batches())
    assert rows == (1 << 12) - (1 << 8)


@pytest.mark.parametrize("change", [shrink, write_over, replace, vanish])
def test_a_file_that_changes_before_it_is_read_is_refused(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = write_large(tmp_path / "in.h5")
    source = open_source(path)
    change(path)
    with pytest.raises(InputError, match=r"in\.h5: "):
        next(source.fragments(0, 1 << 16, GB))


# What is no file


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, child: Server, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "in.h5")
    else:
        (tmp_path / "in.h5").symlink_to("/dev/zero")
    line = refusal(child.run(["--format", "hdf5", *TINY], tmp_path), tmp_path)
    assert "in.h5: is not a regular file, which HDF5 needs; save it to a file first" in line


def test_what_only_looks_like_a_pickle_stays_bytes(tmp_path: Path) -> None:
    values = np.array([b"cos\nsystem\n(S'touch pwned'\ntR."] * 3, "S30").view("V30")
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"] = values
        file["x"].attrs["pickle"] = values[0]
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as after:
        assert after["x"][:].tobytes() == values.tobytes()
