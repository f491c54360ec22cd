"""The command line: options, help, exit codes, messages, progress and signals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from recshuf.audit.reports.text import one_line
from recshuf.cli import main
from recshuf.errors import DiskFullError, InputError, MemoryLimitError, PileError, UsageError
from recshuf.job.options import parse_separator

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Run

OPTIONS = """
    --format --to --compression --shards --shard-records --shard-bytes --seed --memory --workers --temp-dir
    --spill-compression
    -n --head-count --header -z --zero-terminated --separator --max-record-bytes --datasets --columns --schema
    --piles --nan-as-null --overwrite --resume --no-space-check --plan --report -q --quiet -v --verbose --version -h --help -o --output
"""
COMMAND = [sys.executable, "-m", "recshuf"]
DEADLINE = 20


def numbers(count: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(count))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_bytes(numbers(1000))
    return path


def test_pandas_is_not_imported(run: Run, lines: Path, tmp_path: Path):
    """pyarrow does so on its own account where it is installed, which takes 0.2 s."""
    told = tmp_path / "told"
    fake = tmp_path / "fake" / "pandas.py"
    fake.parent.mkdir()
    fake.write_text(f"open({str(told)!r}, 'w').close()\n__version__ = '3.0.0'\n")
    table = tmp_path / "t.parquet"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(fake.parent), *sys.path])}
    assert run(lines, "-o", table, "--format", "text", env=environment).returncode == 0
    assert run(table, "-o", tmp_path / "out.parquet", env=environment).returncode == 0
    assert not told.exists()


def assert_one_line(stderr: bytes, *words: str) -> None:
    text = stderr.decode()
    assert text.startswith("recshuf: ")
    assert text.endswith("\n")
    assert text.count("\n") == 1
    for word in words:
        assert word in text


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        select.select([], [], [], 0.01)


def has_open_files(process: int, folder: Path) -> bool:
    """Tell whether a process holds files in a folder open, those without a name included."""
    links = [str(link.readlink()) for link in Path(f"/proc/{process}/fd").iterdir() if link.is_symlink()]
    return any(link.startswith(f"{folder}/") for link in links)


class TestHelp:
    def test_every_option_is_mentioned(self, call: Run) -> None:
        words = call("--help").stdout.decode().replace(",", " ").split()
        assert [option for option in OPTIONS.split() if option not in words] == []

    def test_headings_and_examples(self, call: Run) -> None:
        text = call("--help").stdout.decode()
        places = [text.index(f"\n{name}:\n") for name in ("Input", "Output", "Order", "Resources", "General")]
        assert places == sorted(places)
        assert text.startswith("Usage: recshuf [OPTIONS] INPUT... -o OUTPUT\n")
        assert text.count("\n  recshuf ") + text.count("| recshuf ") >= 2
        assert "_RECSHUF_COMPLETE=bash_source recshuf" in text

    def test_short_option_gives_the_same(self, call: Run) -> None:
        assert call("-h").stdout == call("--help").stdout

    def test_version(self, call: Run) -> None:
        import recshuf

        result = call("--version")
        assert result.stdout == f"recshuf {recshuf.version.__version__}\n".encode()
        assert (result.returncode, result.stderr) == (0, b"")

    @pytest.mark.parametrize("option", ["--version", "--help"])
    def test_imports_nothing_heavy(self, option: str) -> None:
        code = (
            "import sys; from recshuf.cli.main import main; sys.argv = ['recshuf', sys.argv[1]]; main();"
            "print(*{'numpy', 'pyarrow', 'rich', 'psutil', 'h5py'} & set(sys.modules), file=sys.stderr)"
        )
        result = subprocess.run([sys.executable, "-c", code, option], capture_output=True, check=True)
        assert result.stdout
        assert result.stderr.split() == []

    def test_completion_script(self, run: Run) -> None:
        result = run(env=os.environ | {"_RECSHUF_COMPLETE": "zsh_source"})
        assert result.returncode == 0
        assert b"_RECSHUF_COMPLETE=zsh_complete" in result.stdout

    def test_completion_of_an_option(self, run: Run) -> None:
        asked = {"_RECSHUF_COMPLETE": "bash_complete", "COMP_WORDS": "recshuf --shard-r", "COMP_CWORD": "1"}
        result = run(env=os.environ | asked)
        assert result.stdout.split() == [b"plain,--shard-records"]


class TestCommands:
    def test_dummy_beside_the_default(self, call: Run, monkeypatch: pytest.MonkeyPatch, lines: Path) -> None:
        @click.command
        @click.option("--loud", is_flag=True)
        @click.argument("name")
        def greet(name: str, loud: bool) -> None:
            click.echo(f"hello {name}{'!' if loud else ''}")

        monkeypatch.setitem(main.commands.commands, "greet", greet)
        assert call("greet", "you", "--loud").stdout == b"hello you!\n"
        assert call("greet").returncode == 2
        assert sorted(call(lines).stdout.splitlines()) == sorted(numbers(1000).splitlines())

    def test_file_named_like_a_command(
        self, call: Run, monkeypatch: pytest.MonkeyPatch, lines: Path, tmp_path: Path
    ) -> None:
        monkeypatch.setitem(main.commands.commands, "greet", click.Command("greet", callback=lambda: None))
        monkeypatch.chdir(tmp_path)
        lines.rename(tmp_path / "greet")
        assert call("greet").stdout == b""
        assert len(call("--format", "text", "./greet").stdout) == len(numbers(1000))

    def test_command_name_after_an_option_is_an_input(
        self, call: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(main.commands.commands, "greet", click.Command("greet", callback=lambda: None))
        result = call("-q", "greet")
        assert result.returncode == 1
        assert_one_line(result.stderr, "greet")


class TestArguments:
    def test_interleaved(self, call: Run, lines: Path, tmp_path: Path) -> None:
        first = call("--seed", "1", lines, "-o", tmp_path / "a.txt", lines, "--workers", "1")
        second = call("--workers", "1", "-o", tmp_path / "b.txt", "--seed", "1", lines, lines)
        assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
        assert (tmp_path / "a.txt").read_bytes() == (tmp_path / "b.txt").read_bytes()
        assert len((tmp_path / "a.txt").read_bytes()) == 2 * len(numbers(1000))

    def test_dash_dash(self, call: Run, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        lines.rename(tmp_path / "--seed.txt")
        assert len(call("--", "--seed.txt").stdout) == len(numbers(1000))

    @pytest.mark.parametrize("arguments", [(), ("-",), ("-", "-o", "-")])
    def test_streams(self, call: Run, arguments: tuple[str, ...]) -> None:
        result = call("--format", "text", *arguments, stdin=numbers(500))
        assert result.stdout != numbers(500)
        assert sorted(result.stdout.splitlines()) == sorted(numbers(500).splitlines())

    @pytest.mark.parametrize("seed", ["0", str(2**128 - 1)])
    def test_hexadecimal_seed(self, call: Run, lines: Path, seed: str) -> None:
        result = call(lines, "--seed", seed)
        assert result.returncode == 0
        assert f"seed {seed}\n".encode() in result.stderr
        assert call(lines, "--seed", hex(int(seed))).stdout == result.stdout

    @pytest.mark.parametrize(
        ("text", "separator"),
        [(r"\n", b"\n"), (r"\0", b"\0"), (r"a\tb", b"a\tb"), (r"\xfF\x00", b"\xff\0"), (r"\\n", b"\\n"), ("é", b"\xc3\xa9"), ("\udcff", b"\xff")],
    )  # fmt: skip
    def test_separator_escapes(self, text: str, separator: bytes) -> None:
        assert parse_separator(text) == separator

    @pytest.mark.parametrize("text", ["\\", r"\q", r"\x4", r"a\\\\\ "])
    def test_wrong_escapes(self, text: str) -> None:
        with pytest.raises(UsageError, match="backslash"):
            parse_separator(text)

    def test_bytes_that_are_no_utf8(self, tmp_path: Path) -> None:
        folder = os.fsencode(tmp_path)
        (tmp_path / "in.txt").write_bytes(b"a\xffb\xffc\xff")
        command = [os.fsencode(word) for word in COMMAND]
        arguments = [folder + b"/in.txt", b"--separator", b"\xff", b"-o", folder + b"/out\xfe.txt"]
        result = subprocess.run([*command, *arguments], capture_output=True, timeout=DEADLINE)
        assert_one_line(result.stderr, r"out\xfe.txt", "3 records")
        assert sorted(Path(os.fsdecode(folder + b"/out\xfe.txt")).read_bytes().split(b"\xff")) == [
            b"",
            b"a",
            b"b",
            b"c",
        ]


class TestUsage:
    def test_typo_gets_a_suggestion(self, call: Run) -> None:
        result = call("--shrads", "3")
        assert result.returncode == 2
        assert_one_line(result.stderr, "error", "No such option", "--shrads", "--shards")

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--shards", "2", "--shard-records", "5", "-o", "out/"),
            ("--shards", "2", "--shard-bytes", "5MB", "-o", "out/"),
            ("-z", "--separator", "x"),
            ("-q", "-v"),
            ("--seed", str(2**128)),
            ("--seed", "-1"),
            ("--seed", "lucky"),
            ("--seed", "1_0 0"),
            ("--memory", "much"),
            ("--memory", "1KB"),
            ("--workers", "0"),
            ("--format", "csv"),
            ("--to", "csv"),
            ("--separator", "\\q"),
            ("--separator", ""),
            ("--head-count", "-1"),
            ("--header", "-1"),
            ("--shards", "0", "-o", "out/"),
            ("--shards", "2"),
            ("--report", "-"),
            ("--report", "missing/report.json"),
            ("--report", "out.txt", "-o", "./out.txt"),
            ("--columns", "a,,b"),
            ("--compression", "zstd:best"),
            ("--spill-compression", "brotli"),
            ("-o",),
        ],
        ids=" ".join,
    )
    def test_refused(
        self,
        call: Run,
        lines: Path,
        tmp_path: Path,
        arguments: tuple[str, ...],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        result = call(lines, *arguments)
        assert result.returncode == 2
        assert result.stdout == b""
        assert_one_line(result.stderr, "error")
        assert [path.name for path in tmp_path.iterdir()] == [lines.name]

    def test_no_input_and_a_terminal(self) -> None:
        master, terminal = pty.openpty()
        try:
            result = subprocess.run(COMMAND, stdin=terminal, capture_output=True, timeout=DEADLINE)
        finally:
            os.close(master)
            os.close(terminal)
        assert result.returncode == 2
        assert_one_line(result.stderr, "INPUT", "--help")

    @pytest.mark.parametrize("closed", ["<&-", ">&-"])
    def test_closed_stream(self, closed: str) -> None:
        script = f'"$0" -m recshuf - {closed}'
        result = subprocess.run(
            ["/bin/sh", "-c", script, sys.executable], capture_output=True, timeout=DEADLINE
        )
        assert result.returncode == 2
        assert_one_line(result.stderr, "closed")

    def test_closed_streams_that_are_not_needed(self, lines: Path, tmp_path: Path) -> None:
        script = '"$0" -m recshuf "$1" -o "$2" <&- >&-'
        output = tmp_path / "out.txt"
        command = ["/bin/sh", "-c", script, sys.executable, lines, output]
        result = subprocess.run(command, capture_output=True, timeout=DEADLINE)
        assert result.returncode == 0, result.stderr
        assert len(output.read_bytes()) == len(numbers(1000))

    def test_a_check_with_standard_output_closed_tells_by_its_exit_code(self, lines: Path) -> None:
        for more in ("", "--json"):
            script = f'"$0" -m recshuf check "$1" --column text {more} >&-'
            command = ["/bin/sh", "-c", script, sys.executable, lines]
            result = subprocess.run(command, capture_output=True, timeout=DEADLINE)
            assert (result.returncode, result.stderr) == (3, b"")


class TestErrors:
    def test_missing_input(self, run: Run, tmp_path: Path) -> None:
        result = run(tmp_path / "none\n.txt", "-o", tmp_path / "out.txt")
        assert result.returncode == 1
        assert_one_line(result.stderr, "recshuf: error: ", r"none\n.txt")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("error", "code", "words"),
        [
            (InputError("a\nb", "torn", place="byte 3"), 1, [r"error: a\nb: byte 3: torn"]),
            (UsageError("no"), 2, ["error: no"]),
            (MemoryLimitError("too little; raise --memory"), 1, ["error: too little"]),
            (DiskFullError("disk full"), 1, ["error: disk full"]),
            (PileError("torn"), 1, ["error: torn"]),
            (MemoryError(), 1, ["error: ", "--memory"]),
            (PermissionError(13, "Permission denied", "x"), 1, ["error: x: Permission denied"]),
            (OSError("odd"), 1, ["error: odd"]),
            (ZeroDivisionError("one\ntwo"), 1, [r"internal error: ZeroDivisionError: one\ntwo", "-v"]),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
    )
    def test_one_line_without_verbose(
        self,
        call: Run,
        lines: Path,
        monkeypatch: pytest.MonkeyPatch,
        error: Exception,
        code: int,
        words: list[str],
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("recshuf.api.shuffle", fail)
        result = call(lines)
        assert result.returncode == code
        assert_one_line(result.stderr, *words)
        verbose = call(lines, "-v")
        assert verbose.returncode == code
        assert verbose.stderr.startswith(b"Traceback") == (code == 1)
        assert verbose.stderr.splitlines()[-1].startswith(b"recshuf: ")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    @pytest.mark.parametrize("arguments", [(), ("--plan",), ("--help",)])
    def test_full_device(self, lines: Path, arguments: tuple[str, ...]) -> None:
        with Path("/dev/full").open("wb") as full:
            result = subprocess.run(
                [*COMMAND, lines, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=DEADLINE
            )
        assert result.returncode == 1
        assert_one_line(result.stderr.replace(b"No space", b"no space"), "no space left")

    @pytest.mark.parametrize("arguments", [(), ("--plan",), ("--help",)])
    def test_closed_pipe_ends_quietly(self, lines: Path, arguments: tuple[str, ...]) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            result = subprocess.run(
                [*COMMAND, lines, *arguments], stdout=pipe, stderr=subprocess.PIPE, timeout=DEADLINE
            )
        assert (result.returncode, result.stderr) == (141, b"")

    def test_head(self, tmp_path: Path) -> None:
        path = tmp_path / "long.txt"
        path.write_bytes(numbers(300_000))
        script = '{ "$0" -m recshuf "$1"; echo "$?" >&2; } | head -n 2'
        result = subprocess.run(
            ["/bin/sh", "-c", script, sys.executable, path], capture_output=True, timeout=DEADLINE
        )
        assert result.stdout.count(b"\n") == 2
        assert result.stderr == b"141\n"


class TestResults:
    def test_summary_names_the_drawn_seed(self, call: Run, lines: Path, tmp_path: Path) -> None:
        output = tmp_path / "out"
        result = call(lines, "-o", f"{output}/")
        assert (result.returncode, result.stdout) == (0, b"")
        assert_one_line(result.stderr, "1,000 records", f"1 shard in {output}/", "seed ")
        seed = result.stderr.decode().split()[-1]
        assert json.loads((output / "recshuf.json").read_bytes())["seed"] == seed

    def test_quiet(self, call: Run, lines: Path) -> None:
        result = call(lines, "-q")
        assert (result.returncode, result.stderr) == (0, b"")

    def test_verbose(self, call: Run, lines: Path) -> None:
        text = call(lines, "-v", "--head-count", "7").stderr.decode()
        assert all(line.startswith("recshuf: ") for line in text.splitlines())
        assert all(word in text for word in ("scatter", "gather", "peak memory", "7 of 1,000 records"))

    def test_report(self, call: Run, lines: Path, tmp_path: Path) -> None:
        report = tmp_path / "report.json"
        report.write_text("old")
        result = call(lines, "-o", tmp_path / "out.txt", "--report", report, "--seed", str(2**100))
        assert result.returncode == 0
        values = json.loads(report.read_bytes())
        assert (values["seed"], values["records"]) == (str(2**100), 1000)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.txt", "out.txt", "report.json"]

    def test_report_inside_a_new_output_folder(self, call: Run, lines: Path, tmp_path: Path) -> None:
        result = call(lines, "-o", f"{tmp_path}/out/", "--report", tmp_path / "out" / "report.json")
        assert result.returncode == 0
        assert json.loads((tmp_path / "out" / "report.json").read_bytes())["records"] == 1000

    def test_report_on_standard_output(self, call: Run, lines: Path, tmp_path: Path) -> None:
        result = call(lines, "-o", tmp_path / "out.txt", "--report", "-")
        assert json.loads(result.stdout)["records_written"] == 1000

    def test_report_to_a_device(self, call: Run, lines: Path, tmp_path: Path) -> None:
        assert call(lines, "-o", tmp_path / "out.txt", "--report", os.devnull).returncode == 0
        assert not Path(os.devnull).is_file()

    def test_failed_run_leaves_the_old_report(self, call: Run, lines: Path, tmp_path: Path) -> None:
        report = tmp_path / "report.json"
        report.write_text("old")
        assert call(tmp_path / "none.txt", "--report", report).returncode == 1
        assert report.read_text() == "old"

    def test_plan(self, call: Run, lines: Path, tmp_path: Path) -> None:
        report = tmp_path / "plan.json"
        result = call(lines, "-o", f"{tmp_path}/out/", "--shards", "3", "--plan", "--report", report)
        assert (result.returncode, result.stderr) == (0, b"")
        shown = dict(line.split("  ", 1) for line in result.stdout.decode().splitlines())
        figures = {name.strip(): figure.strip() for name, figure in shown.items()}
        for name in (
            "records",
            "piles",
            "pile sets",
            "workers",
            "peak memory",
            "spilled",
            "peak disk",
            "descriptors",
        ):
            assert figures[name], name
        assert figures["shards"] == "3"
        assert json.loads(report.read_bytes())["shard_count"] == 3
        assert not (tmp_path / "out").exists()

    def test_plan_as_json(self, call: Run, lines: Path) -> None:
        result = call(lines, "--plan", "--report", "-")
        assert json.loads(result.stdout)["shard_count"] == 1

    def test_plan_of_a_stream(self, call: Run) -> None:
        text = call("--plan", stdin=numbers(10)).stdout.decode()
        assert "unknown" in text

    def test_the_plan_tells_that_its_disk_is_before_compression(self, call: Run, lines: Path) -> None:
        text = call(lines, "--plan", "--spill-compression", "lz4").stdout.decode()
        assert re.search(r"^spilled +\d+ B, before lz4$", text, re.MULTILINE)


def read_terminal(process: subprocess.Popen[bytes], master: int) -> str:
    shown = b""
    while True:
        ready, _, _ = select.select([master], [], [], DEADLINE)
        assert ready, "the terminal stays silent"
        try:
            part = os.read(master, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    process.wait(DEADLINE)
    return shown.decode()


class TestProgress:
    def run_on_terminal(self, *arguments: str | Path, has_stdout: bool = False) -> str:
        master, terminal = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "140"}
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=terminal if has_stdout else subprocess.DEVNULL,
            stderr=terminal,
            env=environment,
        )
        os.close(terminal)
        try:
            return read_terminal(process, master)
        finally:
            os.close(master)

    def test_shown_on_a_terminal(self, lines: Path, tmp_path: Path) -> None:
        shown = self.run_on_terminal(lines, "-o", tmp_path / "out.txt")
        assert all(word in shown for word in ("scatter", "gather", "records", "/s", "\x1b["))
        assert "recshuf: 1,000 records" in shown.splitlines()[-1]

    @pytest.mark.parametrize("command", ["verify", "check"])
    def test_other_commands_show_it_where_both_streams_are_a_terminal(
        self, command: str, lines: Path, tmp_path: Path
    ) -> None:
        arguments = ["verify", lines, lines] if command == "verify" else ["check", lines, "--column", "text"]
        shown = self.run_on_terminal(*arguments, has_stdout=True)
        assert "1,000 of 1,000 records" in shown
        assert lines.name in shown.splitlines()[-1]

    def test_not_shown_when_quiet(self, lines: Path, tmp_path: Path) -> None:
        assert self.run_on_terminal(lines, "-q", "-o", tmp_path / "out.txt") == ""

    def test_listener(self, capfd: pytest.CaptureFixture[str]) -> None:
        from recshuf.cli.terminal import TerminalProgress

        progress = TerminalProgress()
        progress.stop()
        progress.start("scatter", 10, 100)
        progress.advance(5, 50)
        progress.warn("careful [bold]\nhere")
        progress.start("gather", None, None)
        progress.advance(5, 50)
        progress.stop()
        progress.stop()
        assert r"recshuf: warning: careful [bold]\nhere" in capfd.readouterr().err

    def test_warnings_off_a_terminal(self, capfd: pytest.CaptureFixture[str]) -> None:
        from recshuf.cli.terminal import Warnings

        progress = Warnings()
        progress.start("scatter", 10, 100)
        progress.advance(5, 50)
        progress.warn("careful")
        progress.stop()
        assert capfd.readouterr() == ("", "recshuf: warning: careful\n")


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    @pytest.mark.parametrize("output", ["out.txt", "out/", "-"])
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
            wait_until(lambda: process.stdin.write(records) and has_open_files(process.pid, scratch))
            process.send_signal(number)
            assert process.wait(DEADLINE) == 128 + number
            assert process.stdout.read() == b""
            assert_one_line(process.stderr.read(), number.name)
        assert list(scratch.iterdir()) == []
        assert list(results.iterdir()) == []

    def test_ignored_signal_stays_ignored(self, tmp_path: Path) -> None:
        """As nohup and a script's background jobs want it."""
        output = tmp_path / "out.txt"
        shell = ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
        command = [*shell, *COMMAND, "--format", "text", "-o", str(output)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin
            process.stdin.write(numbers(1000))
            process.stdin.flush()
            wait_until(lambda: any(tmp_path.iterdir()))
            process.send_signal(signal.SIGHUP)
            process.communicate(numbers(100), DEADLINE)
            assert process.returncode == 0
        assert output.read_bytes().count(b"\n") == 1100

    def test_handlers_are_put_back(self, call: Run, lines: Path) -> None:
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        call(lines)
        assert [
            signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        ] == before


def test_help_names_every_command(call: Run) -> None:
    shown = call("--help").stdout.decode()
    assert all(f"recshuf {name} " in shown for name in main.commands.commands)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", r"a\nb"),
        ("a\rb\x1b", r"a\rb\x1b"),
        ("é\udcff", r"é\xff"),
        ("\u2028", r"\u2028"),
        ("\ud800", r"\ud800"),
    ],
)
def test_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_an_error_that_a_signal_led_to_is_told_as_the_signal(tmp_path: Path) -> None:
    """Python's own locks raise one where a signal interrupts them in the wrong moment."""
    (tmp_path / "in.txt").write_bytes(numbers(10))
    code = """
        import os, signal, sys
        from recshuf import api
        from recshuf.cli import main
        def shuffle(*_, **__):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                error = RuntimeError("cannot release un-acquired lock")
                error.add_note("finished parts are kept")
                raise error
        api.shuffle = shuffle
        sys.exit(main.main())
    """
    command = [sys.executable, "-c", textwrap.dedent(code), "in.txt", "-o", "out.txt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr.splitlines() == ["recshuf: stopped by SIGTERM", "recshuf: finished parts are kept"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_signal_ends_a_run_whose_output_nobody_reads(tmp_path: Path, unbuffered: str) -> None:
    """The thread that writes waits for room in the pipe; the signal reaches the main thread only."""
    (tmp_path / "lines.txt").write_bytes(b"x" * 99 + b"\n" + b"".join(b"%099d\n" % i for i in range(20_000)))
    command = [*COMMAND, tmp_path / "lines.txt", "--temp-dir", tmp_path]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        select.select(
            [child.stdout], [], [], DEADLINE
        )  # something has come, and the pipe holds no more of it
        child.send_signal(signal.SIGTERM)
        assert child.wait(DEADLINE) == 143
    assert [path.name for path in tmp_path.iterdir()] == ["lines.txt"]


def test_a_signal_ends_a_run_that_reads_a_silent_pipe(tmp_path: Path) -> None:
    """The thread that waits for more cannot be woken; what the run has made goes all the same."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    try:
        command = [*COMMAND, pipe, "--format", "text", "-o", tmp_path / "out.txt"]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as child:
            os.write(writer, numbers(1000))
            wait_until(
                lambda: len(list(tmp_path.iterdir())) > 1 and not select.select([writer], [], [], 0)[0]
            )
            child.send_signal(signal.SIGTERM)
            assert child.wait(DEADLINE) == 143
            assert child.stderr is not None
            assert_one_line(child.stderr.read(), "SIGTERM")
    finally:
        os.close(writer)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_report_never_replaces_an_input(call: Run, lines: Path, tmp_path: Path) -> None:
    content = lines.read_bytes()
    (tmp_path / "link").symlink_to(lines)
    for inputs, report in ((lines, lines), (lines.parent, lines), (f"{lines.parent}/*", tmp_path / "link")):
        result = call(inputs, "-o", tmp_path / "new" / "out.txt", "--report", report)
        assert result.returncode == 2
        assert_one_line(result.stderr, "among the inputs")
    assert lines.read_bytes() == content


def test_a_report_that_cannot_be_written_names_itself(call: Run, lines: Path, tmp_path: Path) -> None:
    result = call(lines, "-o", tmp_path / "out.txt", "--report", "/dev/full", "--seed", "1")
    assert result.returncode == 1
    assert b"/dev/full: the records are written, but not the report" in result.stderr
    assert (tmp_path / "out.txt").exists()


def test_a_signal_ends_a_run_whose_pipe_nobody_reads(tmp_path: Path) -> None:
    """A named pipe holds so much; the thread that fills it cannot be woken."""
    (tmp_path / "lines.txt").write_bytes(b"".join(b"%099d\n" % i for i in range(20_000)))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        command = [*COMMAND, tmp_path / "lines.txt", "-o", pipe]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            select.select([reader], [], [], DEADLINE)
            child.send_signal(signal.SIGTERM)
            assert child.wait(DEADLINE) == 143
            assert child.stderr is not None
            assert_one_line(child.stderr.read(), "SIGTERM")
    finally:
        os.close(reader)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.txt", "pipe"]
