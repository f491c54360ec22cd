"""Compressed outputs: what the library of each compression reads, checked by sums; and which compression it is."""

import os
import random
import zlib
from pathlib import PurePath

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
    recognise_compression,
    split_suffix,
)
from tests.support.effort import examples
from tests.support.formats.compressed_bytes import TEXT, encode, open_data, read_all
from tests.support.formats.format_tools import decompress

COMPRESSED = ("zstd", "gzip", "bz2", "xz", "lz4")
# The library of zstd takes level 0 for its default one.
kinds = pytest.mark.parametrize("kind", COMPRESSED)


@settings(max_examples=examples(100))
@given(
    chunks=st.lists(st.tuples(st.binary(min_size=1, max_size=30), st.integers(1, 60_000)), max_size=3),
    kind=st.sampled_from(COMPRESSED),
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
    names = [
        "",
        "a .b ",
        "a\n.t",
        *["a.txt", "a.b/c", "a.b/c.TXT.Zst", ".txt", "..a", "a.", "a..", "/", "d.x/"],
    ]
    for name in names:
        expected = PurePath(name).suffix.lower()
        # Python 3.14 takes a last dot for a suffix.
        assert find_suffix(name) == ("" if expected == "." else expected), name


def test_an_impossible_compression_is_a_usage_error() -> None:
    wrong = [("snappy", None), ("zstd", 23), ("gzip", 10), ("gzip", -1), ("none", 1), ("bz2", 0), ("bz2", 10)]
    for kind, level in [*wrong, ("xz", 10), ("lz4", 13)]:
        with pytest.raises(UsageError, match="--compression"):
            open_encoder(kind, level)
