"""Destinations: what an output means, what is never replaced, and what lies in the work folder."""

import json
import os
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import ForeignFileError, InputError, OutputError
from tests.support.numbered_files import make_inputs
from tests.support.processes.killed_runs import (
    Killed,
    die,
    journal_of,
    read_journal,
    run_and_die,
    strike_renames,
    write_journal,
)
from tests.support.processes.killed_runs import run as run_there
from tests.support.small_runs import Listener, read_files, spill

BOTH = pytest.mark.parametrize("overwrite", [False, True])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of its own."""
    (tmp_path / "data").mkdir()
    (tmp_path / "in.txt").write_text("a\nb\n")
    monkeypatch.chdir(tmp_path / "data")
    return tmp_path / "data"


def run(output: str, **options: Any) -> None:
    recshuf.shuffle("../in.txt", output, seed=1, **options)


def refuse(match: str, output: str, **options: Any) -> None:
    """Insist on the message, and that nothing changes."""
    before = read_files(Path())
    with pytest.raises(OutputError, match=match):
        run(output, **options)
    assert read_files(Path()) == before


@pytest.mark.parametrize(("end", "options"), [("", {"shards": 2}), ("/", {}), ("", {})])
def test_a_path_that_cannot_be_looked_at_is_an_error(end: str, options: dict[str, Any]):
    refuse(r"xxx/?: cannot be written: File name too long", f"{'x' * 300}{end}", **options)


@pytest.mark.parametrize("output", ["out", "out/", "link"])
def test_what_exists_is_refused_unless_it_may_be_replaced(output: str):
    if output == "link":
        Path(output).symlink_to("nowhere")
    else:
        run(output)
    refuse("overwrite=True", output)
    run(output, overwrite=True)


@pytest.mark.parametrize(
    ("name", "overwrite"), [("foreign.txt", True), ("foreign.txt", False), (".hidden", True), ("sub/x", True)]
)
def test_files_that_no_run_wrote_are_never_replaced(folder: Path, name: str, overwrite: bool):
    """Also where a run that died has put nothing in place."""
    run("out/")
    die_in_the_commit(late=False)
    (folder / "out" / name).parent.mkdir(exist_ok=True)
    (folder / "out" / name).touch()
    with pytest.raises(ForeignFileError) as raised:
        run("out/", overwrite=overwrite)
    assert str(raised.value) == (
        f"out: holds {name.split('/')[0]!r}, which is not from an earlier run; move it away, or choose another output"
    )


@BOTH
@pytest.mark.parametrize("exists", [False, True])
def test_shards_without_their_manifest_are_those_of_a_run_to_resume(
    folder: Path, overwrite: bool, exists: bool
):
    if exists:
        run("out/", shards=3)
    die_in_the_commit(compression="gzip")
    refuse(
        r"an unfinished run left .*\.out\.recshuf; give resume=True to complete", "out/", overwrite=overwrite
    )
    run("out/", resume=True, overwrite=overwrite, compression="gzip")
    assert read_names(folder) == ["shard-00000.txt.gz"] == os.listdir(folder / "out")


def die_in_the_commit(*, late: bool = True, **options: Any) -> None:
    """Die before the shards are in place, or right after that, so that the manifest is not."""
    with pytest.MonkeyPatch.context() as patch:
        strike_renames(patch, 0, die, late=late)
        with pytest.raises(Killed):
            run("out/", overwrite=True, **options)


def read_names(folder: Path) -> list[str]:
    """Return the names of the shards in the manifest."""
    return [one["name"] for one in json.loads((folder / ".out.recshuf.json").read_text())["shards"]]


def test_a_new_run_places_the_manifest_of_one_that_died_before_it(folder: Path):
    """The shards have names of the earlier run."""
    run("out/", shards=3)
    die_in_the_commit()
    heard = Listener(die)
    with pytest.raises(Killed):
        run("out/", overwrite=True, progress=heard)
    assert "put everything in place" in heard.warnings[0]
    assert read_names(folder) == os.listdir(folder / "out") == ["shard-00000.txt"]


def test_a_directory_without_a_manifest_is_never_replaced(folder: Path):
    (folder / "out").mkdir()
    (folder / "out" / "data.txt").touch()
    refuse(r"data\.txt", "out", overwrite=True)


MANIFESTS = [
    "",
    "[]",
    "null",
    "{}",
    '{"shards": 1}',
    '{"shards": [{}]}',
    "\xff",
    '{"shards": [1]}',
    "[" * 100_000,
]


@BOTH
def test_a_manifest_of_something_else_is_an_error_and_stays(folder: Path, overwrite: bool):
    for content in MANIFESTS:
        (folder / ".out.recshuf.json").write_text(content, encoding="latin-1")
        refuse(r"out\.recshuf\.json: is not a manifest", "out/", overwrite=overwrite)
    (folder / ".out.recshuf.json").unlink()
    (folder / ".out.recshuf.json").mkdir()
    refuse(r"out\.recshuf\.json: cannot be read: Is a directory; choose another", "out/", overwrite=overwrite)


@pytest.mark.parametrize(
    "name", ["../victim.txt", "{folder}/victim.txt", "..", ".", "", "a/b/c", "/a", "a/..", "a\0b", 7]
)
def test_a_manifest_cannot_name_files_elsewhere(folder: Path, name: Any):
    """A manifest is input like any other: whoever wrote it must not choose what is replaced."""
    (folder.parent / "victim.txt").write_text("precious")
    run("out/")
    path = folder / ".out.recshuf.json"
    manifest = json.loads(path.read_text())
    named = name.format(folder=folder.parent) if isinstance(name, str) else name
    path.write_text(json.dumps(manifest | {"shards": [{"name": named, "records": 1, "bytes": 8}]}))
    refuse("is not a manifest", "out/", overwrite=True)
    assert (folder.parent / "victim.txt").read_text() == "precious"


def test_nothing_can_lie_below_a_file_or_in_no_folder(folder: Path):
    (folder / "file").touch()
    refuse("file: is a file, and the output is a directory", "file", shards=1, overwrite=True)
    refuse("no such directory", "none/x.txt")
    for below in ("file/below", "file/far/below"):
        for end in ("", "/"):
            refuse("file: is a file, not a directory; choose another output$", below + end, overwrite=True)


def test_of_a_run_that_fails_no_folder_is_left_above_its_output(folder: Path):
    (folder.parent / "in.txt").write_bytes(b"a\n\xff\n")
    (folder / "near").mkdir()
    for above in ("near/far", "off/far"):
        with pytest.raises(InputError, match="line 2: is not UTF-8"):
            run(f"{above}/out/", to="parquet")
    assert [path.name for path in folder.rglob("*")] == ["near"]


def test_a_folder_that_another_run_makes_above_the_output_meanwhile_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = Path.mkdir

    def make_after_another(path: Path, *arguments: Any, **options: Any) -> None:
        if path.name == "new":
            monkeypatch.setattr(Path, "mkdir", whole)
            whole(path)
        whole(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", make_after_another)
    with pytest.raises(InputError):
        recshuf.shuffle("../in.txt", "new/out/", seed=1, shards=1, format="jsonl", to="parquet")
    assert os.listdir("new") == []
    run("new/out/")


@BOTH
def test_a_mount_point_is_refused_with_a_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
):
    """As a container's volume."""
    (folder / "out").mkdir()
    monkeypatch.setattr(type(folder), "is_mount", lambda path: path.name == "out")
    refuse(r"give a directory inside it, such as out/shuffled/", "out", overwrite=overwrite)
    run("out/shuffled/", overwrite=overwrite)


