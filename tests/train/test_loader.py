"""The loader: the oracle's batches for every rank, exact resumes, and nothing left behind."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recshuf.errors import PileError, UsageError
from recshuf.system.buffers import allocate
from recshuf.train import batch_reader as cutting
from recshuf.train import prefetch as prefetching
from recshuf.train.loader import PileLoader
from tests.support.effort import examples
from tests.support.stores.epoch_oracle import Record, Rules, cut_batches, group_records
from tests.support.stores.fake_piles import FakePiles
from tests.support.stores.legs import run_legs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from recshuf.piles.slices import JoinedRecords
    from recshuf.system.buffers import Allocate

STEPS = st.integers(0, 40)
IS_EVEN = pc.bit_wise_and(pc.field("id"), 1) == 0
"""Of the number of a record, which its row decides."""


@st.composite
def stores(draw: st.DrawFn) -> FakePiles:
    """Return a store of a few sets; keys of few bits are often equal."""
    sizes = st.lists(st.integers(0, 40), min_size=1, max_size=3)
    sets = draw(st.dictionaries(st.sampled_from(["a", "b", "ü"]), sizes, min_size=1))
    return FakePiles(sets, draw(st.integers(1, 9)), key_bits=draw(st.sampled_from([3, 40, 64])))


@st.composite
def settings_of_order(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "seed": draw(st.sampled_from([7, 8])),
        "epoch": draw(st.integers(0, 3)),
        "reshuffle": draw(st.sampled_from(["rotate", "piles", "none"])),
        "mix": draw(st.integers(1, 4)),
    }


@st.composite
def settings_of_batches(draw: st.DrawFn) -> dict[str, Any]:
    lanes = draw(st.sampled_from([1, 1, 2, 6]))
    batch = lanes * draw(st.integers(1, 5)) if lanes > 1 else 6 * draw(st.integers(1, 4))
    drop_last = draw(st.booleans())
    limit = draw(st.none() | st.integers(batch if drop_last else 1, 100))
    keeps_all = draw(st.booleans())
    return {
        "lanes": lanes, "batch": batch, "drop_last": drop_last, "limit": limit,
        "filter": None if keeps_all else IS_EVEN,
    }  # fmt: skip


def worlds_of(lanes: int) -> list[int]:
    """Return the numbers of ranks that divide any of the batches."""
    return [1, 2, 3, 6] if lanes == 1 else [world for world in (1, 2, 3, 6) if lanes % world == 0]


def make_ranks(
    store: FakePiles, order: dict[str, Any], batches: dict[str, Any], world: int, **more: Any
) -> list[PileLoader]:
    cut = {name: value for name, value in batches.items() if name != "batch"}
    arguments = {"columns": ["_id"]} | order | cut | more
    return [
        PileLoader(store, batches["batch"] // world, rank=rank, world_size=world, **arguments)
        for rank in range(world)
    ]


def ids_of(batches: Iterable[dict[str, Any]]) -> list[list[tuple[int, int]]]:
    return [[tuple(one) for one in batch["_id"].tolist()] for batch in batches]


def expect(
    store: FakePiles, order: dict[str, Any], batches: dict[str, Any], world: int
) -> list[list[list[tuple[int, int]]]]:
    """Return the ids of each rank's part of each global batch."""
    groups = group_records(keep(store, batches), list(store.names), store.pile_count, Rules(**order))
    ids = [[record.id for record in group] for group in groups]
    lanes, drop_last, limit = batches["lanes"], batches["drop_last"], batches["limit"]
    return cut_batches(ids, batches["batch"] // world, world, lanes, drop_last, limit)


def keep(store: FakePiles, batches: dict[str, Any]) -> list[Record]:
    """Return the records that a filter keeps."""
    return [one for one in store.records() if batches["filter"] is None or not one.row % 2]


def is_short(store: FakePiles, batches: dict[str, Any]) -> bool:
    """Return whether a store has fewer records than a global batch; else lanes that yield none are refused."""
    kept = keep(store, batches)
    if batches["filter"] is not None and store.records():  # one that leaves no batch is refused
        assume(len(kept) >= (batches["batch"] if batches["drop_last"] else 1))
    return len(kept) < batches["batch"]


@settings(max_examples=examples(120))
@given(stores(), settings_of_order(), settings_of_batches(), st.integers(0, 3), st.data())
def test_every_rank_gets_the_batches_of_the_oracle(
    store: FakePiles, order: dict[str, Any], batches: dict[str, Any], prefetch: int, data: st.DataObject
) -> None:
    world = data.draw(st.sampled_from(worlds_of(batches["lanes"])))
    expected = expect(store, order, batches, world)
    assume(is_short(store, batches) or expected)
    for rank, loader in enumerate(make_ranks(store, order, batches, world, prefetch=prefetch)):
        assert len(loader) == len(expected)
        assert ids_of(loader) == [step[rank] for step in expected]


@settings(max_examples=examples(120))
@given(
    stores(), settings_of_order(), settings_of_batches(), st.lists(STEPS, min_size=3, max_size=3), st.data()
)
def test_chains_of_three_resumes_with_other_numbers_of_ranks_yield_the_epoch(
    store: FakePiles, order: dict[str, Any], batches: dict[str, Any], taken: list[int], data: st.DataObject
) -> None:
    whole = expect(store, order, batches, 1)
    assume(is_short(store, batches) or whole)
    delivered = run_legs(
        [(count, data.draw(st.sampled_from(worlds_of(batches["lanes"])))) for count in (*taken, None)],
        lambda world: make_ranks(store, order | {"epoch": 0}, batches, world),
        lambda batch: ids_of([batch])[0],
        # As training loops do; it must not forget the position.
        then=lambda loader: loader.set_epoch(order["epoch"]),
    )
    if (
        batches["lanes"] == 1 and not batches["drop_last"]
    ):  # the padding of the last batch depends on the ranks
        assert delivered[:-1] == [step[0] for step in whole][:-1]
        assert not whole or delivered[-1][: len(whole[-1][0])] == whole[-1][0]
    else:
        assert delivered == [step[0] for step in whole]


def small_store(**changes: Any) -> FakePiles:
    return replace(FakePiles({"a": [50, 40], "b": [60]}, 6), **changes)


def test_iterating_again_repeats_the_epoch_and_another_epoch_differs() -> None:
    loader = PileLoader(small_store(), 8, columns=["_id"])
    first = ids_of(loader)
    assert ids_of(loader) == first
    loader.set_epoch(1)
    second = ids_of(loader)
    assert second != first
    assert (loader.epoch, loader.state_dict()["step"]) == (1, len(second))
    loader.set_epoch(0)
    assert loader.state_dict()["step"] == 0
    assert ids_of(loader) == first


def test_a_position_is_taken_once() -> None:
    loader = PileLoader(small_store(), 8, columns=["_id"])
    whole = ids_of(loader)
    loader.seek(0, 5)
    assert loader.state_dict()["step"] == 5
    assert ids_of(loader) == whole[5:]
    assert ids_of(loader) == whole


def test_a_resume_loads_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "BUNDLE_BYTES", 0)
    store = small_store()
    loader = PileLoader(store, 8, prefetch=0, epoch=1)
    loader.seek(2, len(loader) // 2)
    assert store.loads == []
    next(iter(loader))
    assert len(store.loads) <= 2  # two, if the batch lies in two groups
    assert len(store.loads[0]) == 2, "not one region of each set"


def test_positions_beyond_the_epoch_are_refused_and_change_nothing() -> None:
    loader = PileLoader(small_store(), 8)
    before = loader.state_dict()
    with pytest.raises(UsageError, match=f"^step=99: give an integer from 0 to {len(loader)}$"):
        loader.seek(3, 99)
    with pytest.raises(UsageError, match=r"^epoch=-1: "):
        loader.set_epoch(-1)
    assert loader.state_dict() == before


def test_states_of_other_batches_are_refused() -> None:
    for field, other in [
        ("store", small_store(store_id="f" * 32)),
        ("snapshot", small_store(snapshot=2)),
        ("seed", {"seed": 8}),
        ("reshuffle", {"reshuffle": "piles"}),
        ("mix", {"mix": 2}),
        ("lanes", {"lanes": 2}),
        ("batch", {"world_size": 2}),
        ("drop_last", {"drop_last": False}),
    ]:
        state = PileLoader(small_store(), 8).state_dict()
        changed = (other, {}) if isinstance(other, FakePiles) else (small_store(), other)
        loader = PileLoader(changed[0], 8, **changed[1])
        assert list(loader.state_dict()) == list(state)
        with pytest.raises(UsageError, match=f"^load_state_dict: '{field}' is .* in the state and .* here; "):
            loader.load_state_dict(state)


def test_bad_arguments_are_named() -> None:
    for arguments, message in [
        ({"mix": 0}, "mix=0: give"),
        ({"prefetch": -1}, "prefetch=-1: give"),
        ({"output": "tf"}, "output='tf': give one of 'numpy', "),
        ({"columns": []}, "columns=.*: name at least one"),
        ({"columns": "id"}, "columns='id': give a list"),
        ({"epoch": 1.0}, "epoch=1.0: give an integer"),
        ({"lanes": True}, "lanes=True: give an integer"),
        ({"columns": 5}, "columns=5: give a list"),
        ({"columns": ["id", 5]}, "columns=.*: give a list"),
        ({"drop_last": "no"}, "drop_last='no': give True or False"),
        ({"transform": 5}, "transform=5: give a function"),
        ({"columns": ["nothing"]}, "columns: no column 'nothing' in the store; it has 'id'$"),
        ({"columns": ["id", "id"]}, "columns: 'id' is named twice"),
    ]:
        with pytest.raises(UsageError, match=f"^{message}"):
            PileLoader(small_store(), 8, **arguments)


def live_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "recshuf" in thread.name]


