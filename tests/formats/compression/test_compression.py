"""Compressed bytes: read whole or refused, and written the same for any number of threads."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zlib
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from recshuf.errors import InputError, UsageError
from recshuf.formats.compression import (
    check_suffix,
    decompress_head,
    find_suffix,
    open_encoder,
    open_reader,
    recognise_compression,
    split_suffix,
)

if TYPE_CHECKING:
    from pathlib import Path

    from recshuf.formats.compression.readers import ByteReader

SKIPPABLE = struct.pack("<II", 0x184D2A5B, 7) + b"skipped"
TEXT = b"".join(b"line %d of some text\n" % (i * i) for i in range(300))


class Trickle(io.BytesIO):
    """Gives a few bytes at a time, as a pipe may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 3))


def zstd_frame(data: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True, **options).compress(data)


def read_all(data: bytes, compression: str, size: int = 1 << 16, *, trickle: bool = False) -> bytes:
    reader = open_reader("in", Trickle(data) if trickle else io.BytesIO(data), compression)
    buffer, out = memoryview(bytearray(size)), b""
    while count := reader.readinto(buffer):
        out += buffer[:count]
    assert reader.readinto(buffer) == 0
    reader.close()
    return out


def drain(reader: ByteReader) -> None:
    while reader.readinto(memoryview(bytearray(1 << 20))):
        pass


def encode(data: bytes, compression: str, level: int | None = None) -> bytes:
    encoder = open_encoder(compression, level)
    assert encoder is not None
    size = encoder.piece_bytes
    pieces = [memoryview(data)[at : at + size] for at in range(0, len(data), size)]
    begin = encoder.begin()
    tasks = [encoder.prepare(piece) for piece in pieces]
    encoded = [task() for task in reversed(tasks)]  # the order of the work must not matter
    return begin + b"".join(reversed(encoded)) + encoder.end()


@given(
    parts=st.lists(st.one_of(st.none(), st.binary(max_size=2000)), max_size=6),
    size=st.sampled_from([1, 7, 1000, 1 << 16]),
    trickle=st.booleans(),
    has_size=st.booleans(),
)
def test_zstd_frames_one_after_the_other_are_all_read(
    parts: list[bytes | None], size: int, trickle: bool, has_size: bool
) -> None:
    frames = [SKIPPABLE if part is None else zstd_frame(part, write_content_size=has_size) for part in parts]
    assert read_all(b"".join(frames), "zstd", size, trickle=trickle) == b"".join(
        part or b"" for part in parts
    )


@given(
    parts=st.lists(st.binary(max_size=2000), max_size=6),
    padding=st.integers(0, 40),
    size=st.sampled_from([1, 7, 1000, 1 << 16]),
    trickle=st.booleans(),
)
def test_gzip_members_one_after_the_other_are_all_read(
    parts: list[bytes], padding: int, size: int, trickle: bool
) -> None:
    data = b"".join(gzip.compress(part) for part in parts) + bytes(padding if parts else 0)
    assert read_all(data, "gzip", size, trickle=trickle) == b"".join(parts)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_zstd_file_cut_anywhere_is_refused_or_ends_with_a_frame(streamed: bool) -> None:
    if streamed:  # several blocks, no content size, raw blocks
        compressor = zstandard.ZstdCompressor(write_checksum=True).compressobj()
        first = compressor.compress(TEXT[:900]) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        first += compressor.compress(os.urandom(300)) + compressor.flush()
    else:
        first = zstd_frame(TEXT)
    data = first + SKIPPABLE + zstd_frame(b"") + zstd_frame(b"end")
    content = read_all(first, "zstd")
    borders = {0: b"", len(first): content, len(first + SKIPPABLE): content}
    borders[len(first + SKIPPABLE + zstd_frame(b""))] = content
    for cut in range(len(data)):
        if cut in borders:
            assert read_all(data[:cut], "zstd") == borders[cut]
        else:
            with pytest.raises(InputError, match="truncated"):
                read_all(data[:cut], "zstd")


def test_a_gzip_file_cut_anywhere_is_refused_or_ends_with_a_member() -> None:
    first = gzip.compress(TEXT)
    data = first + gzip.compress(b"") + gzip.compress(b"end")
    borders = {0: b"", len(first): TEXT, len(first + gzip.compress(b"")): TEXT}
    for cut in range(len(data)):
        if cut in borders:
            assert read_all(data[:cut], "gzip") == borders[cut]
        else:
            with pytest.raises(InputError, match="truncated"):
                read_all(data[:cut], "gzip")


