"""The commit: all or nothing, the manifest last, and what is synced before it."""

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import OutputError
from recshuf.output.entries import FinishedShard
from recshuf.output.local.log import ShardSyncer
from recshuf.records.digests import Digest
from recshuf.system.files import sync_file_system
from tests.support.numbered_files import make_inputs
from tests.support.processes.killed_runs import Killed, die, run, strike_renames
from tests.support.processes.task_runs import HARMS
from tests.support.small_runs import put_in_place, read_files


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Return inputs, whose output of a seed is in `whole`."""
    inputs = make_inputs(tmp_path / "in", "text", (60, 40))
    run(inputs, tmp_path / "whole")
    return inputs


def test_a_link_keeps_pointing_to_the_file_it_names(tmp_path: Path, inputs: list[Path]):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    recshuf.shuffle(inputs, tmp_path / "link.txt", overwrite=True)
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_bytes().count(b"\n") == 100


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_directory_that_is_replaced_keeps_its_permissions(
    tmp_path: Path, inputs: list[Path], is_empty: bool
):
    if is_empty:
        (tmp_path / "out").mkdir()
    else:
        run(inputs, tmp_path / "out", shards=5, compression="gzip")
    (tmp_path / "out").chmod(0o751)
    run(inputs, tmp_path / "out", overwrite=not is_empty)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o751
    assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, inputs: list[Path]):
    output = tmp_path / "out.txt"
    output.touch(0o600)
    recshuf.shuffle(inputs, output, overwrite=True)
    assert output.stat().st_mode & 0o777 == 0o600
    assert output.read_bytes().count(b"\n") == 100


# Every step of it fails, is interrupted, or is the last


def fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


def end() -> None:
    os._exit(7)


@pytest.mark.parametrize(
    ("exchanges", "step", "strike", "late"),
    [
        # Both folders and the manifest
        (True, 0, fail, False),
        (True, 0, end, True),
        (True, 1, die, True),
        # The old folder, the new one, and the manifest
        (False, 0, die, True),
        (False, 1, fail, False),
        (False, 2, die, True),
        (False, 2, end, False),
        pytest.param(False, 1, end, True, marks=pytest.mark.slow),
    ],
)
def test_a_commit_that_does_not_end_leaves_a_whole_folder_and_is_completed(
    tmp_path: Path, inputs: list[Path], exchanges: bool, step: int, strike: Callable[[], None], late: bool
):
    run(inputs, tmp_path / "out", shards=5, compression="gzip")
    before, whole = read_files(tmp_path / "out"), read_files(tmp_path / "whole")

    def commit() -> None:
        with pytest.MonkeyPatch.context() as patch:
            strike_renames(patch, step, strike, late=late, exchanges=exchanges)
            run(inputs, tmp_path / "out", overwrite=True)

    if strike is end:
        child = os.fork()
        if not child:
            commit()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    else:
        with pytest.raises(OutputError if strike is fail else Killed):
            commit()
    if (exchanges, step, late) != (False, 0, True):  # the old folder has just been moved
        assert read_files(tmp_path / "out") in (before, whole)
    run(inputs, tmp_path / "out", overwrite=True, resume=True)
    assert read_files(tmp_path / "out") == whole
    assert (tmp_path / ".out.recshuf.json").read_bytes() == (tmp_path / ".whole.recshuf.json").read_bytes()
    assert sorted(os.listdir(tmp_path)) == [".out.recshuf.json", ".whole.recshuf.json", "in", "out", "whole"]


@pytest.mark.parametrize("harm", [None, *HARMS])
def test_what_is_in_place_after_a_commit_is_complete_unless_a_shard_has_changed_since(
    tmp_path: Path, inputs: list[Path], harm: str | None
):
    """The run was killed when everything was in place."""
    with pytest.MonkeyPatch.context() as patch:
        strike_renames(patch, 1, die, late=True)
        with pytest.raises(Killed):
            run(inputs, tmp_path / "out")
    shard = tmp_path / "out" / "shard-00001.txt"
    before = shard.stat().st_ino
    if harm is None:
        run(inputs, tmp_path / "out", resume=True)
        assert shard.stat().st_ino == before
        assert read_files(tmp_path / "out") == read_files(tmp_path / "whole")
    else:
        HARMS[harm](shard)
        said = r"out: is complete, but shard-00001\.txt has changed since; delete .*recshuf"
        with pytest.raises(OutputError, match=said):
            run(inputs, tmp_path / "out", resume=True)
    assert (tmp_path / ".out.recshuf").exists() == (harm is not None)


# Syncs besides those of `tests.run.test_deaths`: of many shards, and of runs that end early


MANY = 40
"""So many waiting shards are synced together."""


def path_of(file: Any) -> Path:
    return Path(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}").readlink()


def sync_many(
    patch: pytest.MonkeyPatch, shards: Path, sync_all: Callable[[Path], bool], note: Callable[[Path], object]
) -> None:
    """Have the file system be synced by a function; the sync of the first shard takes until many others wait."""
    is_first = [True]

    def sync(file: Any) -> None:
        while is_first and len(os.listdir(shards)) < MANY:
            os.sched_yield()
        is_first.clear()
        note(path_of(file))

    patch.setattr(os, "fsync", sync)
    put_in_place(patch, sync_file_system, sync_all)


@pytest.mark.parametrize("is_able", [True, False])
def test_many_shards_are_synced_with_their_file_system_or_where_it_cannot_one_by_one(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch, is_able: bool
) -> None:
    shards, synced, asked = tmp_path / ".out.recshuf" / "shards", set[Path](), list[Path]()

    def sync_all(path: Path) -> bool:
        asked.append(path)
        synced.update(shards.iterdir() if is_able else ())
        return is_able

    sync_many(monkeypatch, shards, sync_all, synced.add)
    recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=2, shards=MANY)
    names = os.listdir(tmp_path / "out")
    assert len(names) == MANY
    assert {shards / name for name in names} <= synced
    assert asked
    assert asked[0].parent == shards


@pytest.mark.parametrize("target", ["file", "folder", "file system"])
def test_a_sync_that_fails_ends_the_run_before_anything_is_in_place(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    def fail(kind: str) -> Any:
        if kind == target:
            raise OSError(5, "Input/output error")

    sync_many(
        monkeypatch,
        tmp_path / ".out.recshuf" / "shards",
        lambda _: fail("file system"),
        lambda path: fail("folder" if path.is_dir() else "file"),
    )
    with pytest.raises(OutputError, match="Input/output error"):
        recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=1, shards=MANY)
    assert not (tmp_path / "out").exists()


def test_of_a_run_that_ends_early_only_the_shard_in_progress_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those that wait behind it."""
    noted, has_begun, are_waiting = list[FinishedShard](), threading.Event(), threading.Event()
    syncer = ShardSyncer(noted.append, drop_page_cache=False)
    ending = threading.Thread(target=syncer.close)

    def add(number: int) -> None:
        path = tmp_path / f"{number}"
        path.touch()
        syncer.add(path, FinishedShard(number, path.name, Digest(), None))

    def hold(_: Any) -> None:
        if not has_begun.is_set():
            assert are_waiting.wait(60)
            ending.start()
            has_begun.set()
            with suppress(RuntimeError):
                while True:  # until it takes no more
                    add(9)

    monkeypatch.setattr(os, "fsync", hold)
    for number in range(3):
        add(number)
    are_waiting.set()
    assert has_begun.wait(60)
    ending.join()
    assert [one.number for one in noted] == [0]
