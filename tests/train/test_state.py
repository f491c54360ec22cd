"""The state: small, JSON, and refused by a loader of other batches."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from recshuf.errors import UsageError
from recshuf.piles.epochs import MAX_EPOCH
from recshuf.records.keys import MAX_PILES, MAX_SEED
from recshuf.train.loader import PileLoader
from recshuf.train.schedule import MOST_STEPS
from recshuf.train.state import find_position
from tests.support.stores.fake_piles import FakePiles

STORE = FakePiles({"a": [2000]}, 8, snapshot=17)
STATE = PileLoader(STORE, 512, lanes=4, epoch=2).state_dict() | {"step": 1}


def test_the_longest_state_is_short() -> None:
    arguments = {"batch_size": 10**8, "lanes": 10**5, "mix": MAX_PILES}
    store = replace(STORE, store_id="f" * 32, snapshot=10**6)
    longest = PileLoader(store, **arguments, seed=MAX_SEED, epoch=MAX_EPOCH, drop_last=False).state_dict()
    assert len(json.dumps(longest | {"step": MOST_STEPS})) < 300


def test_the_position_survives_json() -> None:
    assert find_position(STATE, json.loads(json.dumps(STATE))) == (2, 1)


def test_another_value_of_a_field_is_named_with_both() -> None:
    for field, value in [("version", 2), ("order", 2), ("snapshot", 16), ("drop_last", 1)]:
        mine = STATE[field]
        with pytest.raises(UsageError) as caught:
            find_position(STATE, STATE | {field: value})
        assert re.match(
            f"load_state_dict: '{field}' is {value!r} in the state and {mine!r} here; .", str(caught.value)
        )


def test_a_state_of_an_older_snapshot_says_how_to_go_on() -> None:
    with pytest.raises(
        UsageError, match=r"the store has changed since .*; make the loader with the next epoch"
    ):
        find_position(STATE, STATE | {"snapshot": 16})


def test_a_missing_field_is_named() -> None:
    for field in STATE:
        state = {name: value for name, value in STATE.items() if name != field}
        with pytest.raises(UsageError, match=f"no '{field}' in the state"):
            find_position(STATE, state)


def test_fields_of_other_loaders_are_named() -> None:
    with pytest.raises(UsageError, match=r"^load_state_dict: the state has 'worker', 'tokens', which "):
        find_position(STATE, STATE | {"worker": 0, "tokens": 8})


def test_what_is_no_state_is_refused() -> None:
    for state in (None, "state", []):
        with pytest.raises(UsageError, match="give what state_dict returned"):
            find_position(STATE, state)


def test_a_position_that_is_none_is_named() -> None:
    for field, value in [("epoch", -1), ("epoch", "1"), ("step", -1), ("step", 1.5), ("step", None)]:
        with pytest.raises(UsageError, match=f"^{field}={value!r}: "):
            find_position(STATE, STATE | {field: value})
