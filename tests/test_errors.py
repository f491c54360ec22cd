"""Errors reach the caller whole: through pickle, and as the built-in kinds that a caller already catches."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import recshuf
from recshuf import errors

MAKERS: dict[type[BaseException], Callable[..., BaseException]] = {
    errors.InputError: lambda kind: kind("a.jsonl", "is cut", place="line 3", remedy="fetch it again"),
    errors.ConversionError: lambda kind: kind("a.b", "has no type", remedy="leave it out"),
    errors.DamagedSetError: lambda kind: kind("a.piles", "is cut short", "run again"),
    errors.Interrupted: lambda kind: kind(15),
    BaseException: lambda kind: kind("what; do this"),
}


def list_classes() -> list[type[BaseException]]:
    return [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BaseException)
    ]


def make_error(kind: type[BaseException]) -> BaseException:
    error = next(make for base, make in MAKERS.items() if issubclass(kind, base))(kind)
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


def test_reason_and_remedy_are_the_message():
    given, no_type = {"place": "line 3", "remedy": "fetch it again"}, "has no type"
    messages = {
        errors.InputError(
            "a.jsonl", "is cut; short", **given
        ): "a.jsonl: line 3: is cut; short; fetch it again",
        errors.ConversionError(
            "a.b", no_type, remedy="leave it out"
        ): "field 'a.b': has no type; leave it out",
        errors.ConversionError("", no_type): no_type,
    }
    for error, message in messages.items():
        assert str(error) == message
        assert error.reason == message.removesuffix(f"; {error.remedy}")


def test_missing_inputs_and_existing_outputs_are_errors_of_the_system_too(tmp_path: Path):
    for name in ("none.txt", "none.jsonl", "none.parquet", "none.h5", "none/"):
        with pytest.raises(FileNotFoundError, match=r"No such file") as caught:
            recshuf.shuffle(f"{tmp_path}/{name}", tmp_path / "out")
        assert isinstance(caught.value, errors.InputError)
        assert caught.value.errno == 2
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "a.txt", tmp_path / "folder" / "a.txt"):
        path.write_text("1\n")
    for output in (tmp_path / "a.txt", tmp_path / "folder"):
        with pytest.raises(FileExistsError) as exists:
            recshuf.shuffle(tmp_path / "a.txt", output)
        assert isinstance(exists.value, errors.OutputError)
