"""Compression of line files: detection, readers and encoders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import InputError, UsageError
from recshuf.interfaces import NameSuffix

if TYPE_CHECKING:
    from recshuf.formats.compression.encoders import PieceEncoder
    from recshuf.formats.compression.streams import ByteReader, Readable

COMPRESSIONS = ("none", "zstd", "gzip")
OUTPUT_SUFFIXES = {"none": "", "zstd": ".zst", "gzip": ".gz"}
INPUT_SUFFIXES = {".zst": "zstd", ".zstd": "zstd", ".gz": "gzip", ".gzip": "gzip"}
HEAD_BYTES = 18
"""Bytes that `recognise_compression` needs."""

_FOREIGN_SUFFIXES = {
    ".bz2": "bzip2",
    ".xz": "xz",
    ".lzma": "lzma",
    ".lz4": "lz4",
    ".br": "brotli",
    ".zip": "zip",
}
_LEVELS = {"zstd": range(-131072, 23), "gzip": range(10)}
_DEFAULT_LEVELS = {"zstd": 3, "gzip": 6}


def find_suffix(name: str) -> str:
    """Return the suffix of a file name in small letters, as `pathlib` finds it; empty where there is none.

    >>> find_suffix("a.d/b.TXT"), find_suffix("a.d/b"), find_suffix(".txt"), find_suffix("b.")
    ('.txt', '', '', '')
    """
    base = name.rstrip("/").rpartition("/")[2]
    dot = base.rfind(".")
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
    """Refuse a file whose suffix names an unsupported compression.

    Raises
    ------
    InputError
        Naming the compression.
    """
    if suffix.compression not in (None, *INPUT_SUFFIXES.values()):
        remedy = "decompress it, or pipe it to standard input"
        raise InputError(name, f"{suffix.compression} is not supported", remedy=remedy)


def recognise_compression(head: bytes) -> str:
    """Return the compression of a file that begins with these bytes: ``none``, ``zstd`` or ``gzip``."""
    if head[:3] == b"\x1f\x8b\x08":
        return "gzip"
    is_skippable = len(head) >= 4 and 0x50 <= head[0] <= 0x5F and head[1:4] == b"\x2a\x4d\x18"
    if head[:4] == b"\x28\xb5\x2f\xfd" or is_skippable:
        return "zstd"
    return "none"


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
    """Return the decompressed bytes of `source`, called `name` in messages; closing it closes the source.

    Raises
    ------
    InputError
        From the reader, when the data is damaged or truncated, or needs a dictionary.
    """
    from recshuf.formats.compression.readers import GzipReader, PlainReader, ZstdReader

    if compression == "zstd":
        return ZstdReader(name, source)
    if compression == "gzip":
        return GzipReader(name, source)
    return PlainReader(source)


def open_encoder(compression: str, level: int | None) -> PieceEncoder | None:
    """Return the encoder of a compression, None for ``none``; `level` None is the default one.

    Raises
    ------
    UsageError
        When the compression is not supported for line files, or has no such level.
    """
    if compression not in COMPRESSIONS:
        raise UsageError(
            f"--compression {compression}: text and JSONL are written with {', '.join(COMPRESSIONS)}"
        )
    if compression == "none":
        if level is not None:
            raise UsageError(f"--compression none:{level}: compression none has no level")
        return None
    levels = _LEVELS[compression]
    if level is None:
        level = _DEFAULT_LEVELS[compression]
    if level not in levels:
        raise UsageError(f"--compression {compression}:{level}: levels go from {levels[0]} to {levels[-1]}")
    from recshuf.formats.compression.encoders import GzipEncoder, ZstdEncoder

    return ZstdEncoder(level) if compression == "zstd" else GzipEncoder(level)
