"""Members of gzip, bz2, xz and lz4: all are read, or the file is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import lz4.frame
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recshuf.errors import InputError
from recshuf.formats.compression import (
    decompress_head,
    open_encoder,
    open_reader,
    recognise_compression,
    split_suffix,
)

if TYPE_CHECKING:
    from recshuf.formats.compression.readers import ByteReader

TEXT = b"".join(b"line %d of some text\n" % (i * i) for i in range(300))
SKIPPABLE = struct.pack("<II", 0x184D2A5B, 7) + b"skipped"


def compress_lz4(data: bytes) -> bytes:
    return lz4.frame.compress(data, content_checksum=True, block_checksum=True, store_size=False)


COMPRESS = {"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "lz4": compress_lz4}
kinds = pytest.mark.parametrize("kind", COMPRESS)
sizes = st.sampled_from([1, 7, 1000, 1 << 16])


class Trickle(io.BytesIO):
    """Gives a few bytes at a time, as a pipe may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 3))


def open_data(data: bytes, kind: str, *, trickle: bool = False) -> ByteReader:
    return open_reader("in", Trickle(data) if trickle else io.BytesIO(data), kind)


def read_all(data: bytes, kind: str, size: int = 1 << 16, *, trickle: bool = False) -> bytes:
    reader, buffer, out = open_data(data, kind, trickle=trickle), memoryview(bytearray(size)), b""
    while count := reader.readinto(buffer):
        out += buffer[:count]
    assert reader.readinto(buffer) == 0
    reader.close()
    return out


def decompress(data: bytes, kind: str) -> bytes:
    """Decompress with the library of the compression alone."""
    if kind != "lz4":
        return {"gzip": gzip, "bz2": bz2, "xz": lzma}[kind].decompress(data)  # type: ignore[attr-defined]
    with lz4.frame.open(io.BytesIO(data)) as stream:
        return bytes(stream.read())


def encode(data: bytes, kind: str, level: int | None = None) -> bytes:
    encoder = open_encoder(kind, level)
    assert encoder is not None
    size = encoder.piece_bytes
    begin = encoder.begin()
    tasks = [encoder.prepare(memoryview(data)[at : at + size]) for at in range(0, len(data), size)]
    encoded = [task() for task in reversed(tasks)]  # the order of the work must not matter
    return begin + b"".join(reversed(encoded)) + encoder.end()


@given(
    kind=st.sampled_from([*COMPRESS]),
    parts=st.lists(st.binary(max_size=2000), max_size=6),
    padding=st.integers(0, 40),
    size=sizes,
    trickle=st.booleans(),
)
def test_members_one_after_the_other_are_all_read(
    kind: str, parts: list[bytes], padding: int, size: int, trickle: bool
) -> None:
    data = b"".join(map(COMPRESS[kind], parts)) + bytes(padding if parts else 0)
    assert read_all(data, kind, size, trickle=trickle) == b"".join(parts)


@kinds
def test_a_file_cut_anywhere_is_refused_or_ends_with_a_member(kind: str) -> None:
    first, empty = COMPRESS[kind](TEXT), COMPRESS[kind](b"")
    data = first + empty + COMPRESS[kind](b"end")
    borders = {0: b"", len(first): TEXT, len(first + empty): TEXT}
    for cut in range(len(data)):
        if cut in borders:
            assert read_all(data[:cut], kind) == borders[cut]
        else:
            with pytest.raises(InputError, match="truncated"):
                read_all(data[:cut], kind)


