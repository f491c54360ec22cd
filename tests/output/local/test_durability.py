"""What outlasts a loss of power: everything is synced before it gets its name, and the folder of the name after that."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import recshuf
from recshuf.errors import OutputError
from recshuf.output.manifest import manifest_path
from recshuf.system.files import exchange, sync_file_system
from recshuf.system.threads import Pool
from tests.support.numbered_files import make_inputs
from tests.support.processes.killed_runs import (
    Killed,
    die,
    journal_of,
    read_journal,
    refuse_exchange,
    strike_renames,
)
from tests.support.processes.task_runs import divide_small
from tests.support.small_runs import Listener, put_in_place

if TYPE_CHECKING:
    from collections.abc import Callable


class Sync(NamedTuple):
    """A file or folder that was synced, by the numbers of the system, and what had its name then."""

    inode: int
    bytes: int
    output: int | None
    manifest: int | None


class Syncs(list[Sync]):
    """What is synced, in order."""

    def __init__(self, output: Path, monkeypatch: pytest.MonkeyPatch, awaited: int = 0) -> None:
        self.output, self.manifest = output, manifest_path(output)
        self._shards, self._awaited = output.with_name(f".{output.name}.recshuf") / "shards", awaited
        monkeypatch.setattr(os, "fsync", self.note)

    def note(self, file: Any) -> None:
        found = os.fstat(file if isinstance(file, int) else file.fileno())
        # The first shard takes until so many others wait.
        while self._awaited and len(os.listdir(self._shards)) < self._awaited:
            os.sched_yield()
        self._awaited = 0
        self.append(Sync(found.st_ino, found.st_size, inode_of(self.output), inode_of(self.manifest)))

    def of(self, path: Path) -> list[Sync]:
        return [one for one in self if one.inode == inode_of(path)]


def inode_of(path: Path) -> int | None:
    return path.stat().st_ino if path.exists() else None


MANY = 40
"""So many waiting shards are synced together."""


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    return make_inputs(tmp_path / "in", "text", [60, 40])


@pytest.mark.parametrize(("way", "shards"), [("new", 3), ("exchanged", MANY), ("moved", 3)])
def test_shards_and_their_folder_are_synced_before_they_are_the_output_and_its_folder_after_the_manifest(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch, way: str, shards: int
) -> None:
    """Many waiting shards may be synced together with all that is on their file system."""
    output, together = tmp_path / "place" / "out", list[int]()
    output.parent.mkdir()
    if way != "new":
        recshuf.shuffle(inputs, f"{output}/", seed=1, shards=2)
    if way == "moved":
        put_in_place(monkeypatch, exchange, refuse_exchange)
    before = inode_of(output), inode_of(manifest_path(output))
    syncs, whole = Syncs(output, monkeypatch, shards), ctypes.CDLL

    class Library:
        """The C library, whose `syncfs` notes how many files were there."""

        def __init__(self, *given: Any, **options: Any) -> None:
            self._library = whole(*given, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._library, name)

        def syncfs(self, _: int) -> int:
            together.extend(map(inode_of, (output.parent / ".out.recshuf" / "shards").iterdir()))
            return 0

    monkeypatch.setattr(ctypes, "CDLL", Library)
    recshuf.shuffle(inputs, f"{output}/", seed=2, shards=shards, overwrite=True)
    paths = list(output.iterdir())
    assert len(paths) == shards
    assert (len(together) > 0) == (shards == MANY)
    for path in paths:
        early = [one for one in syncs.of(path) if (one.output, one.manifest) == before]
        assert [one.bytes for one in early[:1]] == [path.stat().st_size] or inode_of(path) in together
    folder = [one for one in syncs.of(output) if (one.output, one.manifest) == before]
    assert folder, "the names of the shards were not synced before the rename"
    last_written = max(syncs.index(one) for path in paths for one in [*syncs.of(path)[:1], syncs[0]])
    assert syncs.index(folder[-1]) >= last_written
    manifest = syncs.of(manifest_path(output))
    assert [one.bytes for one in manifest] == [manifest_path(output).stat().st_size]
    assert manifest[0].output == before[0], "the manifest was written after the shards were in place"
    done = (inode_of(output), inode_of(manifest_path(output)))
    assert any((one.output, one.manifest) == done for one in syncs.of(output.parent))


@pytest.mark.parametrize("exists", [False, True])
def test_a_file_is_synced_before_it_is_the_output_and_its_folder_after_that(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    output = tmp_path / "out.txt"
    if exists:
        output.write_text("old")
    before, syncs = inode_of(output), Syncs(output, monkeypatch)
    recshuf.shuffle(inputs, output, overwrite=True)
    assert output.stat().st_size in [one.bytes for one in syncs.of(output) if one.output == before]
    assert any(one.output == inode_of(output) for one in syncs.of(tmp_path))


@pytest.mark.parametrize("engine", ["local", "threads"])
def test_a_shard_is_in_the_journal_only_once_it_is_synced(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Those of tasks are moved to the others, whose folder is synced before any of them is noted."""
    divide_small(monkeypatch)
    journal, noted = journal_of(tmp_path / "out"), list[tuple[int, set[str], set[str]]]()
    shards = journal.parent / "shards"

    def note(file: Any) -> None:
        inode = os.fstat(file if isinstance(file, int) else file.fileno()).st_ino
        if shards.exists():
            text, names = journal.read_text() if journal.exists() else "", {*os.listdir(shards)}
            noted.append((inode, names, {name for name in names if name in text}))

    monkeypatch.setattr(os, "fsync", note)
    recshuf.shuffle(inputs, f"{tmp_path}/out/", shards=3, workers=1, engine=engine)
    paths = [tmp_path / "out"] if engine == "threads" else [*(tmp_path / "out").iterdir()]
    for path in paths:
        first = next(one for one in noted if one[0] == inode_of(path))
        assert path.name not in first[2]
        assert engine == "local" or (len(first[1]), first[2]) == (3, set())
    assert len(noted[-1][2]) == 3


