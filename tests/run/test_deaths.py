"""What a run leaves that dies, or a loss of power.

It may die before any of its changes on disk: the next one completes it to the same bytes, and leaves nothing.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import recshuf
from recshuf.api import runs
from recshuf.errors import AlreadyCompleteError
from recshuf.output.manifest import manifest_path
from tests.formats.megatron.test_suite import write_pair
from tests.support.effort import TRIES_ALL, mostly_slow
from tests.support.numbered_files import make_inputs
from tests.support.processes.deaths import die_everywhere, dies
from tests.support.processes.killed_runs import read_journal
from tests.support.processes.task_runs import divide_small
from tests.support.small_runs import read_files, spill
from tests.support.stores.small_stores import append, write

COUNTS = (60, 0, 40, 50)
FIXED: dict[str, Any] = {"seed": 5, "piles": 4, "workers": 1, "memory": "300MB"}


class Kind(NamedTuple):
    """A kind of output: format of the inputs, name and options; whether the piles are on disk, and something is replaced."""

    given: str
    output: str
    options: dict[str, Any]
    spills: bool = True
    replaces: bool = False


KINDS = {
    "shards": Kind("text", "out/", {"shards": 3}),
    "shards, replaced": Kind("jsonl", "out/", {"shards": 3}, replaces=True),
    "shards, in memory": Kind("parquet", "out/", {"shards": 3}, spills=False),
    "shards, sample": Kind("hdf5", "out/", {"shards": 2, "head_count": 70}),
    "shards, groups": Kind("parquet", "out/", {"shards": 3, "group_by": "tag"}),
    "shards, in new folders": Kind("csv", "new/folder/out/", {}, spills=False),
    "shards, converted": Kind("jsonl", "out/", {"to": "parquet", "shards": 2, "provenance": True}),
    "parts, bad records": Kind(
        "jsonl", "out/", {"to": "hdf5", "split": "a=0.6,b=0.4", "split_by": "id"}, replaces=True
    ),
    "shards, verified": Kind("text", "out/", {"shards": 2, "verify": True}),
    "file": Kind("csv", "out.csv.gz", {}),
    "file, replaced": Kind("parquet", "out.parquet", {}, spills=False, replaces=True),
    "file, bad records": Kind("csv", "out.parquet", {}, replaces=True),
    "file, piles elsewhere": Kind("hdf5", "out.h5", {"temp_dir": "piles"}),
}

FAST_KINDS = ("parts, bad records", "file, replaced", "file, piles elsewhere")


def pick(files: dict[str, bytes], output: str) -> dict[str, bytes]:
    """Return those files that belong to an output, without its manifest."""
    return {path: content for path, content in files.items() if path == output or path.startswith(output)}


@pytest.mark.parametrize("name", mostly_slow(KINDS, *FAST_KINDS))
def test_a_run_that_dies_before_any_change_is_continued_to_the_same_bytes(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    kind = KINDS[name]
    folder = tmp_path / "data"
    (folder / "piles").mkdir(parents=True)
    inputs = make_inputs(tmp_path / "in", kind.given, COUNTS)
    options = FIXED | kind.options | {"overwrite": kind.replaces}
    if "temp_dir" in options:
        options["temp_dir"] = folder / "piles"
    if "bad records" in name:
        options["on_bad_record"] = f"quarantine:{folder}/bad.jsonl"
        for path in inputs[::3]:
            path.write_bytes(path.read_bytes() + b"\xff,\n\xfe,\n")
    if kind.replaces:
        (folder / "bad.jsonl").write_text("old")
        recshuf.shuffle(inputs[1:3], f"{folder}/{kind.output}", **FIXED | kind.options | {"seed": 1})
    if kind.spills:
        spill(monkeypatch)

    def run(**others: Any) -> None:
        recshuf.shuffle(inputs, f"{folder}/{kind.output}", **options | others)

    def resume(**others: Any) -> None:
        with suppress(AlreadyCompleteError):  # it died when all was done
            run(resume=True, **others)

    before, whole = read_files(folder), read_whole(folder, run)
    deaths = 0
    for step in die_everywhere(run, folder, every=1 if TRIES_ALL else 13):
        left = read_files(folder)
        assert pick(left, kind.output) in (pick(before, kind.output), pick(whole, kind.output)), step
        assert left.get("bad.jsonl") in (before.get("bad.jsonl"), whole.get("bad.jsonl")), step
        if step % 2:
            dies(resume, folder, step * 5 % 13)
        resume(workers=1 + step % 3)
        assert read_files(folder) == whole, step
        assert sorted(os.listdir(folder / "piles")) == []
        deaths += 1
    assert deaths > 1


def read_whole(folder: Path, run: Callable[[], object]) -> dict[str, bytes]:
    """Return what is in a folder after a run, and leave it as it was before."""
    shutil.copytree(folder, folder.with_name("before"))
    run()
    whole = read_files(folder)
    shutil.rmtree(folder)
    folder.with_name("before").rename(folder)
    return whole


# A loss of power, at any moment: nothing is in place that is not whole on the disk


class Disk:
    """What of files and folders is on a disk: what they held when they were synced last.

    `find` yields what has its last name, and whether the disk must have the name as well; of the others at the end only.
    """

    def __init__(
        self, root: Path, patch: pytest.MonkeyPatch, find: Callable[[Path], Iterator[tuple[Path, bool]]]
    ) -> None:
        self._root, self._find = root, find
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, int]] = {}
        self._before = {path.stat().st_ino for path in (root, *root.rglob("*"))}
        patch.setattr(os, "fsync", self._note)

    def _note(self, file: Any) -> None:
        self.check()
        descriptor = file if isinstance(file, int) else file.fileno()
        path, inode = Path(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_ino
        if path.is_dir():
            self._folders[inode] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._files[inode] = path.read_bytes()

    def check(self, *, is_end: bool = False) -> None:
        for path, needs_name in self._find(self._root):
            if path.stat().st_ino not in self._before:
                self._check_whole(path)
                for each in (path, *path.parents) if is_end else (path,) if needs_name else ():
                    if each.is_relative_to(self._root) and each.stat().st_ino not in self._before:
                        assert self._has_name(each), f"the disk lacks the name of {each}"

    def _check_whole(self, path: Path) -> None:
        if not path.is_dir():
            assert self._files.get(path.stat().st_ino) == path.read_bytes(), (
                f"the disk lacks content of {path}"
            )
            return
        for inner in path.iterdir():
            assert self._has_name(inner), f"the disk lacks the name of {inner}"
            self._check_whole(inner)

    def _has_name(self, path: Path) -> bool:
        return self._folders.get(path.parent.stat().st_ino, {}).get(path.name) == path.stat().st_ino


def shuffle(folder: Path, output: str, **options: Any) -> None:
    recshuf.shuffle(folder / "in", f"{folder}/{output}", **{"seed": 1, "overwrite": True} | options)


def run_tasks(folder: Path) -> None:
    _, plan = runs.plan_tasks(folder / "in", f"{folder}/out/", shards=3, seed=1, overwrite=True)
    for stage in ("count", "scatter", "gather", "commit"):
        for number in runs.list_tasks(plan, stage):
            runs.run_task(plan, number)


def set_aside(folder: Path) -> None:
    (folder / "bad.jsonl").write_text('{"a": 1}\n{\n')
    bad = f"quarantine:{folder}/in/bad"
    recshuf.shuffle(folder / "bad.jsonl", folder / "out.parquet", seed=1, on_bad_record=bad)


def save(folder: Path) -> None:
    (folder / "saved").mkdir()
    table = pa.table({"id": range(9)})
    with pa.ipc.new_stream(folder / "saved" / "data.arrow", table.schema) as file:
        file.write_table(table)
    (folder / "saved" / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    recshuf.shuffle(folder / "saved", f"{folder}/out/", seed=1)
    assert (folder / "out" / "state.json").exists()


HALVES = {"a": 0.5, "b": 0.5}
ACTS: dict[str, Callable[[Path], object]] = {
    "shards": lambda folder: shuffle(folder, "out/", shards=2),
    "shards in a new folder": lambda folder: shuffle(folder, "new/er/out/"),
    "parts": lambda folder: shuffle(folder, "out/", split=HALVES),
    "a file": lambda folder: shuffle(folder, "out"),
    "shards with an index": lambda folder: recshuf.shuffle(
        write_pair(folder / "one.bin", [[(1,)], [(2,)]]), f"{folder}/out/", seed=1, shards=2
    ),
    "a file with an index": lambda folder: recshuf.shuffle(
        write_pair(folder / "one.bin", [[(1,)], [(2,)]]), folder / "out.bin", seed=1
    ),
    "a saved data set": save,
    "bad records": set_aside,
    "tasks": run_tasks,
    "a store": lambda folder: recshuf.scatter(folder / "in", folder / "new"),
    "stores of a split": lambda folder: recshuf.scatter(folder / "in", folder / "stores", split=HALVES),
    "a writer": lambda folder: write(folder / "kept", "more", {"id": [3]}),
    "a window": lambda folder: append(folder / "kept", {"id": [4]}, time=2),
    "a compaction": lambda folder: recshuf.compact(folder / "kept", sets=1),
}
"""What puts something in place."""


def find_placed(folder: Path) -> Iterator[tuple[Path, bool]]:
    for path in (folder / "in" / "bad", folder / "out", folder / "new" / "er" / "out", folder / "stores"):
        yield from ((each, False) for each in (path, manifest_path(path)) if each.exists())
    if (folder / "out.idx").exists():
        yield from ((folder / "out.bin", True), (folder / "out.idx", False))
    for snapshot in folder.glob("*/snapshot-*.json"):
        yield snapshot, False
        for one in json.loads(snapshot.read_text().partition(" ")[2])["sets"]:
            yield snapshot.parent / "sets" / f"{one['name']}.piles", True
    work = folder / ".out.recshuf"
    for entry in read_journal(folder / "out") if (work / "journal.jsonl").exists() else ():
        if (
            "shard" in entry and (work / "shards" / entry["name"]).exists()
        ):  # moved in one step with its folder
            yield work / "shards" / entry["name"], (work / "tasks").exists()
    for result in folder.glob(".out.recshuf/tasks/task-*.json"):
        yield result, False
        for entry in json.loads(result.read_text())["entries"]:
            yield from ((path, False) for path in folder.glob(f".out.recshuf/*/{entry.get('name')}.piles"))


@pytest.mark.parametrize(
    ("act", "is_there"),
    [*((act, False) for act in ACTS), *((act, True) for act in ("shards", "parts", "a file", "tasks"))],
)
def test_what_has_its_name_is_whole_on_the_disk_and_at_the_end_so_is_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, is_there: bool
) -> None:
    divide_small(monkeypatch)
    make_inputs(tmp_path / "in", "text", [60, 40])
    write(tmp_path / "kept", "first", {"id": [1]})
    append(tmp_path / "kept", {"id": [2]}, time=1)
    if is_there:
        shuffle(tmp_path, "out" if act == "a file" else "out/", seed=7)
    disk = Disk(tmp_path, monkeypatch, find_placed)
    ACTS[act](tmp_path)
    disk.check(is_end=True)
