"""Every option is declared once: the command, the functions and the journal go by that."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import click
import pytest

import recshuf
from recshuf.cli.commands import commands
from recshuf.formats import OWN_FORMATS, list_options, load_format
from recshuf.interfaces import ReadOptions
from recshuf.job.arguments import make_job
from recshuf.job.options import (
    OPTIONS,
    CheckOptions,
    GatherOptions,
    Options,
    ScatterOptions,
    VerifyOptions,
    flag_of,
    to_keywords,
)
from recshuf.system.memory import available_bytes
from tests.support.small_runs import put_in_place

COMMAND_ONLY = {"inputs", "output", "plan", "report", "html", "quiet", "verbose"}


def parse(*words: str) -> dict[str, object]:
    """Return what the command line of a shuffle gives the function."""
    values = commands.default.make_context("recshuf", list(words)).params
    return {name: value for name, value in values.items() if name not in COMMAND_ONLY}


def test_the_command_and_the_function_have_the_same_options_and_defaults():
    assert parse().keys() == OPTIONS.keys()
    assert OPTIONS.keys() | list_options().keys() == Options.__annotations__.keys() - {"stdin", "stdout"}
    by_command = make_job("in", "out", parse("--memory", "1GB", "--max-record-bytes", "1GiB"))
    by_function = make_job("in", "out", {"memory": 10**9, "max_record_bytes": 1 << 30})
    assert by_command == by_function
    assert by_function.read == make_job("in", "out", {"memory": 10**9}).read
    assert [name for name in OPTIONS if by_function.is_given(name)] == ["max_record_bytes", "memory"]


@pytest.mark.parametrize(
    ("options", "workers", "memory"),
    [
        ({}, 8, 40),
        ({"workers": 3}, 3, 40),
        ({"engine": "local"}, 8, 40),
        ({"engine": "ray"}, 1, 5),
        ({"engine": "tasks", "workers": 4}, 4, 20),
        ({"engine": "ray", "workers": 16}, 16, 40),
    ],
)
def test_by_default_a_run_takes_its_cores_and_half_of_the_memory_that_is_left_or_a_tasks_share_of_it(
    monkeypatch: pytest.MonkeyPatch, options: Any, workers: int, memory: int
):
    put_in_place(monkeypatch, available_bytes, lambda: 80 * 10**9)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    job = make_job("in", "out", options)
    assert (job.workers, job.memory_bytes) == (workers, memory * 10**9)


def test_options_of_other_functions_are_those_of_the_shuffle():
    for kind in (CheckOptions, GatherOptions, ScatterOptions, VerifyOptions):
        for name, annotation in kind.__annotations__.items():
            declared = Options.__annotations__[name]
            assert annotation == declared or annotation == get_args(declared)[0]


def test_every_option_is_found_by_its_flag_and_says_what_it_is():
    for name, option in OPTIONS.items():
        (shown,) = (param for param in commands.default.params if flag_of(name) in param.opts)
        assert isinstance(shown, click.Option)
        assert shown.name == name
        is_flag = get_args(Options.__annotations__[name])[0] is bool
        assert (option.metavar is None) == shown.is_flag == is_flag


def test_the_journal_of_a_default_job_says_nothing_of_options_that_came_later():
    job = make_job("in", "out", {})
    values = {name: option.identity(job) for name, option in OPTIONS.items() if option.identity}
    assert json.loads(json.dumps(values)) == dict.fromkeys(values)


def test_formats_heed_the_fields_that_options_set():
    heeded = {*chain.from_iterable(load_format(name).traits.read_options for name in OWN_FORMATS)}
    assert heeded == {option.field for option in OPTIONS.values()} - {None}
    assert heeded <= {field.name for field in fields(ReadOptions)}


def test_words_behind_the_flag_of_a_format_are_formats():
    """In messages of Python they become values, as in format='text'."""
    package, flag = Path(recshuf.__file__).parent, re.compile(r"--(?:format|to) (\w+)\b")
    lines = [line for path in package.rglob("*.py") for line in path.read_text().splitlines()]
    texts = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    words = {word for word in flag.findall(texts) if word.islower()}
    values = {word for word in words if f"={word!r}" in to_keywords(f"--format {word}")}
    assert values <= {*OWN_FORMATS}
    assert len(values) > 3
