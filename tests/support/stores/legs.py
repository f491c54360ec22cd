"""Chains of loaders, each of which goes on where the one before was left, on another number of ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from tests.support.stores.epoch_oracle import flatten


def run_legs(
    legs: Iterable[Sequence[Any]],
    make_ranks: Callable[[int], Iterable[Any]],
    show: Callable[[Any], list[Any]],
    *,
    then: Callable[[Any], object] = lambda _: None,
    read: Callable[..., Iterable[Any]] = lambda loader, count, *_: islice(loader, count),
    counts: bool = True,
) -> list[list[Any]]:
    """Return the rows of all global batches. The state that all ranks are left with is the same, and that of their position.

    Parameters
    ----------
    legs
        How many batches are taken, None for all, on how many ranks, and what else `read` wants to know.
    show
        Returns the rows of a batch.
    then
        Called with each loader when it has its state.
    read
        Gives the batches of a loader in a leg.
    counts
        Whether loaders count what they yield.
    """
    found: list[list[Any]] = []
    text = None
    for leg in legs:
        ranks, texts = [], set()
        for loader in make_ranks(leg[1]):
            if text is not None:
                loader.load_state_dict(json.loads(text))
            then(loader)
            begun = loader.state_dict()
            assert text in (None, json.dumps(begun))
            ranks.append([show(batch) for batch in read(loader, *leg)])
            state = loader.describe(begun["epoch"], begun["step"] + len(ranks[-1]))
            assert not counts or loader.state_dict() == state
            texts.add(json.dumps(state))
        (text,) = texts
        found += [flatten(parts) for parts in zip(*ranks, strict=True)]
    return found
