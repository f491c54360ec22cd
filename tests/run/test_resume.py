"""A run that dies is continued from its finished parts, to the same bytes; what does not fit is refused by name."""

from __future__ import annotations

import errno
import io
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
import recshuf.run.resolve as resolve
from recshuf.errors import AlreadyCompleteError, InputError, OutputError, UsageError
from recshuf.job.report import SilentProgress
from recshuf.output.local.log import FileJournal, read_journal
from recshuf.output.local.stage import ShardFiles, WorkFolder
from recshuf.output.manifest import manifest_path
from recshuf.piles.pile_set import GrowingPileSet
from tests.support.numbered_files import FORMATS, make_inputs
from tests.support.processes.killed_runs import Killed, kill_after, run, run_and_die

if TYPE_CHECKING:
    from pathlib import Path

    from recshuf.job.plan import Plan

COUNTS = (300, 200, 0, 250)


@pytest.fixture(autouse=True)
def spill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small inputs spilled, with a pile set for each input."""
    whole = resolve.make_plan

    def plan_small(*arguments: Any) -> Plan:
        plan = whole(*arguments)
        sets = tuple(range(len(plan.set_of_input)))
        return replace(plan, resident_bytes=0, set_of_input=sets, scatter_workers=1)

    monkeypatch.setattr(resolve, "make_plan", plan_small)


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_until(parts: int, inputs: list[Path], output: Path, **options: Any) -> list[dict[str, Any]]:
    """Run until so many parts are finished, and return the journal."""
    run_and_die(parts, inputs, output, **options)
    assert not output.exists()
    return read_journal(output.parent / f".{output.name}.recshuf" / "journal.jsonl")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the pile sets and shards that are made."""
    names: list[str] = []
    create, path_of = GrowingPileSet.create.__func__, ShardFiles.path_of

    def create_noted(cls: type[GrowingPileSet], *arguments: Any, name: str | None = None) -> GrowingPileSet:
        names.append(str(name))
        return create(cls, *arguments, name=name)

    monkeypatch.setattr(GrowingPileSet, "create", classmethod(create_noted))

    def path_noted(self: ShardFiles, shard: int, suffix: str) -> Path:
        path = path_of(self, shard, suffix)
        if not path.exists():
            names.append(path.name)
        return path

    monkeypatch.setattr(ShardFiles, "path_of", path_noted)
    return names


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("parts", range(1, 7))
def test_a_continued_run_gives_the_same_bytes(tmp_path: Path, name: str, parts: int, made: list[str]):
    """Three pile sets (an input is empty) and three shards, finished one after the other."""
    inputs = make_inputs(tmp_path / "in", name, COUNTS)
    run(inputs, tmp_path / "whole")
    journal = run_until(parts, inputs, tmp_path / "out")
    finished = {f"set-{entry['set']:05d}.piles" for entry in journal if "set" in entry}
    finished |= {entry["name"] for entry in journal if "shard" in entry}
    assert len(finished) >= parts
    made.clear()
    report = run(inputs, tmp_path / "out", resume=True, memory="100MB", workers=3)
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")
    assert finished.isdisjoint(made)
    assert report.records == sum(COUNTS)
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "out.recshuf.json", "whole", "whole.recshuf.json"]


@pytest.mark.parametrize("parts", range(1, 7))
def test_piles_that_share_regions_are_continued(tmp_path: Path, parts: int, monkeypatch: pytest.MonkeyPatch):
    """Though the later run would not have had them share any."""
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run(inputs, tmp_path / "whole")
    plan = resolve.make_plan
    with monkeypatch.context() as patch:
        patch.setattr(resolve, "make_plan", lambda *given: replace(plan(*given), region_piles=3))
        journal = run_until(parts, inputs, tmp_path / "out")
    assert journal[0]["region_piles"] == 3
    run(inputs, tmp_path / "out", resume=True)
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


@pytest.mark.parametrize("parts", [1, 5])
def test_a_journal_that_tells_nothing_of_regions_is_continued(tmp_path: Path, parts: int):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run(inputs, tmp_path / "whole")
    entries = run_until(parts, inputs, tmp_path / "out")
    path = tmp_path / ".out.recshuf" / "journal.jsonl"
    path.unlink()
    del entries[0]["region_piles"]
    for entry in entries:
        FileJournal(path).append(entry)
    run(inputs, tmp_path / "out", resume=True)
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


@pytest.mark.parametrize(("name", "to"), [("jsonl", "parquet"), ("parquet", "jsonl"), ("hdf5", "jsonl")])
@pytest.mark.parametrize("parts", [1, 3, 5])
def test_conversions_are_continued(tmp_path: Path, name: str, to: str, parts: int):
    inputs = make_inputs(tmp_path / "in", name, COUNTS)
    run(inputs, tmp_path / "whole", to=to)
    run_until(parts, inputs, tmp_path / "out", to=to)
    run(inputs, tmp_path / "out", to=to, resume=True)
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


