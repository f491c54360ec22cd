"""A packed loader resumes anywhere, on any number of ranks, from one small state, and reads little for it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import UsageError
from recshuf.piles.groups import Groups
from recshuf.train.documents import DocumentSource, LengthCounter
from recshuf.train.loader import PileLoader
from tests.support.effort import examples
from tests.support.stores.epoch_oracle import flatten
from tests.support.stores.legs import run_legs
from tests.support.stores.token_documents import (
    PACKINGS,
    expect,
    make_ranks,
    make_store,
    tokens_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from recshuf.train.packing import PackedLoader

ORDERS = st.fixed_dictionaries(
    {
        "epoch": st.integers(0, 2),
        "reshuffle": st.sampled_from(["rotate", "piles", "none"]),
        "mix": st.integers(1, 2),
        "prefetch": st.integers(0, 2),
    }
)


def uncounted() -> Any:
    """Make loaders find positions as if only decoding told how many tokens there are."""
    return patch.object(DocumentSource, "make_counter", lambda source: LengthCounter(source))


@pytest.mark.timeout(900)
@settings(max_examples=examples(200))
@given(
    order=ORDERS,
    lanes=st.sampled_from([1, 2, 3, 6]),
    packing=PACKINGS,
    output=st.sampled_from(["numpy", "arrow"]),
    is_counted=st.booleans(),
    taken=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    data=st.data(),
)
def test_chains_of_resumes_yield_the_stream_of_the_oracle(
    order: dict[str, Any],
    lanes: int,
    packing: dict[str, Any],
    output: str,
    is_counted: bool,
    taken: list[int],
    data: st.DataObject,
) -> None:
    store, batch = make_store(sizes=(15, 20, 12), piles=12), 6
    worlds = [world for world in (1, 2, 3, 6) if not (lanes if lanes > 1 else batch) % world]
    # The epoch of a state counts, not that of the loader.
    epochs = iter([order["epoch"], *data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=2))])
    with nullcontext() if is_counted else uncounted():
        delivered = run_legs(
            [(count, data.draw(st.sampled_from(worlds))) for count in taken],
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
    return [
        column.to_pylist() if isinstance(column, pa.Array) else column.tolist()
        for column in (batch.columns if isinstance(batch, pa.RecordBatch) else batch.values())
    ]


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


def test_states_of_other_batches_are_refused() -> None:
    for change, message in [
        ({"tokens": 5}, "'tokens' is 5 in the state and 4 here"),
        ({"column": "large"}, "'column' is 'large' in the state and 'tokens' here"),
        ({"seed": 8}, "'seed' is 8 in the state and 7 here"),
        ({"lanes": 4}, "'lanes' is 4 in the state and 2 here"),
        ({"eos": 5}, "'eos' is 5 in the state and None here; call packed with the eos of the state"),
        ({"documents": "whole"}, "'documents' is 'whole' in the state and 'cut' here; call packed with"),
    ]:
        packed = PileLoader(make_store(), 2, lanes=2).packed(4, column="tokens")
        assert len(json.dumps(packed.state_dict())) < 300
        with pytest.raises(UsageError, match=f"^load_state_dict: {message}"):
            packed.load_state_dict(packed.state_dict() | change)
        plain = PileLoader(make_store(), 2, lanes=2)
        assert packed.state_dict() == plain.state_dict() | {"tokens": 4, "column": "tokens"}
        whole = plain.packed(4, column="tokens", documents="whole", pad=0, eos=1)
        with pytest.raises(UsageError, match=r"^load_state_dict: 'eos' is None in the state and 1 here"):
            whole.load_state_dict(packed.state_dict())
        for state, missing in (
            (plain.state_dict(), "tokens"),
            ([packed.state_dict()], "store"),
            (None, "store"),
        ):
            with pytest.raises(UsageError, match=f"^load_state_dict: no '{missing}' in the state"):
                packed.load_state_dict(state)
        with pytest.raises(
            UsageError, match=r"^load_state_dict: the state has 'tokens', 'column', which this loader "
        ):
            plain.load_state_dict(packed.state_dict())


def write_store(folder: Path, made_by: str, column: str) -> Path:
    """Make a store of documents whose lengths vary."""
    table = pa.table({"id": range(200), column: [list(range(row, row + row % 9)) for row in range(200)]})
    if made_by == "program":
        with recshuf.PileWriter(folder / "store", "w", seed=5, piles=8) as writer:
            writer.write(table)
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

    first = make()
    whole = [batch[column].tolist() for batch in islice(first, 60)]  # more than two epochs
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
