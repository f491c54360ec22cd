"""The Python functions: what they take, what they refuse, and what tools see of them."""

import dataclasses
import importlib
import inspect
import io
import json
import os
import pickle
import re
import subprocess
import sys
import typing
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.api import speak_python
from recshuf.cli.commands import commands
from recshuf.errors import UsageError
from recshuf.job.options import to_keywords
from recshuf.system.paths import ALIASES, SCHEMES
from tests.support.numbered_files import make_inputs
from tests.support.options_page import list_options

TABLE = pa.table({"a": [1, 2]})


def test_torch_that_is_not_installed_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("recshuf.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type] # as if it were not there
    with pytest.raises(ImportError, match=r"needs PyTorch, which is not installed; install recshuf\[torch\]"):
        importlib.import_module("recshuf.torch")


CALLS: dict[str, Callable[..., object]] = {
    "shuffle": partial(recshuf.shuffle, "in.txt", "out.txt"),
    "plan": partial(recshuf.plan, "in.txt", "out.txt"),
    "stream": partial(recshuf.stream, "in.txt"),
    "verify": partial(recshuf.verify, "in.txt", "in.txt"),
    "check": partial(recshuf.check, "in.txt"),
    "picture": partial(recshuf.picture, "in.txt"),
    "scatter": partial(recshuf.scatter, "in.txt", "store"),
    "gather": partial(recshuf.gather, "store", "out.txt"),
    "window": partial(recshuf.window, "store", append="in.txt"),
    "loader": partial(recshuf.PileLoader.from_files, "in.txt", 1, cache="cache"),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_option_that_does_not_exist_is_refused_before_anything_is_read(name: str):
    with pytest.raises(TypeError, match=r"(unknown option|unexpected keyword argument) 'seeds'"):
        CALLS[name](seeds=1)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("threads", "did you mean workers?"),
        ("force", "did you mean overwrite?"),
        ("n", "did you mean head_count?"),
        ("num_shards", "did you mean shards?"),
        ("quiet", "see help(recshuf.Options)"),
    ],
)
def test_a_proposal_is_what_may_be_meant(tmp_path: Path, name: str, remedy: str):
    options: Any = {name: 1}
    with pytest.raises(UsageError, match=re.escape(f"unknown option '{name}'; {remedy}")):
        recshuf.shuffle(make_inputs(tmp_path, "text", [10]), tmp_path / "out", **options)


def test_paths_are_taken_in_any_iterable(tmp_path: Path):
    paths = make_inputs(tmp_path, "text", [10, 10])
    for number, inputs in enumerate(
        (paths, tuple(paths), iter(paths), dict.fromkeys(paths).keys(), np.array(paths, str))
    ):
        assert recshuf.shuffle(inputs, tmp_path / f"out{number}.txt").records == 20


def test_other_things_than_paths_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("1\n")
    tables = [TABLE, TABLE.to_batches()[0], pa.dataset.dataset(TABLE)]
    streams = [io.BytesIO(b"in.txt\n"), io.StringIO("in.txt")]
    others = [b"in.txt", ["in.txt", b"in.txt"], [{"a": 1}], {"in.txt": 1}, {"in.txt"}, 7, None]
    for inputs in (*streams, *others):
        with pytest.raises(UsageError, match="inputs: "):
            recshuf.shuffle(inputs, "out.txt")
    for inputs in (*tables, *streams, *others):
        with pytest.raises(UsageError, match="data: "):
            recshuf.check(inputs, column="a")
    for output in (b"out", io.BytesIO(), 7):
        with pytest.raises(UsageError, match="output: "):
            recshuf.shuffle("in.txt", output)
    assert os.listdir(tmp_path) == ["in.txt"]


def test_progress_may_be_a_bool_or_an_object(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "text", [10])
    called: set[str] = set()
    names = ("start", "advance", "warn", "stop")
    own = SimpleNamespace(**{name: lambda *_, name=name: called.add(name) for name in names})
    for number, progress in enumerate((True, False, None, own)):
        assert recshuf.shuffle(path, tmp_path / f"out{number}", progress=progress).records == 10
    assert called == {"start", "advance", "stop"}
    assert isinstance(own, recshuf.Progress)
    for progress in (print, "yes", 1):
        with pytest.raises(UsageError, match="progress: give True, False"):
            recshuf.shuffle(path, tmp_path / "out", progress=progress)


def test_type_hints_can_be_evaluated():
    for name in {*recshuf.__all__} - {"__version__", "errors"}:
        assert typing.get_type_hints(getattr(recshuf, name)) is not None


def test_dir_shows_the_public_names_before_they_are_used():
    code = "import recshuf, sys; print(*dir(recshuf)); assert 'pyarrow' not in sys.modules"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert {*recshuf.__all__} <= {*shown.stdout.split()}


KINDS = {"a": pa.int16(), "b": pa.list_(pa.string())}


def test_schema_may_be_an_object_of_fields_and_no_other(tmp_path: Path):
    given, made = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    given.write_text(json.dumps({"a": 1, "b": ["x"]}) + "\n")
    for schema in (7, pa.int8(), pa.field("a", pa.int8()), {"a": int}):
        with pytest.raises(recshuf.errors.RecshufError, match="schema: "):
            recshuf.shuffle(given, made, schema=schema)
    for schema in (pa.schema(KINDS), KINDS, {"a": "int16", "b": ["string"]}):
        recshuf.shuffle(given, made, schema=schema, overwrite=True)
        assert pq.read_schema(made).types == [*KINDS.values()]


