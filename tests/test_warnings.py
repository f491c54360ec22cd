"""What a run warns of: heard in Python and on the command line, and kept in the report. And how errors reach the caller."""

import copy
import json
import pickle
import re
import shlex
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf import errors
from recshuf.api import runs
from recshuf.errors import OutputError, RecshufWarning
from recshuf.job.parts import STAGES
from tests.conftest import Run
from tests.support.small_runs import Listener


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Return a folder whose names hold a column that lines lack."""
    folder = tmp_path / "data" / "year=2024"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    return tmp_path / "data"


LOST = r"the columns of its folders \(year\) are not read .*; provenance=True keeps the paths"


def test_python_hears_warnings_at_the_calling_line(inputs: Path, tmp_path: Path) -> None:
    with pytest.warns(RecshufWarning, match=LOST) as heard:
        report = recshuf.shuffle(inputs, tmp_path / "out.jsonl")
    assert heard[0].filename == __file__
    assert report.warnings == (str(heard[0].message),)
    assert report.to_json()["warnings"] == report.warnings
    assert f"warning: {report.warnings[0]}" in repr(report)


def test_a_store_says_what_it_lacks(inputs: Path, tmp_path: Path) -> None:
    said = r"folders \(year\) are not read .*, and the store lacks them; the names of its sources keep"
    with pytest.warns(RecshufWarning, match=said):
        recshuf.scatter(inputs, tmp_path / "store")
    (name,) = recshuf.PileStore(tmp_path / "store").sources
    assert "year=2024" in name


@pytest.mark.parametrize(
    ("name", "text"), [("a.csv", "a,b\n1,2\n"), ("a.txt", "one\ntwo\n"), ("a.jsonl", '{"a": 1}\n')]
)
def test_the_remedy_for_lost_columns_works(tmp_path: Path, call: Run, name: str, text: str) -> None:
    """Lines of text and CSV get no columns as such; those of JSONL do."""
    folder = tmp_path / "data" / "year=2024"
    folder.mkdir(parents=True)
    (folder / name).write_text(text)
    warned = call(tmp_path / "data", "-o", f"{tmp_path}/warned/").stderr.decode()
    (remedy,) = re.findall(r"lacks them; (.*) keeps? the paths of inputs\n", warned)
    done = call(tmp_path / "data", "-o", f"{tmp_path}/out/", *shlex.split(remedy.replace(" and ", " ")))
    assert done.returncode == 0, done.stderr
    (shard,) = (tmp_path / "out").iterdir()
    assert b"year=2024" in shard.read_bytes()


def test_an_update_of_a_store_is_heard_in_python(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ann,rome\nbob,oslo\n")
    taken = "header taken: ann,rome; header='none' if it is a record"
    with pytest.warns(RecshufWarning, match=taken):
        recshuf.scatter(tmp_path / "a.csv", tmp_path / "store")
    with pytest.warns(RecshufWarning, match=taken), recshuf.PileStore(tmp_path / "store").update() as update:
        update.append([tmp_path / "a.csv"])


def test_a_filter_can_make_a_warning_an_error(inputs: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecshufWarning)
        with pytest.raises(RecshufWarning, match=LOST):
            recshuf.shuffle(inputs, tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_listener_gets_warnings_in_place_of_python(inputs: Path, tmp_path: Path) -> None:
    (inputs / "year=2024" / "a.jsonl").rename(inputs / "year=2024" / "a.csv")
    listener = Listener()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = recshuf.shuffle(inputs, tmp_path / "out.csv", progress=listener)
    assert tuple(listener.warnings) == report.warnings
    assert len(listener.warnings) == 2
    assert listener.stops == 1
    with pytest.raises(OutputError):
        recshuf.shuffle(inputs, tmp_path / "out.csv", progress=listener)
    assert listener.stops == 2


def test_the_report_of_tasks_is_that_of_the_last_one(inputs: Path, tmp_path: Path) -> None:
    _, plan = runs.plan_tasks(inputs, tmp_path / "out.jsonl", progress=Listener())
    numbers = [number for stage in STAGES for number in runs.list_tasks(plan, stage)]
    done = [runs.run_task(plan, number, progress=Listener()) for number in numbers]
    assert done[:-1] == [None] * (len(done) - 1)
    assert done[-1] is not None
    assert len(done[-1].warnings) == 1


def test_the_report_of_the_command_has_its_words(call: Run, inputs: Path, tmp_path: Path) -> None:
    done = call(inputs, "-o", tmp_path / "out.jsonl", "--report", "-")
    (text,) = json.loads(done.stdout)["warnings"]
    assert text.endswith("--provenance keeps the paths of inputs")
    assert text.encode() in done.stderr


def test_reports_are_shown_as_some_lines(tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    inputs.mkdir()
    for number in range(12):
        (inputs / f"{number}.txt").write_text("".join(f"{number} {row}\n" for row in range(100)))
    shuffled = recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=5)
    verified = recshuf.verify(inputs, tmp_path / "out")
    checked = recshuf.check(tmp_path / "out", against=inputs)
    scattered = recshuf.scatter(inputs, tmp_path / "store")
    assert repr(shuffled).startswith(
        "<ShuffleReport: 1,200 of 1,200 records\n  12 inputs of text, 12 shards of text\n"
    )
    assert repr(verified) == "<VerifyReport: equal, 1,200 of 1,200 records>"
    assert repr(checked).startswith(
        "<CheckReport: uniformly random, 1,200 of 1,200 records tested by origins"
    )
    assert repr(scattered).startswith(
        f"<ScatterReport: 1,200 records of 12 inputs in {tmp_path}/store, snapshot 1\n"
    )


def test_a_report_shows_five_warnings_and_counts_the_others(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\n")
    report = recshuf.shuffle(tmp_path / "in.txt", tmp_path / "out.txt")
    for count, more in ((5, ""), (6, "\n  1 more warning"), (12, "\n  7 more warnings")):
        shown = repr(replace(report, warnings=tuple(f"of {number}" for number in range(count))))
        assert shown.endswith("".join(f"\n  warning: of {number}" for number in range(5)) + f"{more}>")


def test_reports_of_one_record_are_in_the_singular(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": 1}\n{"id"\n')
    (tmp_path / "in.txt").write_text("a\n")
    options: Any = {"to": "parquet", "on_bad_record": f"quarantine:{tmp_path / 'bad'}"}
    reports = [
        recshuf.shuffle(tmp_path / "in.jsonl", f"{tmp_path}/out/", group_by="id", **options),
        recshuf.scatter(tmp_path / "in.txt", tmp_path / "store"),
        recshuf.verify(tmp_path / "in.txt", tmp_path / "in.txt"),
    ]
    (tmp_path / "other.txt").write_text("b\n")
    reports.append(recshuf.verify(tmp_path / "in.txt", tmp_path / "other.txt"))
    said = "\n".join(map(repr, reports))
    for words in (
        "1 of 1 record\n",
        "1 input of jsonl, 1 shard of parquet",
        "1 group by id",
        "1 bad record in",
    ):
        assert words in said
    assert f"1 record of 1 input in {tmp_path}/store" in said
    assert ", 1 pile, seed" in said
    assert not re.search(r"\b1 (bad )?(record|input|shard|pile|group)s", said)


# Errors reach the caller whole: through pickle, and as the built-in kinds that a caller already catches


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
