"""Options that formats declare: from the command line and Python to the format, into journals, plans and stores, and refused elsewhere."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.api import runs
from recshuf.errors import RecshufWarning, UnknownOptionError, UsageError
from recshuf.formats.csv import DELIMITER
from recshuf.formats.parquet import FORMAT, ParquetFormat
from recshuf.interfaces import FormatOption, Source, Target, Traits
from tests.conftest import Run
from tests.support.other_packages import forget_formats
from tests.support.processes.killed_runs import read_journal, run_and_die
from tests.support.small_runs import spill

SKIP = FormatOption("skip_rows", "Rows to skip. Default: 0.", "N", int, 0)
MARK = FormatOption("mark", "What shards say. Default: nothing.", "TEXT", side="output")
TABLE = FormatOption("as_table", "Only of conversions.")
LOUD = FormatOption("is_loud", "Say what is read.", side="records")
PICK = FormatOption("pick", "Columns to name.", "A,B", is_list=True, flags=("-k", "--pick"))
FOUND = FormatOption("row_number", "", "N")


class Marked(ParquetFormat):
    """Parquet with options."""

    traits = replace(
        FORMAT.traits,
        name="marked",
        suffixes=(".marked",),
        options=(SKIP, MARK, LOUD, TABLE, PICK, FOUND, DELIMITER),
        converted_options=frozenset({"as_table"}),
    )

    def open_source(self, inputs: Any, options: Any) -> Source:
        source = super().open_source(inputs, options)
        if LOUD.of(options):
            source.notes = (f"skips {SKIP.of(options)}",)
        if PICK.of(options) or DELIMITER.of(options):
            source.notes = (f"picks {PICK.of(options)}, {DELIMITER.of(options)!r}",)
        SEEN_ROWS.append(FOUND.of(options))
        source.options = options.found({FOUND: 7})
        return source

    def open_target(self, schema: pa.Schema, layout: Any, options: Any) -> Target:
        SEEN.append(MARK.of(options))
        return super().open_target(schema, layout, options)


class Odd(ParquetFormat):
    """It declares an option of another format in its own way."""

    traits = replace(FORMAT.traits, name="odd", suffixes=(".odd",), options=(replace(SKIP, help="Other."),))


class Taker(ParquetFormat):
    """It declares an option of recshuf."""

    traits = Traits("taker", (".taker",), options=(FormatOption("seed", "Mine.", "N"),))


SEEN: list[str | None] = []
"""The marks that targets got."""
SEEN_ROWS: list[int | None] = []
"""What was found before, of each source."""
MARKED, ODD, TAKER = Marked(), Odd(), Taker()
HERE = "tests.formats.test_own_options"


@pytest.fixture(autouse=True)
def folder(add_package: Any) -> Path:
    """Return the folder of an installed package, which declares the options."""
    SEEN.clear()
    return add_package("recshuf-marked", marked=f"{HERE}:MARKED")


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    (tmp_path / "in").mkdir()
    paths = [tmp_path / "in" / f"{k}.marked" for k in range(3)]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"id": range(400 * number, 400 * number + 400)}), path)
    return paths


def test_the_command_and_python_give_them_to_the_format(tmp_path: Path, inputs: list[Path], call: Run):
    """Flags, values, lists and short flags, those of its own and those that other formats declare alike."""
    out = tmp_path / "out.marked"
    done = call(*inputs, "-o", out, "--is-loud", "--skip-rows=3", "--mark", "here", "--seed", 1)
    assert (done.returncode, SEEN[-1]) == (0, "here")
    assert "skips 3" in done.stderr.decode()
    for words in (["-k", "a,b", "--delimiter", r"\t"], ["--pick=a,b", "--delimiter", "\t"]):
        done = call(*inputs, "-o", out, *words, "--seed", 1, "--overwrite")
        assert r"picks ('a', 'b'), b'\t'" in done.stderr.decode()
    for given, said in (
        ({"is_loud": True, "skip_rows": 3}, "skips 3"),
        ({"pick": ["a", "b"]}, "picks ('a', 'b'), None"),
    ):
        with pytest.warns(RecshufWarning):
            report = recshuf.shuffle(inputs, out, **given, overwrite=True)
        assert (report.warnings, SEEN[-1]) == ((said,), None)
    shown = call("--help").stdout.decode()
    assert "Formats:\n" in shown
    assert re.search(r"--skip-rows N +marked: Rows to skip. Default: 0\.", shown)
    assert "--mark" not in call("scatter", "--help").stdout.decode()
    (tmp_path / "in.csv").write_text("a;b\n1;2\n")
    assert recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out.csv", delimiter=";").records == 1
    recshuf.plan(tmp_path / "in.csv", "out.marked", skip_rows=0, is_loud=True)


def test_what_is_found_is_never_given_and_an_output_is_read_with_it(
    tmp_path: Path, inputs: list[Path], call: Run
):
    with pytest.raises(UnknownOptionError, match="unknown option 'row_number'"):
        recshuf.plan(inputs, "out.marked", row_number=7)
    with pytest.raises(UnknownOptionError, match="unknown option 'skip_rows'"):
        recshuf.gather(tmp_path / "none", tmp_path / "out.marked", skip_rows=1)
    assert "--row-number" not in call("formats").stdout.decode() + call("--help").stdout.decode()
    recshuf.shuffle(inputs, tmp_path / "out.marked", seed=1)
    SEEN_ROWS.clear()
    assert recshuf.verify(inputs, tmp_path / "out.marked")
    assert SEEN_ROWS == [None, 7]


@pytest.mark.parametrize(
    ("given", "output", "options", "problem"),
    [
        ("*.marked", "out.marked", {"skip_rows": "x"}, "skip_rows 'x' is not possible: it is no whole number"),
        ("*.marked", "out.marked", {"is_loud": "yes"}, "is_loud: give True or False; here: str"),
        ("*.marked", "out.marked", {"pick": "a,a"}, "pick holds 'a' twice"),
        ("*.marked", "out.marked", {"mark": ["a"]}, "mark: give text, bytes or a whole number; here: list"),
        ("*.marked", "out.marked", {"skip_row": 1}, "unknown option 'skip_row'; did you mean skip_rows"),
        ("*.marked", "out.marked", {"as_table": True}, "as_table=True: records of marked are kept as they are, unless"),
        ("in.jsonl", "out.marked", {"skip_rows": 1}, r"^skip_rows: for inputs of marked only; here: jsonl$"),
        ("*.marked", "out.jsonl", {"mark": "a"}, r"^mark: for output of marked only; here: jsonl$"),
        ("in.jsonl", "out.parquet", {"is_loud": True}, r"^is_loud=True: for records of marked only; here: jsonl to parquet$"),
    ],
)  # fmt: skip
def test_values_that_are_not_possible_and_formats_without_them_are_named(
    inputs: list[Path], given: str, output: str, options: dict[str, Any], problem: str
):
    folder = inputs[0].parent
    (folder / "in.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match=problem):
        recshuf.plan([*folder.glob(given)], output, **options)


@pytest.mark.parametrize("name", ["odd", "taker"])
def test_packages_that_contradict_others_are_named_and_the_help_is_shown(
    add_package: Any, call: Run, name: str
):
    add_package("other", **{name: f"{HERE}:{name.upper()}"})
    problem = {
        "odd": "the format 'odd' of the package other 1.0 declares the option skip_rows in another way than "
        "the format 'marked' of the package recshuf-marked 1.0",
        "taker": "the format 'taker' of the package other 1.0 declares the option seed, which recshuf has",
    }[name]
    with pytest.raises(UsageError, match=problem):
        recshuf.plan("in.marked", "out.marked", skip_rows=1)
    shown = call("--help")
    assert shown.returncode == 0
    assert problem in " ".join(shown.stdout.decode().split())


def set_version(folder: Path, version: str) -> None:
    for metadata in folder.glob("*.dist-info/METADATA"):
        metadata.write_text(re.sub(r"(?m)^Version: .*", f"Version: {version}", metadata.read_text()))
    forget_formats()


def test_a_run_that_died_is_continued_with_the_same_ones_and_the_same_package(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch, folder: Path
):
    spill(monkeypatch)
    out, options = tmp_path / "out", {"mark": "a", "seed": 1, "workers": 1}
    run_and_die(1, inputs, out, **options)
    job = read_journal(out)[0]["job"]
    assert (job["options"]["--mark"], job["packages"]) == ("a", {"recshuf-marked": "1.0"})
    for other in ({"mark": "b"}, {"mark": None}, {"skip_rows": 1}):
        with pytest.raises(UsageError, match=f"the {next(iter(other))} was .* in the unfinished run"):
            recshuf.shuffle(inputs, f"{out}/", resume=True, **options | other)
    set_version(folder, "1.1")
    with pytest.raises(
        UsageError, match=r"the version of the package recshuf-marked was 1\.0 .* and is 1\.1"
    ):
        recshuf.shuffle(inputs, f"{out}/", resume=True, **options)
    set_version(folder, "1.0")
    recshuf.shuffle(inputs, f"{out}/", resume=True, **options)
    assert SEEN[-1] == "a"
    assert json.loads((tmp_path / ".out.recshuf.json").read_text())["packages"] == {"recshuf-marked": "1.0"}


def test_tasks_stores_and_comparisons_take_them(tmp_path: Path, inputs: list[Path]):
    _, values = runs.plan_tasks(inputs, f"{tmp_path}/out/", engine="tasks", mark="a", seed=1)
    assert values["job"]["options"]["--mark"] == "a"
    for stage in ("scatter", "gather", "commit"):
        for number in runs.list_tasks(values, stage):
            runs.run_task(values, number)
    assert {*SEEN} == {"a"}
    with pytest.warns(RecshufWarning, match="skips 2"):
        recshuf.scatter(inputs, tmp_path / "store", is_loud=True, skip_rows=2)
    with pytest.warns(RecshufWarning, match="skips 3"):
        batches = [
            *recshuf.PileLoader.from_files(
                inputs, 64, cache=tmp_path / "c", is_loud=True, skip_rows=3, rank=0
            )
        ]
    assert sum(len(batch["id"]) for batch in batches) == 1200 // 64 * 64
    recshuf.gather(tmp_path / "store", tmp_path / "one.marked", mark="b", verify=True)
    assert SEEN[-1] == "b"
    assert recshuf.verify(inputs, tmp_path / "one.marked", is_loud=True, skip_rows=2)
    assert recshuf.check(tmp_path / "one.marked", column="id", skip_rows=2)
