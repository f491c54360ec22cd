"""Compressed bytes: read whole, or refused, in bounded memory; and written so that the library of each compression reads them."""

import bz2
import gzip
import io
import lzma
import os
import random
import struct
import zlib
from contextlib import suppress
from pathlib import PurePath

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import InputError, UsageError
from recshuf.formats.compression import (
    INPUT_SUFFIXES,
    check_suffix,
    decompress_head,
    find_suffix,
    open_encoder,
    open_reader,
    recognise_compression,
    split_suffix,
)
from recshuf.formats.compression.readers import ByteReader
from tests.support.effort import examples, flipped
from tests.support.formats.format_tools import decompress

TEXT = b"".join(b"line %d of some text\n" % (i * i) for i in range(300))


class Trickle(io.BytesIO):
    """Gives a few bytes at a time, as a pipe may."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, self._most))


def open_data(data: bytes, kind: str, *, most: int = 1 << 20) -> ByteReader:
    return open_reader("in", Trickle(data, most), kind)


def read_all(data: bytes, kind: str, size: int = 1 << 16, *, most: int = 1 << 20) -> bytes:
    reader, buffer, out = open_data(data, kind, most=most), memoryview(bytearray(size)), bytearray()
    while count := reader.readinto(buffer):
        out += buffer[:count]
    assert reader.readinto(buffer) == 0
    reader.close()
    return bytes(out)


def drain(reader: ByteReader) -> None:
    buffer = memoryview(bytearray(1 << 20))
    while reader.readinto(buffer):
        pass


def encode(data: bytes, kind: str, level: int | None = None) -> bytes:
    encoder = open_encoder(kind, level)
    assert encoder is not None
    size = encoder.piece_bytes
    begin = encoder.begin()
    tasks = [encoder.prepare(memoryview(data)[at : at + size]) for at in range(0, len(data), size)]
    encoded = [task() for task in reversed(tasks)]  # the order of the work must not matter
    return begin + b"".join(reversed(encoded)) + encoder.end()


def compress_zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


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
    most=st.sampled_from([1, 2, 3, 5, 1 << 20]),
)
def test_members_one_after_the_other_are_all_read(
    kind: str, parts: list[bytes | None], padding: int, size: int, most: int
) -> None:
    """None stands for a frame to be skipped, where there are such."""
    members = [SKIPPABLE.get(kind, b"") if part is None else COMPRESS[kind](part) for part in parts]
    zeros = bytes(padding if kind != "zstd" and any(members) else 0)
    expected = b"".join(part or b"" for part in parts)
    assert read_all(b"".join(members) + zeros, kind, size, most=most) == expected


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
    for most in range(1, 9):
        assert read_all(data, kind, most=most) == content + b"end"
    for cut in range(len(data)):
        if cut in borders:
            assert read_all(data[:cut], kind) == borders[cut]
        else:
            with pytest.raises(InputError, match="truncated"):
                read_all(data[:cut], kind)


@kinds
def test_no_flipped_bit_goes_unnoticed(kind: str) -> None:
    for data in flipped(content := COMPRESS[kind](TEXT), range(len(content))):
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


# Compressed outputs: what the library of each compression reads, checked by sums; and which compression it is


@settings(max_examples=examples(100))
@given(
    chunks=st.lists(st.tuples(st.binary(min_size=1, max_size=30), st.integers(1, 60_000)), max_size=3),
    kind=st.sampled_from([*COMPRESS]),
)
def test_what_is_encoded_reads_back(chunks: list[tuple[bytes, int]], kind: str) -> None:
    data = b"".join(chunk * count for chunk, count in chunks)
    encoded = encode(data, kind, 1)
    assert read_all(encoded, kind, 1 << 20) == decompress(encoded, kind) == data


def test_no_level_of_xz_needs_much_memory_to_read() -> None:
    reader = open_data(encode(TEXT, "xz", 9), "xz")
    reader.readinto(memoryview(bytearray(100)))
    assert reader.window_bytes <= 4 << 20


def test_gzip_output_is_one_member_without_a_time() -> None:
    data = os.urandom(100_000) * 10 + TEXT * 100  # repeats, but at no distance that deflate can use
    for level, extra_flags in ((0, 0), (1, 4), (6, 0), (9, 2), (None, 0)):
        encoded = encode(data, "gzip", level)
        member = zlib.decompressobj(31)
        assert member.decompress(encoded) == data
        assert member.eof
        assert not member.unused_data
        assert encoded[4:8] == bytes(4)
        assert encoded[8] == extra_flags  # RFC 1952: 2 is the slowest, 4 the fastest


@kinds
def test_a_higher_level_takes_fewer_bytes(kind: str) -> None:
    draw = random.Random(1)
    words = [bytes(draw.choices(b"abcdefgh", k=draw.randint(2, 9))) for _ in range(400)]
    data = b" ".join(draw.choices(words, k=40_000))
    assert len(encode(data, kind, 9)) < len(encode(data, kind, 1))


def test_zstd_output_is_frames_with_size_and_checksum() -> None:
    data = TEXT * 1500
    encoded, sizes = encode(data, "zstd"), []
    while encoded:
        frame = zstandard.get_frame_parameters(encoded)
        assert frame.has_checksum
        sizes.append(frame.content_size)
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        decompressor.decompress(encoded)
        encoded = decompressor.unused_data
    assert sizes == [8 << 20, len(data) - (8 << 20)]


@kinds
def test_compression_is_told_by_suffix_and_by_content(kind: str) -> None:
    suffixes = {
        "zstd": (".zst", ".zstd"), "gzip": (".gz", ".gzip"), "bz2": (".bz2", ".bzip2"), "xz": (".xz",), "lz4": (".lz4",)
    }  # fmt: skip
    assert tuple(suffix for suffix, name in INPUT_SUFFIXES.items() if name == kind) == suffixes[kind]
    for suffix in suffixes[kind]:
        for spelled in (suffix, suffix.upper()):
            assert split_suffix(f"x.y/a.jsonl{spelled}") == (".jsonl", kind)
            assert split_suffix(f"a{spelled}") == ("", kind)
            assert split_suffix(spelled) == ("", None)
    for content in (b"", TEXT):
        assert recognise_compression(encode(content, kind)) == kind
    head = encode(TEXT * 50, kind)
    assert decompress_head(head, kind, 1000) == TEXT[:1000]
    assert (TEXT * 50).startswith(decompress_head(head[:100], kind))
    assert decompress_head(b"no such thing", kind) == b""


def test_what_is_not_compressed_is_none() -> None:
    assert recognise_compression(b"\x5b\x2a\x4d\x18\7\0\0\0skipped") == "zstd"
    for content in (b"", b"text\n", b"BZh9, a line of text\n", b"BZh91AY&SY begins bzip2\n"):
        assert recognise_compression(content) == "none"
        assert decompress_head(content, "none") == content
    with pytest.raises(InputError, match=r"a\.txt\.br: brotli is not supported"):
        check_suffix("a.txt.br", split_suffix("a.txt.br"))


def test_suffixes_are_those_of_paths() -> None:
    for name in (
        "",
        "a .b ",
        "a\n.t",
        "a.txt",
        "a.b/c",
        "a.b/c.TXT.Zst",
        ".txt",
        "..a",
        "a.",
        "a..",
        "/",
        "d.x/",
    ):
        expected = PurePath(name).suffix.lower()
        # Python 3.14 takes a last dot for a suffix.
        assert find_suffix(name) == ("" if expected == "." else expected), name


def test_an_impossible_compression_is_a_usage_error() -> None:
    wrong = [("snappy", None), ("zstd", 23), ("gzip", 10), ("gzip", -1), ("none", 1), ("bz2", 0), ("bz2", 10)]
    for kind, level in [*wrong, ("xz", 10), ("lz4", 13)]:
        with pytest.raises(UsageError, match="--compression"):
            open_encoder(kind, level)
