"""A packed loader, also of several stores, resumes anywhere, on any number of ranks, from one small state, and reads little for it."""

import gc
import json
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import UsageError
from recshuf.loader import MixLoader
from recshuf.piles.groups import Groups
from recshuf.train.documents import DocumentSource, LengthCounter
from recshuf.train.loader import PileLoader
from recshuf.train.packing import PackedLoader
from tests.support.effort import some
from tests.support.formats.format_tools import find_open_files
from tests.support.stores.epoch_oracle import Mix, flatten, mix_lane, run_legs
from tests.support.stores.fake_piles import FakePiles
from tests.support.stores.small_stores import write
from tests.support.stores.token_documents import (
    draw_packing,
    expect,
    make_documents,
    make_ranks,
    make_store,
    tokens_of,
)


def uncounted() -> Any:
    """Make loaders find positions as if only decoding told how many tokens there are."""
    return patch.object(DocumentSource, "make_counter", lambda source: LengthCounter(source))


@pytest.mark.timeout(900)
def test_chains_of_resumes_yield_the_stream_of_the_oracle() -> None:
    for seed in some(range(240), 12):
        check_chain(seed)


def check_chain(seed: int) -> None:
    random = Random(seed)
    store, batch, lanes = make_store(sizes=(15, 20, 12), piles=12), 6, random.choice([1, 2, 3, 6])
    order = {
        "epoch": random.randint(0, 2),
        "reshuffle": random.choice(["rotate", "piles", "none"]),
        "mix": random.randint(1, 2),
        "prefetch": random.randint(0, 2),
    }
    packing, output = draw_packing(random), random.choice(["numpy", "arrow"])
    worlds = [world for world in (1, 2, 3, 6) if not (lanes if lanes > 1 else batch) % world]
    # The epoch of a state counts, not that of the loader.
    epochs = iter([order["epoch"], random.randint(0, 2), random.randint(0, 2)])
    with random.choice([nullcontext, uncounted])():
        delivered = run_legs(
            [(random.randint(0, 5), random.choice(worlds)) for _ in range(3)],
            lambda world: make_ranks(
                store, order | {"epoch": next(epochs)}, lanes, batch, world, output=output, **packing
            ),
            lambda one: list(zip(*list_columns(one), strict=True)),
        )
    shown = 3 if packing.pop("boundaries", False) else 1
    expected = expect(store, order, lanes, batch, len(delivered), **packing)
    assert delivered == [list(zip(*columns[:shown], strict=True)) for columns in expected]