def fail_at_the_first(loader: PileLoader) -> None:
    for _ in loader:
        raise ZeroDivisionError


def test_threads_end_with_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetching, "LEAST_AWAY", 0)
    monkeypatch.setattr(cutting, "BUNDLE_BYTES", 0)
    loader = PileLoader(small_store(), 8, prefetch=3)
    for _ in loader:
        assert live_threads()
    assert not live_threads()
    for _ in loader:
        break
    assert not live_threads()
    batches = iter(loader)
    next(batches)
    del batches
    gc.collect()
    assert not live_threads()
    with pytest.raises(ZeroDivisionError):
        fail_at_the_first(loader)
    assert not live_threads()
    records = loader.records()
    next(records)
    del records
    assert not live_threads()


class BadPiles(FakePiles):
    """A store whose third pile is damaged."""

    def pack(self, regions: Sequence[tuple[int, int]], memory: Allocate = allocate) -> JoinedRecords:
        if (0, 2) in regions:
            raise PileError("set a: region 2 is damaged")
        return super().pack(regions, memory)


@pytest.mark.parametrize(("prefetch", "least_away"), [(0, 0), (1, 1e9), (5, 0)])
def test_an_error_of_a_reader_reaches_the_consumer_in_its_place(
    prefetch: int, least_away: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetching, "LEAST_AWAY", least_away)
    monkeypatch.setattr(cutting, "BUNDLE_BYTES", 0)
    loader = PileLoader(BadPiles({"a": [60]}, 3), 1, prefetch=prefetch, columns=["_id"])
    expected = ids_of(PileLoader(FakePiles({"a": [60]}, 3), 1, columns=["_id"]))
    received: list[list[tuple[int, int]]] = []
    with pytest.raises(PileError, match=r"^set a: region 2 is damaged$"):
        received.extend(ids_of([batch])[0] for batch in loader)
    assert expected[: len(received)] == received
    assert len(received) > 20
    assert loader.state_dict()["step"] == len(received)
    assert not live_threads()


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_what_a_trainer_does_to_a_batch_stays_in_it(lanes: int) -> None:
    """Also where the last batch is padded with records that came before."""
    store = FakePiles({"a": [63]}, 6)
    for batch in PileLoader(store, 4, columns=["id", "_id"], lanes=lanes, drop_last=False):
        assert batch["id"].tolist() == batch["_id"][:, 1].tolist()
        batch["id"] += 1000
        batch["_id"] -= 1


