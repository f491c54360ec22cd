"""A keyed 128-bit hash of each record, a function of its value alone.

Values of different types have equal hashes if a lossless conversion makes them equal: integers of any width, floats
of any width, lists of any kind, strings and binaries, times of any unit. Maps hash as lists of keys and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import ConversionError
from recshuf.records.arrays import (
    is_any_list,
    is_bytes,
    is_list_view,
    storage_of,
    unpack_bits,
    view_bytes,
    view_offsets,
)
from recshuf.records.conforming import conform, with_value_field
from recshuf.records.word_hashing import ByteStrings, HashKey, add_nulls, combine, hash_bytes, mix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray


_PIECE_BYTES = 2 << 20
_PIECE_ROWS = 16384
_DOMAINS_PER_LEVEL = 3
"""Each depth of nesting has its own keys: 0 is of byte strings, `_PARTS` and `_HOLES` of structs and of nulls in lists."""
_PARTS, _HOLES = 1, 2
_HASH_WORDS = 2
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS = 86_400
_FLOAT_BITS = {16: (5, 10), 32: (8, 23)}


class _Part(NamedTuple):
    """N values as words: arrays of shape ``(n,)`` that differ where values differ, and a mask of nulls."""

    words: tuple[NDArray[Any], ...]
    nulls: NDArray[np.bool_] | None = None


def hash_rows(
    batch: pa.RecordBatch, key: HashKey, *, is_converted: bool = False, nan_as_null: bool = False
) -> NDArray[np.uint64]:
    """Return the hash of each record, shape ``(n, 2)``.

    The hash does not depend on batch boundaries, array offsets or memory under nulls. NaNs with different bits have
    different hashes, and so have the two zeros.

    If `is_converted`, equal values have equal hashes whatever their types, fields, also of structs, are hashed in the order of
    their names, and with `nan_as_null` NaN and infinities hash as nulls. Otherwise hashes depend on types, and fields are hashed
    in the order of the schema.
    """
    hashes = np.empty((2, batch.num_rows), np.uint64)
    hasher = _Hasher(key, is_converted, nan_as_null)
    names = batch.schema.names
    order = sorted_fields(list(batch.schema), by_name=is_converted)
    columns = [(names[index], batch.column(index)) for index in order]
    rows = _count_piece_rows(batch)
    for start in range(0, batch.num_rows, rows):
        stop = min(start + rows, batch.num_rows)
        pieces = [(name, column.slice(start, rows)) for name, column in columns]
        hashes[:, start:stop] = mix(
            hasher.join_row(hasher.read_columns(pieces), len(columns), stop - start), key
        )
    return hashes.T


def sorted_fields(fields: list[pa.Field], *, by_name: bool) -> list[int]:
    """Return the indices of fields in the order in which they are compared."""
    indices = range(len(fields))
    return sorted(indices, key=lambda index: fields[index].name) if by_name else list(indices)


def _group_alike(columns: list[tuple[str, pa.Array]]) -> Iterator[list[tuple[str, pa.Array]]]:
    """Yield runs of columns to read as one array: short flat ones of one type, or any other column alone."""
    run: list[tuple[str, pa.Array]] = []
    kind, joins, has_bytes, run_bytes = None, False, False, 0
    for name, column in columns:
        is_other = kind is None or column.type != kind
        if is_other:
            kind = column.type
            has_bytes = is_bytes(kind)
            joins = has_bytes or pt.is_primitive(kind)
        size = int(column.nbytes) if has_bytes else 0
        fits = joins and (len(run) + 1) * len(column) <= _PIECE_ROWS and run_bytes + size <= _PIECE_BYTES
        if run and (is_other or not fits):
            yield run
            run, run_bytes = [], 0
        run.append((name, column))
        run_bytes += size
    if run:
        yield run


def _count_piece_rows(batch: pa.RecordBatch) -> int:
    """Return how many rows to hash at once, which bounds the memory of the words of a column."""
    sizes = (int(column.nbytes) for column in batch.columns if pt.is_nested(storage_of(column.type)))
    return max(1, min(_PIECE_ROWS, _PIECE_BYTES * int(batch.num_rows) // max(1, *sizes, 1)))


class _Hasher:
    """Reads arrays of any type as words; options as for `hash_rows`."""

    def __init__(self, key: HashKey, is_converted: bool, nan_as_null: bool) -> None:
        self._key = key
        self._is_converted = is_converted
        self._nan_as_null = nan_as_null

    def read_columns(self, columns: list[tuple[str, pa.Array]]) -> Iterator[_Part]:
        """Yield the words of each column; what a call costs is paid once for several short ones."""
        for run in _group_alike(columns):
            (name, first), *others = run
            if not others:
                yield self.read(first, name, 1)
                continue
            joined = self.read(pa.concat_arrays([column for _, column in run]), name, 1)
            for start in range(0, len(run) * len(first), len(first)):
                rows = slice(start, start + len(first))
                nulls = None if joined.nulls is None else joined.nulls[rows]
                yield _Part(tuple(words[rows] for words in joined.words), nulls)

    def join_row(self, parts: Iterable[_Part], part_count: int, count: int) -> NDArray[np.uint64]:
        """Do what `join` does for records. The two words of an only part, such as a line, are the result."""
        if part_count != 1:
            return self.join(parts, count, 0)
        (part,) = parts
        if len(part.words) != _HASH_WORDS:
            return self.join([part], count, 0)
        sums = np.stack(part.words)
        if part.nulls is not None:
            sums[:, part.nulls] = self._key.offsets
        return sums

    def join(self, parts: Iterable[_Part], count: int, level: int) -> NDArray[np.uint64]:
        """Return the hashes of n values that consist of parts, shape ``(2, n)``; holds the words of few parts at once."""
        return combine(parts, count, self._key, level * _DOMAINS_PER_LEVEL + _PARTS)

    def read(self, array: pa.Array, field: str, level: int) -> _Part:
        """Return the words of an array that is nested `level` levels below the batch; errors name `field`."""
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
        edges = _find_edges(array)
        content = np.frombuffer(array.buffers()[-1] or b"", np.uint8)
        strings = ByteStrings(content, edges[:-1], np.diff(edges))
        return hash_bytes(strings, self._key, level * _DOMAINS_PER_LEVEL)

    def _read_struct(self, array: pa.StructArray, field: str, level: int) -> NDArray[np.uint64]:
        fields = list(array.type)
        order = sorted_fields(fields, by_name=self._is_converted)
        parts = [self.read(array.field(index), f"{field}.{fields[index].name}", level + 1) for index in order]
        return self.join(parts, len(array), level)

    def _read_map(self, array: pa.MapArray, field: str, level: int) -> NDArray[np.uint64]:
        edges = _find_edges(array)
        count = int(edges[-1] - edges[0])
        parts = [
            self.read(values.slice(edges[0], count), f"{field}.{name}", level + 2)
            for name, values in (("key", array.keys), ("value", array.items))
        ]
        entries = _Part(tuple(self.join(parts, count, level + 1)))
        return self._join_items(entries, edges - edges[0], level)

    def _read_list(self, array: pa.Array, field: str, level: int) -> NDArray[np.uint64]:
        edges = _find_edges(array)
        values = array.values.slice(edges[0], edges[-1] - edges[0])
        items = None if self._is_converted else _read_raw(values)
        items = items or self.read(values, f"{field}[]", level + 1)
        return self._join_items(items, edges - edges[0], level)

    def _join_items(self, items: _Part, edges: NDArray[np.int64], level: int) -> NDArray[np.uint64]:
        """Return the hashes of n lists: the words of a list's items are hashed as one byte string.

        The edges say where each list begins in `items` and the last one ends, shape ``(n + 1,)``.
        """
        words = items.words[0] if len(items.words) == 1 else self._shorten(items, level)
        if items.nulls is not None:
            words = words.copy()
            words[items.nulls] = 0
        data = np.ascontiguousarray(words).reshape(-1).view(np.uint8)
        width = words.itemsize * (1 if words.ndim == 1 else words.shape[1])
        domain = level * _DOMAINS_PER_LEVEL
        hashes = hash_bytes(ByteStrings(data, edges[:-1] * width, np.diff(edges) * width), self._key, domain)
        if items.nulls is not None and (holes := np.flatnonzero(items.nulls)).size:
            owners = np.searchsorted(edges[1:], holes, side="right")
            add_nulls(hashes, owners, holes - edges[owners], self._key, domain + _HOLES)
        return hashes

    def _shorten(self, items: _Part, level: int) -> NDArray[np.uint64]:
        """Return two words for each item, shape ``(n, 2)``."""
        if len(items.words) == _HASH_WORDS:
            return np.stack(items.words, axis=1)
        return self.join([_Part(items.words)], len(items.words[0]), level + 1).T


def _with_nulls(array: pa.Array, words: Iterable[NDArray[Any]]) -> _Part:
    nulls = unpack_bits(array.buffers()[0], array) == 0 if array.null_count else None
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
        return conform(array, with_value_field(kind, kind.value_field))
    return array


def _find_edges(array: pa.Array) -> NDArray[np.int64]:
    """Return where each value begins in the child array or data buffer and the last one ends, shape ``(n + 1,)``."""
    kind = array.type
    if not (pt.is_fixed_size_list(kind) or pt.is_fixed_size_binary(kind)):
        return view_offsets(array).astype(np.int64)
    width = int(kind.list_size if pt.is_fixed_size_list(kind) else kind.byte_width)
    return np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * width


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
    if pt.is_interval(kind):  # months and days, nanoseconds
        return list(view_bytes(array).view(np.uint64).reshape(-1, 2).T)
    if pt.is_temporal(kind):
        return _read_moments(array)
    raise ConversionError(
        field, f"values of type {kind} cannot be compared", remedy="leave it out with --columns"
    )


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
