"""The state: small, JSON, and refused by a loader of other batches. Any loader counts and ends in the same way."""

import gc
import json
import threading
from itertools import islice, product
from typing import Any

import numpy as np
import pytest

from recshuf.errors import UsageError
from recshuf.loader import MixLoader
from recshuf.train.loader import PileLoader
from tests.support.stores.fake_piles import FakePiles
from tests.support.stores.token_documents import make_documents, make_store

STORE = FakePiles({"a": [2000]}, 8, snapshot=17)
LOADER = PileLoader(STORE, 512, lanes=4, epoch=2)
STATE = LOADER.state_dict() | {"step": 1}


def make_loader(
    kind: str, batch_size: Any = 2, store: dict[str, Any] | None = None, number: int = 0, **options: Any
) -> Any:
    """Return a loader, of which the store of some number is changed."""
    packing = {
        name: options.pop(name) for name in ("tokens", "column", "eos", "documents", "pad") if name in options
    }
    if kind == "mix":
        weights = options.pop("weights", (1, 2))
        changes: list[dict[str, Any]] = [{}, {}]
        changes[number] = store or {}
        stores = [
            FakePiles(
                **{"sets": {"a": [60]}, "pile_count": 3, "make": make_documents}
                | {"seed": seed, "store_id": f"{seed:032}"}
                | change
            )
            for seed, change in enumerate(changes, 1)
        ]
        return MixLoader(dict(zip(stores, weights, strict=True)), batch_size, **options)
    loader = PileLoader(make_store(**store or {}), batch_size, **options)
    return (
        loader if kind == "piles" else loader.packed(**{"tokens": np.int64(4), "column": "tokens"} | packing)
    )


KINDS = ("piles", "mix", "packed")


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_counts_the_batches_of_the_latest_iterator_and_what_is_ahead_ends_with_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[FakePiles] = []
    monkeypatch.setattr(FakePiles, "forget", lambda self: forgotten.append(self))
    loader = make_loader(kind, prefetch=3)
    assert {"epoch", "step", "version", "order"} <= loader.state_dict().keys()
    assert len(json.dumps(loader.state_dict())) < 350
    old = iter(loader)
    assert loader.state_dict()["step"] == 0
    for step in range(1, 6):
        next(old)
        assert loader.state_dict()["step"] == step
    new = iter(loader)
    assert loader.state_dict()["step"] == 0
    next(new)
    next(old)
    assert loader.state_dict()["step"] == 1, "another iterator was counted"
    del old, new
    gc.collect()
    assert not [thread for thread in threading.enumerate() if "recshuf" in thread.name]
    assert len({*forgotten}) == 1 + (kind == "mix")


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_may_be_of_numpy(kind: str) -> None:
    numbers = {"seed": 3, "epoch": 1, "rank": 1, "world_size": 2, "mix": 2, "prefetch": 2, "lanes": 2}
    flags = {"drop_last": np.bool_(True)}
    arrays = {name: np.int64(number) for name, number in numbers.items()}
    loader, other = make_loader(kind, 2, **numbers), make_loader(kind, np.int64(2), **arrays, **flags)
    if kind != "packed":
        loader.seek(2, 3)
        other.seek(np.int64(2), np.int64(3))
    assert json.dumps(other.state_dict()) == json.dumps(loader.state_dict())
    column = "tokens" if kind == "packed" else "pairs"
    found, expected = ([batch[column].tolist() for batch in islice(one, 9)] for one in (other, loader))
    assert found == expected


