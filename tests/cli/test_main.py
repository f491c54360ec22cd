"""Errors and signals end a command in one line with its exit code, and nothing is left."""

import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import click
import pytest

import recshuf
from recshuf import __main__
from recshuf.api import runs
from recshuf.cli.commands import commands
from recshuf.errors import DiskFullError, InputError, MemoryLimitError, PileError, UsageError
from recshuf.output.local.stage import WorkFolder
from tests.conftest import Run
from tests.support.formats.format_tools import find_open_files
from tests.support.processes.command_line import COMMAND, DEADLINE, assert_one_line, numbers, wait_until
from tests.support.small_runs import Listener


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


# A signal ends a run in one line, whatever the run waits for, and nothing is left


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class TestSignals:
    @pytest.mark.parametrize(
        ("number", "output"),
        [
            (signal.SIGTERM, "out/"),
            pytest.param(signal.SIGHUP, "-", marks=pytest.mark.slow),
            pytest.param(signal.SIGINT, "out.txt", marks=pytest.mark.slow),
        ],
    )
    def test_running_job_leaves_nothing(self, tmp_path: Path, number: signal.Signals, output: str) -> None:
        """Records come until some are spilled; then the input stays open, so that the job cannot end by itself."""
        scratch, results = tmp_path / "scratch", tmp_path / "results"
        scratch.mkdir()
        results.mkdir()
        command = [*COMMAND, "--format", "text", "--temp-dir", str(scratch), "--memory", "64MB", "-o", output]
        process = subprocess.Popen(
            command, cwd=results, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with process:
            assert process.stdin
            assert process.stdout
            assert process.stderr
            records = numbers(100_000)
            wait_until(lambda: process.stdin.write(records) and find_open_files(scratch, process.pid))
            process.send_signal(number)
            assert process.wait(DEADLINE) == 128 + number
            assert process.stdout.read() == b""
            assert_one_line(process.stderr.read(), number.name)
        assert list(scratch.iterdir()) == []
        assert list(results.iterdir()) == []

    @pytest.mark.parametrize(
        ("number", "module"),
        [
            (signal.SIGTERM, "pyarrow"),
            (signal.SIGINT, "click"),
            pytest.param(signal.SIGHUP, "recshuf.cli.commands", marks=pytest.mark.slow),
            pytest.param(signal.SIGTERM, "numpy", marks=pytest.mark.slow),
        ],
    )
    def test_signal_while_modules_are_imported(
        self, tmp_path: Path, number: signal.Signals, module: str
    ) -> None:
        """The process signals itself when it looks for the module, a part of which may be loaded then, and only once."""
        (tmp_path / "in.jsonl").write_text('{"a": 1}\n')
        code = f"""
            import os, sys
            class Signaller:
                def find_spec(self, name, *_):
                    if name == {module!r}:
                        assert not struck, "imported again"
                        struck.append(name)
                        os.kill(os.getpid(), {int(number)})
            struck = []
            sys.meta_path.insert(0, Signaller())
            from recshuf.__main__ import run
            run()
        """
        command = [sys.executable, "-c", textwrap.dedent(code), "in.jsonl", "-o", "out.parquet"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=DEADLINE)
        assert done.returncode == 128 + number
        assert_one_line(done.stderr, number.name)
        assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]

    def test_handlers_are_put_back(self, call: Run, lines: Path) -> None:
        before = list(map(signal.getsignal, SIGNALS))
        call(lines)
        assert list(map(signal.getsignal, SIGNALS)) == before


