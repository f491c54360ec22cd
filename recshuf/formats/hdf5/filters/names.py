"""The filters of HDF5 chunks, for reading inputs and for writing shards."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from h5py import h5p, h5z

from recshuf.errors import InputError, UsageError

if TYPE_CHECKING:
    from recshuf.interfaces import WriteOptions

_BZIP2_FILTER = 307
_BLOSC_FILTER = 32001
_LZ4_FILTER = 32004
_BITSHUFFLE_FILTER = 32008
ZSTD_FILTER = 32015
_BLOSC2_FILTER = 32026
_GZIP_LEVEL = 4
_KEPT_FILTERS = (h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32)
_KNOWN_FILTERS = {
    305: "lzo",
    _BZIP2_FILTER: "bzip2",
    _BLOSC_FILTER: "blosc",
    _LZ4_FILTER: "lz4",
    _BITSHUFFLE_FILTER: "bitshuffle",
    32013: "zfp",
    ZSTD_FILTER: "zstd",
    32017: "sz",
    32018: "fcidecomp",
    32024: "sz3",
    _BLOSC2_FILTER: "blosc2",
    32028: "sperr",
    h5z.FILTER_SCALEOFFSET: "scale-offset",
}
_LOSSLESS_FILTERS = frozenset(
    {
        h5z.FILTER_DEFLATE,
        h5z.FILTER_SHUFFLE,
        h5z.FILTER_FLETCHER32,
        h5z.FILTER_SZIP,
        h5z.FILTER_NBIT,
        h5z.FILTER_LZF,
        _BZIP2_FILTER,
        _BLOSC_FILTER,
        _LZ4_FILTER,
        _BITSHUFFLE_FILTER,
        ZSTD_FILTER,
    }
)
"""Filters that give back the same bytes, whatever their parameters."""
# Parameters of blosc2: the prefilter and the codec. Other prefilters cut bits, and other codecs may round.
_BLOSC2_PREFILTER, _BLOSC2_CODEC = 5, 6
_LOSSLESS_PREFILTERS = range(4)
_LOSSLESS_CODECS = range(6)


def list_compressions() -> tuple[str, ...]:
    """Return the compressions that this installation can write."""
    return ("none", "gzip", "lzf", *(("zstd", "lz4") if _has_plugins() else ()))


def _has_plugins() -> bool:
    return find_spec("hdf5plugin") is not None


def _load_plugins() -> None:
    if _has_plugins():
        import hdf5plugin  # noqa: F401 - importing it registers its filters


def refuse_unknown_filters(plist: h5p.PropDCID, name: str, place: str) -> None:
    """Raise `InputError` if a dataset needs a filter that is not installed."""
    codes = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    missing = [each for each in codes if not h5z.filter_avail(each[0])]
    if missing:
        _load_plugins()
    for code, _, _, label in missing:
        if not h5z.filter_avail(code):
            problem = f"the filter {_name_filter(code, label)} ({code}) is not installed"
            remedy = 'pip install "recshuf[hdf5plugin]" brings the common ones'
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
    kept = [code for code in _KEPT_FILTERS if _has_filter(plist, code)]
    if plist.get_nfilters():
        plist.remove_filter(h5z.FILTER_ALL)
    if h5z.FILTER_SHUFFLE in kept and name != "none":
        plist.set_shuffle()
    _add_compression(plist, name, level)
    if h5z.FILTER_FLETCHER32 in kept:
        plist.set_fletcher32()


def _add_compression(plist: h5p.PropDCID, name: str, level: int | None) -> None:
    if name == "gzip":
        plist.set_deflate(_GZIP_LEVEL if level is None else level)
    elif name == "lzf":
        plist.set_filter(h5z.FILTER_LZF, h5z.FLAG_OPTIONAL)
    elif name in ("zstd", "lz4"):
        _load_plugins()
        code, values = (_LZ4_FILTER, ()) if name == "lz4" else (ZSTD_FILTER, (3 if level is None else level,))
        plist.set_filter(code, h5z.FLAG_OPTIONAL, values)


def find_unusable_filter(plist: h5p.PropDCID) -> str | None:
    """Return the name of a filter that cannot be applied again without risk, or None.

    Its values may be rounded once more, as by scale-offset and ZFP, or this installation can only undo it.
    """
    filters = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    for code, _, values, label in filters:
        if not _is_lossless(code, values) or not _can_encode(code):
            return f"{_name_filter(code, label)} ({code})"
    return None


def _is_lossless(code: int, values: tuple[int, ...]) -> bool:
    if code != _BLOSC2_FILTER:
        return code in _LOSSLESS_FILTERS
    prefilter, codec = (*values, *[0] * 7)[_BLOSC2_PREFILTER : _BLOSC2_CODEC + 1]
    return prefilter in _LOSSLESS_PREFILTERS and codec in _LOSSLESS_CODECS


def _name_filter(code: int, label: bytes) -> str:
    return _KNOWN_FILTERS.get(code) or label.decode(errors="replace") or "unknown"


def _can_encode(code: int) -> bool:
    return bool(h5z.get_filter_info(code) & h5z.FILTER_CONFIG_ENCODE_ENABLED)


def _has_filter(plist: h5p.PropDCID, code: int) -> bool:
    return any(plist.get_filter(i)[0] == code for i in range(plist.get_nfilters()))
