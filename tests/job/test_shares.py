"""Shares of a split, as text and as a mapping."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from recshuf.errors import UsageError
from recshuf.job.features import check_shares, parse_shares


def test_shares_are_exact() -> None:
    assert check_shares("a=0.1,b=0.2,c=7/10") == {
        "a": Fraction(1, 10),
        "b": Fraction(1, 5),
        "c": Fraction(7, 10),
    }
    assert sum(check_shares({"a": 0.1, "b": 0.2, "c": 0.7}).values()) == pytest.approx(1)
    assert check_shares(dict.fromkeys(("a", "b", "c" * 100), 1 / 3))


def test_text_of_another_form_is_refused_as_the_command_has_it() -> None:
    for text in ("", "a", "a=0.5,a=0.5", "a=0.5,,b=0.5"):
        with pytest.raises(UsageError, match="is no share of a new name; give NAME=SHARE"):
            parse_shares(text)
    for text in ("a=1", ",".join(f"part{number}=1/256" for number in range(256))):
        with pytest.raises(
            UsageError, match=r"^--split: .*; give 2 to 255 .*, such as train=0\.99,val=0\.01$"
        ):
            check_shares(text)


NO_SPLITS: list[tuple[Any, str]] = [
    ("a=1", "give 2 to 255 shares by name"),
    ({"a": 1.0}, "give 2 to 255 shares by name"),
    ({"a": 0.5, "b/c": 0.5}, "name 'b/c': give letters"),
    ({"a": 0.5, "..": 0.5}, r"name '\.\.': give letters, .* the first a letter, digit or '_'"),
    ({"a": 0.5, 3: 0.5}, "name 3: give letters"),
    ({"a": 1.5, "b": -0.5}, "share 1.5 of 'a': give a number between 0 and 1"),
    ({"a": True, "b": 0.5}, "share True of 'a'"),
    ({"a": float("nan"), "b": 0.5}, "share nan of 'a'"),
    ({"a": "x", "b": 0.5}, "share 'x' of 'a'"),
    ({"a": "1/0", "b": 0.5}, "share '1/0' of 'a'"),
    ({"a": "", "b": 0.5}, "share '' of 'a'"),
    ({"a": 0.5, "b": 0.4}, "add up to 0.9; let them add up to 1"),
    ({"a": 0.5, "b": 0.500000002}, "add up to 1.000000002; let"),
    ({"a": 0.5, "b" * 101: 0.5}, "name 'b+': give letters, .* at most 100"),
]


def test_shares_that_make_no_split_are_refused() -> None:
    for shares, problem in NO_SPLITS:
        with pytest.raises(UsageError, match=problem):
            check_shares(shares)
