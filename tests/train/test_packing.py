"""Packing: the tokens of the documents in order, cut without gaps, resumed anywhere on any number of ranks."""

from __future__ import annotations

import json
import threading
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import ConversionError, UsageError
from recshuf.train.loader import PileLoader
from tests.support.epoch_oracle import Rules, flatten, group_records
from tests.support.fake_piles import FakePiles

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


def make_store(sizes: tuple[int, ...] = (30, 40, 25), piles: int = 7) -> FakePiles:
    return FakePiles({"a": [*sizes[:2]], "b": [*sizes[2:]]}, piles, make_documents)


ORDERS = st.fixed_dictionaries(
    {
        "epoch": st.integers(0, 2),
        "reshuffle": st.sampled_from(["rotate", "piles", "exact", "none"]),
        "mix": st.integers(1, 2),
        "prefetch": st.integers(0, 2),
    }
)
LANES = st.sampled_from([1, 2, 3])


def stream_lanes(store: FakePiles, order: dict[str, Any], lanes: int, count: int) -> list[list[int]]:
    """Return the first tokens of each lane."""
    rules = {name: value for name, value in order.items() if name != "prefetch"}
    streams: list[list[int]] = [[] for _ in range(lanes)]
    while min(map(len, streams)) < count:
        groups = group_records(store.records(), list(store.names), store.pile_count, Rules(**rules))
        for lane, stream in enumerate(streams):
            stream += flatten(tokens_of(*record.id) for record in flatten(groups[lane::lanes]))
        rules["epoch"] += 1
    return streams


def expect(
    store: FakePiles, order: dict[str, Any], lanes: int, batch: int, tokens: int, steps: int
) -> list[Any]:
    """Return global batches."""
    share = batch // lanes * tokens
    streams = stream_lanes(store, order, lanes, steps * share)
    cut = [[stream[t * share : (t + 1) * share] for stream in streams] for t in range(steps)]
    return [np.reshape(flatten(parts), (batch, tokens)).tolist() for parts in cut]


def make_ranks(
    store: FakePiles, order: dict[str, Any], lanes: int, batch: int, world: int, tokens: int
) -> list[PackedLoader]:
    return [
        PileLoader(store, batch // world, rank=rank, world_size=world, lanes=lanes, **order).packed(
            tokens, column="tokens"
        )
        for rank in range(world)
    ]


@settings(max_examples=100)
@given(
    ORDERS,
    LANES,
    st.integers(1, 9),
    st.lists(st.integers(0, 15), min_size=3, max_size=3),
    st.data(),
)
def test_chains_of_resumes_yield_the_stream_of_the_oracle(
    order: dict[str, Any], lanes: int, tokens: int, taken: list[int], data: st.DataObject
) -> None:
    store, batch = make_store(), 6
    worlds = [1, 2, 3, 6] if lanes == 1 else [world for world in (1, 2, 3) if lanes % world == 0]
    delivered: list[Any] = []
    states: list[Any] = []
    for count in taken:
        ranks = make_ranks(store, order, lanes, batch, data.draw(st.sampled_from(worlds)), tokens)
        for loader in ranks:
            if states:
                loader.load_state_dict(json.loads(json.dumps(states)))
        parts = [[one["tokens"].tolist() for one in islice(loader, count)] for loader in ranks]
        delivered += [flatten(step) for step in zip(*parts, strict=True)]
        states = [loader.state_dict() for loader in ranks]
        assert {state["step"] for state in states} == {len(delivered)}
    assert delivered == expect(store, order, lanes, batch, tokens, len(delivered))


def test_an_epoch_of_tokens_comes_once() -> None:
    store = make_store()
    whole = flatten(tokens_of(*record.id) for record in store.records())
    packed = PileLoader(store, 1, epoch=1).packed(1, column="tokens")
    found = [int(batch["tokens"][0, 0]) for batch in islice(packed, 2 * len(whole))]
    assert sorted(found[: len(whole)]) == sorted(found[len(whole) :]) == sorted(whole)
    assert found[: len(whole)] != found[len(whole) :]


