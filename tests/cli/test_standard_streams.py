"""Standard streams and the terminal.

A file redirected to standard input is read as a file, and what has no name has the format of the output.
"""

import bz2
import gzip
import io
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

import recshuf
from recshuf.errors import UsageError
from tests.support.effort import some
from tests.support.formats.format_tools import OneWayReader
from tests.support.numbered_files import make_inputs
from tests.support.processes.command_line import COMMAND, DEADLINE


@pytest.fixture
def redirect(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[[Path], int]:
    """Return a function that makes a file standard input, as ``<`` does, and returns its descriptor."""

    def open_stdin(path: Path) -> int:
        file = path.open()
        request.addfinalizer(file.close)
        monkeypatch.setattr(sys, "stdin", file)
        return file.fileno()

    return open_stdin


@pytest.mark.parametrize("name", ["parquet", "hdf5"])
def test_a_redirected_file_that_holds_no_lines_is_refused(
    tmp_path: Path, redirect: Callable[[Path], int], name: str
) -> None:
    (path,) = make_inputs(tmp_path / "in", name, [30])
    redirect(path)
    with pytest.raises(UsageError, match=f"{name} cannot be read from standard input.*; give its path"):
        recshuf.shuffle("-", tmp_path / "out.txt")
    assert [one.name for one in tmp_path.iterdir()] == ["in"]


def test_a_redirected_file_is_read_from_where_it_stands_to_its_end(
    tmp_path: Path, redirect: Callable[[Path], int]
) -> None:
    """What was read of it before is left out, and what the shell starts after that finds nothing more."""
    path = tmp_path / "in.txt"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(1000)))
    descriptor = redirect(path)
    assert os.read(descriptor, 4) == b"0\n1\n"
    assert recshuf.shuffle("-", tmp_path / "out.txt").records == 998
    assert sorted(map(int, (tmp_path / "out.txt").read_bytes().split())) == list(range(2, 1000))
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == path.stat().st_size


def test_a_stream_given_to_the_function_is_read_as_it_is(tmp_path: Path) -> None:
    """Its descriptor may be that of a file whose bytes it decodes."""
    (path,) = make_inputs(tmp_path, "text", [300])
    expected = recshuf.shuffle(path, tmp_path / "expected.txt", seed=1).records
    packed = tmp_path / "in.bz2"
    packed.write_bytes(bz2.compress(path.read_bytes()))
    with bz2.open(packed) as stream:
        assert recshuf.shuffle("-", tmp_path / "out.txt", seed=1, stdin=stream).records == expected
    assert (tmp_path / "out.txt").read_bytes() == (tmp_path / "expected.txt").read_bytes()


@pytest.mark.parametrize("name", ["out.parquet", "out.h5", "out.jsonl"])
def test_text_of_a_stream_is_not_guessed_at_when_it_becomes_records(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        UsageError, match=r"standard input into .*; give format='text', format='jsonl' or format='csv'"
    ):
        recshuf.shuffle("-", tmp_path / name, stdin=io.BytesIO(b"1,2\n"))
    assert list(tmp_path.iterdir()) == []
    recshuf.shuffle("-", tmp_path / name, format="text", stdin=io.BytesIO(b"1,2\n"))
    assert (tmp_path / name).exists()


