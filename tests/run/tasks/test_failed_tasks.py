"""Tasks that cannot write, or whose piles or bad records are damaged: they say what to do, and doing that helps."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import DiskFullError, OutputError, PileError, UsageError
from tests.support.objects.object_outputs import AnyBucket
from tests.support.processes.task_runs import HARMS as OF_FILES
from tests.support.processes.task_runs import (
    SavedPlan,
    TwinPlan,
    die_after,
    divide_small,
    limit_files,
    replace_by_folder,
    shuffle,
)
from tests.support.small_runs import Listener
from tests.support.stores.store_reader import read_footer


class Gather(TwinPlan):
    """A run by tasks that is to gather."""

    def __init__(self, folder: Path, name: str = "out/", **options: Any) -> None:
        shards = {"shards": 2} if name.endswith("/") else {}
        super().__init__(folder, name=name, piles=16, **options | shards)
        self.tasks = self.list("gather")
        self.do(*range(self.tasks.start))

    def fail(self, kind: type[Exception], match: str) -> None:
        with pytest.raises(kind, match=match):
            self.do(self.tasks[0])

    def finish(self) -> None:
        """Run the tasks that are left, and check the output."""
        self.do_all()
        self.check()


# Shards


@pytest.mark.parametrize(
    ("name", "options", "byte_count"),
    [("out/", {"format": "text"}, 0), ("out/", {"to": "parquet"}, 100), ("out.jsonl", {}, 100)],
    ids=["lines", "parquet", "file"],
)
def test_a_shard_that_may_not_grow_is_named(
    tmp_path: Path, name: str, options: dict[str, Any], byte_count: int
):
    gather = Gather(tmp_path, name, **options)
    with limit_files(byte_count):
        gather.fail(DiskFullError, r"/there/out\S*: the file may not grow this large; raise ulimit -f")
    gather.finish()


FULL = (DiskFullError, "no space left for the output .*needed in all, .* free.; free some")
FAILURES = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EIO: (OutputError, "cannot be written: Input/output error"),
}


def test_a_disk_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gather = Gather(tmp_path)
    for code, (kind, said) in FAILURES.items():

        def fail(_: int, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            gather.fail(kind, f"/there/out: {said}")
    gather.finish()


# Piles


def damage_region(path: Path) -> None:
    """Change a bit in the first slice of a pile set."""
    content = bytearray(path.read_bytes())
    content[int(read_footer(bytes(content))[1][0, 1]) + 30] ^= 1
    path.write_bytes(content)


DAMAGED = r"region \d+ does not read back .*; give (--resume|resume=True), or run recshuf task {} again\b"


def test_the_task_of_a_damaged_region_is_named_and_runs_again(tmp_path: Path):
    gather = Gather(tmp_path)
    for number, path in zip(gather.list("scatter"), sorted((gather.work / "piles").iterdir()), strict=True):
        damage_region(path)
        gather.fail(PileError, DAMAGED.format(number))
        with pytest.raises(UsageError, match=f"^task {number}: not done"):
            gather.do(*gather.tasks)
        gather.do(number)
    gather.finish()


def test_an_engine_writes_a_set_with_a_damaged_region_again(tmp_path: Path):
    gather = Gather(tmp_path)
    damage_region(max((gather.work / "piles").iterdir()))
    with pytest.raises(PileError, match=DAMAGED.format(gather.tasks.start - 1)):
        gather.shuffle(engine="threads", resume=True)
    gather.shuffle(engine="threads", resume=True)
    gather.check()


# Pile sets that are uploaded: what becomes of a set when its upload goes wrong

LOST = r"//.*/set-\S*\.piles.*: was aborted or replaced by another program; run again, with"


@pytest.fixture(params=["s3_bucket", pytest.param("gcs_bucket", marks=pytest.mark.slow)])
def bucket(request: pytest.FixtureRequest) -> AnyBucket:
    """Return a new bucket of each store that can abort uploads."""
    found: AnyBucket = request.getfixturevalue(request.param)
    return found


def run(folder: Path, inputs: list[Path], bucket: AnyBucket, **options: Any) -> recshuf.ShuffleReport:
    return shuffle(inputs[:1], folder / "out", engine="threads", temp_dir=f"{bucket.url}/tmp", **options)


@pytest.mark.parametrize(
    ("request_name", "status", "code"),
    [
        ("part", 404, "NoSuchUpload"),
        ("complete", 412, "conditionNotMet"),
    ],
)
@pytest.mark.parametrize("bucket", ["s3_bucket"], indirect=True)
def test_a_lost_upload_is_an_error_also_if_it_cannot_be_aborted(
    tmp_path: Path, inputs: list[Path], bucket: AnyBucket, request_name: str, status: int, code: str
) -> None:
    bucket.proxy.answer(bucket.requests[request_name], status, code)
    bucket.proxy.answer("DELETE .*uploadId", 403, "AccessDenied")
    with pytest.raises(OutputError, match=LOST):
        run(tmp_path, inputs, bucket)
    assert not [key for key in bucket.list_keys() if key.endswith(".piles")]
    run(tmp_path, inputs, bucket, resume=True)


def test_what_lies_in_the_way_is_an_error(tmp_path: Path, inputs: list[Path], bucket: AnyBucket) -> None:
    bucket.proxy.call(
        bucket.requests["complete"], lambda: [bucket.put(key, b"other") for key in bucket.list_uploads()]
    )
    with pytest.raises(OutputError, match=LOST):
        run(tmp_path, inputs, bucket)
    assert bucket.list_uploads() == []
    run(tmp_path, inputs, bucket, resume=True)


@pytest.mark.parametrize("by_tasks", [False, True])
def test_sets_of_a_run_whose_removal_died_are_deleted_by_the_next_run(
    tmp_path: Path, inputs: list[Path], bucket: AnyBucket, by_tasks: bool
) -> None:
    die_after(3, inputs[1:2], tmp_path / "out", temp_dir=f"{bucket.url}/tmp")
    assert [key for key in bucket.list_keys() if key.endswith(".piles")]
    (tmp_path / ".out.recshuf" / "ended").touch()
    if by_tasks:
        SavedPlan(inputs[1:2], f"{tmp_path}/out/", memory="300MB").do_all()
    else:
        shuffle(inputs[1:2], tmp_path / "out")
    assert bucket.list_keys() == []


# Bad records that tasks have set aside, and a disk or somebody else has damaged: their task runs again


HARMS: dict[str, Callable[[Path], object]] = OF_FILES | {
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"{}\n"),
    "folder": replace_by_folder,
}


def spoil(content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    lines[7::20] = [b"\xff{\n"] * len(lines[7::20])
    return b"".join(lines)


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwinPlan:
    """Return tasks with bad records in two inputs, which wait for the commit."""
    divide_small(monkeypatch, block_bytes=2200, region_bytes=150)
    plan = TwinPlan(tmp_path, spoil=spoil, shards=2, to="parquet", piles=16)
    plan.do_before_the_commit()
    return plan


def list_bad(waiting: TwinPlan) -> list[Path]:
    return sorted((waiting.work / "piles").glob("bad-*"))


def find_task(waiting: TwinPlan, said: Listener) -> int:
    """Return the task that a warning names, with a file of bad records."""
    found = re.fullmatch(r"(.*)/bad-[^/]*\.jsonl: .*; task (\d+) writes it again", said.warnings[0])
    assert found
    assert found[1] == str(waiting.work / "piles")
    return int(found[2])


@pytest.mark.parametrize("harm", ["cut", "folder"])
def test_the_commit_names_the_task_that_has_lost_bad_records(waiting: TwinPlan, harm: str):
    assert len(list_bad(waiting)) > 1
    HARMS[harm](list_bad(waiting)[1])
    said = Listener()
    with pytest.raises(UsageError, match=r"task \d+: not done; run recshuf task with") as raised:
        waiting.do(waiting.last, progress=said)
    number = find_task(waiting, said)
    assert str(raised.value).startswith(f"task {number}:")
    assert number in waiting.list("scatter")
    waiting.do(number)
    waiting.commit()
    waiting.check()


@pytest.mark.parametrize("harm", ["flipped", "longer"])
def test_a_task_that_has_lost_bad_records_is_not_done(waiting: TwinPlan, harm: str):
    for path in list_bad(waiting)[:2]:
        HARMS[harm](path)
    waiting.do_all()
    waiting.check()


@pytest.mark.parametrize(("harm", "with_sets"), [("deleted", False), ("cut", True)])
def test_an_engine_writes_lost_bad_records_again(waiting: TwinPlan, harm: str, with_sets: bool):
    for path in list_bad(waiting)[:2]:
        HARMS[harm](path)
    for path in (waiting.work / "piles").glob("set-*") if with_sets else ():
        path.unlink()
    said = Listener()
    waiting.shuffle(engine="threads", resume=True, progress=said)
    find_task(waiting, said)
    waiting.check()


def test_a_full_disk_is_no_loss_of_bad_records(waiting: TwinPlan):
    with limit_files(0), pytest.raises(DiskFullError, match="may not grow this large"):
        waiting.commit()
    waiting.commit()
    waiting.check()