# The work folder: one run at a time, a journal that may be damaged, and nothing lost of what a dead run left


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return three inputs, of each of which a set is spilled, and whose output of a seed is in `whole`."""
    spill(monkeypatch)
    inputs = make_inputs(tmp_path / "in", "text", (60, 40, 50))
    run_there(inputs, tmp_path / "whole")
    return inputs


def compare(folder: Path) -> None:
    assert read_files(folder / "out") == read_files(folder / "whole")
    assert not [*folder.glob(".*.recshuf")]


@pytest.mark.parametrize("name", ["precious.txt", "shards.txt"])
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, inputs: list[Path], name: str):
    (tmp_path / ".out.recshuf").mkdir()
    (tmp_path / ".out.recshuf" / name).write_text("precious")
    with pytest.raises(OutputError, match="not from an earlier run"):
        run_there(inputs, tmp_path / "out")
    assert (tmp_path / ".out.recshuf" / name).read_text() == "precious"


@pytest.mark.parametrize("name", ["precious", "recshuf-piles-1/../precious"])
def test_a_journal_cannot_have_other_folders_deleted(tmp_path: Path, inputs: list[Path], name: str):
    (tmp_path / "precious").mkdir()
    (tmp_path / "recshuf-piles-1").mkdir()
    write_journal(tmp_path / "out", [{"piles": str(tmp_path / name)}])
    run_there(inputs, tmp_path / "out")
    compare(tmp_path)
    assert (tmp_path / "precious").is_dir()


@pytest.mark.parametrize(
    ("line", "cut", "lost"), [(0, 0, 2), (0, 300, 2), (0, -2, 2), (2, 1, 1), (2, 20, 1), (2, -1, 0)]
)
def test_a_journal_goes_on_on_a_new_line_or_is_begun_anew(
    tmp_path: Path, inputs: list[Path], line: int, cut: int, lost: int
):
    """A line is cut off, as a full disk or a kill leaves it: that of the header, or of a pile set."""
    run_and_die(2, inputs, tmp_path / "out")
    journal = journal_of(tmp_path / "out")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:line], lines[line][:cut]]))
    run_and_die(lost + 1, inputs, tmp_path / "out", resume=True)
    entries = read_journal(tmp_path / "out")
    assert entries[0]["job"]["pile_count"] == 4
    assert [entry["set"] for entry in entries[1:]] == [0, 1, 2]
    run_there(inputs, tmp_path / "out", resume=True)
    compare(tmp_path)


def test_every_damage_of_the_journal_is_noticed(tmp_path: Path, inputs: list[Path]):
    """A byte in each part of its lines: checksums, names, numbers and line ends."""
    run_and_die(4, inputs, tmp_path / "left")
    whole = read_files(tmp_path / ".left.recshuf")
    content = whole["journal.jsonl"]
    ends = [0, *accumulate(map(len, content.splitlines(keepends=True)))]
    places = {place for line in (0, 2, 4) for place in range(ends[line], ends[line + 1], 97)}
    for place in sorted(places | {end - 1 for end in ends[1:5]}):
        damaged = bytearray(content)
        damaged[place] ^= 1
        for name, data in (whole | {"journal.jsonl": bytes(damaged)}).items():
            path = tmp_path / ".out.recshuf" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        run_there(inputs, tmp_path / "out", resume=True, overwrite=True)
        assert read_files(tmp_path / "out") == read_files(tmp_path / "whole"), place
