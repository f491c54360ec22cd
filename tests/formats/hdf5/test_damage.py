"""Damage that HDF5 would not survive, or not notice, is found before it reads; so are files that do harm otherwise."""

import gc
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zstandard
from h5py import h5d, h5p, h5s, h5t, h5z

import recshuf
from recshuf.errors import InputError, UnavailableInputError
from recshuf.formats.hdf5.contents import close_file, open_file, reading
from recshuf.interfaces import InputFile
from tests.support.formats.hdf5_tools import (
    copy_through,
    open_source,
    patch,
    read_all,
    read_column,
    read_values,
    store,
)
from tests.support.processes.command_line import GB, TINY, refusal
from tests.support.processes.command_server import Server


def find(path: Path, wanted: bytes) -> int:
    """Return the only place of some bytes."""
    content = path.read_bytes()
    assert content.count(wanted) == 1
    return content.index(wanted)


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("where", ["rows", "header"])
def test_a_disk_that_fails_is_no_damage(tmp_path: Path, where: str, is_damaged: bool) -> None:
    """Where a dataset is opened, h5py raises a `KeyError` in both cases."""
    path = tmp_path / "in.h5"
    with h5py.File(path, "w") as made:
        made.create_dataset("x", data=np.arange(300), chunks=(100,), fletcher32=True)
        chunk, header = made["x"].id.get_chunk_info(1).byte_offset, h5py.h5o.get_info(made["x"].id).addr
    if is_damaged:
        patch(path, chunk if where == "rows" else header, b"\xff")
    file = open_file(InputFile(str(path), path))
    dataset = file["x"] if where == "rows" else None
    if not is_damaged:
        with Path(os.devnull).open("wb") as unreadable:
            os.dup2(unreadable.fileno(), file.id.get_vfd_handle(), inheritable=False)
    with pytest.raises(InputError, match="cannot be read as HDF5") as caught, reading(str(path)):
        file["x"] if dataset is None else dataset[150]
    assert isinstance(caught.value, UnavailableInputError) != is_damaged
    close_file(file)


CHUNKED = {"data": np.arange(300), "chunks": (100,)}
DAMAGED_HEAP = r"heap of variable-length values at byte \d+ is damaged"
TOO_LONG = r"row 70 of dataset 'x': 2147483647 bytes are more than"
MEMBERS = np.array(
    [(row, "variable length", row / 2) for row in range(100)],
    np.dtype([("id", "i4"), ("text", h5py.string_dtype()), ("value", "f8")], align=True),
)


def write(path: Path, **options: Any) -> int:
    """Write a dataset `x`, of 100 texts by default, and return the place of its second chunk, or of its rows."""
    with h5py.File(path, "w", libver=options.pop("libver", "earliest")) as file:
        made = file.create_dataset("x", **options or {"data": ["variable length"] * 100})
        return made.id.get_chunk_info(1).byte_offset if made.chunks else made.id.get_offset()


def write_lists(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (100,), h5py.vlen_dtype("i8"))[:] = np.zeros(3, "i8")