@pytest.mark.parametrize("parts", [1, 3])
def test_samples_are_continued(tmp_path: Path, parts: int):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run(inputs, tmp_path / "whole", head_count=50)
    run_until(parts, inputs, tmp_path / "out", head_count=50)
    run(inputs, tmp_path / "out", head_count=50, resume=True)
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


def test_a_run_may_die_again_and_again(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "parquet", COUNTS)
    run(inputs, tmp_path / "whole")
    run_until(1, inputs, tmp_path / "out")
    deaths = 0
    for _ in range(20):
        with pytest.MonkeyPatch.context() as patch:
            kill_after(patch, 1)
            try:
                run(inputs, tmp_path / "out", resume=True)
                break
            except Killed:
                deaths += 1
    assert deaths >= 3
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


def test_a_run_that_has_nothing_to_go_on_from_just_runs(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run(inputs, tmp_path / "out", resume=True)
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "out.recshuf.json"]
    with pytest.raises(AlreadyCompleteError):
        run(inputs, tmp_path / "out", resume=True)


@pytest.mark.parametrize(("before", "now"), [("none", "zstd"), ("zstd", "none"), ("lz4", "zstd")])
def test_spilled_records_may_be_compressed_in_another_way(
    tmp_path: Path, made: list[str], before: str, now: str
):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run(inputs, tmp_path / "whole")
    run_until(1, inputs, tmp_path / "out", spill_compression=before)
    made.clear()
    run(inputs, tmp_path / "out", spill_compression=now, resume=True)
    assert [name for name in made if name.startswith("set-")] == ["set-00001.piles", "set-00003.piles"]
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


def test_the_seed_that_was_drawn_is_kept(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    journal = run_until(2, inputs, tmp_path / "out", seed=None)
    report = run(inputs, tmp_path / "out", seed=None, resume=True)
    assert str(report.seed) == journal[0]["options"]["--seed"]
    run(inputs, tmp_path / "whole", seed=report.seed)
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


def test_what_is_replaced_stays_until_the_run_is_through(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run(inputs, tmp_path / "out", seed=1)
    before = read_all(tmp_path / "out")
    run_and_die(5, inputs, tmp_path / "out", overwrite=True)
    assert read_all(tmp_path / "out") == before
    run(inputs, tmp_path / "out", overwrite=True, resume=True)
    run(inputs, tmp_path / "whole")
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("spills", [True, False])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_an_output_whose_manifest_is_missing_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int, spills: bool, error: BaseException
):
    """Whatever else was finished."""
    if not spills:
        monkeypatch.undo()
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    options = {"shards": shards, "overwrite": True}
    run(inputs, tmp_path / "out", shards=2, seed=1)
    run(inputs, tmp_path / "whole", shards=shards)

    def fail(_: ShardFiles) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(ShardFiles, "place_manifest", fail)
        with pytest.raises((OutputError, KeyboardInterrupt)) as caught:
            run(inputs, tmp_path / "out", **options)
    assert "continue with the same command and resume=True" in caught.value.__notes__[0]
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")
    run(inputs, tmp_path / "out", resume=True, **options)
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")
    manifests = [manifest_path(tmp_path / name).read_bytes() for name in ("out", "whole")]
    assert manifests[0] == manifests[1]
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "out.recshuf.json", "whole", "whole.recshuf.json"]


def test_a_run_that_died_after_its_commit_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run(inputs, tmp_path / "whole")
    run(inputs, tmp_path / "out", seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "remove", WorkFolder.release)
        run(inputs, tmp_path / "out", overwrite=True)
    folder = tmp_path / ".out.recshuf"
    assert folder.is_dir()
    report = run(inputs, tmp_path / "out", overwrite=True, resume=True)
    assert [shard.name for shard in report.shards] == [f"shard-{shard:05d}.txt" for shard in range(3)]
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")
    assert not folder.exists()


@pytest.mark.parametrize("parts", [2, 5])
def test_piles_elsewhere_are_found_and_removed(tmp_path: Path, parts: int):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    (tmp_path / "temp").mkdir()
    (tmp_path / "other").mkdir()
    run(inputs, tmp_path / "whole")
    run_until(parts, inputs, tmp_path / "out", temp_dir=tmp_path / "temp")
    (piles,) = (tmp_path / "temp").iterdir()
    assert piles.stat().st_mode & 0o077 == 0
    run(inputs, tmp_path / "out", temp_dir=tmp_path / "other", resume=True)
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")
    assert list((tmp_path / "temp").iterdir()) == list((tmp_path / "other").iterdir()) == []


# What is refused


def test_without_the_option_nothing_is_touched(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run_until(2, inputs, tmp_path / "out")
    before = read_all(tmp_path)
    with pytest.raises(OutputError, match=r"\.out\.recshuf.*resume=True"):
        run(inputs, tmp_path / "out")
    assert read_all(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"seed": 6}, "seed was 5"),
        ({"shards": 4}, "shards was 3"),
        ({"shards": None, "shard_records": 9}, "shard"),
        ({"to": "jsonl"}, "to was text"),
        ({"head_count": 9}, "head_count was not given"),
        ({"compression": "gzip"}, "compression"),
        ({"separator": ";"}, "separator"),
    ],
)
def test_other_options_are_named(tmp_path: Path, options: dict[str, Any], word: str):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run_until(2, inputs, tmp_path / "out")
    before = read_all(tmp_path)
    with pytest.raises(UsageError, match=word):
        run(inputs, tmp_path / "out", resume=True, **options)
    assert read_all(tmp_path) == before


