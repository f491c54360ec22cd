"""Summaries, reports and plans: what they tell, where they go, and what they never replace."""

import json
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from threading import Thread

import pytest

from recshuf.output.manifest import manifest_path
from tests.cli.conftest import Refuse
from tests.conftest import Run
from tests.support.processes.command_line import DEADLINE, assert_one_line

pytestmark = pytest.mark.usefixtures("folder", "lines")


class TestResults:
    def test_summary_names_the_drawn_seed(self, call: Run, lines: Path, tmp_path: Path) -> None:
        output = tmp_path / "out"
        result = call(lines, "-o", f"{output}/")
        assert (result.returncode, result.stdout) == (0, b"")
        assert_one_line(result.stderr, "1,000 records", f"1 shard in {output}/", "seed ")
        seed = result.stderr.decode().split()[-1]
        assert json.loads(manifest_path(output).read_bytes())["seed"] == seed

    def test_verbose(self, call: Run, lines: Path) -> None:
        text = call(lines, "-v", "--head-count", "7").stderr.decode()
        assert all(line.startswith("recshuf: ") for line in text.splitlines())
        assert all(word in text for word in ("scatter", "gather", "peak memory", "7 of 1,000 records"))
        for options in ([], ["--resume"]):
            done = call(lines, "-v", "-o", lines.with_name("out.txt"), "--seed", "1", *options)
        assert done.returncode == 0
        assert_one_line(done.stderr, "nothing to resume")

    def test_report(self, call: Run, lines: Path, tmp_path: Path) -> None:
        report = tmp_path / "report.json"
        report.write_text("old")
        result = call(
            lines, "-o", tmp_path / "out.txt", "--report", report, "--seed", str(2**100), "--overwrite"
        )
        assert result.returncode == 0
        values = json.loads(report.read_bytes())
        assert (values["seed"], values["records"]) == (str(2**100), 1000)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.txt", "out.txt", "report.json"]

    def test_report_on_standard_output(
        self, call: Run, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = call(lines, "-o", tmp_path / "out.txt", "--report", "-", "-q")
        assert json.loads(result.stdout)["records_written"] == 1000
        assert result.stderr == b""
        monkeypatch.setattr("sys.stdout", None)
        result = call(lines, "-o", tmp_path / "other.txt", "--report", "-")
        assert_one_line(result.stderr, "--report -: standard output is closed; name a file")

    def test_plan(self, call: Run, lines: Path, tmp_path: Path) -> None:
        command = (lines, "-o", f"{tmp_path}/out/", "--shards", "3", "--memory", "99MB", "--plan", "--report")
        result = call(*command, tmp_path / "plan.json")
        assert (result.returncode, result.stderr) == (0, b"")
        shown = dict(line.split("  ", 1) for line in result.stdout.decode().splitlines())
        figures = {name.strip(): figure.strip() for name, figure in shown.items()}
        assert all(map(figures.get, ("records", "piles", "pile sets", "workers", "peak memory", "spilled")))
        assert all(map(figures.get, ("peak disk", "descriptors")))
        assert figures["shards"] == "3"
        planned = json.loads((tmp_path / "plan.json").read_bytes())
        assert planned == json.loads(call(*command, "-").stdout)
        few = ("-o", "out/", "-n", "25", "--shard-records", "10")
        for given, count in ((), 1), (few, 3):
            made = call(lines, *given, "--plan", "--report", "-").stdout
            assert json.loads(made)["shard_count"] == count
        assert planned["shard_count"] == 3
        assert not (tmp_path / "out").exists()


RESULTS = [
    "lines.txt -o new.txt --report", "lines.txt -o new/ --html", "lines.txt -o new.txt --plan --report", "verify lines.txt out --report",
    "check out --against lines.txt --html", "picture out --against lines.txt -o", "scatter lines.txt -o new --report",
    "gather store -o new.txt --report",
]  # fmt: skip
"""Commands that end in the option of a result file."""
ELSEWHERE = ("lies in the pile store ", "; name another place")
IN_A_STORE = ("store/new", "store/sets/new", "store/deep/new", "linked/new")
Lines = Iterator[tuple[str, tuple[str, ...], int]]
"""Lines that are refused, what is said of each, and the exit code."""


def list_inputs() -> Lines:
    for inputs, report in (("lines.txt", "lines.txt"), ("in", "in/lines.txt"), ("./in/*", "in/link"), ("in", "in/a/b/lines.txt"), ("./in/**/*.txt", "in/a/b/lines.txt")):  # fmt: skip
        yield f"{inputs} -o new/out.txt --report {report} --overwrite", ("among the inputs",), 2
    for command, name in product(RESULTS[:-1], ("lines.txt", "schema.json")):
        said = f"{name} is or lies among the inputs"
        yield f"{command} {name} --schema schema.json --overwrite", (said,), 2


def list_manifests_and_folders() -> Lines:
    for command, name in product(RESULTS, (".out.recshuf.json", "new.txt.recshuf.json", "manifest", "in")):
        said = "is a directory" if name == "in" else "ends in .recshuf.json, as manifests do"
        yield f"{command} {name} --overwrite", (f"{command.split()[-1]} {name} {said}; name another file",), 2


def list_outputs() -> Lines:
    """A later run would not replace an output that holds a file of its own."""
    for output in ("new", "empty"):
        link = "hollow" if output == "empty" else "new/"
        for command in (f"lines.txt -o {output}/", f"lines.txt -o {link} --shards 2 --overwrite", f"scatter lines.txt -o {output}", f"gather store -o {output}/"):  # fmt: skip
            for name in (f"{output}/report", f"{output}/deep/report"):
                said = (f"--report {name} is or lies in the output ", "name another file")
                yield f"{command} --report {name}", said, 2
    for output in ("new/", "new"):
        said = f"is or lies in the work folder of {output}"
        yield f"lines.txt -o {output} --report .new.recshuf", (said,), 2


def list_stores() -> Lines:
    """Else `store drop` refuses it."""
    for name in IN_A_STORE:
        for command in (*RESULTS, "picture lines.txt --column text -o"):
            said = f"{command.split()[-1]} {name} {ELSEWHERE[0]}"
            yield f"{command} {name}", (said, "; name another file"), 2
        for command in (
            "lines.txt",
            "gather store",
            "scatter lines.txt",
            "scatter lines.txt --split a=0.5,b=0.5",
        ):
            for slash in ("", "/"):
                yield f"{command} -o {name}{slash}", (f"{name}: {ELSEWHERE[0]}", ELSEWHERE[1]), 1
        for command in ("lines.txt -o new.jsonl", "scatter lines.txt -o more"):
            said = f"quarantine:{name} {ELSEWHERE[0]}"
            yield f"{command} --on-bad-record quarantine:{name}", (said, "; name another file"), 2
        for command in ("gallery", "demo"):
            yield f"{command} -o {name}", (f"{name}: {ELSEWHERE[0]}", ELSEWHERE[1]), 1
    for command in ("lines.txt", "gather store"):
        yield f"{command} -o store/ --overwrite", (f"store: {ELSEWHERE[0]}", ELSEWHERE[1]), 1
        for folder in ("store", *IN_A_STORE):
            said = f"--temp-dir {folder}: {ELSEWHERE[0]}"
            yield f"{command} -o new/ --temp-dir {folder}", (said, ELSEWHERE[1]), 1


def list_places() -> Lines:
    for command in ("gallery", "demo", "scatter lines.txt"):
        yield f"{command} -o -", ("-", "standard output is no folder"), 2
        yield f"{command} -o file:///a", ("file:///a", "is a URL"), 2
        if "scatter" not in command:  # stores may lie in buckets
            yield f"{command} -o s3://bucket/a", ("s3://bucket/a", "is a URL"), 2
            yield f"{command} -o .", (".: exists; name a new folder",), 1
    for command in ("lines.txt -o new.txt", "check lines.txt --column text"):
        said = "--html -: standard output is not possible here; name a file"
        yield f"{command} --html -", (said,), 2


def list_bad_records() -> Lines:
    said = "quarantine:./bad is also another option's file; name another one"
    for option in ("--report", "--html", "--schema"):
        yield f"lines.txt -o new.txt --on-bad-record quarantine:./bad {option} bad", (said,), 2
        if option != "--html":
            yield f"scatter lines.txt -o new --on-bad-record quarantine:./bad {option} bad", (said,), 2


@pytest.fixture
def places(call: Run, folder: Path, lines: Path) -> None:
    """Make inputs, an output with its manifest, a store, and links to them."""
    assert call("lines.txt", "-o", "out/", "--seed", "1").returncode == 0
    assert call("scatter", "lines.txt", "-o", "store").returncode == 0
    Path("in/a/b").mkdir(parents=True)
    Path("empty").mkdir()
    Path("schema.json").write_text('{"text": "string"}')
    for name in ("in", "in/a/b"):
        shutil.copy("lines.txt", name)
    for link, target in {"in/link": "lines.txt", "manifest": ".out.recshuf.json", "hollow": "empty", "linked": "store"}.items():  # fmt: skip
        Path(link).symlink_to(target)


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize(
    "list_lines",
    [list_inputs, list_manifests_and_folders, list_outputs, list_stores, list_places, list_bad_records],
)
def test_a_result_that_would_do_harm_is_refused(refuse: Refuse, list_lines: Callable[[], Lines]) -> None:
    for line, words, code in list_lines():
        refuse(line, *words, code=code)


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize(
    ("command", "said", "code"),
    [
        *((f"{line} old", "old: exists; give --overwrite", 1) for line in (*RESULTS[:-1], "lines.txt -o new.txt --resume --report")),
        *((f"{line} --on-bad-record quarantine:old", "quarantine:old exists already; name another file, or replace it with --overwrite", 2)
          for line in ("bad.jsonl -o new.parquet", "scatter bad.jsonl -o new")),
    ],
)  # fmt: skip
def test_a_file_about_a_run_replaces_another_one_only_if_it_may(
    call: Run, refuse: Refuse, command: str, said: str, code: int
) -> None:
    Path("bad.jsonl").write_bytes(b'{"a": 1}\n{"a"\n')
    Path("old").write_text("old")
    refuse(command, said, code=code)
    assert call(*command.split(), "--overwrite").returncode == 0
    assert Path("old").read_bytes() != b"old"


@pytest.mark.usefixtures("places")
def test_a_report_that_cannot_be_written_names_itself(call: Run) -> None:
    for number, command in enumerate(("lines.txt", "scatter lines.txt", "gather store")):
        result = call(*command.split(), "-o", f"new{number}", "--report", "/dev/full", "--seed", "1")
        assert result.returncode == 1
        assert b"/dev/full: the records are written, but not the report" in result.stderr
        assert Path(f"new{number}").exists()


@pytest.mark.parametrize("missing", ["PIL", "jinja2"])
def test_a_page_or_picture_without_its_libraries_is_refused_before_anything_is_read(
    call: Run, refuse: Refuse, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)  # type: ignore[arg-type] # as if it were not there
    remedy = "; install recshuf[report]"
    refuse("lines.txt -o out.txt --html page.html", remedy)
    Path("lines.txt").unlink()
    refuse("check lines.txt --column text --html page.html", remedy)
    if missing == "PIL":
        refuse("picture lines.txt --column text -o page.png", remedy)
    assert os.listdir() == []


def test_a_picture_goes_to_standard_output_unless_that_is_a_terminal_or_closed(
    call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL")
    command = ("picture", "lines.txt", "--column", "text", "-o")
    assert call(*command, "a.PNG").returncode == 0
    Path("a.PNG").rename("a.png")
    result = call(*command, "-")
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout == Path("a.png").read_bytes()
    assert sorted(os.listdir()) == ["a.png", "lines.txt"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert_one_line(call(*command, "-").stderr, "-o -: ", "a terminal")
    monkeypatch.setattr("sys.stdout", None)
    assert_one_line(call(*command, "-").stderr, "-o -: standard output is closed; name a file")


@pytest.mark.parametrize(("command", "option"), [("picture", "-o"), ("check", "--html")])
def test_a_pipe_is_written_to_and_not_replaced(
    call: Run, lines: Path, tmp_path: Path, command: str, option: str
) -> None:
    pytest.importorskip("PIL")
    pytest.importorskip("jinja2")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content: list[bytes] = []
    # A pool would wait for ever for a command that does not open the pipe.
    reader = Thread(target=lambda: content.append(pipe.read_bytes()), daemon=True)
    reader.start()
    call(command, lines, "--column", "text", option, pipe)
    reader.join(DEADLINE)
    assert pipe.is_fifo()
    assert content[0].startswith(b"\x89PNG" if command == "picture" else b"<!")


@pytest.mark.parametrize("command", ["lines.txt -o new.txt --report", "verify lines.txt lines.txt --report"])
def test_a_pipe_of_the_shell_is_written_to(call: Run, command: str) -> None:
    """Its name leads to `pipe:[number]`, which is no path."""
    reader, writer = os.pipe()
    try:
        assert call(*command.split(), f"/dev/fd/{writer}").returncode == 0
        assert os.read(reader, 1 << 16).startswith(b"{")
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("command", ["lines.txt --seed 1", "gather store"])
def test_a_complete_run_that_is_resumed_may_have_its_report(call: Run, refuse: Refuse, command: str) -> None:
    assert call("scatter", "lines.txt", "-o", "store").returncode == 0
    given = (*command.split(), "-o", "out/", "--resume", "--report", "report")
    assert call(*given).returncode == 0
    first = Path("report").read_bytes()
    assert (call(*given).returncode, Path("report").read_bytes()) == (0, first)
    refuse(f"{command} -o other/ --resume --report report", "report: exists; give --overwrite", code=1)


def test_a_report_that_cannot_be_written_whole_leaves_the_old_one(
    refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk. Compiled modules would be cut, too."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path("report").write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, limits[1]))
    try:
        refuse("verify lines.txt lines.txt --report report --overwrite", "report: ", code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
