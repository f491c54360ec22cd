"""Errors reach the caller whole: through pickle, and as the built-in kinds that a caller already catches."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest

import recshuf
from recshuf import errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ARGUMENTS = {
    errors.InputError: ("a.jsonl", "is cut short"),
    errors.ConversionError: ("a.b", "has no type"),
    errors.DamagedSetError: ("a.piles", "is cut short", "run again"),
    errors.Interrupted: (15,),
}


def list_classes() -> list[type[BaseException]]:
    return [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BaseException)
    ]


def make_error(kind: type[BaseException]) -> BaseException:
    given = next((given for base, given in ARGUMENTS.items() if issubclass(kind, base)), ("what; do this",))
    error = kind(*given)
    error.add_note("a folder is kept")
    return error


def test_every_error_is_the_same_after_a_copy():
    for kind in list_classes():
        error = make_error(kind)
        for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
            assert type(again) is kind
            assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_every_error_can_be_made_of_its_message():
    """PyTorch rebuilds what a worker raised from the class and one string; what it cannot becomes a `RuntimeError`."""
    for kind in filter(lambda one: issubclass(one, errors.RecshufError), list_classes()):
        error = kind("Caught in a worker.\nOriginal: a.piles: is cut short; run again")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert str(again) == str(error) == error.args[0]
        assert getattr(error, "reason", str(error)) == str(error)


def test_error_has_its_attributes_after_pickle():
    error = errors.InputError("a.jsonl", "is cut short", place="line 3", remedy="fetch it again")
    again = pickle.loads(pickle.dumps(error))
    assert (again.name, again.problem, again.place, again.remedy) == (
        "a.jsonl",
        "is cut short",
        "line 3",
        "fetch it again",
    )
    assert str(again) == "a.jsonl: line 3: is cut short; fetch it again"


@pytest.mark.parametrize(
    "error",
    [
        errors.InputError("a.jsonl", "is cut; short", place="line 3", remedy="fetch it again"),
        errors.ConversionError("a.b", "has no type", remedy="leave it out"),
        errors.ConversionError("", "has no type"),
    ],
)
def test_reason_and_remedy_are_the_message(error: errors.InputError | errors.ConversionError):
    assert str(error) == error.reason + (f"; {error.remedy}" if error.remedy else "")
    assert error.problem in error.reason


def test_missing_input_is_a_file_not_found_error(tmp_path: Path):
    for name in ("none.txt", "none.jsonl", "none.parquet", "none.h5", "none/"):
        with pytest.raises(FileNotFoundError, match=r"No such file") as caught:
            recshuf.shuffle(f"{tmp_path}/{name}", tmp_path / "out")
        assert isinstance(caught.value, errors.InputError)
        assert caught.value.errno == 2


def test_existing_output_is_a_file_exists_error(tmp_path: Path):
    (tmp_path / "a.txt").write_text("1\n")
    for name in ("a.txt", "folder"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / "a.txt").touch()
        with pytest.raises(FileExistsError) as caught:
            recshuf.shuffle(tmp_path / "a.txt", tmp_path / name)
        assert isinstance(caught.value, errors.OutputError)


@pytest.mark.parametrize(
    ("name", "problem"), [("a\0b", r"'a\\x00b': has a NUL"), ("a\ud800", r"'a\\ud800': has half a character")]
)
def test_a_name_that_no_file_can_have_is_refused(name: str, problem: str) -> None:
    uses: list[Callable[[], object]] = [
        lambda: recshuf.shuffle(name, "out"),
        lambda: recshuf.shuffle("a.txt", name),
        lambda: recshuf.shuffle("a.txt", "out", temp_dir=name),
        lambda: recshuf.PileStore(name),
        lambda: recshuf.PileWriter(name, "a"),
        lambda: recshuf.PileLoader(name, 2),
        lambda: recshuf.PileLoader.from_files("a.txt", 2, cache=name),
    ]
    for use in uses:
        with pytest.raises(errors.UsageError, match=problem):
            use()
