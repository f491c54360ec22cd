"""The filters of HDF5 chunks: which are known and installed, those of shards, and how they are applied without HDF5.

HDF5 serialises all calls; a `Pipeline` runs in many threads. It gives the same results, except for damaged chunks: HDF5 inflates
a stream whole, even if it holds a thousand times the chunk, and if it holds less, takes the memory behind it for data. Here a
chunk is inflated up to its size, and must fill it.

LZF is that of h5py: its module `h5z` exports the two functions of LibLZF. The filter around them does not return the number of bytes.
"""

from __future__ import annotations

import ctypes
import errno
import zlib
from contextlib import suppress
from functools import cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import deflate
import numpy as np
import zstandard
from h5py import h5p, h5s, h5z
from h5py._objects import phil

from recshuf.dataclass import dataclass
from recshuf.errors import InputError, UsageError
from recshuf.formats.hdf5 import PLUGINS, has_plugins, list_compressions
from recshuf.formats.hdf5.types import Kind, find_chunk, kind_of

if TYPE_CHECKING:
    from h5py import h5d
    from numpy.typing import NDArray

    from recshuf.interfaces import WriteOptions

    Bytes = bytes | bytearray | memoryview
    _Bytes = NDArray[np.uint8]
    _Offset = tuple[int, ...]


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
_USUAL_ZSTD = 3
_COMPRESSIONS = {h5z.FILTER_DEFLATE, h5z.FILTER_LZF, ZSTD_FILTER}


def _load_plugins() -> None:
    if has_plugins():
        import hdf5plugin  # noqa: F401 - importing it registers its filters


def refuse_unknown_filters(plist: h5p.PropDCID, name: str, place: str) -> None:
    missing = [each for each in list_filters(plist) if not h5z.filter_avail(each[0])]
    if missing:
        _load_plugins()
    for code, _, _, label in missing:
        if not h5z.filter_avail(code):
            problem = f"the filter {_name_filter(code, label)} ({code}) is not installed"
            remedy = f"install {PLUGINS}, which has the common ones"
            raise InputError(name, problem, place=place, remedy=remedy)