@kinds
def test_no_flipped_bit_goes_unnoticed(kind: str) -> None:
    data = bytearray(COMPRESS[kind](TEXT))
    for bit in range(0, 8 * len(data), 5):
        data[bit // 8] ^= 1 << bit % 8
        with suppress(InputError):
            assert read_all(bytes(data), kind) == TEXT
        data[bit // 8] ^= 1 << bit % 8


@kinds
@pytest.mark.parametrize("garbage", [b"x", b"xyz", b"garbage behind the end", b"\0\0\0\0x"])
def test_bytes_behind_the_last_member_are_refused(kind: str, garbage: bytes) -> None:
    with pytest.raises(InputError, match=f"^in: has bytes behind its last {kind} member$"):
        read_all(COMPRESS[kind](TEXT) + garbage, kind)


@kinds
def test_what_is_not_compressed_is_refused_as_such(kind: str) -> None:
    with pytest.raises(InputError, match=f"^in: is not {kind} data$"):
        read_all(b"plain text, and enough of it\n", kind)


@kinds
def test_every_prefix_of_a_damaged_member_is_an_input_error(kind: str) -> None:
    data = COMPRESS[kind](TEXT)[:12] + os.urandom(500)
    with pytest.raises(InputError, match=f"its {kind} data is damaged|truncated|bytes of memory"):
        read_all(data, kind)


def test_skippable_frames_of_lz4_are_skipped() -> None:
    data = SKIPPABLE + compress_lz4(TEXT) + SKIPPABLE + SKIPPABLE + compress_lz4(b"end")
    for trickle in (False, True):
        assert read_all(data, "lz4", trickle=trickle) == TEXT + b"end"
    with pytest.raises(InputError, match="truncated"):
        read_all(data + SKIPPABLE[:-1], "lz4")


def test_the_memory_of_an_xz_dictionary_is_known_and_limited() -> None:
    small = lzma.compress(TEXT, preset=0)
    large = lzma.compress(TEXT, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 48 << 20}])
    buffer = memoryview(bytearray(1 << 16))
    reader = open_data(large, "xz")
    assert buffer[: reader.readinto(buffer)] == TEXT
    assert reader.window_bytes == 64 << 20
    with pytest.raises(InputError, match=r"67108864 bytes of memory, 50331648 are free; raise --memory"):
        reader.limit_window(48 << 20)
    reader = open_data(small + large, "xz")
    reader.limit_window(48 << 20)
    assert buffer[: reader.readinto(buffer)] == TEXT
    assert reader.window_bytes < 2 << 20
    with pytest.raises(InputError, match="raise --memory"):
        reader.readinto(buffer)


@kinds
def test_decompression_stays_small_whatever_the_ratio(kind: str) -> None:
    reader = open_data(COMPRESS[kind](bytes(50 << 20)), kind)
    assert reader.readinto(memoryview(bytearray(100))) == 100


@given(
    chunks=st.lists(st.tuples(st.binary(min_size=1, max_size=30), st.integers(1, 200_000)), max_size=4),
    kind=st.sampled_from([*COMPRESS]),
)
def test_what_is_encoded_reads_back(chunks: list[tuple[bytes, int]], kind: str) -> None:
    data = b"".join(chunk * count for chunk, count in chunks)
    encoded = encode(data, kind, 1)
    assert read_all(encoded, kind) == decompress(encoded, kind) == data


@pytest.mark.parametrize("kind", ["gzip", "bz2", "lz4"])
def test_arrow_reads_all_members_that_are_written(kind: str) -> None:
    data = TEXT * 300
    stream = pa.CompressedInputStream(pa.BufferReader(encode(data, kind)), kind)
    assert stream.read() == data


@pytest.mark.parametrize(
    ("kind", "level"),
    [("bz2", 1), ("bz2", 9), ("xz", 0), ("xz", 6), ("xz", 9), ("lz4", 0), ("lz4", 3), ("lz4", 12)],
)
def test_levels_are_written_and_the_default_is_one_of_them(kind: str, level: int) -> None:
    data = TEXT * 300  # more than a piece
    encoded = encode(data, kind, level)
    assert decompress(encoded, kind) == data
    if level == {"bz2": 9, "xz": 6, "lz4": 0}[kind]:
        assert encode(data, kind) == encoded


@kinds
def test_an_empty_output_is_a_valid_file(kind: str) -> None:
    encoded = encode(b"", kind)
    assert encoded
    assert decompress(encoded, kind) == b""


@kinds
def test_a_flipped_bit_of_written_data_is_noticed(kind: str) -> None:
    data = bytearray(encode(TEXT, kind))
    for bit in range(0, 8 * len(data), 5):
        data[bit // 8] ^= 1 << bit % 8
        with suppress(InputError):
            assert read_all(bytes(data), kind) == TEXT
        data[bit // 8] ^= 1 << bit % 8


@kinds
def test_compression_is_told_by_suffix_and_by_content(kind: str) -> None:
    suffix = {"gzip": "GZ", "bz2": "bz2", "xz": "xz", "lz4": "lz4"}[kind]
    assert split_suffix(f"x/a.jsonl.{suffix}") == (".jsonl", kind)
    for content in (b"", TEXT):
        assert recognise_compression(COMPRESS[kind](content)) == kind
    assert decompress_head(COMPRESS[kind](TEXT * 50), kind, 1000) == TEXT[:1000]
    assert (TEXT * 50).startswith(decompress_head(COMPRESS[kind](TEXT * 50)[:100], kind))
    assert recognise_compression(b"BZh9, a line of text\n") == "none"
