"""Compression of line files: detection, readers and encoders."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from recshuf.errors import InputError, UsageError
from recshuf.interfaces import NameSuffix

if TYPE_CHECKING:
    from recshuf.formats.compression.encoders import PieceEncoder
    from recshuf.formats.compression.readers import ByteReader, Readable


COMPRESSIONS = ("none", "zstd", "gzip", "bz2", "xz", "lz4")
OUTPUT_SUFFIXES = {"none": "", "zstd": ".zst", "gzip": ".gz", "bz2": ".bz2", "xz": ".xz", "lz4": ".lz4"}
INPUT_SUFFIXES = {suffix: name for name, suffix in OUTPUT_SUFFIXES.items() if suffix} | {
    ".zstd": "zstd",
    ".gzip": "gzip",
    ".bzip2": "bz2",
}
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
_MAGICS = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),  # a frame, or one to be skipped
    # A block, or the end. Its magic is text, so the byte behind its checksum decides: the top of a position below 900,000.
    "bz2": re.compile(rb"(?s:BZh[1-9](?:1AY&SY....[\x00-\x06\x80-\x86]|\x17rE8P\x90))"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "lz4": re.compile(rb"\x04\x22\x4d\x18"),
}
_ANY_MAGIC = re.compile(b"|".join(magic.pattern for magic in _MAGICS.values()))
_LEVELS = {
    "none": range(0),
    "snappy": range(0),
    "lzf": range(0),
    "zstd": range(-131072, 23),
    "gzip": range(10),
    "bz2": range(1, 10),
    "xz": range(10),
    "lz4": range(13),
}
_DEFAULT_LEVELS = {"zstd": 3, "gzip": 6, "bz2": 9, "xz": 6, "lz4": 0}


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
    if not _ANY_MAGIC.match(head):
        return "none"
    return next(name for name, magic in _MAGICS.items() if magic.match(head))


_TOOLS = {"gzip": "gzip", "zstd": "zstd", "bz2": "bzip2", "xz": "xz", "lz4": "lz4"}


def explain_packed(name: str, head: bytes, what: str) -> InputError | None:
    """Return the error for a compressed file of a format that compresses inside, by its first bytes; None if it is not compressed."""
    compression = recognise_compression(head)
    if compression == "none":
        return None
    plain = name[: -len(find_suffix(name))] if split_suffix(name).compression else f"{name}.decompressed"
    command = f"{_TOOLS[compression]} -dc {shlex.quote(name)} > {shlex.quote(plain)}"
    problem = f"is compressed with {compression} as a whole, and {what} is read at any place of the file"
    return InputError(name, problem, remedy="decompress it first" + ("" if "://" in name else f": {command}"))


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
    import io

    buffer = memoryview(bytearray(size))
    filled = 0
    reader = open_reader("", io.BytesIO(head), compression)
    try:
        while filled < size and (count := reader.readinto(buffer[filled:])):
            filled += count
    except InputError:
        pass  # the head may end anywhere; the bytes before it are kept
    finally:
        reader.close()
    return bytes(buffer[:filled])


def open_reader(name: str, source: Readable, compression: str) -> ByteReader:
    """Return the decompressed bytes of `source`, called `name` in messages; closing it closes the source."""
    from recshuf.formats.compression.readers import ByteReader, ZstdReader

    if compression == "none":
        return ByteReader(name, source)
    if compression == "zstd":
        return ZstdReader(name, source)
    from recshuf.formats.compression.members import MEMBER_KINDS, MemberReader

    return MemberReader(name, source, MEMBER_KINDS[compression])


def open_encoder(compression: str, level: int | None) -> PieceEncoder | None:
    if compression not in COMPRESSIONS:
        raise UsageError(
            f"--compression {compression}: text, JSONL and CSV are written with {', '.join(COMPRESSIONS)}"
        )
    check_level(compression, level)
    if compression == "none":
        return None
    from recshuf.formats.compression import encoders

    return {
        "zstd": encoders.encode_zstd,
        "gzip": encoders.GzipEncoder,
        "bz2": encoders.encode_bz2,
        "xz": encoders.encode_xz,
        "lz4": encoders.encode_lz4,
    }[compression](_DEFAULT_LEVELS[compression] if level is None else level)
