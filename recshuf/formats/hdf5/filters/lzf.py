"""LZF of h5py, called without the lock of HDF5.

h5py's own copy of LibLZF is part of its module `h5z`, which exports LibLZF's two functions. The filter
around them does not return the number of bytes.
"""

from __future__ import annotations

import ctypes
import errno
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from h5py import h5z

if TYPE_CHECKING:
    from recshuf.formats.hdf5.filters.fletcher32 import Bytes


@cache
def _load_library() -> ctypes.CDLL | None:
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


def has_lzf() -> bool:
    """Tell whether the functions are available."""
    return _load_library() is not None


def compress(plain: Bytes) -> Bytes | None:
    """Return the LZF form of bytes; None if it would not be smaller."""
    return _call("lzf_compress", plain, memoryview(plain).nbytes - 1)


def decompress(stored: Bytes, size: int) -> Bytes | None:
    """Return the contents of an LZF stream; None if it is damaged.

    Raises
    ------
    ValueError
        When it holds more than `size` bytes.
    """
    if not stored:
        return b""
    plain = _call("lzf_decompress", stored, size)
    if plain is None and ctypes.get_errno() == errno.E2BIG:
        raise ValueError(f"a chunk of {size} bytes inflates to more")
    return plain


def _call(name: str, given: Bytes, most: int) -> Bytes | None:
    """Return the result of a function for some bytes, at most `most` bytes; None if it fails."""
    if most <= 0:
        return None
    source, target = np.frombuffer(given, np.uint8), np.empty(most, np.uint8)
    ctypes.set_errno(0)
    length = getattr(_load_library(), name)(source.ctypes.data, len(source), target.ctypes.data, len(target))
    return target[:length].data if length else None
