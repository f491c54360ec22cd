"""Command lines mean what they say; those that do not are refused or warned of before anything is written."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from recshuf.cli.commands import commands
from recshuf.errors import UsageError
from recshuf.system.units import parse_bytes
from tests.cli.conftest import Refuse
from tests.conftest import Run
from tests.support.effort import mostly_slow
from tests.support.processes.command_line import COMMAND, DEADLINE, assert_one_line, numbers

pytestmark = pytest.mark.usefixtures("folder")


MISTAKES: dict[str, list[tuple[str | tuple[str, ...], list[str]]]] = {
    "commands": [
        ("verfy a -o b", ["verfy", "did you mean: recshuf verify?"]),
        ("chekc a -o b", ["chekc", "did you mean: recshuf check?"]),
        ("Verify a -o b", ["Verify", "did you mean: recshuf verify?"]),
        (("shuffle", "lines.txt", "-o", "a b"), ["shuffle: there", "leave the word out: recshuf lines.txt -o 'a b'"]),
        ("SHUF lines.txt", ["SHUF: there", "leave the word out: recshuf lines.txt"]),
        ("lines.txt new/", ["new/: there is no such", "comes after -o: recshuf lines.txt -o new/"]),
        ("help a -o b", ["help", "did you mean: recshuf --help?"]),
        ("version a -o b", ["version", "did you mean: recshuf --version?"]),
    ],
    "URLs and streams": [
        *((f"{url} -o out", [url, "URL"]) for url in ("file:///a.txt", "ftp://host/a", "gcs://bucket/a")),
        ("check ftp://host/a --column a", ["ftp://host/a", "URL"]),
        *(
            (f"{line}{url}", [url, f"give {known}://"])
            for line in ("lines.txt -o ", "clean ")
            for url, known in (("s3a://b/a/", "s3"), ("gcs://b/a/", "gs"), ("abfs://b/a/", "az"))
        ),
        *(
            (f"{inputs} -o out", ["standard input (-) cannot be mixed with other inputs; give it alone"])
            for inputs in ("- lines.txt", "lines.txt -")
        ),
        *(
            (f"{places} {flag}", [f"{flag}{said}"])
            for flag, said in (
                ("--resume", ": a run can be continued between files only, not from standard input or to standard output"),
                ("--verify", " reads inputs and output again, which standard input and output do not allow; name files"),
            )
            for places in ("- -o out", "lines.txt")
        ),
        ("lines.txt -o out --max-record-bytes 4294967296", ["--max-record-bytes", "must be from 1 to 4294967295"]),
        ("clean out", ["out: is no URL of an object store"]),
        ("lines.txt -o out/ --temp-dir s3://b", ["--temp-dir s3://b: is a whole bucket; give a prefix in it, such as s3://b/tmp/"]),
        ("lines.txt -o out/ --temp-dir s3://b/a//c/", ["--temp-dir s3://b/a//c/: has an empty part in its key"]),
        ("lines.txt -o out --engine tasks --plan", ["--engine tasks: name the file for the plan with --report FILE"]),
        ("lines.txt -o out --engine tasks", ["recshuf INPUT... -o OUTPUT --engine tasks --plan --report FILE"]),
    ],
    "results elsewhere": [
        *(
            (f"lines.txt -o out --report {url}", [url, "is a URL"])
            for url in ("s3://bucket/a.json", "https://host/a.json", "file:///a.json")
        ),
        *(
            (f"lines.txt -o {url}", [url])
            for url in ("https://host/a.jsonl", "hf://datasets/a", "gs://b", "az://c", "file:///a.txt", "ftp://y")
        ),
        *(
            (f"picture lines.txt --column text -o {name}", [name, "ends in .png"])
            for name in ("x.jpg", "x.svg", "x.html")
        ),
    ],
    "values": [
        *(
            (f"{line} {flag}", [f"no value before {flag}; give one, or --{name}={flag} if that is it"])
            for line, name, flag in (
                ("lines.txt -o", "output", "--overwrite"),
                ("lines.txt -o out --report", "report", "-q"),
                ("lines.txt -o out --dedup", "dedup", "--no-page-checksums"),
                ("lines.txt -o out --separator", "separator", "--seed"),
                ("scatter lines.txt -o", "output", "--seed"),
                ("window out --append", "append", "--time"),
            )
        ),
        *(
            (f"{line}=~/a", ["~/a: begins with ~", "or ./~/a for a local path"])
            for line in ("lines.txt --output", "lines.txt -o out --report", "lines.txt -o out --temp-dir", "demo --output")
        ),
    ],
    "pages and pictures": [
        ("lines.txt -o out --html no/page.html", ["folder", "does not exist; create it first"]),
        ("lines.txt -o out --html out", ["lies in the output"]),
        ("lines.txt -o out --html page.html --plan", ["--html needs a run, and --plan"]),
        ("lines.txt -o out --html lines.txt", ["among the inputs"]),
        ("check lines.txt --column id --html no/page.html", ["folder", "does not exist; create it first"]),
        ("picture lines.txt --column id -o no/pic.png", ["folder", "does not exist; create it first"]),
        ("picture lines.txt --column id --overwrite -o lines.txt", ["lies among the inputs"]),
    ],
    "checks": [
        ("check", ["no data; usage: recshuf check"]),
        *(
            (f"check {line}", ["give either --against INPUT..., --column NAME or --provenance"])
            for line in ("a", "a --against b --column c", "a --provenance --against b", "a --provenance --column c")
        ),
        *((f"check lines.txt {line} --id b", ["--id works with --against"]) for line in ("--column a", "--provenance")),
        ("check lines.txt --provenance", ["no column 'source_file'"]),
        ("picture lines.txt lines.txt --provenance -o a.png", ["--provenance draws one shuffle; name one file"]),
        ("picture lines.txt lines.txt --against lines.txt -o a.png", ["--against draws one output; name one file"]),
        ("check lines.txt -q --json --column a", ["-q contradicts -v and --json"]),
        *((f"check - {line}", ["name files, and no -"]) for line in ("--column a", "--against lines.txt")),
    ],
    "options of others": [
        *(
            (f"lines.txt -o out {wrong}", [wrong.split()[0], f"did you mean {right}?"])
            for wrong, right in (("--threads 2", "--workers"), ("-j 2", "--workers"), ("--num-workers 2", "--workers"),
                                 ("--force", "--overwrite"), ("--buffer-size 9", "--memory"), ("--random_seed 1", "--seed"))
        ),
        ("clean s3://b/a --force", ["--force", "see recshuf clean --help"]),
        ("check lines.txt --colum a", ["--colum", "--column"]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("topic", MISTAKES)
def test_words_that_cannot_be_meant_are_named(refuse: Refuse, lines: Path, topic: str):
    for line, words in MISTAKES[topic]:
        refuse(line, *words)


@pytest.mark.parametrize("command", sorted(commands.commands))
def test_options_before_a_command_are_refused(
    call: Run, refuse: Refuse, lines: Path, folder: Path, command: str
):
    wrong = ("-q", "--seed 7", "-o out --seed=7", "-n 5000 -v")
    for options in wrong:
        refuse(f"{options} {command} lines.txt --unknown", command, f"put it first: recshuf {command} ...")
    (folder / command).write_bytes(numbers(10))
    given = wrong[len(command) % len(wrong)]
    assert call(*given.split(), command, lines, "-o", "out").returncode == 0
    expected = sorted([*lines.read_bytes().split(), *numbers(10).split()])
    assert sorted((folder / "out").read_bytes().split()) == expected


@pytest.mark.parametrize(
    "arguments", [["-o", "store"], ["--report", "store", "-o", "out"], ["-q", "-o", "store"]]
)
def test_the_value_of_an_option_may_be_the_name_of_a_command(call: Run, lines: Path, arguments: list[str]):
    assert call(*arguments, lines).returncode == 0
    assert "store" in os.listdir()


def test_a_pattern_may_be_the_last_input_of_standard_output(call: Run, lines: Path):
    """It is no output that lacks its option."""
    result = call(lines, "lin*.txt")
    assert sorted(result.stdout.split()) == sorted(2 * lines.read_bytes().split())


def test_a_value_may_be_spelled_like_an_option(call: Run, lines: Path):
    assert call(lines, "--output=--overwrite").returncode == 0
    assert call(lines, "-o", "out", "--record-start=-n", "--header=0", "--format=text").returncode != 2
    assert "--overwrite" in os.listdir()


@pytest.mark.parametrize(
    ("reading", "redirection"),
    mostly_slow(
        [("lines.txt", ">"), ("-", ">>"), ("./lines.txt", ">>"), ("folder", ">")],
        ("-", ">>"),
        ("folder", ">"),
    ),
)
def test_standard_output_must_not_be_an_input(folder: Path, redirection: str, reading: str):
    target = "folder/lines.txt" if reading == "folder" else "lines.txt"
    (folder / "folder").mkdir()
    (folder / target).write_bytes(numbers(10))
    given = "< lines.txt" if reading == "-" else ""
    script = f'"$@" {reading} --format text {given} {redirection} {target}'
    shell = ["/bin/sh", "-c", script, "sh", *COMMAND]
    result = subprocess.run(shell, capture_output=True, timeout=DEADLINE, check=False)
    assert result.returncode == 2
    assert_one_line(result.stderr, "is also standard output")
    assert (folder / target).read_bytes() == (numbers(10) if redirection == ">>" else b"")


WARNINGS: list[tuple[str, str]] = [
    ("folder -o a", "for a directory of shards, give a/"),
    ("folder -o b.txt", ""),
    ("folder -o c/", ""),
    ("folder/a.txt -o d", ""),
    ("folder/a.txt -o e/ --shards 10", ""),
    ("folder/a.txt -o f/ --shards 12", "2 of 12 shards are empty, as there are 10 records"),
    ("one.txt -o g/ --shards 2", "1 of 2 shards is empty, as there is 1 record\n"),
    ("folder -o folder/out/", "a later run on that reads it too"),
    ("folder -o folder/.out/", ""),
    ("folder/*.txt -o folder/out.txt", "a later run on that reads it too"),
    ("folder/*.txt -o folder/.out.txt", ""),
    ("folder/?.txt -o folder/other.txt", ""),
    ("folder/a.txt -o folder/c.txt", ""),
]


def test_outputs_that_may_not_be_meant_are_warned_of(call: Run, folder: Path):
    (folder / "folder").mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / "folder" / name).write_bytes(numbers(10))
    (folder / "one.txt").write_bytes(numbers(1))
    for line, warning in WARNINGS:
        result = call(*line.split())
        assert result.returncode == 0
        assert (b"warning" in result.stderr, warning in result.stderr.decode()) == (bool(warning), True), line


def test_format_chooses_the_files_of_a_folder(call: Run, refuse: Refuse, folder: Path):
    """Whatever the format, files of another one by name are not read."""
    (folder / "folder").mkdir()
    (folder / "folder" / "a.jsonl").write_text('{"a": 1}\n')
    (folder / "folder" / "b.txt").write_bytes(numbers(10))
    result = call("folder", "--format", "jsonl", "-o", "out.jsonl")
    assert b"passed over folder/b.txt" in result.stderr
    assert (folder / "out.jsonl").read_text() == '{"a": 1}\n'
    for name in ("parquet", "hdf5"):
        said = f"folder: holds no {name} files, only folder/a.jsonl, folder/b.txt"
        refuse(f"folder --format {name} -o out", said, code=1)
    (folder / "folder" / "b.txt").unlink()
    refuse("folder --format text -o out", "holds no text files", code=1)


@pytest.mark.parametrize("kind", [".csv", ".jsonl"])
def test_columns_of_folders_that_are_not_read_are_named(call: Run, folder: Path, kind: str):
    part = folder / "in" / "year=2024" / "lang=en"
    part.mkdir(parents=True)
    (part / f"part{kind}").write_text('{"a": 1}\n' if kind == ".jsonl" else "a\n1\n")
    result = call("in", "-o", f"out{kind}")
    assert result.returncode == 0
    assert b"part%s: the columns of its folders (year, lang) are not read" % kind.encode() in result.stderr
    assert b"warning" not in call("in", "-o", "out.parquet", "--provenance").stderr
    assert b"warning" in call("in", "-o", "other.parquet").stderr


def test_columns_of_folders_are_read_for_parquet_without_a_warning(call: Run, folder: Path):
    (folder / "a.jsonl").write_text('{"a": 1}\n')
    (folder / "in" / "year=2024").mkdir(parents=True)
    call("a.jsonl", "-o", "in/year=2024/a.parquet")
    assert b"warning" not in call("in", "-o", "out.jsonl").stderr
    assert (folder / "out.jsonl").read_text() == '{"a":1,"year":2024}\n'


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
@pytest.mark.parametrize("given", ["locked.txt", "locked", "locked/*.txt", "locked/a.txt", "missing.txt"])
def test_an_input_that_cannot_be_read_is_like_a_missing_one(call: Run, folder: Path, given: str) -> None:
    (folder / "locked.txt").touch(mode=0)
    (folder / "locked").mkdir(mode=0)
    result = call(given, "-o", "out.txt")
    assert result.returncode == 1
    assert_one_line(result.stderr, f"error: {given}: ", "; ")
    (folder / "locked").rmdir()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
@pytest.mark.parametrize("option", ["--report", "--html"])
def test_a_folder_that_cannot_be_written_is_named_before_the_run(
    call: Run, lines: Path, tmp_path: Path, option: str
) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    result = call(lines, "-o", tmp_path / "out.txt", option, folder / "file")
    assert result.returncode == 1
    assert_one_line(result.stderr, f"{option} {folder / 'file'}: ", "; name")
    assert not (tmp_path / "out.txt").exists()


# What arguments mean, and those that cannot be meant


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
