"""A keyed 128-bit hash of each record, a function of its value alone.

Values of different types have equal hashes if a lossless conversion makes them equal: integers of any width, floats
of any width, lists of any kind, strings and binaries, times of any unit. Maps hash as lists of keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from recshuf.audit.verify.type_classes import is_bytes, sorted_fields
from recshuf.audit.verify.word_hashing import HASH_BYTES, ByteStrings, HashKey, add_nulls, combine, hash_bytes
from recshuf.errors import ConversionError
from recshuf.records.arrays import is_any_list, is_list_view, unpack_bits, view_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray


PIECE_BYTES = 2 << 20
_PIECE_BYTES_PER_COLUMN = 16 << 10
_DOMAINS_PER_LEVEL = 32
"""Each depth of nesting has its own keys: 0 to 15 hash byte strings, `_PARTS` and `_HOLES` structs and nulls in lists."""
_PARTS, _HOLES = 16, 17
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS = 86_400
_FLOAT_BITS = {16: (5, 10), 32: (8, 23)}
"""Bits of exponent and fraction."""


@dataclass(frozen=True, slots=True)
class _Part:
    """N values as words: arrays of shape ``(n,)`` that differ where values differ, and a mask of nulls."""

    words: tuple[NDArray[Any], ...]
    nulls: NDArray[np.bool_] | None = None


def hash_rows(
    batch: pa.RecordBatch, key: HashKey, *, is_converted: bool = False, nan_as_null: bool = False
) -> NDArray[np.uint64]:
    """Return the hash of each record, shape ``(n, 2)``.

    The hash does not depend on batch boundaries, array offsets or memory under nulls. NaNs with different bits have
    different hashes, and so have the two zeros.

    Parameters
    ----------
    is_converted
        True: equal values have equal hashes whatever their types, and fields, also of structs, are hashed in the
        order of their names. False: hashes depend on types, and fields are hashed in the order of the schema.
    nan_as_null
        Whether NaN and infinities hash as nulls; only if `is_converted`.
    """
    hashes = np.empty((2, batch.num_rows), np.uint64)
    hasher = _Hasher(key, is_converted, nan_as_null)
    names = batch.schema.names
    order = sorted_fields(list(batch.schema), by_name=is_converted)
    rows = _count_piece_rows(batch)
    for start in range(0, batch.num_rows, rows):
        piece = batch.slice(start, rows)
        parts = [hasher.read(piece.column(index), names[index], 1) for index in order]
        hashes[:, start : start + rows] = hasher.join(parts, piece.num_rows, 0)
    return hashes.T


def _count_piece_rows(batch: pa.RecordBatch) -> int:
    """Return how many rows to hash at once, which bounds the memory of their words."""
    count, size = int(batch.num_rows), int(batch.nbytes)
    piece_bytes = PIECE_BYTES + _PIECE_BYTES_PER_COLUMN * int(batch.num_columns)
    return max(1, piece_bytes * count // max(1, size))


class _Hasher:
    """Reads arrays of any type as words.

    Parameters
    ----------
    is_converted, nan_as_null
        As for `hash_rows`.
    """

    def __init__(self, key: HashKey, is_converted: bool, nan_as_null: bool) -> None:
        self._key = key
        self._is_converted = is_converted
        self._nan_as_null = nan_as_null

    def join(self, parts: Sequence[_Part], count: int, level: int) -> NDArray[np.uint64]:
        """Return the hashes of n values that consist of parts, shape ``(2, n)``."""
        pairs = [(part.words, part.nulls) for part in parts]
        return combine(pairs, count, self._key, level * _DOMAINS_PER_LEVEL + _PARTS)

    def read(self, array: pa.Array, field: str, level: int) -> _Part:
        """Return the words of an array that is nested `level` levels below the batch."""
        array = _unwrap(array)
        kind = array.type
        if pt.is_dictionary(kind):
            return self._read_dictionary(array, field, level)
        if is_bytes(kind):
            return _with_nulls(array, self._read_bytes(array, level))
        if pt.is_map(kind):
            return _with_nulls(array, self._read_map(array, field, level))
        if is_any_list(kind):
            return _with_nulls(array, self._read_list(array, field, level))
        if pt.is_struct(kind):
            return _with_nulls(array, self._read_struct(array, field, level))
        part = _with_nulls(array, _read_scalars(array, field))
        return _as_null(part) if self._nan_as_null and pt.is_floating(kind) else part

    def _read_dictionary(self, array: pa.DictionaryArray, field: str, level: int) -> _Part:
        values = self.read(array.dictionary, field, level)
        nulls = array.indices.is_null().to_numpy(zero_copy_only=False)
        if not len(array.dictionary):
            empty = np.zeros(len(array), np.uint64)
            return _Part((empty,) * len(values.words), nulls)
        index = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        if values.nulls is not None:
            nulls = nulls | values.nulls[index]
        return _Part(tuple(words[index] for words in values.words), nulls if nulls.any() else None)

    def _read_bytes(self, array: pa.Array, level: int) -> NDArray[np.uint64]:
        starts, ends = _find_bounds(array, array.type.byte_width if _is_fixed(array.type) else None)
        data = array.buffers()[1 if _is_fixed(array.type) else 2]
        content = np.frombuffer(b"" if data is None else data, np.uint8)
        return hash_bytes(ByteStrings(content, starts, ends - starts), self._key, level * _DOMAINS_PER_LEVEL)

    def _read_struct(self, array: pa.StructArray, field: str, level: int) -> NDArray[np.uint64]:
        fields = list(array.type)
        order = sorted_fields(fields, by_name=self._is_converted)
        parts = [self.read(array.field(index), f"{field}.{fields[index].name}", level + 1) for index in order]
        return self.join(parts, len(array), level)

    def _read_map(self, array: pa.MapArray, field: str, level: int) -> NDArray[np.uint64]:
        starts, ends = _find_bounds(array, None)
        first, stop = _span(starts, ends)
        parts = [
            self.read(values.slice(first, stop - first), f"{field}.{name}", level + 2)
            for name, values in (("key", array.keys), ("value", array.items))
        ]
        entries = _Part(tuple(self.join(parts, stop - first, level + 1)))
        return self._join_items(entries, starts - first, ends - first, level)

    def _read_list(self, array: pa.Array, field: str, level: int) -> NDArray[np.uint64]:
        size = array.type.list_size if pt.is_fixed_size_list(array.type) else None
        starts, ends = _find_bounds(array, size)
        first, stop = _span(starts, ends)
        values = array.values.slice(first, stop - first)
        items = None if self._is_converted else _read_raw(values)
        items = items or self.read(values, f"{field}[]", level + 1)
        return self._join_items(items, starts - first, ends - first, level)

    def _join_items(
        self, items: _Part, starts: NDArray[np.int64], ends: NDArray[np.int64], level: int
    ) -> NDArray[np.uint64]:
        """Return the hashes of lists: the words of a list's items are hashed as one byte string."""
        words = items.words[0] if len(items.words) == 1 else self._shorten(items, level)
        if items.nulls is not None:
            words = words.copy()
            words[items.nulls] = 0
        data = np.ascontiguousarray(words).reshape(-1).view(np.uint8)
        width = words.itemsize * (1 if words.ndim == 1 else words.shape[1])
        domain = level * _DOMAINS_PER_LEVEL
        hashes = hash_bytes(ByteStrings(data, starts * width, (ends - starts) * width), self._key, domain)
        if items.nulls is not None:
            self._add_nulls(hashes, items.nulls, starts, ends, domain + _HOLES)
        return hashes

    def _shorten(self, items: _Part, level: int) -> NDArray[np.uint64]:
        """Return two words for each item, shape ``(n, 2)``."""
        if len(items.words) * 8 == HASH_BYTES:
            return np.stack(items.words, axis=1)
        return self.join([_Part(items.words)], len(items.words[0]), level + 1).T

    def _add_nulls(
        self,
        hashes: NDArray[np.uint64],
        nulls: NDArray[np.bool_],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        domain: int,
    ) -> None:
        holes = np.flatnonzero(nulls)
        owners = np.searchsorted(ends, holes, side="right")
        inside = holes >= starts[np.minimum(owners, len(starts) - 1)]
        owners, holes = owners[inside], holes[inside]
        if len(owners):
            add_nulls(hashes, owners, holes - starts[owners], self._key, domain)


