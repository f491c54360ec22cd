"""Compression of line files: detection, readers and encoders."""

from __future__ import annotations

import re
from contextlib import closing, suppress
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import InputError, UsageError
from recshuf.interfaces import NameSuffix

if TYPE_CHECKING:
    from recshuf.formats.compression.encoders import PieceEncoder
    from recshuf.formats.compression.readers import ByteReader, Readable


class Compression(NamedTuple):
    """What is known of a compression of lines before its library is imported."""

    suffixes: tuple[str, ...]
    """Outputs get the first one."""
    magic: bytes
    """Pattern of the first bytes."""
    levels: range
    level: int
    """The default one."""


_KNOWN = {
    # A frame, or one to be skipped.
    "zstd": Compression((".zst", ".zstd"), rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", range(-131072, 23), 3),
    "gzip": Compression((".gz", ".gzip"), rb"\x1f\x8b\x08", range(10), 6),
    # A block, or the end. Its magic is text, so the byte behind its checksum decides: the top of a position below 900,000.
    "bz2": Compression((".bz2", ".bzip2"), rb"(?s:BZh[1-9](?:1AY&SY....[\x00-\x06\x80-\x86]|\x17rE8P\x90))", range(1, 10), 9),
    "xz": Compression((".xz",), rb"\xfd7zXZ\x00", range(10), 6),
    "lz4": Compression((".lz4",), rb"\x04\x22\x4d\x18", range(13), 0),
}  # fmt: skip
COMPRESSIONS = ("none", *_KNOWN)
OUTPUT_SUFFIXES = {"none": ""} | {name: known.suffixes[0] for name, known in _KNOWN.items()}
INPUT_SUFFIXES = {suffix: name for name, known in _KNOWN.items() for suffix in known.suffixes}
_FOREIGN_SUFFIXES = {
    ".lzma": "lzma",
    ".br": "brotli",
    ".z": "compress",
    ".lz": "lzip",
    ".lzo": "lzop",
    ".sz": "snappy",
    ".snappy": "snappy",
    ".zip": "zip",
    ".7z": "7z",
    ".rar": "rar",
}
_ARCHIVES = ("zip", "7z", "rar")
UNPACK = "unpack it, and give its files"
DECOMPRESS = "decompress it; standard input takes what the decompressor writes"
_ANY_MAGIC = re.compile(b"|".join(b"(%b)" % known.magic for known in _KNOWN.values()))
_LEVELS = {name: known.levels for name, known in _KNOWN.items()} | dict.fromkeys(
    ("none", "snappy", "lzf"), range(0)
)
_NUMBER = re.compile(r"-\d+-of-\d+$")
"""Of a shard, behind its suffix."""


def find_suffix(name: str) -> str:
    """Return the suffix of a file name in small letters, as `pathlib` finds it; empty where there is none.

    The number of a shard behind it is no part of it.

    >>> find_suffix("train.tfrecord-00000-of-00010")
    '.tfrecord'
    >>> find_suffix("a.d/b.TXT"), find_suffix("a.d/b"), find_suffix(".txt"), find_suffix("b.")
    ('.txt', '', '', '')
    """
    base = name.rstrip("/").rpartition("/")[2]
    dot = base.rfind(".")
    base = _NUMBER.sub("", base, count=1) if dot < base.rfind("-of-") else base
    return base[dot:].lower() if 0 < dot < len(base) - 1 else ""


def split_suffix(name: str) -> NameSuffix:
    """Return the suffixes of a file name: format and compression.

    >>> split_suffix("a/b.jsonl.zst"), split_suffix("b.TXT")
    (NameSuffix(kind='.jsonl', compression='zstd'), NameSuffix(kind='.txt', compression=None))
    """
    suffix = find_suffix(name)
    compression = INPUT_SUFFIXES.get(suffix) or _FOREIGN_SUFFIXES.get(suffix)
    return NameSuffix(find_suffix(name[: -len(suffix)]) if compression else suffix, compression)


def check_suffix(name: str, suffix: NameSuffix) -> None:
    if suffix.compression not in (None, *COMPRESSIONS):
        remedy = UNPACK if suffix.compression in _ARCHIVES else DECOMPRESS
        raise InputError(name, f"{suffix.compression} is not supported", remedy=remedy)


def recognise_compression(head: bytes) -> str:
    """Return the compression of a file that begins with these bytes: a value of `COMPRESSIONS`."""
    match = _ANY_MAGIC.match(head)
    return COMPRESSIONS[match.lastindex or 0] if match else "none"


def explain_packed(name: str, head: bytes, what: str) -> InputError | None:
    """Return the error for a compressed file of a format that compresses inside, by its first bytes; None if it is not compressed."""
    compression = recognise_compression(head)
    if compression == "none":
        return None
    problem = f"is compressed with {compression} as a whole, and {what} is read at any place of the file"
    return InputError(name, problem, remedy="decompress it first")


def check_level(compression: str, level: int | None) -> None:
    """Refuse a level that a compression does not have, in any format; None is the default one."""
    levels = _LEVELS.get(compression)
    if level is None or levels is None:
        return
    if not levels:
        raise UsageError(f"--compression {compression}:{level}: compression {compression} has no level")
    if level not in levels:
        raise UsageError(f"--compression {compression}:{level}: levels go from {levels[0]} to {levels[-1]}")


def decompress_head(head: bytes, compression: str, size: int = 1 << 16) -> bytes:
    """Return the decompressed beginning of a file, at most `size` bytes; fewer if it is damaged."""
    buffer, filled = memoryview(bytearray(size)), 0
    # The head may end anywhere; the bytes before it are kept.
    with closing(open_reader("", BytesIO(head), compression)) as reader, suppress(InputError):
        while filled < size and (count := reader.readinto(buffer[filled:])):
            filled += count
    return bytes(buffer[:filled])


def open_reader(name: str, source: Readable, compression: str) -> ByteReader:
    """Return the decompressed bytes of `source`, called `name` in messages; closing it closes the source."""
    from recshuf.formats.compression.readers import ByteReader, MemberReader, ZstdReader

    if compression == "none":
        return ByteReader(name, source)
    return ZstdReader(name, source) if compression == "zstd" else MemberReader(name, source, compression)


def open_encoder(compression: str, level: int | None) -> PieceEncoder | None:
    if compression not in COMPRESSIONS:
        raise UsageError(
            f"--compression {compression}: text, JSONL and CSV are written with {', '.join(COMPRESSIONS)}"
        )
    check_level(compression, level)
    if compression == "none":
        return None
    from recshuf.formats.compression.encoders import ENCODERS

    return ENCODERS[compression](_KNOWN[compression].level if level is None else level)