def test_a_cut_at_the_end_of_a_group_is_no_empty_epoch() -> None:
    def make(_: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"tokens": pa.array([[row] for row in range(count)], pa.list_(pa.int32()))})

    packed = PileLoader(FakePiles({"a": [40]}, 12, make), 1, mix=12).packed(8, column="tokens")
    found = [batch["tokens"].ravel().tolist() for batch in islice(packed, 20)]
    for first in range(0, 20, 5):
        assert sorted(flatten(found[first : first + 5])) == list(range(40))


def test_with_one_lane_every_rank_has_the_same_state() -> None:
    ranks = make_ranks(make_store(), {}, 1, 6, 3, 5)
    for loader in ranks:
        list(islice(loader, 4))
    states = [loader.state_dict() for loader in ranks]
    assert states[0] == states[1] == states[2]
    assert len(json.dumps(states[0])) < 400


@pytest.mark.parametrize(
    ("column", "dtype"), [("tokens", np.int32), ("large", np.uint32), ("pairs", np.int16)]
)
def test_tokens_keep_their_type(column: str, dtype: type) -> None:
    packed = PileLoader(make_store(), 3).packed(4, column=column)
    (batch,) = islice(packed, 1)
    assert list(batch) == [column]
    assert (batch[column].dtype, batch[column].shape) == (dtype, (3, 4))
    assert batch[column].flags.writeable
    (records,) = islice(PileLoader(make_store(), 3, output="arrow").packed(4, column=column), 1)
    assert records.column(0).to_pylist() == batch[column].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"column": "text"}, "column='text': holds string, no lists of numbers"),
        ({"column": "_id"}, "column='_id': no such column"),
        ({"column": "tokens", "tokens": 0}, "tokens=0: give"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        PileLoader(make_store(), 2).packed(**arguments)


def count_nameless_files() -> int:
    """Return how many deleted files this process has open."""
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(link.endswith("(deleted)") for link in links)


@pytest.mark.parametrize(("prefetch", "most"), [(0, 1), (1, 2)])
def test_piles_of_new_keys_go_with_their_epoch(prefetch: int, most: int) -> None:
    before = count_nameless_files()
    packed = PileLoader(make_store(), 2, reshuffle="exact", prefetch=prefetch).packed(20, column="tokens")
    batches = iter(packed)
    held = []
    while packed.state_dict()["positions"]["0"][0] < 5:
        next(batches)
        held.append(count_nameless_files() - before)
    assert 0 < max(held) <= most
    batches.close()
    assert count_nameless_files() == before


def test_nulls_and_columns_without_tokens_are_errors() -> None:
    with pytest.raises(ConversionError, match="'some': holds nulls"):
        next(iter(PileLoader(make_store(), 2).packed(2, column="some")))
    with pytest.raises(UsageError, match="no document of epoch 1 holds tokens"):
        next(iter(PileLoader(make_store(), 2).packed(2, column="none")))
    with pytest.raises(UsageError, match="lane 3 has no records in epoch 0; give fewer lanes"):
        next(iter(PileLoader(make_store(piles=3), 4, lanes=4).packed(2, column="tokens")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 5}, "'tokens' is 5 in the state and 4 here"),
        ({"column": "large"}, "'column' is 'large' in the state and 'tokens' here"),
        ({"seed": 8}, "'seed' is 8 in the state and 7 here"),
        ({"positions": {"0": [0, 0, 0]}}, "no position of lane 1; give a list of the states of all ranks"),
    ],
)
def test_states_of_other_batches_are_refused(change: dict[str, Any], message: str) -> None:
    packed = PileLoader(make_store(), 2, lanes=2).packed(4, column="tokens")
    with pytest.raises(UsageError, match=f"^load_state_dict: {message}"):
        packed.load_state_dict(packed.state_dict() | change)
    plain = PileLoader(make_store(), 2, lanes=2)
    with pytest.raises(UsageError, match="no 'tokens' in the state"):
        packed.load_state_dict(plain.state_dict())


def test_states_of_other_moments_do_not_mix() -> None:
    packed = PileLoader(make_store(), 2).packed(4, column="tokens")
    with pytest.raises(UsageError, match=r"'step' is \[0, 1\]"):
        packed.load_state_dict([packed.state_dict(), packed.state_dict() | {"step": 1}])


def test_threads_end_with_the_iterator() -> None:
    batches = iter(PileLoader(make_store(), 2, lanes=2).packed(4, column="tokens"))
    next(batches)
    del batches
    assert not [thread for thread in threading.enumerate() if "recshuf" in thread.name]
