"""Sequences of several stores: shared exactly, each store's own ones in their order, with exact resumes."""

from __future__ import annotations

import json
from itertools import islice
from random import Random
from typing import Any

import pytest

from recshuf.errors import UsageError
from recshuf.train.loader import PileLoader
from recshuf.train.mixing import MixLoader
from tests.support.stores.epoch_oracle import count_before, flatten, raw, share_out, sort_by
from tests.support.stores.fake_piles import FakePiles
from tests.support.stores.legs import run_legs
from tests.support.stores.token_documents import make_documents

PERIOD = 2**20
STEPS = 9
OPTIONS: list[dict[str, Any]] = [
    {},
    {"eos": 7, "boundaries": True},
    {"documents": "whole", "boundaries": True},
]


def make_stores(count: int) -> list[FakePiles]:
    return [
        FakePiles(
            {"a": [60 + 20 * number], "b": [30]}, 6, make_documents, seed=number, store_id=f"{number:032}"
        )
        for number in range(count)
    ]


def show(batch: dict[str, Any]) -> list[Any]:
    """Return the columns of each sequence."""
    return [list(row) for row in zip(*(column.tolist() for column in batch.values()), strict=True)]


def expect(
    stores: list[FakePiles],
    weights: dict[int, list[float]],
    batch: int,
    lanes: int,
    epoch: int,
    options: dict[str, Any],
) -> list[list[Any]]:
    """Return global batches, of the sequences that each store has alone."""
    rows = batch // lanes
    alone = [
        list(map(show, islice(PileLoader(store, lanes, lanes=lanes, epoch=epoch).packed(5, column="tokens", **options), STEPS * rows)))
        for store in stores
    ]  # fmt: skip
    streams = [[iter([step[lane] for step in own]) for own in alone] for lane in range(lanes)]
    batches = []
    for step in range(STEPS):
        own = weights[max(start for start in weights if start <= step)]
        counts = share_out(PERIOD * rows, own)
        found: list[Any] = []
        for lane, stream in enumerate(streams):
            ends, begins = (count_before(end * rows, counts, lane, lanes) for end in (step + 1, step))
            labels = flatten(
                [number] * (end - begin) for number, (end, begin) in enumerate(zip(ends, begins, strict=True))
            )
            key = (lane,) if lanes > 1 else ()
            order = sort_by(raw(0, 6, epoch, step, *key, count=rows), labels)
            found += [next(stream[number]) for number in order]
        batches.append(found)
    return batches


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("lanes", [1, 2])
def test_chains_of_resumes_yield_the_sequences_of_the_stores(lanes: int, options: dict[str, Any]) -> None:
    random = Random(lanes)
    stores = make_stores(3)
    weights = {0: [1, 2, 0], 4: [0.5, 0.25, 0.25]}
    named = {
        start: {store: weight for store, weight in zip(stores, own, strict=True) if weight}
        for start, own in weights.items()
    }
    expected = expect(stores, weights, 4, lanes, 1, options)
    found = run_legs(
        [(count, random.choice([1, 2])) for count in (2, 2, 2, 2, 1)],
        lambda world: [
            MixLoader(named, 4 // world, epoch=1, rank=rank, world_size=world, lanes=lanes).packed(
                5, column="tokens", **options
            )
            for rank in range(world)
        ],
        show,
    )
    assert found == expected


def test_what_a_packed_mix_cannot_do_is_refused() -> None:
    first, second = make_stores(2)
    loader = MixLoader({first: 1, second: 2}, 4).packed(5, column="tokens")
    state = loader.state_dict()
    assert len(json.dumps(state)) < 350
    MixLoader({0: {first: 1, second: 2}, 1: {first: 1}}, 4).packed(5, column="tokens").load_state_dict(state)
    for weights, message in [({first: 2, second: 1}, "'stores' is"), ({second: 2, first: 1}, "'stores' is")]:
        with pytest.raises(UsageError, match=f"^load_state_dict: {message}"):
            MixLoader(weights, 4).packed(5, column="tokens").load_state_dict(state)
    with pytest.raises(UsageError, match=r"^packed: .* make the mix without weight_by$"):
        MixLoader({first: 1}, 4, weight_by="tokens").packed(5, column="tokens")
    with pytest.raises(UsageError, match=r"^packed: .* make the mix with schedule_by='step'$"):
        MixLoader({0: {first: 1}, 2: {first: 2}}, 4, schedule_by="epoch").packed(5, column="tokens")
