"""Packing: what it refuses, the seeds of sequences, and best fit."""

from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import ConversionError, UsageError
from recshuf.piles.epochs import EpochOrder
from recshuf.train.best_fit import fit
from recshuf.train.loader import PileLoader
from tests.support.effort import examples
from tests.support.stores.epoch_oracle import Rules, flatten, group_records, run_legs
from tests.support.stores.fake_piles import FakePiles
from tests.support.stores.token_documents import fit_best, make_store


def test_bad_arguments_are_named() -> None:
    for arguments, message in [
        ({"column": None}, "column=None: give the name of a column"),
        ({"column": "_id"}, "column='_id': no such column"),
        ({"column": "tokens", "tokens": 0}, "tokens=0: give"),
        (
            {"column": "text"},
            "column='text': holds string, no lists of numbers; name another column, or tokenize it",
        ),
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


def test_a_transform_gets_a_seed_for_each_sequence_whatever_the_rank() -> None:
    """And whatever the epoch of a loader that resumes."""
    epochs = iter([1, 0, 2])
    found = run_legs(
        [(2, 1), (2, 2), (1, 1)],
        lambda world: [
            PileLoader(
                make_store(), 6 // world, rank=rank, world_size=world, lanes=2, epoch=epoch,
                transform=lambda batch, seeds: batch | {"seed": seeds},
            ).packed(4, column="tokens")
            for epoch in [next(epochs)]
            for rank in range(world)
        ],
        lambda batch: batch["seed"].tolist(),
    )  # fmt: skip
    origins = np.arange(30, dtype=np.uint64)  # those of the first rows of source 0
    assert flatten(found) == EpochOrder(7, 1, "rotate", 7).draw_seeds(origins).tolist()


def test_gaps_are_of_no_document() -> None:
    packed = PileLoader(make_store(), 6).packed(7, column="pairs", documents="whole", boundaries=True)
    wanted = [[place // 2 if place < 2 * count else -1 for place in range(7)] for count in (1, 2, 3)]
    assert all(ids in wanted for ids in next(iter(packed))["doc_ids"].tolist())


def test_nulls_and_nothing_to_pack_are_errors() -> None:
    def make_gaps(_: int, size: int) -> pa.RecordBatch:
        return pa.record_batch({"gaps": pa.array([[1, None]] * size, pa.list_(pa.int8()))})

    for store, column in ((make_store(), "some"), (FakePiles({"a": [9]}, 2, make_gaps), "gaps")):
        with pytest.raises(ConversionError, match=f"'{column}': holds nulls"):
            next(iter(PileLoader(store, 2).packed(2, column=column)))
    with pytest.raises(UsageError, match="no document of a lane holds tokens; give fewer lanes"):
        next(iter(PileLoader(make_store(), 2).packed(2, column="none")))
    for lanes in (1, 2):
        empty = PileLoader(make_store(sizes=(0, 0, 0)), 2, lanes=lanes)
        with pytest.raises(UsageError, match=r"^the store holds no records; append some"):
            empty.packed(2, column="tokens")
        packed = PileLoader(make_store(), 2, lanes=lanes).packed(2, column="none")
        packed.load_state_dict(packed.state_dict() | {"step": 1})
        with pytest.raises(UsageError, match="no document of a lane holds tokens; give fewer lanes"):
            next(iter(packed))


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


@settings(max_examples=examples(400))
@given(st.integers(6, 15), st.lists(st.integers(1, 15), min_size=20, max_size=60))
def test_pieces_go_where_they_go_one_by_one(size: int, lengths: list[int]) -> None:
    lengths = [min(length, size) for length in lengths]
    places, count = fit(np.array(lengths, np.int64), size)
    found: list[list[int]] = [[] for _ in range(count)]
    for number, place in enumerate(places.tolist()):
        found[place].append(number)
    pieces = fit_best([[number] * length for number, length in enumerate(lengths)], size)
    assert found == [[piece[0] for piece in sequence] for sequence in pieces]