@pytest.mark.parametrize(
    "error", [RuntimeError("cannot release un-acquired lock"), KeyboardInterrupt()], ids=["lock", "library"]
)
def test_an_error_that_a_signal_led_to_is_told_as_the_signal(
    call: Run, lines: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """As Python's own locks raise one in the wrong moment, and Ray while it waits. Further signals change nothing."""

    def shuffle(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            for number in SIGNALS:
                os.kill(os.getpid(), number)
            error.add_note("finished parts are kept")
            raise error

    monkeypatch.setattr("recshuf.api.runs.shuffle", shuffle)
    done = call(lines)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr.splitlines() == [b"recshuf: stopped by SIGTERM", b"recshuf: finished parts are kept"]


def test_a_signal_that_is_ignored_stays_ignored(
    call: Run, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SIGHUP under nohup."""
    shuffle = runs.shuffle

    def hang_up(*given: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGHUP)
        return shuffle(*given, **options)

    monkeypatch.setattr(runs, "shuffle", hang_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert call(lines).returncode == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_ignored_signal_stays_so_before_the_command_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def look() -> None:
        seen.extend(signal.getsignal(number) == signal.SIG_IGN for number in SIGNALS)

    monkeypatch.setattr("recshuf.cli.run", look)
    before = list(map(signal.getsignal, SIGNALS))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        __main__.run()
    finally:
        list(map(signal.signal, SIGNALS, before))
    assert seen == [False, False, True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_names_the_work_folder_that_it_leaves(
    call: Run, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """The process signals itself when some records are gathered, so that there is something to continue from."""

    def strike() -> None:
        if listener.passes[-1] == "gather" and next(gathered) == 4:
            while b'"shard"' not in journal.read_bytes():
                pass  # another thread syncs the first ones
            os.kill(os.getpid(), number)

    listener, gathered, journal = Listener(strike), count(), tmp_path / ".out.recshuf" / "journal.jsonl"
    command = (lines, "-o", f"{tmp_path}/out/", "--shards", "10", "--piles", "4", "--workers", "1")
    with monkeypatch.context() as patch:
        patch.setattr("recshuf.cli.commands.choose_progress", lambda *_, **__: listener)
        done = call(*command)
    assert done.returncode == 128 + number
    stopped, kept = done.stderr.decode().splitlines()
    assert stopped == f"recshuf: stopped by {number.name}"
    assert kept.startswith(f"recshuf: finished parts are kept in {tmp_path / '.out.recshuf'}: continue with")
    assert call(*command, "--resume").returncode == 0


def interrupt_enter(at: int, job: Callable[[], object]) -> int:
    """Do a job; an interrupt comes with a call of those that enter its work folder. Return their number up to then."""
    inside, calls = False, 0

    def see(frame: FrameType, event: str, _: object) -> None:
        nonlocal inside, calls
        if frame.f_code is WorkFolder.enter.__code__ and event in ("call", "return"):
            inside = event == "call"
        # After these Python looks for signals.
        elif inside and event in ("call", "c_return"):
            calls += 1
            if calls == at:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(see)
    try:
        job()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return calls


def test_a_signal_while_the_work_folder_is_made_leaves_nothing(lines: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "new" / "shards"
    job = partial(recshuf.shuffle, lines, f"{output}/", seed=1, shards=2, workers=1)
    for at in range(1, interrupt_enter(0, job) + 1):
        shutil.rmtree(tmp_path / "out" / "new", ignore_errors=True)
        assert interrupt_enter(at, job) == at
        assert list((tmp_path / "out").iterdir()) == [], at


@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.slow)])
def test_a_signal_ends_a_run_whose_output_nobody_reads(
    lines: Path, monkeypatch: pytest.MonkeyPatch, unbuffered: str
) -> None:
    """The pipe holds no more of the records, and nothing wakes the thread that writes."""
    lines.write_bytes(b"x" * 99 + b"\n" + b"".join(b"%099d\n" % i for i in range(20_000)))
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = [*COMMAND, lines, "--temp-dir", lines.parent]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert select.select([child.stdout], [], [], DEADLINE)[0]
        child.send_signal(signal.SIGTERM)
        assert child.wait(DEADLINE) == 128 + signal.SIGTERM
        assert child.stderr is not None
        assert_one_line(child.stderr.read(), "SIGTERM")
    assert os.listdir(lines.parent) == [lines.name]
