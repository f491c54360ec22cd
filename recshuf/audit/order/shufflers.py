"""How other shufflers order records: each method as an index array, for pictures and tests.

Every function takes the number of records `n`, a seed and settings, and returns ``p`` of type int64: ``p[k]`` is the
input index of output ``k``, a permutation of ``0 .. n - 1``. It draws what the method draws, without files.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Order = NDArray[np.int64]


_MAX_CHUNK_BUCKETS = 512
"""Most bucket files that Expanda opens."""
_FIXED_SHARE = 0.75
"""Share of an even shard that every uneven shard has."""


# Streams through buffers


def _pass_buffer(rng: np.random.Generator, n: int, size: int) -> NDArray[np.int64]:
    """Return the order in which n records leave a buffer of `size` records.

    A buffer that yields a random record and then reads the next one is a Fisher-Yates shuffle whose swaps reach only
    as far as the buffer::

        yielded   | in the buffer           | not yet read
        ..... i-1 | i   i+1  ...  i+size-1  | i+size ...
                    ^---- j: one of these is yielded, record i moves to its index
    """
    indices = np.arange(n)
    return _apply_swaps(rng.integers(indices, np.minimum(indices + size, n)))


def _apply_swaps(targets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``0 .. n - 1`` after index i was swapped with index ``targets[i]`` for each i in turn.

    Since ``targets[i] >= i``, index i is final after its swap. It then holds what the last earlier swap with its target
    put there, or the target itself if there was none. Records are followed back through these swaps.

    >>> _apply_swaps(np.array([2, 2, 2])).tolist()
    [2, 0, 1]
    """
    indices = np.arange(targets.size)
    held = indices.copy()
    held[targets] = indices  # of several swaps with a target, the last
    while not np.array_equal(held, further := held[held]):
        held = further
    previous = _find_previous(targets)
    return np.where(previous >= 0, held[previous], targets)


