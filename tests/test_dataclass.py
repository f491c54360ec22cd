"""Frozen classes of `recshuf.dataclass` are those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field, replace
from typing import Any

import pytest

from recshuf.dataclass import dataclass


def _declare(decorate: Any) -> tuple[type, type]:
    @decorate(frozen=True, slots=True)
    class Point:
        x: int
        y: object = 0
        notes: list[str] = field(default_factory=list, compare=False)
        hidden: int = field(default=3, repr=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "x", -self.x) if self.x < 0 else None

    @decorate(frozen=True, slots=True)
    class Named(Point):
        name: str = "a"

    return Point, Named


Point, Named = _declare(dataclass)
for _kind in (Point, Named):
    _kind.__qualname__ = _kind.__name__  # to be found by pickle
STANDARD = _declare(dataclasses.dataclass)


@pytest.mark.parametrize("given", [(1,), (-1, "b"), (1, (2, 3), ["n"], 4), (1, 0, [], 5, "c")])
def test_a_frozen_class_does_what_one_of_the_standard_library_does(given: tuple[Any, ...]) -> None:
    kind, standard = (Named, STANDARD[1]) if len(given) == 5 else (Point, STANDARD[0])
    made, other = kind(*given), standard(*given)
    assert repr(made).rpartition(".")[2].removeprefix(kind.__name__) == repr(other).rpartition(".")[
        2
    ].removeprefix(standard.__name__)
    assert dataclasses.asdict(made) == dataclasses.asdict(other)
    assert hash(made) == hash(other)
    assert kind.__match_args__ == standard.__match_args__
    assert made == kind(*given) != kind(9)
    assert made != other
    assert replace(made, x=7) == kind(7, *given[1:])
    assert pickle.loads(pickle.dumps(made)) == copy.copy(made) == copy.deepcopy(made) == made
    assert not hasattr(made, "__dict__")
    for name in ("x", "notes"):
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(made, name, 1)
        with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(made, name)
    with pytest.raises((AttributeError, TypeError)):
        made.unknown = 1


def test_other_classes_keep_their_methods() -> None:
    @dataclass(frozen=True, slots=True, repr=False, eq=False)
    class Bare:
        x: int

        def __repr__(self) -> str:
            return "own"

    @dataclass(slots=True)
    class Open:
        x: int

    assert repr(Bare(1)) == "own"
    assert Bare(1) != Bare(1)
    changed = Open(1)
    changed.x = 2
    assert changed == Open(2)
