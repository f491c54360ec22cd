"""Groups, copies and parts by the formulas of docs/store.md, one record at a time: slow, obvious oracles."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, groupby, pairwise

import numpy as np
import xxhash
from numpy.random import SeedSequence

from recshuf.records.keys import apportion, draw_keys, stream_of

SAMPLE, COPY, SPLIT = stream_of("sample"), stream_of("copy"), stream_of("split")
Texts = tuple[bytes | None, ...]
"""Of the values of a record, a field each; None where it has none."""


def find_key(texts: Texts, seed: int, place: tuple[int, int] | None) -> tuple[int, int]:
    """Return the two words of the key of a record at some input and row; without these, all that have no value share one."""
    hash_seed, key = SeedSequence(seed, spawn_key=stream_of("value")).generate_state(2, np.uint64).tolist()
    hashes = [0 if text is None else xxhash.xxh3_128_intdigest(text, hash_seed) for text in texts]
    number = hashes[0]
    if len(texts) > 1:
        number = xxhash.xxh3_128_intdigest(b"".join(one.to_bytes(16, "big") for one in hashes), hash_seed)
    if all(text is None for text in texts):
        shared = xxhash.xxh3_128_intdigest(b"", (hash_seed + 1) % 2**64)
        number = (place[0] << 42 | place[1]) | (2**64 - 1) << 64 if place else shared
    return _encrypt(number, key)


def _encrypt(number: int, key: int) -> tuple[int, int]:
    """Return the words of a number under Philox-4x32-10."""
    x = [number >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
    for rounds in range(10):
        k0, k1 = (key + rounds * 0x9E3779B9) & 0xFFFFFFFF, ((key >> 32) + rounds * 0xBB67AE85) & 0xFFFFFFFF
        low, high = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = [(high >> 32) ^ x[1] ^ k0, high & 0xFFFFFFFF, (low >> 32) ^ x[3] ^ k1, low & 0xFFFFFFFF]
    return x[0] | x[1] << 32, x[2] | x[3] << 32


def expect_groups(inputs: Sequence[Sequence[Texts]], seed: int, order: str = "input") -> list[list[int]]:
    """Return the groups of all records in order, each as the numbers of its records through all inputs.

    Parameters
    ----------
    inputs
        The texts of the records of each input.
    """
    places = [(index, row) for index, records in enumerate(inputs) for row in range(len(records))]
    keys = {place: find_key(inputs[place[0]][place[1]], seed, place) for place in places}
    inner = dict.fromkeys(places, 0)
    if order == "random":
        inner = {(index, row): int(draw_keys(seed, [(index, row, 1)])[0]) for index, row in places}
    numbers = {place: number for number, place in enumerate(places)}
    ordered = sorted(places, key=lambda place: (*keys[place], inner[place], *place))
    return [[numbers[place] for place in group] for _, group in groupby(ordered, keys.__getitem__)]


def cut_groups(groups: Sequence[Sequence[int]], shard_count: int) -> list[list[int]]:
    """Return the records of each shard: it begins with the first group at or after its place without groups."""
    total = sum(map(len, groups))
    share, longer = divmod(total, shard_count)
    bounds = [shard * share + min(shard, longer) for shard in range(1, shard_count)]
    shards: list[list[int]] = [[] for _ in range(shard_count)]
    start = 0
    for group in groups:
        shards[sum(bound <= start for bound in bounds)] += group
        start += len(group)
    return shards


def expect_copies(seed: int, sources: Sequence[Sequence[int]], taken: Sequence[int]) -> list[tuple[int, int]]:
    """Return the places of all copies in order.

    Parameters
    ----------
    sources
        Numbers of records of the inputs of each source.
    taken
        How many records of each source are taken.
    """
    copies, first = [], 0
    for counts, count in zip(sources, taken, strict=True):
        places = [(index, row) for index, rows in enumerate(counts, first) for row in range(rows)]
        first += len(counts)
        whole, more = divmod(count, len(places)) if places else (0, 0)
        chosen = sorted((draw_keys(seed, [(i, r, 1)], SAMPLE)[0], i, r) for i, r in places)[:more]
        often = Counter(dict.fromkeys(places, whole)) + Counter((i, r) for _, i, r in chosen)
        for (i, r), number in often.items():
            for copy in range(number):
                stream = (*COPY, copy) if copy else ()
                copies.append((draw_keys(seed, [(i, r, 1)], stream)[0], i, r, copy))
    return [(i, r) for _, i, r, _ in sorted(copies)]


def expect_parts(counts: Sequence[int], shares: Sequence[Fraction], seed: int) -> list[list[tuple[int, int]]]:
    """Return input and row of the records of each part of a split, by their second keys."""
    places = [(index, row) for index, count in enumerate(counts) for row in range(count)]
    ordered = sorted((draw_keys(seed, [(i, r, 1)], SPLIT)[0], i, r) for i, r in places)
    ends = [0, *accumulate(apportion(len(places), shares))]
    return [[(i, r) for _, i, r in ordered[start:end]] for start, end in pairwise(ends)]


def expect_parts_of_values(
    inputs: Sequence[Sequence[Texts]], shares: Sequence[Fraction], seed: int
) -> list[list[tuple[int, int]]]:
    """Return input and row of the records of each part of a split by values: as many thresholds are at most their key."""
    ends = [int(share * 2**64) for share in accumulate(shares[:-1])]
    parts: list[list[tuple[int, int]]] = [[] for _ in shares]
    for index, records in enumerate(inputs):
        for row, texts in enumerate(records):
            key, _ = find_key(texts, seed, None)
            parts[sum(end <= key for end in ends)].append((index, row))
    return parts
