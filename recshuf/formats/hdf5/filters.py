"""The filters of HDF5 chunks: which are known and installed, those of shards, and the checksum of fletcher32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from h5py import h5p, h5z

from recshuf.errors import InputError, UsageError
from recshuf.formats.hdf5 import has_plugins, list_compressions

if TYPE_CHECKING:
    from recshuf.interfaces import WriteOptions

    Bytes = bytes | bytearray | memoryview

CHECKSUM_BYTES = 4
_MODULUS = 65535
_BLOCK_WORDS = 1 << 15
"""Words summed at once: their sums fit 64 bits, and the words fit the cache of a core."""
_LZ4_FILTER = 32004
ZSTD_FILTER = 32015
_BLOSC2_FILTER = 32026
_LOSSLESS_FILTERS = {
    h5z.FILTER_DEFLATE: "gzip",
    h5z.FILTER_SHUFFLE: "shuffle",
    h5z.FILTER_FLETCHER32: "fletcher32",
    h5z.FILTER_SZIP: "szip",
    h5z.FILTER_NBIT: "nbit",
    h5z.FILTER_LZF: "lzf",
    305: "lzo",
    307: "bzip2",
    32001: "blosc",
    32003: "snappy",
    _LZ4_FILTER: "lz4",
    32008: "bitshuffle",
    ZSTD_FILTER: "zstd",
}
_OTHER_FILTERS = {
    h5z.FILTER_SCALEOFFSET: "scale-offset",
    32013: "zfp",
    32017: "sz",
    32018: "fcidecomp (JPEG-LS)",
    32019: "jpeg",
    32024: "sz3",
    _BLOSC2_FILTER: "blosc2",
    32028: "sperr",
}
_BLOSC2_LOSSLESS = (range(4), range(6))
"""Values of Blosc2 that lose nothing: of its filter (none, shuffle, bitshuffle, delta), and of its codec."""
_GZIP_LEVEL = 4


def _load_plugins() -> None:
    if has_plugins():
        import hdf5plugin  # noqa: F401 - importing it registers its filters


def refuse_unknown_filters(plist: h5p.PropDCID, name: str, place: str) -> None:
    """Raise `InputError` if a dataset needs a filter that is not installed."""
    missing = [each for each in list_filters(plist) if not h5z.filter_avail(each[0])]
    if missing:
        _load_plugins()
    for code, _, _, label in missing:
        if not h5z.filter_avail(code):
            problem = f"the filter {_name_filter(code, label)} ({code}) is not installed"
            remedy = "install recshuf[hdf5plugin], which has the common ones"
            raise InputError(name, problem, place=place, remedy=remedy)


def check_compression(options: WriteOptions) -> None:
    """Raise `UsageError` if the compression asked for does not fit HDF5."""
    name, level = options.compression, options.compression_level
    known = list_compressions()
    if name is not None and name not in known:
        raise UsageError(f"--compression {name} does not fit HDF5, which takes {', '.join(known)}")
    if level is not None and name not in ("gzip", "zstd"):
        raise UsageError(f"--compression {name} has no level in HDF5")
    if name == "gzip" and level is not None and not 0 <= level <= 9:
        raise UsageError(f"--compression gzip takes a level from 0 to 9, not {level}")


def set_compression(plist: h5p.PropDCID, name: str, level: int | None) -> None:
    """Replace the compression of a new dataset; byte shuffle and checksums stay."""
    codes = [code for code, _, _, _ in list_filters(plist)]
    if codes:
        plist.remove_filter(h5z.FILTER_ALL)
    if h5z.FILTER_SHUFFLE in codes and name != "none":
        plist.set_shuffle()
    if name == "gzip":
        plist.set_deflate(_GZIP_LEVEL if level is None else level)
    elif name == "lzf":
        plist.set_filter(h5z.FILTER_LZF, h5z.FLAG_OPTIONAL)
    elif name in ("zstd", "lz4"):
        _load_plugins()
        code, values = (_LZ4_FILTER, ()) if name == "lz4" else (ZSTD_FILTER, (3 if level is None else level,))
        plist.set_filter(code, h5z.FLAG_OPTIONAL, values)
    if h5z.FILTER_FLETCHER32 in codes:
        plist.set_fletcher32()


def _name_filter(code: int, label: bytes) -> str:
    return (_LOSSLESS_FILTERS | _OTHER_FILTERS).get(code) or label.decode(errors="replace") or "unknown"


def replace_unusable_filters(plist: h5p.PropDCID) -> str | None:
    """Replace all compression by gzip if a filter may change values when it is applied again, or cannot be applied here.

    Return the name of the first such filter; None if there is none.
    """
    for code, _, values, label in list_filters(plist):
        can_encode = h5z.get_filter_info(code) & h5z.FILTER_CONFIG_ENCODE_ENABLED
        if not can_encode or not _is_lossless(code, values):
            set_compression(plist, "gzip", None)
            return _name_filter(code, label)
    return None


def _is_lossless(code: int, values: tuple[int, ...]) -> bool:
    """Tell whether a filter is known to give every value back, whatever the chunks that a shuffle makes."""
    if code == _BLOSC2_FILTER:
        return all(value in known for value, known in zip(values[5:7], _BLOSC2_LOSSLESS, strict=False))
    return code in _LOSSLESS_FILTERS


def list_filters(plist: h5p.PropDCID) -> list[tuple[int, int, tuple[int, ...], bytes]]:
    """Return code, flags, parameters and name of each filter of a dataset, in the order in which they are applied."""
    return [plist.get_filter(index) for index in range(plist.get_nfilters())]


def make_checksum(body: Bytes) -> bytes:
    """Return the checksum that HDF5 appends to a chunk of these bytes: Fletcher's, over big-endian words of 16 bits."""
    # A multiple of the modulus becomes the modulus, except an empty sum.
    folded = [(total - 1) % _MODULUS + 1 if total else 0 for total in _sum_words(body)]
    return np.array(folded, "<u2").tobytes()


def has_right_checksum(stored: Bytes) -> bool:
    """Tell whether bytes end with their checksum."""
    view = memoryview(stored)
    # Zero has two forms in these sums, 0 and 65535.
    sums = [total % _MODULUS for total in _sum_words(view[:-CHECKSUM_BYTES])]
    return sums == [int(part) % _MODULUS for part in np.frombuffer(view[-CHECKSUM_BYTES:], "<u2")]


def _sum_words(body: Bytes) -> tuple[int, int]:
    """Return the sum of all words, and the sum of all partial sums."""
    view = np.frombuffer(body, np.uint8)
    if len(view) % 2:
        view = np.append(view, np.uint8(0))
    words = view.view(">u2")
    total = weighted = 0
    for start in range(0, len(words), _BLOCK_WORDS):
        block = words[start : start + _BLOCK_WORDS].astype(np.uint64)
        # A word counts once for itself and once for each later word.
        weights = np.arange(len(block), 0, -1, dtype=np.uint64)
        weighted += total * len(block) + int(block @ weights)
        total += int(block.sum())
    return total, weighted