def test_messages_name_python_arguments(tmp_path: Path):
    (path,) = make_inputs(tmp_path, "text", [10])
    refused: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: recshuf.shuffle(path), UsageError, "no output"),
        (lambda: recshuf.shuffle(path, path), FileExistsError, "give overwrite=True to replace it"),
        (lambda: recshuf.shuffle(path, "out", memory=1), UsageError, "^memory 1 is out of range"),
        (
            lambda: recshuf.shuffle(path, "out", engine="tasks"),
            UsageError,
            "^engine tasks: .* --report FILE$",
        ),
        (lambda: recshuf.check(path), UsageError, "either against=INPUT..., column=NAME or provenance=True"),
    ]
    for call, kind, message in refused:
        with pytest.raises(kind, match=message):
            call()


def test_message_and_notes_survive_pickle():
    def fail() -> None:
        error = recshuf.errors.InputError("a--b.txt", "is long", remedy="raise --max-record-bytes")
        error.add_note("continue with the same command and --resume")
        raise error

    with pytest.raises(recshuf.errors.InputError) as caught:
        speak_python(fail)()
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert str(error) == "a--b.txt: is long; raise max_record_bytes"
        assert error.__notes__ == ["continue with the same command and resume=True"]


CUT_URLS = [Path(f"{scheme}://bucket/out/") for scheme in (*SCHEMES, *ALIASES, "S3", "file")]
NO_NAMES: list[tuple[Any, str]] = [
    *((url, f"^{url}: is a URL in a path object, .*; give the URL as text$") for url in CUT_URLS),
    ("a\0b", r"'a\\x00b': has a NUL"),
    ("a\ud800", r"'a\\ud800': has half a character"),
    ("~/a", r"^~/a: begins with ~, .*; give /home/me/a, or \./~/a for a local path$"),
    ("", "empty; give one"),  # as one from an unset variable is
    *((one, f"^{one}: is a URL that lacks a slash; give .*//, or ./{one} for a local path$") for one in ("s3:/b/a", "GS:/b")),
]  # fmt: skip
TAKERS: dict[str, Callable[[Any], object]] = {
    "inputs": lambda cut: recshuf.shuffle(cut, "out/"),
    "one of the inputs": lambda cut: recshuf.shuffle(["in.txt", cut], "out/"),
    "output": lambda cut: recshuf.shuffle("in.txt", cut, shards=2),
    "output of a plan": lambda cut: recshuf.plan("in.txt", cut, shards=2),
    "temp_dir": lambda cut: recshuf.shuffle("in.txt", "out/", temp_dir=cut),
    "store to write": lambda cut: recshuf.scatter("in.txt", cut),
    "store to read": lambda cut: recshuf.gather(cut, "out/"),
    "store to open": recshuf.PileStore,
    "store to fill": lambda cut: recshuf.PileWriter(cut, "a"),
    "store to train from": lambda cut: recshuf.PileLoader(cut, batch_size=1),
    "cache": lambda cut: recshuf.PileLoader.from_files("in.txt", 1, cache=cut),
}


def test_names_that_no_file_can_have_or_that_mean_another_place_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "in.txt").write_text("a\nb\n")
    (tmp_path / "s3:").mkdir()
    for taker, (name, problem) in product(TAKERS, NO_NAMES):
        with pytest.raises(UsageError, match=problem):
            TAKERS[taker](name)
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "s3:"]


def test_a_name_with_a_tilde_of_its_own_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~a.txt").write_text("a\nb\n")
    assert recshuf.shuffle("~a.txt", "./~/out/").records == 2
    assert recshuf.shuffle("~/out/", "~/again/").records == 2  # now there is such a folder


def test_the_help_of_a_report_explains_each_figure() -> None:
    reports = ("CheckReport", "Plan", "ScatterReport", "ShuffleReport", "VerifyReport")
    for report in (getattr(recshuf, name) for name in reports):
        lines = inspect.getdoc(report).partition("Attributes\n----------\n")[2].splitlines()
        names = [line for line in lines if not line.startswith(" ")]
        assert names == [field.name for field in dataclasses.fields(report)]


OPTIONS = {"": "", "Gather": "gather", "Order": "check", "Scatter": "scatter", "Verify": "verify"}


def test_the_help_of_options_says_what_the_command_says() -> None:
    shown = {"": commands.default, **commands.commands}
    for name, command in OPTIONS.items():
        options: Any = getattr(recshuf, f"{name}Options")
        texts = {
            parameter.name: getattr(parameter, "help", None) for parameter in list_options(shown[command])
        }
        assert {*options.__annotations__} - {"stdin", "stdout"} <= {*texts}
        for option in options.__annotations__.keys() - {"stdin", "stdout"}:
            assert f"\n{option}\n    {to_keywords(texts[option])}" in options.__doc__
    assert "give those that `shuffle` got" in recshuf.VerifyOptions.__doc__
    assert "\n    With against: column or field" in recshuf.OrderOptions.__doc__
