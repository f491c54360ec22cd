"""Every option is declared once: the command, the functions and the journal go by that."""

from __future__ import annotations

import json
from typing import get_args

import click
import pytest

from recshuf.cli.commands import commands
from recshuf.formats import FORMAT_NAMES
from recshuf.job.job import make_job
from recshuf.job.options import FORMATS, OPTIONS, CheckOptions, Options, VerifyOptions, flag_of

COMMAND_ONLY = {"inputs", "output", "plan", "report", "html", "quiet", "verbose"}


def parse(*words: str) -> dict[str, object]:
    """Return what the command line of a shuffle gives the function."""
    values = commands.default.make_context("recshuf", list(words)).params
    return {name: value for name, value in values.items() if name not in COMMAND_ONLY}


def test_the_command_and_the_function_have_the_same_options_and_defaults():
    assert parse().keys() == OPTIONS.keys() == Options.__annotations__.keys() - {"stdin", "stdout"}
    by_command, by_function = (make_job("in", "out", options) for options in (parse(), {"memory": None}))
    for one in (by_command, by_function):
        one.options["max_record_bytes"] = one.read.max_record_bytes
    assert by_command == by_function
    assert not any(map(by_function.is_given, OPTIONS.keys() - {"max_record_bytes"}))


@pytest.mark.parametrize("kind", [VerifyOptions, CheckOptions])
def test_options_of_other_functions_are_those_of_the_shuffle(kind: type):
    for name, annotation in kind.__annotations__.items():
        declared = Options.__annotations__[name]
        assert annotation in (declared, get_args(declared)[0])


def test_every_option_is_found_by_its_flag_and_says_what_it_is():
    for name, option in OPTIONS.items():
        (found,) = (one for one in commands.default.params if flag_of(name) in one.opts)
        assert isinstance(found, click.Option)
        assert found.name == name
        assert (
            (option.metavar is None) == found.is_flag == (get_args(Options.__annotations__[name])[0] is bool)
        )


def test_the_journal_of_a_default_job_says_nothing_of_options_that_came_later():
    job = make_job("in", "out", {})
    found = {name: option.identity(job) for name, option in OPTIONS.items() if option.identity}
    assert json.loads(json.dumps(found)) == dict.fromkeys(found) | {
        "header": 0,
        "separator": "0a",
        "nan_as_null": False,
    }


def test_formats_that_options_name_are_there():
    assert FORMATS == FORMAT_NAMES
    assert {*FORMATS} >= {name for option in OPTIONS.values() for name in option.formats}
