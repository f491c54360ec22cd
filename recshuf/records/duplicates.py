"""Records that equal earlier ones: by their bytes, by all their values, or by the values of some fields.

Equal keys tell them, and what the keys are made of is compared before one is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import CheckError
from recshuf.records.arrays import count_bytes, take_rows
from recshuf.records.batch import concat_records, split_ranges
from recshuf.records.digests import Digests
from recshuf.records.key_makers import KeyedRows, KeyMaker, find_starts, find_words
from recshuf.records.keys import sort_by_words
from recshuf.records.value_keys import PIECE_BYTES, PIECE_ROWS, ValueKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.interfaces import ValueReader
    from recshuf.records.batch import Records
    from recshuf.records.keys import RowRange

    Words = NDArray[np.uint64]
    Rows = NDArray[np.intp]


_WORD_COUNT = 2
_SHOWN = 40
"""Bytes of a value in an error."""


class Duplicates(KeyMaker):
    """Finds the records that repeat others; the keys that it draws have two words. Used by many threads.

    The `reader` reads the fields that tell records apart. Without one, whole records do: the bytes of lines, else the values.
    """

    def __init__(self, seed: int, reader: ValueReader | None, *, are_lines: bool, column_count: int) -> None:
        self._keys = ValueKeys(seed)
        self._others = ValueKeys(seed, "compare")
        self._reader = reader
        self._are_lines = are_lines
        self._column_count = column_count

    def draw(self, batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> KeyedRows:
        if self._reader is None:
            words = self._keys.keys_of_rows(batch, lines=self._are_lines)
            return KeyedRows(words, repeats=self._find_repeats(batch, None, words))
        texts: list[tuple[pa.Array, ...]] = []
        keys: list[tuple[Words, Words]] = []
        for piece, input_index, first_row in split_ranges(batch, ranges):
            texts.append(self._reader.read(piece, input_index, first_row))
            keys.append(self._keys.keys(texts[-1], input_index, first_row))
        fields = [pa.chunked_array(pieces).combine_chunks() for pieces in zip(*texts, strict=True)]
        joined = tuple(np.concatenate(pieces) for pieces in zip(*keys, strict=True))
        missing = None
        if any(field.null_count for field in fields):
            missing = np.array([field.is_null().to_numpy(zero_copy_only=False) for field in fields])
        return KeyedRows(joined, repeats=self._find_repeats(batch, fields, joined), missing=missing)

    def find_ordered(self, records: Records) -> Rows:
        """Return the ascending places of those records in piles that repeat others; they are ordered by key."""
        places, firsts = _find_ties(find_words(records, _WORD_COUNT))
        if places.size:
            self._compare(records.batch.select(range(self._column_count)), None, places, firsts)
        return places

    def join(
        self, read: Callable[[], Iterable[tuple[Any, Records]]], edges: Sequence[int]
    ) -> tuple[Records, NDArray[np.intp], Digests]:
        """Return the records of parts in the order of keys, without repeats, which are compared by a second hash.

        `read` yields the records of each part with what orders parts, which come in any order, but twice in the same; `edges` are
        places in the order of all records. Also returned are where records begin, the edges are, and they end; and what is
        dropped between these.
        """
        origins, parts = [], []
        for origin, records in read():
            origins.append(origin)
            parts.append(np.array(find_words(records, _WORD_COUNT)))
        turn = sorted(range(len(parts)), key=origins.__getitem__)
        sizes = np.array([parts[part].shape[1] for part in turn])
        begins = dict(zip(turn, (np.cumsum(sizes) - sizes).tolist(), strict=True))
        words = list(np.hstack([parts[part] for part in turn]))
        del parts
        order = sort_by_words(words)
        places, firsts = _find_ties([word[order] for word in words])
        repeats, heads = order[places], order[firsts]
        stays = np.ones(len(order), np.bool_)
        stays[repeats] = False
        place_of_row = np.empty(len(order), np.intp)
        place_of_row[order] = np.arange(len(order))
        bounds, dropped = np.array([0, *edges, len(order)]), Digests(len(edges) + 1)
        compared = np.unique(np.concatenate([repeats, heads]))
        hashes = np.empty((_WORD_COUNT, len(compared)), np.uint64)
        kept: dict[int, Records] = {}
        for part, (_, records) in enumerate(read()):
            begin = begins[part]
            first, stop = np.searchsorted(compared, [begin, begin + len(records)])
            if first < stop:
                batch = records.batch.select(range(self._column_count))
                hashes[:, first:stop] = self._hash_again(take_rows(batch, compared[first:stop] - begin))
            own = stays[begin : begin + len(records)]
            if not own.all():
                gone = np.flatnonzero(~own)
                gone = gone[np.argsort(place_of_row[begin + gone])]
                cut = np.searchsorted(place_of_row[begin + gone], bounds)
                dropped.add(Digests.find(records.take(gone), cut))
            kept[part] = records.take(np.flatnonzero(own))
        pairs = [hashes[:, np.searchsorted(compared, rows)] for rows in (repeats, heads)]
        if (pairs[0] != pairs[1]).any():
            raise CheckError("two different values have one hash; run again with another --seed")
        number = np.cumsum(stays) - 1
        joined = concat_records([kept.pop(part) for part in turn])
        return joined.take(number[order[stays[order]]]), bounds - np.searchsorted(places, bounds), dropped

    def _hash_again(self, batch: pa.RecordBatch) -> tuple[Words, Words]:
        if self._reader is None:
            return self._others.keys_of_rows(batch, lines=self._are_lines)
        return self._others.keys(self._reader.read(batch, 0, 0), 0, 0)

    def _find_repeats(
        self, batch: pa.RecordBatch, texts: Sequence[pa.Array] | None, words: tuple[Words, ...]
    ) -> Rows | None:
        """Return the ascending rows of a batch that repeat others; None if there are none."""
        order = sort_by_words(words)
        places, firsts = _find_ties([word[order] for word in words])
        if not places.size:
            return None
        repeats = order[places]
        self._compare(batch, texts, repeats, order[firsts])
        return np.sort(repeats)

    def _compare(
        self, batch: pa.RecordBatch, texts: Sequence[pa.Array] | None, repeats: Rows, firsts: Rows
    ) -> None:
        """Compare rows that have equal keys, pair by pair; `texts` are those of the fields if they are read already."""
        if self._reader is None and self._are_lines:
            texts = batch.columns
        for piece in _cut_pairs(batch, len(repeats)):
            pair = repeats[piece], firsts[piece]
            if texts is not None:
                sides = [[field.take(pa.array(rows)) for field in texts] for rows in pair]
            elif self._reader is not None:
                sides = [[*self._reader.read(take_rows(batch, rows), 0, 0)] for rows in pair]
            else:
                self._compare_values(*(take_rows(batch, rows) for rows in pair))
                continue
            for mine, theirs in zip(*sides, strict=True):
                if not mine.equals(theirs):
                    raise _collided(mine, theirs)

    def _compare_values(self, mine: pa.RecordBatch, theirs: pa.RecordBatch) -> None:
        words = [self._others.keys_of_rows(batch, lines=False) for batch in (mine, theirs)]
        differs = (words[0][0] != words[1][0]) | (words[0][1] != words[1][1])
        if differs.any():
            row = int(differs.argmax())
            raise _collided(
                *(pa.array([str(batch.slice(row, 1).to_pylist()[0])]) for batch in (mine, theirs))
            )


def _cut_pairs(batch: pa.RecordBatch, count: int) -> Iterator[slice]:
    """Yield pieces of so many pairs of rows, each small enough to be copied, if rows are of about one size."""
    mean = count_bytes(batch) // max(1, batch.num_rows) + 1
    rows = max(1, min(PIECE_ROWS, PIECE_BYTES // mean))
    for start in range(0, count, rows):
        yield slice(start, start + rows)


def _find_ties(words: Sequence[Words]) -> tuple[Rows, Rows]:
    """Return the places of ordered keys that equal that before, and for each where its run of equal keys begins.

    >>> places, firsts = _find_ties([np.array([1, 1, 1, 2, 5, 5], np.uint64), np.array([3, 3, 3, 4, 6, 7], np.uint64)])
    >>> places.tolist(), firsts.tolist()
    ([1, 2], [0, 0])
    """
    starts, count = find_starts(words), len(words[0])
    return np.delete(np.arange(count), starts), np.repeat(starts, np.diff(starts, append=count) - 1)


def _collided(mine: pa.Array, theirs: pa.Array) -> CheckError:
    pairs = zip(mine.to_pylist(), theirs.to_pylist(), strict=True)
    shown = " and ".join(_show(value) for value in next(pair for pair in pairs if pair[0] != pair[1])[::-1])
    return CheckError(f"two different values have one hash, {shown}; run again with another --seed")


def _show(value: object) -> str:
    if isinstance(value, bytes):
        value = value[:_SHOWN].decode(errors="replace")
    text = "no value" if value is None else repr(str(value)[:_SHOWN])
    return f"{text[:-1]}...'" if len(str(value)) >= _SHOWN else text
