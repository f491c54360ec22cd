"""Documents of tokens in a store in memory, and the sequences that a packed loader cuts from them, made slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.train.loader import PileLoader
from tests.support.stores.epoch_oracle import Rules, flatten, group_records
from tests.support.stores.fake_piles import FakePiles

if TYPE_CHECKING:
    from recshuf.train.packing import PackedLoader


def tokens_of(source: int, row: int) -> list[int]:
    """Return the tokens of a document; some have none."""
    return [source * 100_000 + row * 100 + token for token in range((row * 7 + source) % 6)]


def make_documents(source: int, count: int) -> pa.RecordBatch:
    documents = [tokens_of(source, row) for row in range(count)]
    return pa.record_batch(
        {
            "tokens": pa.array(documents, pa.list_(pa.int32())),
            "large": pa.array(documents, pa.large_list(pa.uint32())),
            "pairs": pa.array([[row, source] for row in range(count)], pa.list_(pa.int16(), 2)),
            "text": pa.array(["x"] * count, pa.string()),
            "some": pa.array([None] * count, pa.list_(pa.int32())),
            "none": pa.array([[]] * count, pa.list_(pa.int32())),
        }
    )


def make_store(sizes: tuple[int, ...] = (30, 40, 25), piles: int = 7, **options: Any) -> FakePiles:
    return FakePiles({"a": [*sizes[:2]], "b": [*sizes[2:]]}, piles, make_documents, **options)


TOKENS_OF = {"tokens": tokens_of, "large": tokens_of, "pairs": lambda source, row: [row, source]}
"""Tokens of a document in each column."""


def stream_lanes(
    store: FakePiles, order: dict[str, Any], lanes: int, count: int, column: str = "tokens"
) -> list[list[int]]:
    """Return the first tokens of each lane."""
    rules = {name: value for name, value in order.items() if name != "prefetch"}
    streams: list[list[int]] = [[] for _ in range(lanes)]
    while min(map(len, streams)) < count:
        groups = group_records(store.records(), list(store.names), store.pile_count, Rules(**rules))
        for lane, stream in enumerate(streams):
            stream += flatten(TOKENS_OF[column](*record.id) for record in flatten(groups[lane::lanes]))
        rules["epoch"] += 1
    return streams


def expect(
    store: FakePiles, order: dict[str, Any], lanes: int, batch: int, tokens: int, steps: int, column: str
) -> list[Any]:
    """Return global batches."""
    share = batch // lanes * tokens
    streams = stream_lanes(store, order, lanes, steps * share, column)
    cut = [[stream[t * share : (t + 1) * share] for stream in streams] for t in range(steps)]
    return [np.reshape(flatten(parts), (batch, tokens)).tolist() for parts in cut]


def make_ranks(
    store: FakePiles,
    order: dict[str, Any],
    lanes: int,
    batch: int,
    world: int,
    tokens: int,
    column: str = "tokens",
) -> list[PackedLoader]:
    return [
        PileLoader(store, batch // world, rank=rank, world_size=world, lanes=lanes, **order).packed(
            tokens, column=column
        )
        for rank in range(world)
    ]
