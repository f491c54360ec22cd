"""The benchmarks at the size of a test: that they run, check what they measure, and say what went wrong. No time is judged."""

import importlib.util
import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import growth, suite
from benchmarks.__main__ import main
from benchmarks.cases import CASES, FLOOR, OURSELVES, Case, Contender, Data, Promise
from benchmarks.digest import digest
from benchmarks.growth import DATA_TO_MEMORY, format_growth, plan
from benchmarks.markdown import format_report
from benchmarks.measure import LimitError, measure
from benchmarks.memory_group import open_group
from benchmarks.report import make_report
from benchmarks.suite import Settings, run_case

SIZE = 1_000_000

pytestmark = pytest.mark.slow


def name_shell(name: str, script: str, **options: Any) -> Contender:
    return Contender(name, ("sh", "-c", script, name, "{given}", "{output}"), **options)


SORT = name_shell(OURSELVES, 'sort "$1" -o "$2"')
"""Takes recshuf's place: another order of the same lines."""


@pytest.fixture
def modules_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have data made and digests found in this process, and let no run wait for the writes of other programs.

    Each of many processes would import all the libraries.
    """

    def call_module(name: str, *arguments: str) -> str:
        with redirect_stdout(io.StringIO()) as said:
            importlib.import_module(name).main(arguments, standalone_mode=False)
        return said.getvalue()

    monkeypatch.setattr(suite, "run_module", call_module)
    monkeypatch.setattr(suite.os, "sync", lambda: None)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmarks")


def run_fakes(
    folder: Path, *contenders: Contender, say: Callable[[str], object] = lambda _: None, **options: Any
) -> dict[str, Any]:
    """Run contenders on a few lines and return the report."""
    given = {"rounds": 1, "limit_seconds": 60, "patience_seconds": 60} | options
    data, promises = Data("lines20", ".txt"), (Promise("other", 2),)
    case = Case("lines", data, "out.txt", contenders, records="lines", promises=promises)
    settings = Settings(folder, 100_000, workers=2, **given)
    return make_report([run_case(case, settings, say)], "python -m benchmarks", 100_000)


def find_contender(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for case in report["cases"] for each in case["contenders"] if each["name"] == name)


# Who cannot or may not count


@pytest.mark.usefixtures("modules_are_called")
@pytest.mark.parametrize(
    ("contender", "problem"),
    [
        (name_shell("other", "echo it broke >&2; exit 3"), "exit code 3: it broke"),
        (Contender("other", (), executable="no-such-program"), "missing: no no-such-program on the PATH"),
        (Contender("other", (), module="no_such_module"), "missing: no module no_such_module"),
        (name_shell("other", "sleep 600 & wait"), "ended at its limit of 5 s"),
        (name_shell("other", 'head -n -1 "$1" >"$2"'), "wrong output: 4999 records"),
        (name_shell("other", 'sed "1s/./x/" "$1" >"$2"'), "wrong output: 5000 records"),
        (name_shell("other", "true"), "wrong output: there is none"),
    ],
    ids=["fails", "no program", "no module", "too slow", "loses", "changes", "writes nothing"],
)
def test_a_rival_that_does_not_do_the_job_is_a_line_that_says_so(
    folder: Path, contender: Contender, problem: str
) -> None:
    limit = 5 if "limit" in problem else 60  # the other one has to sort within it, too
    report = run_fakes(folder, SORT, contender, limit_seconds=limit)
    found = find_contender(report, "other")
    assert found["problem"].startswith(problem)
    assert found["median"] is None
    assert found["rounds"] == []
    assert find_contender(report, OURSELVES)["problem"] == ""
    assert report["cases"][0]["times_recshuf"] == {}
    assert f"| other | {problem}" in format_report(report)
    assert not list(folder.glob("work-*"))


@pytest.mark.usefixtures("modules_are_called")
def test_a_tool_that_uses_up_its_memory_group_is_killed(folder: Path) -> None:
    try:
        with open_group(50_000_000) as group:
            assert (group / "cgroup.procs").read_text() == ""
    except OSError as error:
        pytest.skip(f"no memory group can be made: {error}")
    code = "import sys; bytearray(10**8) if len(sys.argv) > 2 else sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
    small = Contender(OURSELVES, (sys.executable, "-c", code, "{given}"), writes_stdout=True)
    large = Contender("other", (sys.executable, "-c", code, "{given}", "large"), writes_stdout=True)
    report = run_fakes(folder, small, large, group_bytes=50_000_000)
    assert find_contender(report, OURSELVES)["problem"] == ""
    assert find_contender(report, "other")["problem"] == "killed, as the memory was used up"
    assert not group.exists()


def test_recshuf_itself_must_be_right(folder: Path) -> None:
    report = run_fakes(folder, name_shell(OURSELVES, "echo >$2"), name_shell("other", 'cp "$1" "$2"'))
    assert find_contender(report, OURSELVES)["problem"].startswith("wrong output")
    assert report["cases"][0]["times_recshuf"] == {}
    assert report["promises"] == []
    assert "| lines | wrong output" in format_report(report)


@pytest.mark.usefixtures("modules_are_called")
def test_rounds_alternate_and_ratios_are_those_of_the_medians(folder: Path) -> None:
    said: list[str] = []
    report = run_fakes(folder, SORT, name_shell("other", 'cp "$1" "$2"'), say=said.append, rounds=3)
    order = ["recshuf", "other", "other", "recshuf", "recshuf", "other"]
    assert [line.split(":")[0].split(", ")[2] for line in said] == order
    ours, other = (find_contender(report, name) for name in (OURSELVES, "other"))
    for figure in ("seconds", "cpu_seconds"):
        for each in (ours, other):
            assert each["median"][figure] == median(usage[figure] for usage in each["rounds"])
        ratio = other["median"][figure] / ours["median"][figure]
        assert report["cases"][0]["times_recshuf"]["other"][figure] == pytest.approx(ratio)
    promise = report["promises"][0]
    assert promise["found"] == report["cases"][0]["times_recshuf"]["other"]["seconds"]
    assert promise["is_kept"] == (promise["found"] >= 2)
    assert other["output_bytes"] == report["cases"][0]["input_bytes"]


# What is measured


def test_the_peak_is_the_commands_own_and_bytes_are_counted(tmp_path: Path) -> None:
    ballast = b"x" * 200_000_000
    script = "import sys; sys.stdout.write('x' * 50_000_000)"
    usage = measure(
        [sys.executable, "-c", script], log=tmp_path / "log", limit_seconds=60, stdout=tmp_path / "out"
    )
    assert 50_000_000 < usage.peak_bytes < len(ballast)
    assert 50_000_000 <= usage.written_bytes < 51_000_000
    assert usage.cpu_seconds > 0
    assert usage.seconds > 0
    copied = measure(
        ["cat"], log=tmp_path / "log", limit_seconds=60, stdin=tmp_path / "out", stdout=tmp_path / "copy"
    )
    assert 50_000_000 <= copied.read_bytes < 51_000_000


def test_children_are_counted_and_ended(tmp_path: Path) -> None:
    script = "setsid sleep 600 & echo $!; while :; do :; done"  # a shell has begun long before the limit
    with pytest.raises(LimitError):
        measure(["sh", "-c", script], log=tmp_path / "log", limit_seconds=1, stdout=tmp_path / "out")
    assert not Path(f"/proc/{int((tmp_path / 'out').read_text())}").exists()
    busy = "import subprocess as s, sys; s.run([sys.executable, '-c', 'sum(range(10_000_000))'])"
    usage = measure([sys.executable, "-c", busy], log=tmp_path / "log", limit_seconds=60)
    assert usage.cpu_seconds > 0.05  # the parent itself takes less than the child's sum


# The digest


def test_the_digest_of_lines_knows_no_order_and_every_byte(tmp_path: Path) -> None:
    def find(text: str) -> str:
        path = tmp_path / "lines.txt"
        path.write_text(text)
        return digest("lines", path)

    assert find("a\nb\nb\n") == find("b\na\nb\n") == find("b\na\nb")
    texts = ["a\nb\nb\n", "a\nb\n", "a\na\nb\n", "a\nb\nc\n", "ab\nb\n", "a\nb\nb\n\n"]
    assert len(set(map(find, texts))) == 6


def test_the_digest_of_a_table_knows_no_types_but_every_value(tmp_path: Path) -> None:
    def find(name: str, rows: list[dict[str, Any]], schema: dict[str, pa.DataType] | None = None) -> str:
        table = pa.Table.from_pylist(rows, schema and pa.schema(schema))
        pq.write_table(table, tmp_path / f"{name}.parquet")
        return digest("table", tmp_path / f"{name}.parquet")

    rows = [{"a": 1, "b": 0.5, "c": ["x", "y"]}, {"a": 2, "b": None, "c": []}]
    large = {"c": pa.large_list(pa.large_string()), "b": pa.float64(), "a": pa.int64()}
    assert find("one", rows) == find("other", rows[::-1], large)
    changes = ({"a": 3}, {"b": 0.25}, {"b": None}, {"c": ["xy"]}, {"c": ["y", "x"]})
    changed = [find(str(index), [rows[0] | change, rows[1]]) for index, change in enumerate(changes)]
    assert len({find("one", rows), *changed}) == len(changes) + 1


# The program


@pytest.mark.usefixtures("modules_are_called")
def test_every_case_runs_and_is_saved(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rivals = ["GNU shuf", "h5py copy", "random access"]
    options = ["--size", str(SIZE), "--rounds", "1", "--out", str(tmp_path)]
    chosen = [part for name in rivals for part in ("--rival", name)]
    main([str(folder), *options, *chosen], standalone_mode=False)
    ended = capsys.readouterr()
    report = json.loads((tmp_path / "benchmarks.json").read_text())
    assert [case["name"] for case in report["cases"]] == [case.name for case in CASES]
    problems = [each["problem"] for case in report["cases"] for each in case["contenders"]]
    assert set(problems) == {""}
    names = {each["name"] for case in report["cases"] for each in case["contenders"]}
    assert names == {OURSELVES, FLOOR, *rivals}
    assert (tmp_path / "benchmarks.md").read_text() == ended.out.removesuffix("\n")
    assert format_report(report) == ended.out.removesuffix("\n")
    for case in report["cases"]:
        assert f"\n## {case['name']}\n" in ended.out
    assert not list(folder.glob("work-*"))
    check_chart(tmp_path / "benchmarks.png", ended.err)


def check_chart(path: Path, said: str) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        assert "no chart: matplotlib is missing" in said
        pytest.skip("no chart: matplotlib is not installed; the extra `bench` has it")
    assert path.read_bytes().startswith(b"\x89PNG")


# Growth


def test_sizes_keep_the_ratio_of_data_to_memory() -> None:
    steps = [step for step in plan(("lines",), 16 * 10**9, 10**9, 10) if step.size > 10**9]
    assert [step.size for step in steps] == [2 * 10**9, 4 * 10**9, 8 * 10**9, 16 * 10**9]
    assert all(step.case.memory == step.size // DATA_TO_MEMORY for step in steps)


@pytest.mark.usefixtures("modules_are_called")
def test_growth_over_cores_runs_and_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--part", "cores", "--size", str(SIZE), "--rounds", "1", "--out", str(tmp_path / "out")]
    growth.main([str(tmp_path), *options], standalone_mode=False)
    report = json.loads((tmp_path / "out" / "growth.json").read_text())
    cores = range(1, len(os.sched_getaffinity(0)) + 1)
    assert [point["place"] for point in report["points"]] == [*cores] * 4
    assert {each["problem"] for point in report["points"] for each in point["contenders"]} == {""}
    assert (tmp_path / "out" / "growth-figures.md").read_text() == format_growth(report)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    check_chart(tmp_path / "out" / "growth.png", capsys.readouterr().err)