@pytest.mark.parametrize("before", [b"", zstandard.compress(b"line\n")])
@pytest.mark.parametrize("behind", [b"", zstandard.compress(b"line\n")])
def test_a_zstd_frame_that_holds_less_than_it_says_is_refused(before: bytes, behind: bytes) -> None:
    """One of 38,810 bytes whose only block is empty: found by fuzzing, accepted by the library."""
    hollow = bytes.fromhex("28b52ffd 40 65 9a96 010000")
    with pytest.raises(InputError, match="a frame holds 0 bytes, its head says 38810"):
        read_all(before + hollow + behind, "zstd", 100)


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_no_flipped_bit_goes_unnoticed(compression: str) -> None:
    data = bytearray(zstd_frame(TEXT) if compression == "zstd" else gzip.compress(TEXT))
    for bit in range(0, 8 * len(data), 5):
        data[bit // 8] ^= 1 << bit % 8
        with suppress(InputError):
            assert read_all(bytes(data), compression) == TEXT
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("garbage", [b"x", b"xyz", b"garbage behind the end", b"\0\0\0\0x"])
@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_garbage_behind_the_end_is_refused(compression: str, garbage: bytes) -> None:
    data = zstd_frame(TEXT) if compression == "zstd" else gzip.compress(TEXT)
    with pytest.raises(InputError, match=r"behind its last|damaged"):
        read_all(data + garbage, compression)


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_what_is_not_compressed_is_refused_as_such(compression: str) -> None:
    with pytest.raises(InputError, match=f"^in: is not {compression} data$"):
        read_all(b"plain text, and enough of it\n", compression)


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
        reader = open_reader("in", io.BytesIO(data), "zstd")
        buffer = bytearray(1 << 16)
        assert buffer[: reader.readinto(memoryview(buffer))] == TEXT
        assert reader.window_bytes == 1 << window_log


def test_a_window_beyond_the_limit_is_refused_before_it_is_allocated() -> None:
    data = long_window_frame(28)
    reader = open_reader("in", io.BytesIO(zstd_frame(b"small") + data), "zstd")
    reader.limit_window((1 << 28) - 1)
    buffer = memoryview(bytearray(100))
    with pytest.raises(InputError, match="268435456 bytes of memory, 268435455 are free; raise --memory"):
        drain(reader)
    reader = open_reader("in", io.BytesIO(data), "zstd")
    reader.readinto(buffer)
    with pytest.raises(InputError, match="raise --memory"):
        reader.limit_window(1 << 20)


@pytest.mark.parametrize("size", [0, 1, 200, 255, 256, 300, 65_000, 65_791, 65_792, 70_000, 1 << 20])
def test_the_window_of_a_frame_is_the_one_that_zstd_sees(size: int) -> None:
    data = zstd_frame(bytes(size))
    reader = open_reader("in", io.BytesIO(data), "zstd")
    drain(reader)
    seen = zstandard.get_frame_parameters(data).window_size
    assert seen <= reader.window_bytes + 256 <= seen + 512  # sizes of two bytes are stored less 256


def test_decompression_stays_small_whatever_the_ratio() -> None:
    data = zstd_frame(bytes(200 << 20))
    reader = open_reader("in", io.BytesIO(data), "zstd")
    assert reader.readinto(memoryview(bytearray(100))) == 100
    member = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = member.compress(bytes(50 << 20)) + member.flush()
    reader = open_reader("in", io.BytesIO(data), "gzip")
    assert reader.readinto(memoryview(bytearray(100))) == 100


@given(
    chunks=st.lists(st.tuples(st.binary(min_size=1, max_size=30), st.integers(1, 200_000)), max_size=4),
    compression=st.sampled_from(["zstd", "gzip"]),
)
def test_what_is_encoded_reads_back(chunks: list[tuple[bytes, int]], compression: str) -> None:
    data = b"".join(chunk * count for chunk, count in chunks)
    assert read_all(encode(data, compression, 1), compression) == data
    if compression == "gzip":
        assert gzip.decompress(encode(data, compression, 1)) == data


@pytest.mark.parametrize("level", [0, 1, 6, 9, None])
def test_gzip_output_is_one_member_without_a_time(level: int | None) -> None:
    data = os.urandom(100_000) * 30  # repeats, but at no distance that deflate can use
    data += TEXT * 100
    encoded = encode(data, "gzip", level)
    member = zlib.decompressobj(31)
    assert member.decompress(encoded) == data
    assert member.eof
    assert not member.unused_data
    assert encoded[4:8] == bytes(4)


def test_gzip_pieces_refer_to_what_comes_before_them() -> None:
    data = os.urandom(30_000) * 100
    assert len(encode(data, "gzip")) < 1.1 * len(gzip.compress(data, 6))


@pytest.mark.parametrize("level", [-5, 1, 3, 19, None])
def test_zstd_output_is_frames_with_size_and_checksum(level: int | None) -> None:
    data = TEXT * 1500
    encoded, sizes = encode(data, "zstd", level), []
    while encoded:
        frame = zstandard.get_frame_parameters(encoded)
        assert frame.has_checksum
        sizes.append(frame.content_size)
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        decompressor.decompress(encoded)
        encoded = decompressor.unused_data
    assert sizes == [8 << 20, len(data) - (8 << 20)]


def test_an_empty_output_is_a_valid_file() -> None:
    assert zstandard.get_frame_parameters(encode(b"", "zstd")).content_size == 0
    assert zstandard.ZstdDecompressor().decompress(encode(b"", "zstd")) == b""
    assert gzip.decompress(encode(b"", "gzip")) == b""


def test_compression_is_told_by_suffix_and_by_content() -> None:
    assert split_suffix("x/a.jsonl.ZST") == (".jsonl", "zstd")
    assert split_suffix("a.gz") == ("", "gzip")
    assert split_suffix(".gz") == ("", None)
    with pytest.raises(InputError, match=r"a\.txt\.br: brotli is not supported"):
        check_suffix("a.txt.br", split_suffix("a.txt.br"))
    assert recognise_compression(zstd_frame(b"")) == "zstd"
    assert recognise_compression(SKIPPABLE) == "zstd"
    assert recognise_compression(gzip.compress(b"")) == "gzip"
    assert recognise_compression(b"") == recognise_compression(b"text\n") == "none"


@pytest.mark.parametrize(
    "name", ["a.txt", "a.b/c", "a.b/c.TXT.Zst", ".txt", "..a", "a.", "a..", "", "/", "d.x/", "a .b ", "a\n.t"]
)
def test_suffixes_are_those_of_paths(name: str) -> None:
    expected = PurePath(name).suffix.lower()
    assert find_suffix(name) == (
        "" if expected == "." else expected
    )  # Python 3.14 takes a last dot for a suffix


@pytest.mark.parametrize("compression", ["zstd", "gzip", "none"])
def test_a_head_is_decompressed_as_far_as_it_goes(compression: str) -> None:
    data = {"zstd": zstd_frame, "gzip": gzip.compress, "none": bytes}[compression](TEXT * 50)
    assert decompress_head(data, compression, 1000) == TEXT[:1000]
    assert (TEXT * 50).startswith(decompress_head(data[:100], compression))
    assert decompress_head(b"no such thing", compression) in (b"", b"no such thing")


@pytest.mark.parametrize(
    ("compression", "level"),
    [
        ("snappy", None),
        ("zstd", 23),
        ("gzip", 10),
        ("gzip", -1),
        ("none", 1),
        ("bz2", 0),
        ("bz2", 10),
        ("xz", 10),
        ("lz4", 13),
    ],
)
def test_an_impossible_compression_is_a_usage_error(compression: str, level: int | None) -> None:
    with pytest.raises(UsageError, match="--compression"):
        open_encoder(compression, level)


def test_golden_zstd_files_are_read(corpora: Path) -> None:
    files = sorted((corpora / "zstd/golden/tests/golden-decompression").glob("*.zst"))
    assert files
    for file in files:
        data = file.read_bytes()
        expected = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        assert read_all(data, "zstd") == expected
        for cut in (len(data) - 1, len(data) // 2, 3):
            with pytest.raises(InputError):
                read_all(data[:cut], "zstd")
