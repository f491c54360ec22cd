"""Documents of tokens in a store in memory, and the sequences that a packed loader cuts from them, made slowly."""

from collections.abc import Iterator
from itertools import count, islice
from random import Random
from typing import Any

import pyarrow as pa

from recshuf.train.loader import PileLoader
from recshuf.train.packing import PackedLoader
from tests.support.stores.epoch_oracle import Rules, flatten, group_records, raw, sort_by
from tests.support.stores.fake_piles import FakePiles


def tokens_of(source: int, row: int) -> list[int]:
    """Return the tokens of a document; some have none."""
    return [source * 100_000 + row * 100 + token for token in range((row * 7 + source) % 6)]


def make_documents(source: int, size: int) -> pa.RecordBatch:
    documents = [tokens_of(source, row) for row in range(size)]
    return pa.record_batch(
        {
            "tokens": pa.array(documents, pa.list_(pa.int32())),
            "large": pa.array(documents, pa.large_list(pa.uint32())),
            "pairs": pa.array([[row, source] for row in range(size)], pa.list_(pa.int16(), 2)),
            "text": pa.array(["x"] * size, pa.string()),
            "some": pa.array([None] * size, pa.list_(pa.int32())),
            "none": pa.array([[]] * size, pa.list_(pa.int32())),
        }
    )


def make_store(sizes: tuple[int, ...] = (30, 40, 25), piles: int = 7, **options: Any) -> FakePiles:
    return FakePiles({"a": [*sizes[:2]], "b": [*sizes[2:]]}, piles, make_documents, **options)


TOKENS_OF = {"tokens": tokens_of, "large": tokens_of, "pairs": lambda source, row: [row, source]}
"""Tokens of a document in each column."""


def draw_packing(random: Random) -> dict[str, Any]:
    """Return arguments of `packed` for these stores."""
    packing: dict[str, Any] = {"tokens": random.randint(1, 8), "column": random.choice(sorted(TOKENS_OF))}
    if random.random() < 0.5:
        packing |= {"tokens": random.randint(1, 12), "documents": "whole", "pad": random.randint(0, 9)}
        packing["boundaries"] = random.random() < 0.5
    elif random.random() < 0.5:
        packing["boundaries"] = True
    return packing | ({"eos": random.randint(0, 9)} if random.random() < 0.5 else {})


def read_documents(
    store: FakePiles, order: dict[str, Any], lane: int, lanes: int, column: str
) -> Iterator[tuple[int, int, list[list[int]]]]:
    """Yield epoch, number and documents of each group of a lane, without end."""
    rules = {name: value for name, value in order.items() if name != "prefetch"}
    for epoch in count(rules.pop("epoch", 0)):
        groups = group_records(
            store.records(), list(store.names), store.pile_count, Rules(**rules, epoch=epoch)
        )
        for number in range(lane, len(groups), lanes):
            yield epoch, number, [TOKENS_OF[column](*record.id) for record in groups[number]]


def fit_best(documents: list[list[int]], size: int) -> list[list[list[int]]]:
    """Return the pieces of documents in each sequence, each in the order of the documents."""
    pieces = [one[at : at + size] for one in documents for at in range(0, len(one), size)]
    sequences: list[list[int]] = []
    rooms: list[int] = []
    for number in sorted(range(len(pieces)), key=lambda number: -len(pieces[number])):
        fitting = [(room, place) for place, room in enumerate(rooms) if room >= len(pieces[number])]
        if not fitting:
            sequences.append([])
            rooms.append(size)
        place = min(fitting)[1] if fitting else len(rooms) - 1
        sequences[place].append(number)
        rooms[place] -= len(pieces[number])
    return [[pieces[number] for number in sorted(numbers)] for numbers in sequences]


def stream_sequences(
    store: FakePiles,
    order: dict[str, Any],
    lane: int,
    lanes: int,
    tokens: int,
    column: str,
    eos: int | None = None,
    documents: str = "cut",
) -> Iterator[list[list[int]]]:
    """Yield the pieces of documents in each sequence of a lane, without end."""
    held: list[list[int]] = []
    for epoch, number, found in read_documents(store, order, lane, lanes, column):
        ended = [[*one, *([] if eos is None else [eos])] for one in found]
        if documents == "whole":
            drawn = 0 if order.get("reshuffle") == "none" else epoch
            sequences = fit_best(ended, tokens)
            yield from sort_by(raw(7, 7, drawn, number, count=len(sequences)), sequences)
            continue
        for document in ended:
            while document:
                room = tokens - sum(map(len, held))
                held.append(document[:room])
                document = document[room:]
                if sum(map(len, held)) == tokens:
                    yield held
                    held = []


def mark(pieces: list[list[int]], tokens: int, pad: int) -> list[list[int]]:
    """Return tokens, documents and positions of a sequence."""
    gap = tokens - sum(map(len, pieces))
    parts = [*enumerate(pieces), *([(-1, [pad] * gap)] if gap else [])]
    return [
        flatten(piece for _, piece in parts),
        flatten([number] * len(piece) for number, piece in parts),
        flatten(list(range(len(piece))) for _, piece in parts),
    ]


def expect(
    store: FakePiles,
    order: dict[str, Any],
    lanes: int,
    batch: int,
    steps: int,
    *,
    pad: int = 0,
    **packing: Any,
) -> list[list[list[list[int]]]]:
    """Return tokens, documents and positions of the sequences of global batches."""
    share, tokens = batch // lanes, packing["tokens"]
    streams = [
        list(islice(stream_sequences(store, order, lane, lanes, **packing), steps * share))
        for lane in range(lanes)
    ]
    batches = [flatten(stream[t * share : (t + 1) * share] for stream in streams) for t in range(steps)]
    return [
        [list(rows) for rows in zip(*(mark(one, tokens, pad) for one in sequences), strict=True)]
        for sequences in batches
    ]


def make_ranks(
    store: FakePiles,
    order: dict[str, Any],
    lanes: int,
    batch: int,
    world: int,
    *,
    output: str = "numpy",
    **packing: Any,
) -> list[PackedLoader]:
    return [
        PileLoader(
            store, batch // world, rank=rank, world_size=world, lanes=lanes, output=output, **order
        ).packed(**packing)
        for rank in range(world)
    ]
