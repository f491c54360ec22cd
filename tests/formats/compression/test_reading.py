"""Compressed bytes: read whole, or refused; memory is bounded."""

import bz2
import gzip
import lzma
import os
import struct
from contextlib import suppress

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import InputError
from tests.support.effort import examples
from tests.support.formats.compressed_bytes import TEXT, drain, flip_bits, open_data, read_all


def compress_zstd(data: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True, **options).compress(data)


def compress_lz4(data: bytes) -> bytes:
    return lz4.frame.compress(data, content_checksum=True, block_checksum=True, store_size=False)


COMPRESS = {
    "zstd": compress_zstd,
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lz4": compress_lz4,
}
SKIPPABLE = {"zstd": struct.pack("<II", 0x184D2A5B, 7) + b"skipped"}
SKIPPABLE["lz4"] = SKIPPABLE["zstd"]
kinds = pytest.mark.parametrize("kind", COMPRESS)


@settings(max_examples=examples(100))
@given(
    kind=st.sampled_from([*COMPRESS]),
    parts=st.lists(st.none() | st.binary(max_size=2000), max_size=6),
    padding=st.integers(0, 40),
    size=st.sampled_from([1, 7, 1000, 1 << 16]),
    trickle=st.booleans(),
)
def test_members_one_after_the_other_are_all_read(
    kind: str, parts: list[bytes | None], padding: int, size: int, trickle: bool
) -> None:
    """None stands for a frame to be skipped, where there are such."""
    members = [SKIPPABLE.get(kind, b"") if part is None else COMPRESS[kind](part) for part in parts]
    zeros = bytes(padding if kind != "zstd" and any(members) else 0)
    expected = b"".join(part or b"" for part in parts)
    assert read_all(b"".join(members) + zeros, kind, size, trickle=trickle) == expected


@kinds
def test_a_file_cut_anywhere_is_refused_or_ends_with_a_member(kind: str) -> None:
    if kind == "zstd":  # several blocks, no content size, raw blocks
        compressor = zstandard.ZstdCompressor(write_checksum=True).compressobj()
        first = compressor.compress(TEXT) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        first += compressor.compress(os.urandom(300)) + compressor.flush()
    else:
        first = COMPRESS[kind](TEXT)
    members = [first, SKIPPABLE.get(kind, b""), COMPRESS[kind](b""), COMPRESS[kind](b"end")]
    data, content, borders = b"".join(members), read_all(first, kind), {0: b""}
    for number in range(1, 4):
        borders[len(b"".join(members[:number]))] = content
    for cut in range(len(data)):
        if cut in borders:
            assert read_all(data[:cut], kind) == borders[cut]
        else:
            with pytest.raises(InputError, match="truncated"):
                read_all(data[:cut], kind)


@kinds
def test_no_flipped_bit_goes_unnoticed(kind: str) -> None:
    for data in flip_bits(COMPRESS[kind](TEXT)):
        with suppress(InputError):
            assert read_all(data, kind) == TEXT


@kinds
def test_bytes_behind_the_last_member_are_refused(kind: str) -> None:
    problem = "frame$|damaged|truncated" if kind == "zstd" else f"{kind} member$"
    for garbage in (b"x", b"xyz", b"garbage behind the end", b"\0\0\0\0x"):
        with pytest.raises(InputError, match=f"^in: (has bytes behind its last )?.*({problem})"):
            read_all(COMPRESS[kind](TEXT) + garbage, kind)


@kinds
def test_what_is_not_compressed_is_refused_as_such(kind: str) -> None:
    for content in (b"plain text, and enough of it\n", bytes(40), b"\0\0" + COMPRESS[kind](TEXT)):
        with pytest.raises(InputError, match=f"^in: is not {kind} data$"):
            read_all(content, kind)


def test_a_zstd_frame_that_holds_less_than_it_says_is_refused() -> None:
    """One of 38,810 bytes whose only block is empty: found by fuzzing, accepted by the library."""
    hollow, line = bytes.fromhex("28b52ffd 40 65 9a96 010000"), zstandard.compress(b"line\n")
    for data in (hollow, line + hollow, hollow + line, line + hollow + line):
        with pytest.raises(InputError, match="a frame holds 0 bytes, its head says 38810"):
            read_all(data, "zstd", 100)


def test_a_zstd_block_of_one_byte_is_read_as_often_as_it_says() -> None:
    data = bytes(1 << 20)
    packed = compress_zstd(data)
    assert read_all(packed + compress_zstd(TEXT), "zstd") == data + TEXT


def test_a_zstd_dictionary_is_named() -> None:
    dictionary = zstandard.train_dictionary(1 << 12, [TEXT[i : i + 200] + b"%d" % i for i in range(4000)])
    data = zstandard.ZstdCompressor(dict_data=dictionary).compress(TEXT)
    with pytest.raises(InputError, match=f"dictionary \\(number {dictionary.dict_id()}\\)"):
        read_all(data, "zstd")


def long_window_frame(window_log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(
        window_log=window_log, enable_ldm=True, write_checksum=True
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(TEXT) + compressor.flush()


def test_a_long_window_is_read_and_known() -> None:
    for window_log in (20, 27, 31):
        data = long_window_frame(window_log)
        assert zstandard.get_frame_parameters(data).window_size == 1 << window_log
        reader = open_data(data, "zstd")
        buffer = bytearray(1 << 16)
        assert buffer[: reader.readinto(memoryview(buffer))] == TEXT
        assert reader.window_bytes == 1 << window_log


def test_a_window_beyond_the_limit_is_refused_before_it_is_allocated() -> None:
    data = long_window_frame(28)
    reader = open_data(compress_zstd(b"small") + data, "zstd")
    reader.limit_window((1 << 28) - 1)
    with pytest.raises(InputError, match="268,435,456 bytes of memory, 268,435,455 are free; raise --memory"):
        drain(reader)
    reader = open_data(data, "zstd")
    reader.readinto(memoryview(bytearray(100)))
    with pytest.raises(InputError, match="raise --memory"):
        reader.limit_window(1 << 20)


def test_the_memory_of_an_xz_dictionary_is_known_and_limited() -> None:
    small = lzma.compress(TEXT, preset=0)
    large = lzma.compress(TEXT, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 48 << 20}])
    buffer = memoryview(bytearray(1 << 16))
    reader = open_data(large + small, "xz")
    assert buffer[: reader.readinto(buffer)] == TEXT
    assert reader.window_bytes == 64 << 20
    drain(reader)
    assert reader.window_bytes == 64 << 20, "the largest of all"
    with pytest.raises(InputError, match=r"67,108,864 bytes of memory, 50,331,648 are free; raise --memory"):
        reader.limit_window(48 << 20)
    assert read_all(small + large, "xz") == 2 * TEXT
    reader = open_data(small + large, "xz")
    reader.limit_window(48 << 20)
    assert buffer[: reader.readinto(buffer)] == TEXT
    assert reader.window_bytes < 2 << 20
    with pytest.raises(InputError, match="raise --memory"):
        reader.readinto(buffer)
