"""What the README and all docstrings show works as written, and what pages name exists."""

import doctest
import importlib
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import recshuf
from recshuf.cli.commands import commands
from recshuf.formats import OWN_FORMATS, load_format

PROJECT = Path(__file__).resolve().parent.parent
README = (PROJECT / "README.md").read_text(encoding="utf-8")
PAGES = [*sorted(PROJECT.glob("*.md")), *sorted(PROJECT.glob("docs/*.md"))]


def blocks(language: str) -> list[str]:
    """Return the README's fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def marked_command(marker: str) -> str:
    """Return the one-line command that follows a marker, found as .ci/run finds it."""
    command = re.search(rf"<!-- {marker} -->\n```sh\n(.+)\n```\n", README)
    assert command, f"no one-line command after the marker {marker}"
    return command[1]


def recshuf_calls() -> list[list[str]]:
    """Return the arguments of every `recshuf` command line in the README."""
    commands = [
        shlex.split(part, comments=True)
        for block in blocks("sh")
        for line in block.splitlines()
        for part in re.split(r"&&|\|", line)
    ]
    calls = [words[1:] for words in commands if words and Path(words[0]).name == "recshuf"]
    return [words[: words.index(">")] if ">" in words else words for words in calls]


def test_command_lines_parse():
    assert len(recshuf_calls()) >= 5
    for arguments in recshuf_calls():
        command = commands.commands.get(arguments[0]) if arguments else None
        words = arguments if command is None else arguments[1:]
        context = (command or commands.default).make_context("recshuf", list(words))
        given = [
            name
            for name, value in context.params.items()
            if value != () and context.get_parameter_source(name).name == "COMMANDLINE"
        ]
        flags = [word for word in words if word.startswith("-")]
        assert len(given) == len(flags) + bool(context.params.get("inputs")), arguments


def list_options(command: click.Command) -> list[click.Parameter]:
    """Return the options of a command, ``--help`` among them."""
    context = command.make_context("recshuf", [], resilient_parsing=True)
    return [option for option in command.get_params(context) if option.param_type_name == "option"]


def test_every_option_named_exists():
    every = [commands.default, *commands.commands.values()]
    known = {name for command in every for option in list_options(command) for name in option.opts}
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(--?[a-z][a-z-]*)", prose))
    assert {"--memory", "--resume", "--verify"} <= named <= known


def test_format_table_names_every_format_and_suffix():
    rows = {line.split("`")[1]: line for line in README.splitlines() if line.startswith("| `")}
    for name in OWN_FORMATS:
        row, names = rows[name].replace("as `jsonl`", rows["jsonl"]), load_format(name).traits
        assert [word for word in (*names.suffixes, *names.compressions) if word not in row] == [], name


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    lost = []
    for page in PAGES:
        links = re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8"))
        targets = [((page.parent / path).resolve() if path else page, anchor) for path, anchor in links]
        lost += [
            (page.name, path, anchor)
            for path, anchor in targets
            if not path.exists() or (anchor and anchor not in anchors(path))
        ]
    assert lost == []


def test_architecture_names_files_that_exist():
    """A name without a folder that leads nowhere is one beside the file that stands before it in its line."""
    missing = []
    for line in (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines():
        folders = [PROJECT, PROJECT / "recshuf"]
        for name in re.findall(r"`([\w./]+(?:\.py|/))`", line):
            found = [folder / name for folder in folders if (folder / name).exists()]
            missing += [] if found else [name]
            folders[2:] = [path.parent for path in found[:1]]
    assert missing == []


@pytest.mark.parametrize(
    ("page", "report"), [("verify", recshuf.VerifyReport), ("check", recshuf.CheckReport)]
)
def test_page_has_all_keys_of_the_report(page: str, report: Any):
    keys = re.findall(r"^\| (`.*?`) \|", (PROJECT / "docs" / f"{page}.md").read_text("utf-8"), re.MULTILINE)
    assert {field.name for field in fields(report)} <= set(re.findall(r"\w+", " ".join(keys)))


@pytest.mark.slow
def test_first_command_and_python_example_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    steps = [shlex.split(step) for step in marked_command("first-command").split("&&")]
    assert steps[0] == ["python3", "-m", "venv", ".venv"]
    assert steps[1][:2] == [".venv/bin/pip", "install"]
    (program, *arguments), *others = steps[2:]
    assert (program, others) == (".venv/bin/recshuf", [])
    command = [sys.executable, "-m", "recshuf", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "looks uniformly random" in done.stdout
    monkeypatch.chdir(tmp_path)
    shuffling, training = blocks("python")
    exec(compile(shuffling, "README.md", "exec"), {})
    assert capsys.readouterr().out == "200000 records in 2 shards, seed 7\n"
    names = sorted(path.name for path in Path("again").iterdir())
    assert names == sorted(path.name for path in Path("demo/shuffled").iterdir())
    for name in names:
        assert Path("again", name).read_bytes() == Path("demo/shuffled", name).read_bytes()
    names_of_example: dict[str, Any] = {}
    exec(compile(training, "README.md", "exec"), names_of_example)
    assert len(names_of_example["batch"]["label"]) == 256


def test_test_command_makes_its_own_environment():
    steps = [shlex.split(step) for step in marked_command("test-command").split("&&")]
    assert steps[0] == ["python3", "-m", "venv", ".venv"]
    assert ".[test]" in steps[1]
    assert steps[-1][:3] == [".venv/bin/python", "-m", "pytest"]


# Docstrings


OPTIONAL = {"torch", "ray", "PIL", "jinja2"}
"""Libraries that may be missing."""


def load(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        assert {error.name or name.rpartition(".")[2]} <= OPTIONAL
        return None


def test_the_examples_of_all_docstrings_hold() -> None:
    package = Path(recshuf.__file__).parent
    files = [path for path in package.rglob("*.py") if ">>>" in path.read_text(encoding="utf-8")]
    names = [".".join(path.relative_to(package.parent).with_suffix("").parts) for path in files]
    modules = filter(None, (load(name.removesuffix(".__init__")) for name in names))
    results = {module.__name__: doctest.testmod(module) for module in modules}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) > 40
