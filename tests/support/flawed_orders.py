"""Shuffles with a flaw that real code has had, to try tests on: they take a generator and the number of records."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Shuffler = Callable[[np.random.Generator, int], NDArray[np.int64]]

PILES = 100


def rotate(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return np.roll(np.arange(n), rng.integers(n))


def skip_second_pass(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return np.argsort(rng.integers(0, PILES, n), kind="stable")


def order_every_pile_alike(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    grouped = skip_second_pass(rng, n)
    sizes = rng.multinomial(n, np.full(PILES, 1 / PILES))
    keys = rng.random(sizes.max())
    piles = np.split(grouped, np.cumsum(sizes)[:-1])
    return np.concatenate([pile[np.argsort(keys[: pile.size])] for pile in piles])


def sort_by_short_keys(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return np.argsort(rng.integers(0, 1 << 16, n), kind="stable")


def deal_round_robin(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    return rng.permuted(np.arange(n).reshape(-1, PILES).T, axis=1).ravel()


def fill_piles_evenly(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    dealt = rng.permuted(np.arange(n).reshape(-1, PILES), axis=1)
    return rng.permuted(dealt.T, axis=1).ravel()


def swap_with_any(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    out = list(range(n))
    for place, other in enumerate(rng.integers(0, n, n).tolist()):
        out[place], out[other] = out[other], out[place]
    return np.array(out)
