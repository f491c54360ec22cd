"""Packing: the tokens of the documents in order, cut without gaps."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest

from recshuf.errors import ConversionError, UsageError
from recshuf.piles.epochs import EpochOrder
from recshuf.train.loader import PileLoader
from tests.support.stores.epoch_oracle import Rules, flatten, group_records
from tests.support.stores.token_documents import make_store, tokens_of


def test_an_epoch_of_tokens_comes_once() -> None:
    store = make_store()
    whole = flatten(tokens_of(*record.id) for record in store.records())
    packed = PileLoader(store, 1, epoch=1).packed(1, column="tokens")
    found = [int(batch["tokens"][0, 0]) for batch in islice(packed, 2 * len(whole))]
    assert sorted(found[: len(whole)]) == sorted(found[len(whole) :]) == sorted(whole)
    assert found[: len(whole)] != found[len(whole) :]


def test_bad_arguments_are_named() -> None:
    for arguments, message in [
        ({"column": "text"}, "column='text': holds string, no lists of numbers"),
        ({"column": None}, "column=None: give the name of a column"),
        ({"column": "_id"}, "column='_id': no such column"),
        ({"column": "tokens", "tokens": 0}, "tokens=0: give"),
        ({"column": "text"}, ".*; name a column of tokens: 'tokens', 'large', 'pairs'"),
        ({"column": "pairs", "eos": 40_000}, "eos=40000: give an integer from -32,768 to 32,767"),
        ({"column": "tokens", "eos": 1.5}, "eos=1.5: give an integer"),
        ({"column": "tokens", "boundaries": "yes"}, "boundaries='yes': give True or False"),
        ({"column": "tokens", "documents": "packed"}, "documents='packed': give 'cut' or 'whole'"),
        ({"column": "tokens", "documents": "whole"}, "documents='whole': .*; give boundaries=True, or pad="),
        ({"column": "tokens", "pad": 1}, "pad=1: documents that are cut leave no gaps"),
        ({"column": "doc_ids", "boundaries": True}, "column='doc_ids': boundaries=True adds a column"),
    ]:
        with pytest.raises(UsageError, match=f"^{message}"):
            PileLoader(make_store(), 2).packed(**arguments)


@pytest.mark.parametrize("documents", ["cut", "whole"])
def test_boundaries_make_masks_and_starts(documents: str) -> None:
    store, options = make_store(piles=2), {"column": "tokens", "eos": -1, "boundaries": True}
    packed = PileLoader(store, 3).packed(8, documents=documents, **options)
    for batch in islice(packed, 20):
        assert [array.dtype for array in batch.values()] == [np.int32] * 3
        tokens, doc_ids, positions = (array.ravel() for array in batch.values())
        starts = np.append(np.flatnonzero(positions == 0), tokens.size)
        assert starts[0] == 0
        for start, stop in pairwise(starts):
            assert set(doc_ids[start:stop]) == {doc_ids[start]}
            assert positions[start:stop].tolist() == list(range(stop - start))
            if doc_ids[start] < 0:
                assert documents == "whole"
                assert not tokens[start:stop].any()
            else:
                assert -1 not in tokens[start : stop - 1]
                assert documents == "cut" or tokens[stop - 1] == -1
                assert doc_ids[start] == (0 if start % 8 == 0 else doc_ids[start - 1] + 1)


def test_whole_documents_come_once_an_epoch() -> None:
    store = make_store(piles=4)
    documents = sorted(document for record in store.records() if (document := tokens_of(*record.id)))
    packed = PileLoader(store, 1, reshuffle="rotate").packed(
        5, column="tokens", documents="whole", boundaries=True
    )
    batches = iter(packed)
    for _ in range(3):
        found: list[list[int]] = []
        while len(found) < len(documents):
            tokens, doc_ids, _ = (array[0] for array in next(batches).values())
            found += [tokens[doc_ids == one].tolist() for one in range(doc_ids.max() + 1)]
        assert sorted(found) == documents


def test_a_transform_gets_a_seed_for_each_sequence_whatever_the_rank() -> None:
    def keep(batch: dict[str, Any], seeds: np.ndarray) -> list[tuple[int, list[int]]]:
        return list(zip(seeds.tolist(), batch["tokens"].tolist(), strict=True))

    def read(rank: int, world: int, step: int) -> list[Any]:
        loader = PileLoader(
            make_store(), 6 // world, rank=rank, world_size=world, lanes=2, epoch=1, transform=keep
        )
        packed = loader.packed(4, column="tokens")
        packed.seek(1, step)
        return list(islice(packed, 4))

    whole = read(0, 1, 0)
    assert [flatten(parts) for parts in zip(read(0, 2, 2), read(1, 2, 2), strict=True)] == whole[2:] + read(
        0, 1, 4
    )[:2]
    seeds = [seed for batch in whole for seed, _ in batch]
    origins = np.arange(24, dtype=np.uint64)  # those of the first rows of source 0
    assert seeds == EpochOrder(7, 1, "rotate", 7).draw_seeds(origins).tolist()


def test_nulls_and_columns_without_tokens_are_errors() -> None:
    with pytest.raises(ConversionError, match="'some': holds nulls"):
        next(iter(PileLoader(make_store(), 2).packed(2, column="some")))
    with pytest.raises(UsageError, match="no document of a lane holds tokens; give fewer lanes"):
        next(iter(PileLoader(make_store(), 2).packed(2, column="none")))
    for lanes in (1, 2):
        packed = PileLoader(make_store(), 2, lanes=lanes).packed(2, column="none")
        packed.load_state_dict(packed.state_dict() | {"step": 1})
        with pytest.raises(UsageError, match="no document of a lane holds tokens; give fewer lanes"):
            next(iter(packed))
    with pytest.raises(UsageError, match="lane 3 has no records in epoch 0; give fewer lanes"):
        PileLoader(make_store(piles=3), 4, lanes=4).packed(2, column="tokens")


@pytest.mark.parametrize("lanes", [1, 2])
def test_an_emptied_store_is_named(lanes: int) -> None:
    loader = PileLoader(make_store(sizes=(0, 0, 0)), 2, lanes=lanes)
    with pytest.raises(UsageError, match=r"^the store holds no records; append some"):
        loader.packed(2, column="tokens")


@pytest.mark.parametrize("reshuffle", ["rotate", "piles"])
def test_a_lane_without_records_is_known_to_every_rank_when_its_loader_is_made(reshuffle: str) -> None:
    store, lanes = make_store(sizes=(4, 4, 4), piles=9), 4
    for epoch in range(8):
        rules = Rules(epoch=epoch, reshuffle=reshuffle, mix=2)
        groups = group_records(store.records(), list(store.names), 9, rules)
        empty = [lane for lane in range(lanes) if not flatten(groups[lane::lanes])]
        problem = f"^lane {empty[0]} has no records in epoch {epoch}; give fewer lanes$" if empty else None
        for rank in range(lanes):
            options = {"rank": rank, "world_size": lanes, "lanes": lanes, "drop_last": False}
            loader = PileLoader(store, 1, reshuffle=reshuffle, mix=2, **options)
            loader.set_epoch(epoch)
            with pytest.raises(UsageError, match=problem) if problem else nullcontext():
                loader.packed(2, column="tokens")