def _with_nulls(array: pa.Array, words: Iterable[NDArray[Any]]) -> _Part:
    nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return _Part(tuple(words), nulls)


def _as_null(floats: _Part) -> _Part:
    """Return floats, widened to 64 bits, with NaN and infinities as nulls."""
    infinity = np.uint64(0x7FF << 52)
    nulls = (floats.words[0] & infinity) == infinity
    return _Part(floats.words, nulls if floats.nulls is None else nulls | floats.nulls)


def _read_raw(array: pa.Array) -> _Part | None:
    """Return numbers as unsigned integers of their own width, without widening to words; None for other types."""
    kind = array.type
    if not pt.is_primitive(kind) or pt.is_boolean(kind) or kind.bit_width > 64:
        return None
    return _with_nulls(array, [view_bytes(array).view(f"u{kind.bit_width // 8}")])


def _unwrap(array: pa.Array) -> pa.Array:
    """Return the same values in a simpler type: extensions as their storage, run ends decoded, views as offsets."""
    if isinstance(array, pa.ExtensionArray):
        return _unwrap(array.storage)
    kind = array.type
    if pt.is_run_end_encoded(kind):
        import pyarrow.compute as pc

        return _unwrap(pc.run_end_decode(array))
    if str(kind) in ("string_view", "binary_view"):
        return array.cast(pa.large_binary())
    if is_list_view(kind):
        return _list_view_as_list(array)
    return array