REFUSED: list[tuple[Any, str]] = [
    *((STATE | {name: 2}, f"load_state_dict: '{name}' is 2 in the state and 1 here; .") for name in ("version", "order")),
    (STATE | {"drop_last": 1}, "load_state_dict: 'drop_last' is 1 in the state and True here; ."),
    (STATE | {"snapshot": 16}, "load_state_dict: 'snapshot' is 16 in the state and 17 here; the store has changed since .*; make the loader with the next epoch"),
    (STATE | {"eos": 5}, "load_state_dict: 'eos' is 5 in the state and None here; call packed with the eos of the state"),
    *(
        ({name: value for name, value in STATE.items() if name != missing}, f"load_state_dict: no '{missing}' in the state")
        for missing in STATE
        if missing != "sets"  # which those of earlier versions lack
    ),
    (STATE | {"worker": 0, "tokens": 8}, "load_state_dict: the state has 'worker', 'tokens', which "),
    *((state, "load_state_dict: .*give what state_dict returned") for state in (None, "state", [])),
    *(
        (STATE | {name: value}, f"{name}={value!r}: ")
        for name, value in [("epoch", -1), ("epoch", "1"), ("step", -1), ("step", 1.5), ("step", None)]
    ),
]  # fmt: skip


def test_another_state_is_refused_by_the_name_of_what_differs() -> None:
    for state, message in REFUSED:
        with pytest.raises(UsageError, match=f"^{message}"):
            LOADER.find_position(state)


OTHERS: list[tuple[str, dict[str, Any], str]] = [
    *(
        (kind, change, next(iter(change)).removesuffix("_size"))
        for kind, change in product(KINDS, [{"batch_size": 4}, {"lanes": 2}, {"reshuffle": "piles"}, {"mix": 2}])
    ),
    *((kind, {"seed": 8}, "stores" if kind == "mix" else "seed") for kind in KINDS),
    *((kind, {"world_size": 2}, "batch") for kind in KINDS),
    *(
        (kind, {"store": change}, next(iter(change)).removesuffix("_id"))
        for kind, change in product(("piles", "packed"), [{"store_id": "f" * 32}, {"snapshot": 2}])
    ),
    *(
        ("mix", {"store": change, "number": number}, "stores")
        for change in ({"store_id": "f" * 32}, {"snapshot": 2}, {"seed": 9}, {"sets": {"a": [70]}})
        for number in (0, 1)
    ),
    ("piles", {"drop_last": False}, "drop_last"),
    ("mix", {"weights": (2, 1)}, "stores"),
    ("mix", {"weight_by": "tokens"}, "weight_by"),
    ("packed", {"tokens": 5}, "tokens"),
    ("packed", {"column": "large"}, "column"),
    ("packed", {"eos": 5}, "eos"),
    ("packed", {"eos": 1, "documents": "whole", "pad": 3}, "eos"),
    ("packed", {"documents": "whole", "pad": 3}, "documents"),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_loaders_of_other_batches_have_other_states(kind: str) -> None:
    for _, change, field in filter(lambda case: case[0] == kind, OTHERS):
        for common in ({}, {"weight_by": "tokens"}) if "weights" in change else ({},):
            state = make_loader(kind, **common).state_dict()
            make_loader(kind, **common).load_state_dict(state)
            other = make_loader(kind, **common, **change)
            said = f"^load_state_dict: '{field}' is .* in the state and .* here; "
            with pytest.raises(UsageError, match=said):
                other.load_state_dict(state)


def test_a_state_tells_weights_of_tokens_that_differ_by_little() -> None:
    loader, other = (make_loader("mix", weight_by="tokens", weights=(1.0, two)) for two in (2.0, 2.001))
    with pytest.raises(UsageError, match=r"^load_state_dict: 'stores' is "):
        other.load_state_dict(loader.state_dict())


def test_records_and_sequences_have_other_states() -> None:
    plain, packed = make_loader("piles"), make_loader("packed")
    assert packed.state_dict() == plain.state_dict() | {"tokens": 4, "column": "tokens"}
    for state, missing in ((plain.state_dict(), "tokens"), ([packed.state_dict()], "store"), (None, "store")):
        with pytest.raises(UsageError, match=f"^load_state_dict: no '{missing}' in the state"):
            packed.load_state_dict(state)
    with pytest.raises(
        UsageError, match=r"^load_state_dict: the state has 'tokens', 'column', which this loader "
    ):
        plain.load_state_dict(packed.state_dict())