def list_columns(batch: Any) -> list[list[list[int]]]:
    """Return the columns of a batch as lists."""
    if isinstance(batch, pa.RecordBatch):
        return [column.to_pylist() for column in batch.columns]
    _, *others = batch.values()
    assert all(column.dtype == np.int32 for column in others)
    return [column.tolist() for column in batch.values()]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of each group that is loaded."""
    loaded: list[int] = []
    whole = Groups.load

    def load(self: Groups, groups: list[int], *arguments: Any) -> Any:
        loaded.extend(groups)
        return whole(self, groups, *arguments)

    monkeypatch.setattr(Groups, "load", load)
    return loaded


@pytest.mark.parametrize(("lanes", "world", "reshuffle"), [(1, 1, "rotate"), (6, 1, "piles"), (6, 3, "none")])
def test_a_resume_loads_one_group_of_each_lane_of_the_rank(
    loads: list[int], lanes: int, world: int, reshuffle: str
) -> None:
    store, order = make_store(piles=12), {"reshuffle": reshuffle, "prefetch": 0}
    epoch_tokens = len(flatten(tokens_of(*record.id) for record in store.records()))
    for tokens in (lanes, epoch_tokens // 2, 4 * epoch_tokens + 25):
        for loader in make_ranks(store, order, lanes, lanes, world, tokens=1, column="tokens"):
            loader.load_state_dict(loader.state_dict() | {"step": tokens // lanes})
            loads.clear()
            next(iter(loader))
            assert len(loads) == lanes // world


def write_store(folder: Path, made_by: str, column: str) -> Path:
    """Make a store of documents whose lengths vary."""
    table = pa.table({"id": range(200), column: [list(range(row, row + row % 9)) for row in range(200)]})
    if made_by == "program":
        write(folder / "store", "w", table, seed=5, piles=8)
        return folder / "store"
    path = folder / f"a.{made_by}"
    if made_by == "parquet":
        pq.write_table(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    recshuf.scatter(path, folder / "store", seed=5, piles=8)
    return folder / "store"


@pytest.mark.parametrize(
    ("made_by", "column"),
    [
        ("program", "tokens"),
        ("parquet", "tokens"),
        ("jsonl", "tokens"),
        ("jsonl", "record"),  # the name of the column of lines
    ],
)
def test_stores_on_disk_resume(tmp_path: Path, loads: list[int], made_by: str, column: str) -> None:
    store = write_store(tmp_path, made_by, column)

    def make(rank: int = 0, world: int = 1) -> PackedLoader:
        loader = PileLoader(store, 4 // world, rank=rank, world_size=world, lanes=2, prefetch=0)
        return loader.packed(7, column=column)

    first = make()  # it keeps the store open
    gc.collect()
    whole = [batch[column].tolist() for batch in islice(first, 60)]  # more than two epochs
    assert [batch[column].tolist() for batch in islice(pickle.loads(pickle.dumps(first)), 60)] == whole
    state = first.state_dict() | {"step": 37}
    for rank in range(2):
        resumed = make(rank, 2)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        loads.clear()
        batches = iter(resumed)
        found = [next(batches)[column].tolist()]
        assert len(loads) <= 2
        found += [batch[column].tolist() for batch in islice(batches, 22)]
        assert found == [batch[2 * rank : 2 * rank + 2] for batch in whole[37:]]
    del first, resumed, batches
    gc.collect()
    assert not find_open_files(store)


# Sequences of several stores: shared exactly, each store's own ones in their order


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


def list_sequences(batch: dict[str, Any]) -> list[Any]:
    """Return the columns of each sequence."""
    return [list(row) for row in zip(*(column.tolist() for column in batch.values()), strict=True)]


class SequenceMix(Mix):
    """Sequences are shared exactly in so many steps."""

    steps = 2**20


def expect_mix(
    stores: list[FakePiles], weights: dict[int, list[float]], lanes: int, options: dict[str, Any]
) -> list[list[Any]]:
    """Return global batches of four, of the sequences that each store has alone in epoch 1."""

    def read(store: FakePiles) -> Callable[[int], list[list[Any]]]:
        packed = PileLoader(store, lanes, lanes=lanes, epoch=1).packed(5, column="tokens", **options)
        batches = [list_sequences(batch) for batch in islice(packed, 4 * STEPS)]
        return lambda _: [[batch[lane] for batch in batches] for lane in range(lanes)]

    mix = SequenceMix([read(store) for store in stores], weights, 4, 0, lanes, first_epoch=1)
    streams = [mix_lane(mix, lane) for lane in range(lanes)]
    return [[one for _, one in flatten(next(lane) for lane in streams)] for _ in range(STEPS)]


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
    expected = expect_mix(stores, weights, lanes, options)
    found = run_legs(
        [(count, random.choice([1, 2])) for count in (2, 2, 2, 2, 1)],
        lambda world: [
            MixLoader(named, 4 // world, epoch=1, rank=rank, world_size=world, lanes=lanes).packed(
                5, column="tokens", **options
            )
            for rank in range(world)
        ],
        list_sequences,
    )
    assert found == expected


def test_what_a_packed_mix_cannot_do_is_refused() -> None:
    first, second = make_stores(2)
    loader = MixLoader({first: 1, second: 2}, 4).packed(5, column="tokens")
    state = loader.state_dict()
    MixLoader({0: {first: 1, second: 2}, 1: {first: 1}}, 4).packed(5, column="tokens").load_state_dict(state)
    with pytest.raises(UsageError, match=r"^packed: .* make the mix without weight_by$"):
        MixLoader({first: 1}, 4, weight_by="tokens").packed(5, column="tokens")
    with pytest.raises(UsageError, match=r"^packed: .* make the mix with schedule_by='step'$"):
        MixLoader({0: {first: 1}, 2: {first: 2}}, 4, schedule_by="epoch").packed(5, column="tokens")