def test_more_lanes_than_groups_are_an_error() -> None:
    loader = PileLoader(FakePiles({"a": [1000]}, 8), 16, lanes=16)
    for use in (len, iter, list):
        with pytest.raises(UsageError, match=r"^lanes=16: .* 8 groups"):
            use(loader)
    assert len(PileLoader(FakePiles({"a": [1000]}, 8), 16, lanes=16, drop_last=False)) == 63


@pytest.mark.parametrize("mix", [1, 3])
def test_the_system_is_told_what_is_read_next(monkeypatch: pytest.MonkeyPatch, mix: int) -> None:
    monkeypatch.setattr(cutting, "BUNDLE_BYTES", 400)
    store = FakePiles({"a": [400]}, 40)
    for _ in PileLoader(store, 8, mix=mix):
        pass
    assert len(store.loads) > 4
    assert store.expected == [*store.loads[1:], []]


@pytest.mark.parametrize(("bundle_bytes", "lanes"), [(0, 2), (100, 1), (1 << 20, 2)])
def test_groups_that_are_loaded_together_change_nothing(
    bundle_bytes: int, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {"lanes": lanes, "epoch": 1, "drop_last": False, "columns": ["_id"]}
    expected = ids_of(PileLoader(small_store(), 4, **rules))
    monkeypatch.setattr(cutting, "BUNDLE_BYTES", bundle_bytes)
    store = small_store()
    assert ids_of(PileLoader(store, 4, **rules)) == expected
    assert (len(store.loads) > 3) == (bundle_bytes < 1 << 20)


@pytest.mark.parametrize(("lanes", "world_size"), [(1, 1), (1, 3), (2, 2), (4, 1), (4, 4)])
def test_a_group_is_loaded_once_in_an_epoch(
    lanes: int, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of the tail, and that with the records which fill the last batch."""
    monkeypatch.setattr(cutting, "BUNDLE_BYTES", 0)
    for rank in range(world_size):
        store = FakePiles({"a": [63, 28]}, 6)
        loader = PileLoader(
            store, 8, columns=["id"], lanes=lanes, drop_last=False, epoch=1, rank=rank, world_size=world_size
        )
        assert list(loader)
        loads = [tuple(cells) for cells in store.loads]
        assert len(loads) == len(set(loads))