@pytest.mark.parametrize("target", ["file", "folder", "file system"])
def test_a_sync_that_fails_ends_the_run_before_anything_is_in_place(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    def fail(file: Any) -> None:
        path = Path(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}").readlink()
        if path.is_dir() == (target == "folder"):
            raise OSError(5, "Input/output error")

    (tmp_path / "place").mkdir()
    with monkeypatch.context() as patch:
        if target == "file system":
            Syncs(tmp_path / "place" / "out", patch, MANY)
            put_in_place(patch, sync_file_system, fail_always)
        else:
            patch.setattr(os, "fsync", fail)
        with pytest.raises(OutputError, match="Input/output error"):
            recshuf.shuffle(inputs, f"{tmp_path}/place/out/", seed=1, shards=MANY)
    assert not (tmp_path / "place" / "out").exists()


def fail_always(path: Path) -> bool:
    raise OSError(5, "Input/output error")


def test_where_a_file_system_cannot_be_synced_its_files_are_one_by_one(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(tmp_path / "out", monkeypatch, MANY)
    put_in_place(monkeypatch, sync_file_system, lambda _: False)
    recshuf.shuffle(inputs, f"{tmp_path}/out/", shards=MANY)
    assert all(syncs.of(path) for path in (tmp_path / "out").iterdir())


def test_of_a_run_that_ends_early_only_the_shard_in_progress_is_noted(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those that wait behind it."""
    begun, ended, stop = threading.Event(), threading.Event(), Pool.shutdown

    def hold(file: Any) -> None:
        name = Path(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}").readlink().name
        if name.startswith("shard-") and not begun.is_set():
            begun.set()
            assert ended.wait(60)

    def shut_down(pool: Pool, *given: Any, **options: Any) -> None:
        if "sync" in str(getattr(pool, "_thread_name_prefix", "")):
            ended.set()
        stop(pool, *given, **options)

    class Ending(Listener):
        def advance(self, records: int, byte_count: int) -> None:
            if self.passes[-1] == "gather" and begun.is_set() and len([*shards.iterdir()]) > 8:
                raise Killed

    shards = tmp_path / ".out.recshuf" / "shards"
    monkeypatch.setattr(os, "fsync", hold)
    monkeypatch.setattr(Pool, "shutdown", shut_down)
    with pytest.raises(Killed):
        recshuf.shuffle(inputs, f"{tmp_path}/out/", shards=30, piles=30, workers=1, progress=Ending())
    assert [entry["shard"] for entry in read_journal(tmp_path / "out") if "shard" in entry] == [0]


# A run that died after its commit


@pytest.fixture
def committed(tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Return a function that resumes a run that was killed when everything was in place."""

    with monkeypatch.context() as patch:
        strike_renames(patch, 1, die, late=True)
        with pytest.raises(Killed):
            recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=3, shards=3)
    assert (tmp_path / ".out.recshuf").is_dir()
    assert manifest_path(tmp_path / "out").exists()

    def resume() -> Path:
        recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=3, shards=3, resume=True)
        return tmp_path / "out"

    return resume


def test_what_is_in_place_after_a_commit_is_complete(tmp_path: Path, committed: Callable[[], Path]) -> None:
    before = {path.name: (path.read_bytes(), path.stat().st_ino) for path in (tmp_path / "out").iterdir()}
    after = committed()
    assert {path.name: (path.read_bytes(), path.stat().st_ino) for path in after.iterdir()} == before
    assert sorted(os.listdir(tmp_path)) == [".out.recshuf.json", "in", "out"]


@pytest.mark.parametrize("change", ["flipped", "cut", "gone"])
def test_a_shard_that_has_changed_after_the_commit_is_not_taken_as_it_is(
    tmp_path: Path, committed: Callable[[], Path], change: str
) -> None:
    shard = tmp_path / "out" / "shard-00001.txt"
    content = shard.read_bytes()
    if change == "flipped":
        shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif change == "cut":
        shard.write_bytes(content[:-1])
    else:
        shard.unlink()
    with pytest.raises(
        OutputError, match=r"out: is complete, but shard-00001\.txt has changed since; delete .*recshuf"
    ):
        committed()
    assert (tmp_path / ".out.recshuf").is_dir()


# Bad records


def test_bad_records_are_synced_before_their_file_has_its_name_and_its_folder_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n{"a": \n{"a": 2}\n')
    (tmp_path / "bad").mkdir()
    path, synced = tmp_path / "bad" / "bad.jsonl", list[tuple[int, int, bool]]()

    def note(file: Any) -> None:
        found = os.fstat(file if isinstance(file, int) else file.fileno())
        synced.append((found.st_ino, found.st_size, path.exists()))

    monkeypatch.setattr(os, "fsync", note)
    recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.parquet", on_bad_record=f"quarantine:{path}")
    assert (path.stat().st_ino, path.stat().st_size, False) in synced
    assert (path.parent.stat().st_ino, True) in [(inode, exists) for inode, _, exists in synced]
