"""Progress is drawn on a terminal, and only there; warnings are told everywhere."""

import os
import pty
import re
import select
import subprocess
from pathlib import Path

import pytest

from tests.support.processes.command_line import COMMAND, DEADLINE


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