def check_compression(options: WriteOptions) -> None:
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
    # A multiple of the modulus becomes the modulus, except an empty sum.
    folded = [(each - 1) % _MODULUS + 1 if each else 0 for each in (total, weighted)]
    return np.array(folded, "<u2").tobytes()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The filters of the chunks of a dataset: byte shuffle, compression and checksums, each optional, in any order."""

    codes: tuple[int, ...]
    """The filters in the order in which they are applied."""
    level: int
    """Level of the compression, if there is one."""
    item_bytes: int
    """Size of an element in the file."""
    chunk: tuple[int, ...]

    @property
    def chunk_bytes(self) -> int:
        return prod(self.chunk) * self.item_bytes

    @property
    def compresses(self) -> bool:
        return not _COMPRESSIONS.isdisjoint(self.codes)

    @property
    def can_encode(self) -> bool:
        """Whether a byte shuffle comes first, if there is one, so that it gets whole elements."""
        return h5z.FILTER_SHUFFLE not in self.codes[1:]

    def encode(self, chunk: NDArray[np.uint8]) -> tuple[int, Bytes]:
        """Return the filter mask and the stored bytes of a whole chunk, contiguous bytes in any shape.

        Bit i of the mask says that filter i was not applied, as it would not make the chunk smaller.
        """
        mask = 0
        stored: Bytes = chunk.data
        for place, code in enumerate(self.codes):
            if code == h5z.FILTER_SHUFFLE:
                stored = chunk.reshape(-1, self.item_bytes).T.tobytes()
            elif code == h5z.FILTER_DEFLATE:
                # At 1 it can be larger by a tenth than zlib's; 2 takes the same time.
                stored = deflate.zlib_compress(stored, max(self.level, 2) if self.level else 0)
            elif code == ZSTD_FILTER:
                stored = zstandard.ZstdCompressor(self.level).compress(stored)
            elif code == h5z.FILTER_FLETCHER32:
                stored = b"".join((stored, make_checksum(stored)))
            else:
                packed = _call_lzf("lzf_compress", stored, memoryview(stored).nbytes - 1)
                mask |= (packed is None) << place
                stored = stored if packed is None else packed
        return mask, stored

    def decode(self, stored: Bytes, mask: int) -> NDArray[np.uint8] | None:
        """Return a chunk as an array of its shape, bytes on the last axis; None if HDF5 should report the error."""
        codes = [code for index, code in enumerate(self.codes) if not mask >> index & 1]
        plain = stored
        for place, code in reversed(list(enumerate(codes))):
            if code == h5z.FILTER_FLETCHER32:
                plain, checksum = memoryview(plain)[:-CHECKSUM_BYTES], memoryview(plain)[-CHECKSUM_BYTES:]
                if len(checksum) < CHECKSUM_BYTES:  # HDF5 would read far beyond it
                    raise ValueError(
                        f"a chunk of {self.chunk_bytes} bytes inflates to less than its checksum"
                    )
                if make_checksum(plain) != checksum:
                    return None
            elif code == h5z.FILTER_SHUFFLE and place:
                plain = _unshuffle(plain, self.item_bytes)
            elif code != h5z.FILTER_SHUFFLE:
                size = self.chunk_bytes + CHECKSUM_BYTES * codes[:place].count(h5z.FILTER_FLETCHER32)
                unpacked = _DECODERS[code](plain, size)
                if unpacked is None:
                    return None
                plain = unpacked
        flat = np.frombuffer(plain, np.uint8)
        if len(flat) != self.chunk_bytes:
            amount = f"{len(flat)} bytes" if len(flat) < self.chunk_bytes else "more"
            raise ValueError(f"a chunk of {self.chunk_bytes} bytes inflates to {amount}")
        if codes[:1] == [h5z.FILTER_SHUFFLE]:
            return np.moveaxis(flat.reshape(self.item_bytes, *self.chunk), 0, -1)
        return flat.reshape(*self.chunk, self.item_bytes)


def find_pipeline(dataset: h5d.DatasetID, item_bytes: int) -> Pipeline | None:
    """Return the filters of a chunked dataset; None if any filter is not supported here, or two compress."""
    chunk = find_chunk(dataset)
    if chunk is None:
        return None
    filters = list_filters(dataset.get_create_plist())
    codes = tuple(code for code, _, _, _ in filters)
    if sum(code in _COMPRESSIONS for code in codes) > 1:  # what lies between them has no known size
        return None
    if not all(_is_usual(code, values, item_bytes) for code, _, values, _ in filters):
        return None
    levels = (_find_level(each[2]) for each in filters if each[0] in (h5z.FILTER_DEFLATE, ZSTD_FILTER))
    return Pipeline(codes, next(levels, 0), item_bytes, chunk)


def _is_usual(code: int, values: tuple[int, ...], item_bytes: int) -> bool:
    """Tell whether a filter is supported here, with parameters that HDF5 accepts."""
    if code == h5z.FILTER_SHUFFLE:
        return values == (item_bytes,)
    if code == h5z.FILTER_DEFLATE:
        return len(values) == 1 and values[0] <= 9
    if code == ZSTD_FILTER:
        return len(values) < 2 and 1 <= _find_level(values) <= 22
    if code == h5z.FILTER_LZF:
        return _load_lzf() is not None
    return bool(code == h5z.FILTER_FLETCHER32)


def _find_level(values: tuple[int, ...]) -> int:
    return values[0] if values else _USUAL_ZSTD


def _unshuffle(stored: Bytes, item_bytes: int) -> bytes:
    """Return shuffled bytes in their order. Those behind the last whole item are in theirs."""
    whole = len(stored) - len(stored) % item_bytes
    planes = np.frombuffer(stored, np.uint8, whole).reshape(item_bytes, -1)
    return b"".join((planes.T.tobytes(), memoryview(stored)[whole:]))


def _inflate(stored: Bytes, size: int) -> Bytes | None:
    """Return what a stream holds, as far as it fits `size` or shows that it does not; None if it is damaged."""
    with suppress(deflate.DeflateError):  # which does not say why
        return deflate.zlib_decompress(stored, size)
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(stored, size + 1)
    except zlib.error:
        return None
    return inflated if stream.eof or len(inflated) > size else None


def _unpack_zstd(stored: Bytes, size: int) -> bytes | None:
    """Return the contents of a frame; None if it is none, or does not state its size."""
    try:
        held = zstandard.get_frame_parameters(stored).content_size
    except zstandard.ZstdError:
        return None
    if held > size:
        if held == zstandard.CONTENTSIZE_UNKNOWN:
            return None
        raise ValueError(f"a chunk of {size} bytes inflates to {held}")
    try:
        return zstandard.ZstdDecompressor().decompress(stored, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:  # after which its filter for HDF5 would take other memory for data
        raise ValueError(f"a chunk of {size} bytes is damaged: {error}") from error


@cache
def _load_lzf() -> ctypes.CDLL | None:
    """Return the library with ``unsigned lzf_...(const void *in, unsigned in_len, void *out, unsigned out_len)``, if any."""
    try:
        library = ctypes.CDLL(h5z.__file__, use_errno=True)
        functions = (library.lzf_compress, library.lzf_decompress)
    except (OSError, AttributeError):
        return None
    for function in functions:
        function.argtypes = (ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint)
        function.restype = ctypes.c_uint
    return library


def _unpack_lzf(stored: Bytes, size: int) -> Bytes | None:
    if not stored:
        return b""
    plain = _call_lzf("lzf_decompress", stored, size)
    if plain is None and ctypes.get_errno() == errno.E2BIG:
        raise ValueError(f"a chunk of {size} bytes inflates to more")
    return plain


def _call_lzf(name: str, data: Bytes, most: int) -> Bytes | None:
    """Return the result of a function for some bytes, at most `most` bytes; None if it fails."""
    if most <= 0:
        return None
    source, target = np.frombuffer(data, np.uint8), np.empty(most, np.uint8)
    ctypes.set_errno(0)
    length = getattr(_load_lzf(), name)(source.ctypes.data, len(source), target.ctypes.data, len(target))
    return target[:length].data if length else None


_DECODERS = {h5z.FILTER_DEFLATE: _inflate, h5z.FILTER_LZF: _unpack_lzf, ZSTD_FILTER: _unpack_zstd}


class ChunkReader:
    """Reads rows of a chunked dataset, undoing its filters without HDF5. References that cannot be read are zeros.

    It `keeps` the last chunk in memory for the next read.
    """

    def __init__(self, dataset: h5d.DatasetID, pipeline: Pipeline, *, keeps: bool) -> None:
        self._dataset = dataset
        self._pipeline = pipeline
        self._keeps = keeps
        self._kept: tuple[_Offset, _Bytes] | None = None
        self._shape: tuple[int, ...] = dataset.shape
        self._chunk = pipeline.chunk
        self._item_bytes = pipeline.item_bytes

    def read(self, start: int, stop: int) -> _Bytes:
        rows = np.empty((stop - start, *self._shape[1:], self._item_bytes), np.uint8)
        others = (range(0, width, step) for width, step in zip(self._shape[1:], self._chunk[1:], strict=True))
        for offset in product(range(start - start % self._chunk[0], stop, self._chunk[0]), *others):
            low = (max(offset[0], start), *offset[1:])
            ends = map(min, map(int.__add__, offset, self._chunk), (stop, *self._shape[1:]))
            self._fill(rows[low[0] - start :], offset, low, tuple(ends))
        return rows.reshape(-1)

    def _fill(self, rows: _Bytes, offset: _Offset, low: _Offset, high: _Offset) -> None:
        """Copy the elements from `low` up to `high` of a chunk; `rows` begin at the row of `low`."""
        counts = tuple(map(int.__sub__, high, low))
        target = rows[(slice(counts[0]), *map(slice, low[1:], high[1:]))]
        chunk = self._load(offset)
        if chunk is None:
            target[...] = self._read_plainly(low, counts).reshape(target.shape)
            return
        taken = chunk[
            tuple(slice(a - start, b - start) for a, b, start in zip(low, high, offset, strict=True))
        ]
        if taken.strides[-1] == 1:
            target[...] = taken
            return
        for index in range(self._item_bytes):  # shuffled: a plane of first bytes, one of second bytes...
            target[..., index] = taken[..., index]

    def _load(self, offset: _Offset) -> _Bytes | None:
        """Return a chunk, its bytes on the last axis; None if only HDF5 can read it."""
        kept = self._kept
        if kept is not None and kept[0] == offset:
            return kept[1]
        try:
            with phil:  # h5py before 3.16 does not accept it here
                mask, stored = self._dataset.read_direct_chunk(offset)
        # Never written, so all fill value, or out of range. Without a single chunk, the error is one of memory.
        except (RuntimeError, OSError, ValueError, MemoryError):
            return None
        chunk = self._pipeline.decode(stored, mask)
        if self._keeps and chunk is not None:
            self._kept = (offset, chunk)
        return chunk

    def _read_plainly(self, low: _Offset, counts: _Offset) -> _Bytes:
        in_file = self._dataset.get_space()
        in_file.select_hyperslab(low, counts)
        raw = np.zeros(prod(counts) * self._item_bytes, np.uint8)
        if kind_of(self._dataset.get_type()) is Kind.FIXED:
            self._dataset.read(h5s.create_simple(counts), in_file, raw, self._dataset.get_type())
        return raw
