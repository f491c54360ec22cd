"""A run may die before any of its changes on disk: the next one completes it to the same bytes, and leaves nothing."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import recshuf
from recshuf.errors import AlreadyCompleteError
from tests.support.effort import TRIES_ALL, mostly_slow
from tests.support.numbered_files import make_inputs
from tests.support.processes.deaths import die_everywhere, dies
from tests.support.small_runs import read_files, spill

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