def _find_previous(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each index the nearest earlier one with the same value, or -1.

    >>> _find_previous(np.array([5, 7, 5, 5])).tolist()
    [-1, -1, 0, 2]
    """
    order = np.argsort(values, kind="stable")
    is_repeated = np.diff(values[order]) == 0
    previous = np.full(values.size, -1)
    previous[order[1:][is_repeated]] = order[:-1][is_repeated]
    return previous


def chain_buffers(n: int, seed: int, ratio: float = 0.01, buffer_count: int = 4) -> Order:
    """Return the order after several buffers in a row that share the memory of one."""
    rng = np.random.default_rng(seed)
    order = np.arange(n)
    for _ in range(buffer_count):
        order = order[_pass_buffer(rng, n, int(n * ratio / buffer_count) + 1)]
    return order


def interleave_shards(
    n: int,
    seed: int,
    shard_count: int = 8,
    parallel_reads: int = 8,
    ratio: float = 0.01,
    *,
    are_even: bool = True,
) -> Order:
    """Return the order after `parallel_reads` shards at a time were read record by record in turn through a buffer.

    If shards are not even, their sizes are random and vary by about a quarter.
    """
    rng = np.random.default_rng(seed)
    cuts = _cut_evenly(n, shard_count) if are_even else _cut_unevenly(rng, n, shard_count)
    return _read_shards(rng, np.split(np.arange(n), cuts), parallel_reads, ratio, n)


def shuffle_in_two_stages(
    n: int, seed: int, shard_count: int = 8, parallel_reads: int = 8, ratio: float = 0.01
) -> Order:
    """Return the order after each shard was cut into parts that were interleaved, and the results interleaved."""
    rng = np.random.default_rng(seed)
    shards = []
    for shard in np.split(np.arange(n), _cut_evenly(n, shard_count)):
        parts = np.split(shard, _cut_evenly(shard.size, shard_count))
        shards.append(_read_shards(rng, parts, parallel_reads, ratio, n))
    return _read_shards(rng, shards, parallel_reads, ratio, n)


def _cut_evenly(n: int, shard_count: int) -> Order:
    """Return the first index of each shard but the first, for shards of nearly equal size."""
    return np.arange(1, shard_count) * n // shard_count


def _cut_unevenly(rng: np.random.Generator, n: int, shard_count: int) -> Order:
    """Return the first index of each shard but the first: random cuts divide all but `_FIXED_SHARE` of the records."""
    fixed = int(n * _FIXED_SHARE)
    cuts: Order = np.sort(rng.integers(0, n - fixed, shard_count - 1, endpoint=True))
    return cuts + np.arange(1, shard_count) * fixed // shard_count


def _read_shards(
    rng: np.random.Generator, shards: Sequence[Order], parallel_reads: int, ratio: float, n: int
) -> Order:
    """Return the records of shards, interleaved in random order through a buffer of a share `ratio` of n."""
    ordered = [shards[shard] for shard in rng.permutation(len(shards))]
    read = np.concatenate(ordered)[_take_turns([shard.size for shard in ordered], parallel_reads)]
    return read[_pass_buffer(rng, read.size, int(n * ratio) + 1)]


def _take_turns(sizes: Sequence[int], parallel_reads: int) -> Order:
    """Return the index array that reads concatenated shards, one record of each open shard per round.

    As in `tf.data`, the round after its last record finds a shard at its end, and the round after that opens the next
    shard in its slot.

    >>> _take_turns([1, 3, 2], 2).tolist()
    [0, 1, 2, 4, 3, 5]
    """
    openings = [(0, slot) for slot in range(parallel_reads)]
    opened = []
    for size in sizes:
        opened.append(openings[0])
        first_round, slot = openings[0]
        heapq.heapreplace(openings, (first_round + size + 1, slot))
    first_rounds, slots = np.repeat(np.array(opened, np.int64), sizes, axis=0).T
    rows = np.arange(slots.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.argsort((first_rounds + rows) * parallel_reads + slots)


# Files of shuffled lines


def shuffle_columns_and_rows(
    n: int, seed: int, file_count: float = 9.5, *, spreads_last: bool = False
) -> Order:
    """Return the order after files were shuffled, then their first lines, their second lines, and so on.

    A `file_count` of 9.5 makes ten files of which the last is half as long: it ends after half of the rows. It may be spread
    over all rows: a row takes a line of it with the probability that uses it up on average. Lines left over come last.
    """
    rng = np.random.default_rng(seed)
    columns = _shuffle_files(rng, n, file_count)
    if not spreads_last:
        return _deal_rows(rng, columns)
    row_count = columns.shape[1]
    last = columns[-1, columns[-1] >= 0]
    rows = np.flatnonzero(rng.random(row_count) * row_count < last.size)[: last.size]
    columns[-1] = -1
    columns[-1, rows] = last[: rows.size]
    return np.concatenate((_deal_rows(rng, columns), last[rows.size :]))


def _shuffle_files(rng: np.random.Generator, n: int, file_count: float) -> Order:
    """Return the shuffled records of each file, shape ``(files, lines)``, padded with -1."""
    lines = max(1, math.ceil(n / file_count))
    columns = np.full((max(1, -(-n // lines)), lines), -1)
    columns.ravel()[:n] = np.arange(n)
    for column in columns:
        held = column[column >= 0]
        column[: held.size] = rng.permutation(held)
    return columns


def _deal_rows(rng: np.random.Generator, columns: Order) -> Order:
    dealt: Order = rng.permuted(columns.T, axis=1).ravel()
    return dealt[dealt >= 0]


def scatter_chunks(n: int, seed: int, stride: int = 100) -> Order:
    """Return the order after chunks of `stride` lines, in random order, were dealt line by line to random buckets.

    There are twice as many buckets as lines in a chunk, at most 512, and they are not shuffled. The stride is 1 up to
    200,000 lines, 10 for a million, 100 for ten million.
    """
    rng = np.random.default_rng(seed)
    starts = rng.permutation(np.arange(0, n, stride))
    lines = (starts[:, np.newaxis] + np.arange(stride)).ravel()
    lines = lines[lines < n]
    return lines[np.argsort(rng.integers(0, min(2 * stride, _MAX_CHUNK_BUCKETS), n), kind="stable")]


def merge_runs(n: int, seed: int, run_records: int = 10_000) -> Order:
    """Return the order after runs were shuffled, then merged by drawing runs in proportion to their lines left."""
    rng = np.random.default_rng(seed)
    runs = [rng.permutation(run) for run in np.split(np.arange(n), range(run_records, n, run_records))]
    # Drawing the runs one by one amounts to a random order of the runs of all lines.
    drawn = rng.permutation(np.repeat(np.arange(len(runs)), [run.size for run in runs]))
    merged = np.empty(drawn.size, np.int64)
    merged[np.argsort(drawn, kind="stable")] = np.concatenate(runs)
    return merged


def shuffle_in_two_passes(n: int, seed: int, pile_count: int = 100) -> Order:
    """Return the order after records were scattered to random piles and each pile was shuffled."""
    rng = np.random.default_rng(seed)
    piles = rng.integers(0, pile_count, n)
    bounds = np.cumsum(np.bincount(piles, minlength=pile_count))[:-1]
    return np.concatenate(
        [rng.permutation(pile) for pile in np.split(np.argsort(piles, kind="stable"), bounds)]
    )


# From one epoch to the next


def rotate_piles(n: int, seed: int, set_count: int = 64, pile_count: int = 100, mix: int = 1) -> Order:
    """Return the order of an epoch, after an epoch as input, if each of several sets puts its piles in another order.

    A group is `mix` piles of every set, which are shuffled together. In both epochs groups follow each other.
    """
    rng = np.random.default_rng(seed)
    group_count = -(-pile_count // mix)
    slots = np.arange(n) * group_count // max(n, 1) * mix + rng.integers(0, mix, n)
    moves = rng.permuted(np.tile(np.arange(group_count * mix), (set_count, 1)), axis=1)
    groups = moves[rng.integers(0, set_count, n), slots] // mix
    return np.lexsort((rng.random(n), groups))


# All of them


@dataclass(frozen=True, slots=True)
class Method:
    """A method of shuffling and its description."""

    shuffle: Callable[..., Order]
    """Called with n, a seed, and settings by name."""
    sentence: str
    source: str
    axes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Values of settings to compare, by name: for the rows of a table, then for its columns."""
    is_exact: bool = False
    """Whether the default settings make every order equally likely."""


_TENSORFLOW = "How to shuffle in TensorFlow, moderndescartes.com"
_BOJONE = "bojone/shuffle, kexue.fm"
_RATIOS = (0, 0.01, 0.1, 0.5)
SHARDS = (1, 2, 4, 8)
_PARALLEL = {"shard_count": SHARDS, "parallel_reads": SHARDS}
METHODS: Mapping[str, Method] = {
    "Fisher-Yates": Method(
        partial(chain_buffers, ratio=1, buffer_count=1),
        "Each record in turn is swapped with itself or a later one: exact, but all records must be in memory.",
        "How to shuffle a big dataset, Jane Street",
        is_exact=True,
    ),
    "one buffer": Method(
        partial(chain_buffers, buffer_count=1),
        "A buffer yields a random record and reads the next: records farther apart than its length stay apart.",
        _TENSORFLOW,
        {"ratio": (*_RATIOS, 1)},
    ),
    "chained buffers": Method(
        chain_buffers,
        "Several small buffers in a row mix over shorter distances than one buffer of the same memory.",
        _TENSORFLOW,
        {"ratio": _RATIOS, "buffer_count": (1, 2, 4)},
    ),
    "shards in random order": Method(
        partial(interleave_shards, parallel_reads=1),
        "Shards are read one after another in random order, through a buffer: each shard stays together.",
        _TENSORFLOW,
        {"ratio": _RATIOS, "shard_count": SHARDS},
    ),
    "parallel interleave": Method(
        interleave_shards,
        "Shards are read in turn, a record of each, through a buffer: the order inside every shard shows through.",
        _TENSORFLOW,
        _PARALLEL,
    ),
    "parallel interleave, uneven shards": Method(
        partial(interleave_shards, are_even=False),
        "The same with shards of different sizes: at the end only the longest are left.",
        _TENSORFLOW,
        _PARALLEL,
    ),
    "two-stage sharding": Method(
        shuffle_in_two_stages,
        "Each shard is cut into shards and interleaved, then the results are: finer grains of the same order.",
        _TENSORFLOW,
        _PARALLEL,
    ),
    "columns and rows": Method(
        shuffle_columns_and_rows,
        "Files are shuffled, then dealt out row by row, a line of each: too even, and the short last file ends early.",
        _BOJONE,
        {"file_count": (9.5, 10, 100)},
    ),
    "columns and rows, by rejection": Method(
        partial(shuffle_columns_and_rows, spreads_last=True),
        "The same with a last file that is skipped at random, so that it lasts as long as the others: still too even.",
        _BOJONE,
        {"file_count": (9.5, 10, 100)},
    ),
    "strided chunks into buckets": Method(
        scatter_chunks,
        "Chunks of lines go to buckets that are not shuffled, so that lines of a chunk stay neighbours in their old order.",
        "expanda.shuffling 1.3.1",
        {"stride": (1, 10, 100)},
    ),
    "runs with weighted merge": Method(
        merge_runs,
        "Runs are shuffled in memory and merged by drawing a run in proportion to its lines left: exact.",
        "alexandres/terashuf",
        is_exact=True,
    ),
    "two passes": Method(
        shuffle_in_two_passes,
        "Each record goes to a random pile, then each pile is shuffled in memory: exact.",
        "How to shuffle a big dataset, Jane Street",
        is_exact=True,
    ),
    "piles over two epochs": Method(
        partial(rotate_piles, set_count=1),
        "The input is an exact epoch, the output the next: the same 100 piles in a new order, so that piles stay together.",
        "How to shuffle a big dataset, Jane Street",
        {"mix": (1, 2, 4, 10)},
    ),
    "rotate over two epochs": Method(
        rotate_piles,
        "The same, but each of several sets puts its piles in an order of its own: records of a pile meet others.",
        "recshuf.PileLoader",
        {"set_count": (4, 16, 64), "mix": (1, 2, 4, 10)},
    ),
}
