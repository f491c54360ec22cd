"""Arguments mean what they say, and those that cannot be meant are refused in one line."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from recshuf.errors import UsageError
from recshuf.system.units import parse_bytes
from tests.cli.conftest import Refuse
from tests.conftest import Run
from tests.support.effort import mostly_slow
from tests.support.processes.command_line import COMMAND, DEADLINE, assert_one_line, numbers


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

    def test_hexadecimal_seed(self, call: Run, lines: Path) -> None:
        for seed in (0, 2**128 - 1):
            result = call(lines, "--seed", str(seed))
            assert result.returncode == 0
            assert f"seed {seed}\n".encode() in result.stderr
            assert call(lines, "--seed", hex(seed)).stdout == result.stdout

    def test_separator_escapes(self) -> None:
        known = {
            r"\n": b"\n",
            r"\0": b"\0",
            r"a\tb": b"a\tb",
            r"\xfF\x00": b"\xff\0",
            r"\\n": b"\\n",
            "é": b"\xc3\xa9",
            "\udcff": b"\xff",
        }
        assert {text: parse_bytes(text) for text in known} == known
        for text in ("\\", r"\q", r"\x4", r"a\\\\\ "):
            with pytest.raises(UsageError, match="backslash"):
                parse_bytes(text)


WRONG = {
    "contradicting": ["--shards 2 --shard-records 5 -o out/", "--shards 2 --shard-bytes 5MB -o out/", "-z --separator x", r"-z --separator \n", "-q -v", "--delimiter ; --quote ;", "--to jsonl --verify --on-bad-record quarantine:bad -o new"],
    "seeds": [f"--seed {2**128}", "--seed -1", "--seed lucky", "--seed 1-0"],
    "sizes": ["--memory much", "--memory 1KB"],
    "counts": ["--workers 0", "--head-count -1", "--header -1", "--shards 0 -o out/"],
    "names": ["--format orc", "--to orc", "--compression zstd:best", "--spill-compression brotli"],
    "bytes": [r"--separator \q", "--separator EMPTY", '--delimiter "'],
    "streams": ["--shards 2", "--on-bad-record quarantine:- -o out.parquet", "--report -", "--html - -o out.txt"],
    "columns": ["--columns a,,b", "--columns id,id", "--datasets a,b,a"],
    "empty": ["-o EMPTY", "--report EMPTY -o out.txt", "--html EMPTY -o out.txt", "--temp-dir EMPTY -o out.txt", "--schema EMPTY -o out.txt", "EMPTY -o out.txt", "-o"],
    "results": ["--report missing/report.json", "--report out.txt -o ./out.txt", "--report it --html ./it -o out.txt", "--report out.recshuf.json -o out/", "--report ./out.txt.recshuf.json -o out.txt", "--html out.recshuf.json -o out/", "--html .out.txt.recshuf -o ./out.txt"],
}  # fmt: skip
"""Words after the input, by what is wrong with them."""


REPEATED = {
    "lines.txt --columns a --seed 1 --columns b -o a": "--columns: is given 2 times; give it once, as A,B",
    "lines.txt --dedup a --dedup=b --dedup c -o a": "--dedup: is given 3 times; give it once, as F[,F]",
    "scatter lines.txt -o a --split a=1 --split b=1": "--split: is given 2 times; give it once, as NAME=SHARE,...",
}
"""What is said of lists that would be lost."""


UNHEARD = ("-", 'check "$1" --column text', 'check "$1" --column text --json')


class TestUsage:
    @pytest.mark.parametrize("kind", WRONG)
    def test_refused(self, refuse: Refuse, lines: Path, kind: str) -> None:
        for words in WRONG[kind]:
            refuse(f"lines.txt {words}", "error")

    def test_a_list_is_given_once_and_of_other_options_the_last_counts(
        self, call: Run, refuse: Refuse, lines: Path
    ) -> None:
        for line, said in REPEATED.items():
            refuse(line, said)
        assert b"seed 2\n" in call(lines, "--seed", "1", "--seed", "2").stderr
        assert call("--columns", "a", "--columns", "b", "--help").returncode == 0

    def test_no_input_and_a_terminal(self) -> None:
        master, terminal = pty.openpty()
        try:
            result = subprocess.run(COMMAND, stdin=terminal, capture_output=True, timeout=DEADLINE)
        finally:
            os.close(master)
            os.close(terminal)
        assert result.returncode == 2
        assert_one_line(result.stderr, "INPUT", "--help")

    @pytest.mark.parametrize("words", mostly_slow(["- <&-", *(f"{line} >&-" for line in UNHEARD)], "- >&-"))
    def test_closed_stream(self, lines: Path, words: str) -> None:
        """A check tells by its exit code."""
        command = ["/bin/sh", "-c", f'"$0" -m recshuf {words}', sys.executable, lines]
        result = subprocess.run(command, capture_output=True, timeout=DEADLINE)
        assert (result.returncode, b"closed" in result.stderr) == (
            (3, False) if "check" in words else (2, True)
        )
        assert result.stderr.count(b"\n") == (result.returncode == 2)