@pytest.mark.parametrize("key", ["order", "recshuf", "libraries"])
def test_other_versions_are_named(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch):
    inputs = make_inputs(tmp_path / "in", "parquet", COUNTS)
    run_until(2, inputs, tmp_path / "out")
    if key == "libraries":
        monkeypatch.setattr("pyarrow.__version__", "0.0.1")
    else:
        monkeypatch.setattr(
            f"recshuf.run.header.{'ORDER_VERSION' if key == 'order' else '__version__'}", "other"
        )
    with pytest.raises(UsageError, match=r"the version of .* was .* and is"):
        run(inputs, tmp_path / "out", resume=True)


def test_other_inputs_are_named(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run_until(2, inputs, tmp_path / "out")
    with pytest.raises(UsageError, match="the list of inputs was"):
        run(inputs[:-1], tmp_path / "out", resume=True)
    with pytest.raises(UsageError, match="the list of inputs was"):
        run(inputs[::-1], tmp_path / "out", resume=True)


def test_another_epoch_is_named(tmp_path: Path):
    store, output = tmp_path / "store", f"{tmp_path}/out/"
    recshuf.scatter(make_inputs(tmp_path / "in", "text", COUNTS), store, seed=5)
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, 2)
        with pytest.raises(Killed):
            recshuf.gather(store, output, epoch=1, shards=3)
    for number in (0, 2):
        with pytest.raises(UsageError, match=f"the epoch was 1 in the unfinished run and is {number}"):
            recshuf.gather(store, output, epoch=number, shards=3, resume=True)
    recshuf.gather(store, output, epoch=1, shards=3, resume=True)


@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.parametrize("change", ["size", "time"])
def test_changed_inputs_are_named(tmp_path: Path, index: int, change: str):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run_until(2, inputs, tmp_path / "out")
    found = inputs[index].stat()
    if change == "size":
        inputs[index].write_bytes(inputs[index].read_bytes() + b'{"id": 1}\n')
    os.utime(inputs[index], ns=(found.st_atime_ns, found.st_mtime_ns + (change == "time")))
    with pytest.raises(InputError, match=f"input{index}.txt: has changed since the unfinished run"):
        run(inputs, tmp_path / "out", resume=True)


@pytest.mark.parametrize("options", [{"stdin": io.BytesIO(b"a\n")}, {"stdout": io.BytesIO()}])
def test_streams_cannot_be_continued(tmp_path: Path, options: dict[str, Any]):
    (path,) = make_inputs(tmp_path, "text", [10])
    inputs, output = ("-", tmp_path / "out") if "stdin" in options else (path, "-")
    with pytest.raises(UsageError, match="resume=True"):
        recshuf.shuffle(inputs, output, resume=True, **options)


def test_nothing_is_kept_of_a_run_that_would_fail_again(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    inputs[-1].write_bytes(inputs[-1].read_bytes() + b"no JSON\n")
    with pytest.raises(InputError):
        run(inputs, tmp_path / "out", to="parquet")
    assert os.listdir(tmp_path) == ["in"]


# Damage


@pytest.mark.parametrize("what", ["piles", "shards"])
@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_damaged_parts_are_made_again(tmp_path: Path, what: str, damage: str):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run(inputs, tmp_path / "whole")
    run_until(5, inputs, tmp_path / "out")
    path = sorted((tmp_path / ".out.recshuf" / what).iterdir())[0]
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[content.index(b'"id"')] ^= 1
    path.unlink()
    if damage != "delete":
        path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    heard = Listener()
    run(inputs, tmp_path / "out", resume=True, progress=heard)
    assert len(heard.warnings) == 1
    assert path.name in heard.warnings[0]
    assert heard.warnings[0].endswith(("; its inputs are read again", "; it is written again"))
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


class Listener(SilentProgress):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def test_a_journal_without_its_beginning_is_not_trusted(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "text", COUNTS)
    run(inputs, tmp_path / "whole")
    run_until(3, inputs, tmp_path / "out")
    journal = tmp_path / ".out.recshuf" / "journal.jsonl"
    journal.write_bytes(b"x" + journal.read_bytes())
    heard = Listener()
    run(inputs, tmp_path / "out", resume=True, progress=heard)
    assert any("removed" in warning for warning in heard.warnings)
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


def test_the_manifest_is_that_of_an_undisturbed_run(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "parquet", COUNTS)
    run_until(4, inputs, tmp_path / "out")
    run(inputs, tmp_path / "out", resume=True)
    manifest = json.loads(manifest_path(tmp_path / "out").read_text())
    assert [one["records"] for one in manifest["inputs"]] == list(COUNTS)
    assert sum(one["records"] for one in manifest["shards"]) == sum(COUNTS)
