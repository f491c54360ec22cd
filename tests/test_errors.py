"""Errors reach the caller whole: through pickle, and as the built-in kinds that a caller already catches."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
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


@pytest.mark.parametrize("kind", list_classes())
@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.deepcopy])
def test_error_is_the_same_after_a_copy(kind, copied):
    error = make_error(kind)
    again = copied(error)
    assert type(again) is kind
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


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


def test_pool_goes_on_after_an_error(tmp_path: Path):
    (tmp_path / "a.txt").write_text("1\n2\n")
    with ProcessPoolExecutor(1) as pool:
        bad = pool.submit(recshuf.shuffle, tmp_path / "none.txt", tmp_path / "b.txt")
        good = pool.submit(recshuf.shuffle, tmp_path / "a.txt", tmp_path / "c.txt")
        with pytest.raises(errors.InputError, match=r"none\.txt"):
            bad.result()
        assert good.result().records == 2


@pytest.mark.parametrize("name", ["none.txt", "none.jsonl", "none.parquet", "none.h5", "none/"])
def test_missing_input_is_a_file_not_found_error(tmp_path: Path, name: str):
    with pytest.raises(FileNotFoundError, match=r"No such file") as caught:
        recshuf.shuffle(f"{tmp_path}/{name}", tmp_path / "out")
    assert isinstance(caught.value, errors.InputError)
    assert caught.value.errno == 2


def test_missing_schema_file_is_a_file_not_found_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        recshuf.shuffle("a.jsonl", tmp_path / "out.parquet", schema=tmp_path / "none.json")


def test_existing_output_is_a_file_exists_error(tmp_path: Path):
    (tmp_path / "a.txt").write_text("1\n")
    for name in ("a.txt", "folder"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / "a.txt").touch()
        with pytest.raises(FileExistsError) as caught:
            recshuf.shuffle(tmp_path / "a.txt", tmp_path / name)
        assert isinstance(caught.value, errors.OutputError)


def test_missing_output_folder_is_a_file_not_found_error(tmp_path: Path):
    (tmp_path / "a.txt").write_text("1\n")
    with pytest.raises(FileNotFoundError) as caught:
        recshuf.shuffle(tmp_path / "a.txt", tmp_path / "none" / "b.txt")
    assert isinstance(caught.value, errors.OutputError)


@pytest.mark.parametrize(
    ("name", "problem"), [("a\0b", r"'a\\x00b': has a NUL"), ("a\ud800", r"'a\\ud800': has half a character")]
)
@pytest.mark.parametrize(
    "use",
    [
        lambda name: recshuf.shuffle(name, "out"),
        lambda name: recshuf.shuffle("a.txt", name),
        lambda name: recshuf.shuffle("a.txt", "out", temp_dir=name),
        lambda name: recshuf.PileStore(name),
        lambda name: recshuf.PileWriter(name, "a"),
        lambda name: recshuf.PileLoader(name, 2),
        lambda name: recshuf.PileLoader.from_files("a.txt", 2, cache=name),
    ],
)
def test_a_name_that_no_file_can_have_is_refused(
    use: Callable[[str], object], name: str, problem: str
) -> None:
    with pytest.raises(errors.UsageError, match=problem):
        use(name)
