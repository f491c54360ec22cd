"""The state: small, JSON, and refused by a loader of other batches."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import pytest

from recshuf.errors import UsageError
from recshuf.piles.epochs import MAX_EPOCH
from recshuf.records.keys import MAX_SEED
from recshuf.train.schedule import MOST_STEPS
from recshuf.train.state import LoaderState, find_position

STATE = LoaderState(
    "0123456789abcdef0123456789abcdef", 17, 7, 2, "rotate", 1, 4, 512, drop_last=True, step=99
)


def test_the_longest_state_is_short() -> None:
    longest = LoaderState(
        "f" * 32, 10**6, MAX_SEED, MAX_EPOCH, "rotate", 10**5, 10**5, 10**8, drop_last=False, step=MOST_STEPS
    )
    assert len(json.dumps(longest.to_dict())) < 300


def test_the_position_survives_json() -> None:
    assert find_position(STATE.to_dict(), json.loads(json.dumps(STATE.to_dict()))) == (2, 99)


def test_another_value_of_a_field_is_named_with_both() -> None:
    for field, value in [
        ("version", 2),
        ("order", 2),
        ("snapshot", 16),
        ("drop_last", 1),
    ]:
        mine = STATE.to_dict()[field]
        with pytest.raises(UsageError) as caught:
            find_position(STATE.to_dict(), STATE.to_dict() | {field: value})
        assert re.match(
            f"load_state_dict: '{field}' is {value!r} in the state and {mine!r} here; .", str(caught.value)
        )


def test_a_state_of_an_older_snapshot_says_how_to_go_on() -> None:
    with pytest.raises(
        UsageError, match=r"the store has changed since .*; make the loader with the next epoch"
    ):
        find_position(STATE.to_dict(), STATE.to_dict() | {"snapshot": 16})


def test_a_missing_field_is_named() -> None:
    for field in asdict(STATE):
        state = STATE.to_dict()
        del state[field]
        with pytest.raises(UsageError, match=f"no '{field}' in the state"):
            find_position(STATE.to_dict(), state)


def test_fields_of_other_loaders_are_named() -> None:
    with pytest.raises(UsageError, match=r"^load_state_dict: the state has 'worker', 'tokens', which "):
        find_position(STATE.to_dict(), STATE.to_dict() | {"worker": 0, "tokens": 8})


def test_what_is_no_state_is_refused() -> None:
    for state in (None, "state", []):
        with pytest.raises(UsageError, match="give what state_dict returned"):
            find_position(STATE.to_dict(), state)


def test_a_position_that_is_none_is_named() -> None:
    for field, value in [("epoch", -1), ("epoch", "1"), ("step", -1), ("step", 1.5), ("step", None)]:
        with pytest.raises(UsageError, match=f"^{field}={value!r}: "):
            find_position(STATE.to_dict(), STATE.to_dict() | {field: value})
