"""Every command prints the traceback of an error with ``-v``, and of an internal error it advises that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from recshuf.cli.commands import commands

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from tests.conftest import Run

ADVICE = b"; run again with -v for the traceback"


def list_commands(
    group: click.Group, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the words that call each command, and the command."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from list_commands(command, (*words, name))
        else:
            yield (*words, name), command


COMMANDS = {" ".join(words): (words, command) for words, command in list_commands(commands)}
COMMANDS["shuffle"] = (), commands.default


def fail(**_: object) -> None:
    raise ZeroDivisionError("odd")


def test_an_internal_error_has_a_traceback_where_it_is_asked_for(call: Run, monkeypatch: pytest.MonkeyPatch):
    assert {"shuffle", "task", "store info"} < COMMANDS.keys()
    for words, command in COMMANDS.values():
        monkeypatch.setattr(command, "callback", fail)
        given = ["x" for param in command.params if param.required]
        told = call(*words, *given)
        assert told.returncode == 1
        assert told.stderr.startswith(b"recshuf: internal error: ZeroDivisionError: odd (test_tracebacks.py:")
        assert told.stderr.count(b"\n") == 1
        assert told.stderr.rstrip().endswith(ADVICE)
        for line in ([*words, "-v", *given], [*words, *given, "--verbose"]):
            told = call(*line)
            assert told.returncode == 1
            assert told.stderr.startswith(b"Traceback (most recent call last):\n")
            assert b"in fail\n" in told.stderr
            assert ADVICE not in told.stderr