def _list_view_as_list(array: pa.Array) -> pa.Array:
    """Return the same lists with offsets; `cast` of pyarrow 26 gives wrong ones if the last list is null."""
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    sizes = np.where(nulls, 0, array.sizes.to_numpy(zero_copy_only=False)).astype(np.int64)
    starts = array.offsets.to_numpy(zero_copy_only=False)[: len(array)].astype(np.int64)
    edges = np.concatenate(([0], np.cumsum(sizes)))
    index = np.arange(edges[-1]) + np.repeat(starts - edges[:-1], sizes)
    return pa.LargeListArray.from_arrays(edges, array.values.take(pa.array(index)), mask=pa.array(nulls))


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pt.is_fixed_size_binary(kind))


def _find_bounds(array: pa.Array, width: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the start and end of each value in the child array or data buffer, ascending.

    Parameters
    ----------
    width
        Items per value if all values have equally many, else None.
    """
    count = len(array)
    if width is not None:
        edges = np.arange(array.offset, array.offset + count + 1, dtype=np.int64) * width
    elif not count:
        edges = np.zeros(1, np.int64)
    else:
        edges = view_offsets(array).astype(np.int64)
    return edges[:-1], edges[1:]


def _span(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[int, int]:
    return (int(starts[0]), int(ends[-1])) if len(starts) else (0, 0)


def _read_scalars(array: pa.Array, field: str) -> Sequence[NDArray[np.uint64]]:
    kind = array.type
    if pt.is_null(kind):
        return [np.zeros(len(array), np.uint64)]
    if pt.is_boolean(kind):
        return [unpack_bits(array.buffers()[1], array).astype(np.uint64)]
    if pt.is_integer(kind):
        return [view_bytes(array).view(str(kind)).astype(np.int64).view(np.uint64)]
    if pt.is_floating(kind):
        return [_widen_floats(array)]
    if pt.is_decimal(kind):
        return _read_decimals(array)
    if pt.is_temporal(kind) and not pt.is_interval(kind):
        return _read_moments(array)
    raise ConversionError(field, f"values of type {kind} cannot be compared")


def _widen_floats(array: pa.Array) -> NDArray[np.uint64]:
    """Return the bits of floats as float64 with the payload of NaNs, which a plain conversion may change."""
    width = array.type.bit_width
    if width == 64:
        return view_bytes(array).view(np.uint64)
    exponent_bits, fraction_bits = _FLOAT_BITS[width]
    bits = view_bytes(array).view(f"u{width // 8}")
    with np.errstate(invalid="ignore"):  # signalling NaNs, which get their bits below
        wide = bits.view(f"f{width // 8}").astype(np.float64).view(np.uint64)
    fractions = bits & ((1 << fraction_bits) - 1)
    exponents = (bits >> fraction_bits) & ((1 << exponent_bits) - 1)
    nans = np.flatnonzero((exponents == (1 << exponent_bits) - 1) & (fractions != 0))
    signs = (bits[nans] >> (width - 1)).astype(np.uint64) << np.uint64(63)
    carried = fractions[nans].astype(np.uint64) << np.uint64(52 - fraction_bits)
    wide[nans] = signs | np.uint64(0x7FF << 52) | carried
    return wide


def _read_decimals(array: pa.Array) -> list[NDArray[np.uint64]]:
    """Return the unscaled integers as four words, whatever the width."""
    width = array.type.bit_width
    kind = np.int32 if width == 32 else np.int64
    parts = max(1, width // 64)
    words = view_bytes(array).view(kind).astype(np.int64).reshape(len(array), parts)
    signs = words[:, -1] >> 63
    return [words[:, part].view(np.uint64) for part in range(parts)] + [signs.view(np.uint64)] * (4 - parts)


def _read_moments(array: pa.Array) -> list[NDArray[np.uint64]]:
    """Return whole seconds and nanoseconds, whatever the unit."""
    kind = array.type
    ticks = view_bytes(array).view(f"i{kind.bit_width // 8}").astype(np.int64)
    if pt.is_date32(kind):
        return [(ticks * _DAY_SECONDS).view(np.uint64), np.zeros(len(ticks), np.uint64)]
    per_second = _PER_SECOND["ms" if pt.is_date64(kind) else kind.unit]
    seconds = ticks // per_second
    rest = (ticks - seconds * per_second) * (10**9 // per_second)
    return [seconds.view(np.uint64), rest.view(np.uint64)]
