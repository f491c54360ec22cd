"""Errors are told in one line with their exit code, and nothing is imported that is not needed."""

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from recshuf.cli.commands import commands
from recshuf.errors import DiskFullError, InputError, MemoryLimitError, PileError, UsageError
from tests.conftest import Run
from tests.support.processes.command_line import assert_one_line


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "code", "words"),
        [
            (InputError("a\nb", "torn", place="byte 3"), 1, [r"error: a\nb: byte 3: torn"]),
            (UsageError("no"), 2, ["error: no"]),
            (MemoryLimitError("too little; raise --memory"), 1, ["error: too little"]),
            (DiskFullError("disk full"), 1, ["error: disk full"]),
            (PileError("torn"), 1, ["error: torn"]),
            (MemoryError(), 1, ["error: ", "--memory"]),
            (RuntimeError("can't start new thread"), 1, ["the system starts no more threads", "ulimit"]),
            (
                PermissionError(13, "Permission denied", "x"),
                1,
                ["error: x: Permission denied; give this user the right to it, or name another"],
            ),
            (OSError("odd"), 1, ["error: odd"]),
            (OSError(errno.EXDEV, "Invalid link", "a", None, b"b"), 1, ["error: a and b: Invalid link"]),
            (OSError(errno.EDQUOT, "Full", "x"), 1, ["error: x: no space left", "; free some"]),
            (OSError(errno.EFBIG, "Large", "x"), 1, ["error: x: the file may not grow", "ulimit -f"]),
            (KeyboardInterrupt(), 130, ["stopped by SIGINT"]),
            (
                ZeroDivisionError("one\ntwo"),
                1,
                [r"internal error: ZeroDivisionError: one\ntwo (test_main.py:", "-v"],
            ),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
    )
    def test_one_line_without_verbose(
        self,
        call: Run,
        lines: Path,
        monkeypatch: pytest.MonkeyPatch,
        error: BaseException,
        code: int,
        words: list[str],
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("recshuf.api.runs.shuffle", fail)
        result = call(lines)
        assert result.returncode == code
        assert_one_line(result.stderr, *words)
        verbose = call(lines, "-v")
        assert verbose.returncode == code
        assert verbose.stderr.startswith(b"Traceback") == (code != 2)
        assert verbose.stderr.splitlines()[-1].startswith(b"recshuf: ")

    def test_a_current_folder_that_has_been_deleted(
        self, call: Run, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        result = call(lines, "-o", "out.txt")
        assert result.returncode == 1
        assert_one_line(result.stderr, "error: the current folder has been deleted; change to another")

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [
            ("lines.txt", "standard output"),
            ("verify lines.txt lines.txt --report /dev/full", "/dev/full"),
            *(
                pytest.param(line, "standard output", marks=pytest.mark.slow)
                for line in (
                    "--help",
                    "lines.txt -o new.txt --plan --report -",
                    "lines.txt --plan",
                    "store --help",
                    "--version",
                    "check lines.txt --column text",
                    "verify lines.txt lines.txt",
                )
            ),
        ],
    )
    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_full_device(self, run: Run, lines: Path, arguments: str, name: str) -> None:
        streams = {"capture_output": False, "stderr": subprocess.PIPE}
        with Path("/dev/full").open("wb") as full:
            result = run(*arguments.split(), cwd=lines.parent, stdout=full, **streams)
        assert result.returncode == 1
        assert_one_line(result.stderr, f"error: {name}: no space left", "; free some, or choose another")
        assert os.listdir(lines.parent) == [lines.name]

    @pytest.mark.parametrize(
        "arguments", [(), *(pytest.param((word,), marks=pytest.mark.slow) for word in ("--plan", "--help"))]
    )
    def test_closed_pipe_ends_quietly(self, run: Run, lines: Path, arguments: tuple[str, ...]) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            result = run(lines, *arguments, capture_output=False, stdout=pipe, stderr=subprocess.PIPE)
        assert (result.returncode, result.stderr) == (141, b"")

    def test_a_program_that_runs_it_as_a_module_goes_on(self) -> None:
        """As `%run -m` in a notebook does."""
        code = """
            import runpy, sys
            for arguments, code in (("--version", 0), ("--no-such-option", 2)):
                sys.argv = ["recshuf", arguments]
                try:
                    runpy.run_module("recshuf", run_name="__main__", alter_sys=True)
                except SystemExit as done:
                    assert done.code == code
            print("goes on")
        """
        command = [sys.executable, "-c", textwrap.dedent(code)]
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
        assert done.stdout.splitlines()[-1] == b"goes on"
        assert b"No such option" in done.stderr


# Every command prints the traceback of an error with ``-v``, and of an internal error it advises that

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
        assert told.stderr.startswith(b"recshuf: internal error: ZeroDivisionError: odd (test_main.py:")
        assert told.stderr.count(b"\n") == 1
        assert told.stderr.rstrip().endswith(ADVICE)
        for line in ([*words, "-v", *given], [*words, *given, "--verbose"]):
            told = call(*line)
            assert told.returncode == 1
            assert told.stderr.startswith(b"Traceback (most recent call last):\n")
            assert b"in fail\n" in told.stderr
            assert ADVICE not in told.stderr