class TextStream:
    """What programs put in the place of standard streams to log what is printed."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


class NotebookStream(TextStream):
    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")


def make_closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (TextStream, "holds text alone here"),
        (NotebookStream, "holds text alone here"),
        (io.StringIO, "holds text alone here"),
        (make_closed, "is closed"),
        (lambda: None, "is closed"),
    ],
)
def test_streams_that_a_program_has_put_in_place_are_told_and_no_others_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], object], said: str
) -> None:
    (path,) = make_inputs(tmp_path / "in", "text", [30])
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, make())
    with pytest.raises(UsageError, match=f"standard output {said}.*; give "):
        recshuf.shuffle(path, "-")
    with pytest.raises(UsageError, match=f"standard input {said}.*; name the inputs"):
        recshuf.shuffle("-", tmp_path / "out.txt")
    if make is not make_closed:
        assert recshuf.shuffle(path, tmp_path / "out.txt", progress=True).records == 30


CONTENTS = {
    "in.jsonl": b'\xef\xbb\xbf{"a": "x"}\r\n{"a": "y"}\n\n',
    "one.jsonl": b'{"a": "x"}',
    "in.txt": b"\xef\xbb\xbfx\n\ny\n\n",
    "list.txt": b"[1]\n[2]\n",
}


@pytest.mark.parametrize(
    ("to", "name", "pack"),
    [*some(product([None, ".txt", ".jsonl", ".csv", ".parquet"], CONTENTS, [bytes, gzip.compress]), 3)],
)
def test_standard_input_gives_what_a_file_of_its_bytes_gives(
    tmp_path: Path, redirect: Callable[[Path], int], name: str, to: str | None, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "in").mkdir()
    # Any lines are text, if the output is.
    path = tmp_path / "in" / f"{name if to != '.txt' else 'in.txt'}{'' if pack is bytes else '.gz'}"
    path.write_bytes(pack(CONTENTS[name]))
    redirect(path)
    stream = OneWayReader(path.read_bytes())
    if to is None:
        outputs = [io.BytesIO() for _ in range(3)]
        for output, given, stdin in zip(outputs, [path, "-", "-"], [None, None, stream], strict=True):
            recshuf.shuffle(given, "-", seed=4, stdin=stdin, stdout=output)
        first, *others = [output.getvalue() for output in outputs]
    elif name.endswith(".txt") and to in (".jsonl", ".parquet", ".csv"):
        for stdin in (None, stream):
            if to != ".csv":  # which text may be
                with pytest.raises(UsageError, match="may be text, JSON or CSV"):
                    recshuf.shuffle("-", tmp_path / f"out{to}", stdin=stdin)
        return
    else:
        for at, given, stdin in ((0, path, None), (1, "-", None), (2, "-", stream)):
            report = recshuf.shuffle(given, tmp_path / f"{at}{to}", seed=4, stdin=stdin)
            assert (report.format == "jsonl") == (name.endswith(".jsonl") and to != ".txt")
            (read,) = report.inputs
            size = None if stdin else path.stat().st_size
            assert (read.name, read.file_bytes) == (str(path) if given == path else "standard input", size)
        first, *others = [(tmp_path / f"{at}{to}").read_bytes() for at in range(3)]
    assert others == [first, first]


# Progress is drawn on a terminal, and only there; warnings are told everywhere


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
    def run_on_terminal(self, *arguments: str | Path) -> str:
        master, terminal = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "140"}
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
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

    @pytest.mark.parametrize(("width", "is_wide"), [(40, False), (20, False), (120, True)])
    def test_a_narrow_terminal_keeps_the_percentage(
        self, width: int, is_wide: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from recshuf.audit.reports.text import TerminalProgress

        for name, value in {"COLUMNS": str(width), "TTY_COMPATIBLE": "1", "FORCE_COLOR": "1"}.items():
            monkeypatch.setenv(name, value)
        progress = TerminalProgress()
        progress.start("scatter", 3_000_000_000, 10**12)
        progress.advance(1_290_000_000, 10**11)
        progress.stop()
        progress.start("count", None, None)
        progress.advance(1_234, 10**6)
        progress.stop()
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capfd.readouterr().err)
        assert "scatter 43 %" in shown
        assert "count   1,234" in shown or "count 1,234" in shown
        assert ("1,290,000,000 of 3,000,000,000 records" in shown) == is_wide
        assert max(map(len, re.split(r"[\r\n]", shown))) <= width

    @pytest.mark.parametrize("is_terminal", [True, False])
    def test_warnings_are_told(self, capfd: pytest.CaptureFixture[str], is_terminal: bool) -> None:
        from recshuf.audit.reports.text import TerminalProgress, open_terminal

        progress = TerminalProgress() if is_terminal else open_terminal()
        progress.stop()
        progress.start("scatter", 10, 100)
        progress.advance(5, 50)
        progress.warn("careful [bold]\nhere")
        progress.start("gather", None, None)
        progress.advance(5, 50)
        progress.stop()
        progress.stop()
        told, shown = r"recshuf: warning: careful [bold]\nhere", capfd.readouterr()
        assert told in shown.err if is_terminal else shown == ("", f"{told}\n")