def write_scales(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"], file["t"] = np.zeros((3, 2)), np.arange(3)
        file["t"].make_scale("t")
        file["x"].dims[0].attach_scale(file["t"])


def write_mark(path: Path) -> None:
    """Write an attribute that is read to tell what the datasets are."""
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
        file.attrs["encoding-type"] = "of variable length"


def number(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "little")


DAMAGES: dict[str, tuple[Callable[[Path], Any], tuple[bytes, int] | int, bytes, str]] = {
    # HDF5 would end the process.
    "one byte in a chunk with a checksum": (
        partial(write, **CHUNKED, fletcher32=True),
        (number(804, 4) + number(0, 4) + number(100), 0),
        number(1, 4),
        r"dataset 'x': the chunk at \(100,\) has 1 bytes instead of 804",
    ),
    "chunks that pass for not compressed": (
        lambda path: write_chunks(path, [GZIP], zlib.compress(bytes(1024)), masks=1) and 0,
        0,
        b"",
        r"dataset 'x': the chunk at \(0, 0\) has \d+ bytes instead of 1024",
    ),
    # HDF5 falls over the checksum of a B-tree when it reckons up an object.
    "index of chunks": (
        partial(write, data=np.zeros((30, 30)), chunks=(10, 10), maxshape=(None, None), libver="latest"),
        (b"BTHD", 14),
        b"\xff",
        "checksum",
    ),
    # HDF5 would walk on the spot forever, or be out of step.
    "heap: half of it zeros, as a lost sector": (write, (b"GCOL", 1024), bytes(2048), DAMAGED_HEAP),
    "heap: a longer object": (write_lists, (b"GCOL", 24), b"\x20", DAMAGED_HEAP),
    "heap: an object that passes for free space": (write, (b"GCOL", 16 + 32 * 50), b"\0", DAMAGED_HEAP),
    "heap: an object over its end": (
        partial(write, data=["variable length"]),
        (b"GCOL", 24),
        number(4096),
        DAMAGED_HEAP,
    ),
    "heap of members": (partial(write, data=MEMBERS), (b"GCOL", 1024), bytes(2048), DAMAGED_HEAP),
    # HDF5 would reserve gigabytes before it looks.
    "heap: a length of gigabytes": (write, 16 * 70, b"\xff\xff\xff\x7f", TOO_LONG),
    "heap: a length of gigabytes in a member": (
        partial(write, data=MEMBERS),
        32 * 70 + 8,
        b"\xff\xff\xff\x7f",
        TOO_LONG,
    ),
    "attribute": (write_mark, (b"GCOL", 16), bytes(4080), DAMAGED_HEAP),
    "an unknown kind of variable length": (
        write_scales,
        (b"DIMENSION_LIST\0", 17),
        b"\4",
        "a type of variable length is damaged",
    ),
    "mark of a scale": (
        write_scales,
        (b"DIMENSION_SCALE\0", 2),
        b"\0",
        "dataset 'x': its scale 't' has another CLASS than DIMENSION_SCALE: b'DI'; set or remove that attribute",
    ),
    "bytes shuffled for another size": (
        partial(write, **CHUNKED, compression=4, shuffle=True),
        (b"shuffle\0", 8),
        b"\0",
        "rows 0 to 300 of dataset 'x': cannot be read",
    ),
}


def read_limited(path: Path, most_bytes: int = 1 << 20) -> None:
    for fragment in open_source(path).fragments(0, 1 << 16, most_bytes):
        list(fragment.batches())


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_that_hdf5_would_not_survive_is_found_before(tmp_path: Path, child: Server, name: str) -> None:
    """Heaps also in large files, of which only those are checked that references lead to."""
    make, where, data, said = DAMAGES[name]
    path = tmp_path / "in.h5"
    place = make(path)
    patch(path, place + where if isinstance(where, int) else find(path, where[0]) + where[1], data)
    refusal(child.run(TINY, tmp_path), tmp_path)
    with pytest.raises(InputError, match=said):
        read_limited(path)
    if name.startswith("heap"):
        enlarge(path)
        with pytest.raises(InputError, match=said):
            read_limited(path, 8 << 20)


def enlarge(path: Path) -> None:
    """Add a dataset of 5 MB with a row for each one of `x`."""
    with h5py.File(path, "a") as file:
        file["pad"] = np.ones((len(file["x"]), 5_000_000 // len(file["x"])), "u1")


def test_a_chunk_beyond_the_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.h5"
    offset = write(path, **CHUNKED)
    patch(path, find(path, number(offset)), number(path.stat().st_size - 799))
    with pytest.raises(InputError, match=r"the chunk at \(100,\) ends at byte \d+, beyond the end"):
        read_limited(path)


def test_references_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    for address in (8, 1 << 20, 1 << 63, (1 << 64) - 1):
        path = tmp_path / f"{address}.h5"
        with h5py.File(path, "w", userblock_size=512) as file:
            made = file.create_dataset("x", data=["variable length"] * 100)
            offset = made.id.get_offset()
        enlarge(path)
        patch(path, offset + 16 * 70 + 4, number(address))
        with pytest.raises(
            InputError, match=r"rows \d+ to \d+ of dataset 'x'.*heap of variable-length values"
        ):
            read_limited(path, 8 << 20)


@pytest.mark.parametrize(
    ("userblock", "options"), [(512, {}), (512, {"chunks": (9,), "compression": 1, "shuffle": True})]
)
def test_heaps_with_holes_are_no_damage(tmp_path: Path, userblock: int, options: dict[str, object]) -> None:
    """Values that were written over, and such of zeros, which look like free space."""
    rng = np.random.default_rng(userblock)
    with h5py.File(tmp_path / "in.h5", "w", userblock_size=userblock) as file:
        numbers = file.create_dataset("x", (100,), h5py.vlen_dtype("i8"), **options)
        texts = file.create_dataset("t", (100,), h5py.string_dtype(), **options)
        for row, most in zip(rng.integers(0, 100, 150), rng.choice([3, 50, 3000], 150), strict=True):
            numbers[row] = np.zeros(rng.integers(0, most), "i8")
            texts[row] = "x" * int(rng.integers(0, most))
            file.attrs[f"a{row % 7}"] = texts[row]
        expected = {"x": read_values(numbers), "t": read_values(texts)}
    for is_large in (False, True):
        if is_large:
            enlarge(tmp_path / "in.h5")
        source = open_source(tmp_path / "in.h5", datasets=("x", "t"))
        for block_bytes in (1000, 1 << 20):
            batches = read_all(source, block_bytes)
            for name, values in expected.items():
                assert [each for batch in batches for each in batch.column(name).to_pylist()] == values


# Chunks

GZIP, SHUFFLE, FLETCHER, LZF, ZSTD = (
    h5z.FILTER_DEFLATE,
    h5z.FILTER_SHUFFLE,
    h5z.FILTER_FLETCHER32,
    h5z.FILTER_LZF,
    32015,
)
WHOLE = bytes(range(256)) * 4


def pack(plain: bytes, codes: Sequence[int]) -> bytes:
    """Return bytes after some filters, applied without recshuf; bytes are no other when they are shuffled one by one."""
    for code in codes:
        if code == GZIP:
            plain = zlib.compress(plain)
        elif code == ZSTD:
            plain = zstandard.compress(plain)
        elif code == LZF:  # runs of bytes as they are
            parts = [plain[start : start + 32] for start in range(0, len(plain), 32)]
            plain = b"".join(bytes([len(part) - 1]) + part for part in parts)
        elif code == FLETCHER:
            plain += fletcher32(plain)
    return plain


def fletcher32(stored: bytes) -> bytes:
    """Return Fletcher's checksum, word by word."""
    first = second = 0
    for place in range(0, len(stored), 2):
        first = (first + int.from_bytes(stored[place : place + 2].ljust(2, b"\0"), "big")) % 65535
        second = (second + first) % 65535
    return (second << 16 | first).to_bytes(4, "little")


def write_chunks(path: Path, codes: Sequence[int], *chunks: bytes, masks: int = 0) -> Path:
    """Write a dataset ``x`` of filtered chunks of 64 rows of 16 bytes, which hold these bytes."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((64, 16))
    for code in codes:
        plist.set_filter(code, 0, {GZIP: (1,), SHUFFLE: (1,)}.get(code, ()))
    with h5py.File(path, "w") as file:
        made = h5d.create(file.id, b"x", h5t.STD_U8LE, h5s.create_simple((64 * len(chunks), 16)), plist)
        for index, stored in enumerate(chunks):
            made.write_direct_chunk((index * 64, 0), stored, masks)
    return path


@pytest.mark.parametrize(
    "codes",
    [
        (GZIP,),
        (SHUFFLE, GZIP),
        (SHUFFLE, GZIP, FLETCHER),
        (FLETCHER, GZIP),
        (FLETCHER, SHUFFLE, GZIP),
        (FLETCHER, GZIP, FLETCHER),
        (LZF,),
        (SHUFFLE, LZF, FLETCHER),
        (ZSTD,),
        (ZSTD, FLETCHER),
        (SHUFFLE, FLETCHER),
    ],
    ids=str,
)
def test_a_chunk_must_fill_its_size_and_match_its_checksum(tmp_path: Path, codes: tuple[int, ...]) -> None:
    """HDF5 takes what lies behind a short one in memory for data, and passes over what a long one has more."""
    if ZSTD in codes:
        pytest.importorskip("hdf5plugin")
    whole, path = pack(WHOLE, codes), tmp_path / "in.h5"
    write_chunks(path, codes, whole, whole + b"more" * (codes[-1] == GZIP))
    assert read_column(path) == 2 * WHOLE
    wrong = {whole[:-3]: "", b"12345": ""}
    for size in (1, 2, 100, 1023, 1025):
        amount = {100: "100", 1025: "(more|1025)"}.get(size) if FLETCHER not in codes else None
        said = f"a chunk of 1024 bytes inflates to {amount}" if amount else ""
        wrong[pack((2 * WHOLE)[:size], codes)] = said
        wrong[pack((2 * WHOLE)[:size], [code for code in codes if code != FLETCHER])] = said
    if GZIP in codes or FLETCHER in codes:
        wrong[whole[:20] + bytes([whole[20] ^ 1]) + whole[21:]] = ""
    if LZF in codes:  # copies from before the beginning and over the end, and a run that is cut off
        wrong |= {b"\x20\xff" + whole: "", whole + b"\x20\x00": "", whole[:33] + b"\x1f": ""}
    for number, (stored, said) in enumerate(wrong.items()):
        write_chunks(tmp_path / f"{number}.h5", codes, whole, stored)
        with pytest.raises(InputError, match=rf"\d\.h5: .*'x'.*{said}") as caught:
            read_all(open_source(tmp_path / f"{number}.h5"))
        assert "NoneType" not in str(caught.value)


@pytest.mark.parametrize("held", [2, 1023, 1025])
@pytest.mark.parametrize("is_right", [False, True])
@pytest.mark.parametrize("filters", ["fg", "fsg", "fgf"])
def test_a_chunk_with_its_checksum_below_the_compression_must_fill_its_size(
    tmp_path: Path, child: Server, held: int, is_right: bool, filters: str
) -> None:
    """HDF5 would read beyond a short one, and pass over what a long one has more. PyTables shuffles between the two."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((64, 2))
    for name in filters:
        {"f": plist.set_fletcher32, "s": plist.set_shuffle, "g": partial(plist.set_deflate, 1)}[name]()
    path, is_last = tmp_path / "in.h5", filters.endswith("f")
    with h5py.File(path, "w") as file:
        made = h5d.create(file.id, b"x", h5t.STD_U64LE, h5s.create_simple((64, 2)), plist)
        made.write(h5s.ALL, h5s.ALL, np.arange(128, dtype="u8"))
    assert read_column(path)[:]
    stored = zlib.compress(bytes(held) + fletcher32(bytes(held)) * is_right)
    with h5py.File(path, "a") as file:
        file["x"].id.write_direct_chunk((0, 0), stored + fletcher32(stored) * is_last)
    assert "dataset 'x'" in refusal(child.run(TINY, tmp_path), tmp_path)
    with h5py.File(path, "a") as file:
        file["y"] = range(10)
    ended = child.run([*TINY, "--datasets", "y", "--keep-others"], tmp_path)
    assert "dataset 'x'" in refusal(ended, tmp_path)


@pytest.mark.parametrize(
    ("size", "value"), [(1, None), (2, 255), (255, None), (256, 0), (255, 255), (70_001, None)]
)
def test_checksums_are_those_of_hdf5(tmp_path: Path, size: int, value: int | None) -> None:
    """What HDF5 writes is read, and what is written HDF5 writes alike."""
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8) if value is None else value
    with h5py.File(tmp_path / "in.h5", "w") as file:
        made = file.create_dataset("x", (size,), "u1", chunks=(size,), fletcher32=True, compression=1)
        made[:] = data
        plain = file.create_dataset("y", data=made[:], chunks=(size,), fletcher32=True)
        bare = plain.id.read_direct_chunk((0,))[1]
    assert read_column(tmp_path / "in.h5") == bare[:-4]
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["y"].id.read_direct_chunk((0,))[1] == bare


# Depth, what is no file, and changes


def test_groups_nested_too_deep_are_refused(tmp_path: Path, child: Server) -> None:
    for depth in (100, 140):
        store(tmp_path / "in.h5", {"g/" * depth + "x": [1, 2, 3]})
        if depth == 100:
            copy_through(tmp_path / "in.h5", tmp_path / "copy.h5")
    with h5py.File(tmp_path / "copy.h5") as after:
        assert after["g/" * 100 + "x"][:].tolist() == [1, 2, 3]
    assert "in.h5: group 'g/g/" in refusal(child.run(TINY, tmp_path), tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, child: Server, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "in.h5")
    else:
        (tmp_path / "in.h5").symlink_to("/dev/zero")
    line = refusal(child.run(["--format", "hdf5", *TINY], tmp_path), tmp_path)
    assert "in.h5: is not a regular file, which HDF5 needs; save it to a file first" in line


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


@pytest.mark.parametrize("change", [shrink, write_over, replace, Path.unlink])
@pytest.mark.parametrize("is_begun", [False, True])
def test_a_file_that_changes_is_refused_and_one_that_loses_its_name_is_read_to_the_end(
    tmp_path: Path, is_begun: bool, change: Callable[[Path], None]
) -> None:
    """HDF5 reads zeros where a file ended before."""
    path = store(tmp_path / "in.h5", {"x": np.ones((1 << 12, 1 << 8), "u1")})
    source = open_source(path)
    fragments = source.fragments(0, 1 << 16, GB)
    rows = sum(batch.num_rows for batch in next(fragments).batches()) if is_begun else 0
    change(path)
    if is_begun and change in (replace, Path.unlink):
        assert rows + sum(batch.num_rows for each in fragments for batch in each.batches()) == 1 << 12
        return
    said = "changed while it was read" if is_begun else ""
    with pytest.raises(InputError, match=rf"in\.h5: {said}"):
        [list(fragment.batches()) for fragment in fragments]


def test_a_damaged_file_is_closed_with_its_error(tmp_path: Path) -> None:
    """Not by a collection of garbage: until then, HDF5 would refuse to write it anew."""
    path = tmp_path / "in.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(100), chunks=(10,), compression="gzip")
        chunk = file["x"].id.get_chunk_info(3)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    path.write_bytes(content)
    gc.disable()
    try:
        with suppress(InputError):
            recshuf.shuffle(path, tmp_path / "out.h5")
            pytest.fail("it is read")
        with h5py.File(path, "w"):
            pass
    finally:
        gc.enable()
