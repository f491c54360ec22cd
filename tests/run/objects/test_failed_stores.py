"""Runs whose store or disk fails for a time: what is finished stays, and the error says how to go on."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from recshuf.errors import InputError, OutputError
from recshuf.run import resolve
from recshuf.storage import requests
from tests.support.objects.object_outputs import check_whole, shuffle, shuffle_locally

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from recshuf.job.plan import Plan
    from tests.conftest import Run
    from tests.support.objects.object_outputs import AnyBucket
    from tests.support.objects.object_server import Bucket

INPUTS = 3
EXPIRED = (400, "ExpiredToken")


@pytest.fixture
def spill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have inputs spilled, with a pile set for each of them, and failed requests made again at once."""
    whole = resolve.make_plan

    def plan_small(*arguments: Any) -> Plan:
        plan = whole(*arguments)
        sets = tuple(range(len(plan.set_of_input)))
        return replace(plan, resident_bytes=0, set_of_input=sets, scatter_workers=1)

    monkeypatch.setattr(resolve, "make_plan", plan_small)
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of files, larger than what a run looks into before it begins."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(INPUTS):
        (folder / f"{number}.txt").write_bytes(
            b"".join(b"%d-%0200d\n" % (number, row) for row in range(15_000))
        )
    return folder


def count_sets(output: Path) -> int:
    """Return how many pile sets an unfinished run has finished."""
    journal = output.parent / f".{output.name}.recshuf" / "journal.jsonl"
    return journal.read_bytes().count(b'"set"') if journal.exists() else 0


def check_continued(given: Any, output: Path, folder: Path, repair: Callable[[], object], said: str) -> None:
    """Check that a run which fails keeps its pile sets, and is continued once the cause is gone."""
    with pytest.raises(InputError, match=said) as caught:
        shuffle(given, f"{output}/")
    kept = count_sets(output)
    assert kept >= 1
    (note,) = caught.value.__notes__
    assert note.startswith(
        f"finished parts are kept in {output.parent / f'.{output.name}.recshuf'}: continue"
    )
    repair()
    shuffle(given, f"{output}/", resume=True)
    expected = shuffle_locally(folder, output.parent / "whole")
    assert {path.name: path.read_bytes() for path in output.iterdir()} == {
        key.removeprefix("data/out/"): content for key, content in expected.items() if "shard" in key
    }


@pytest.mark.usefixtures("spill")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (EXPIRED, "the credentials have expired"),
        ((503, "SlowDown"), "the store is busy"),
        ((403, "AccessDenied"), "access is denied"),
        (None, "the store cannot be reached"),
    ],
)
def test_pile_sets_outlive_a_store_that_gives_no_input(
    tmp_path: Path, folder: Path, s3_bucket: Bucket, fault: tuple[int, str] | None, said: str
):
    for path in folder.iterdir():
        s3_bucket.put(f"in/{path.name}", path.read_bytes())
    output = tmp_path / "out"

    def fail(one: Any) -> bool:
        if not count_sets(output):
            return False
        return bool(one.answer(*fault) if fault else one.drop())

    s3_bucket.proxy.add("GET .*/in/", fail, 10**6)
    check_continued(f"{s3_bucket.url}/in/", output, folder, s3_bucket.proxy.clear, said)


@pytest.mark.usefixtures("spill")
def test_pile_sets_outlive_a_disk_that_gives_no_input(tmp_path: Path, folder: Path):
    output, patch = tmp_path / "out", pytest.MonkeyPatch()
    for name in ("pread", "preadv"):
        read = getattr(os, name)

        def fail(*given: Any, read: Any = read) -> Any:
            if count_sets(output):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(*given)

        patch.setattr(os, name, fail)
    try:
        check_continued(folder, output, folder, patch.undo, "Input/output error")
    finally:
        patch.undo()


@pytest.mark.parametrize("request_name", ["begin", "part"])
@pytest.mark.parametrize(
    "answer", [(404, "NoSuchKey"), (409, "OperationAborted"), (412, "PreconditionFailed")]
)
def test_a_run_goes_on_after_an_answer_about_a_condition_that_it_has_not_set(
    s3_bucket: Bucket, source: Path, tmp_path: Path, request_name: str, answer: tuple[int, str]
):
    request = s3_bucket.requests[request_name]
    s3_bucket.proxy.add(request, lambda _: False, 1)
    s3_bucket.proxy.answer(request, *answer, times=100)
    with pytest.raises(OutputError, match=f"the store answers {answer[1]}: injected; check the URL"):
        shuffle(source, f"{s3_bucket.url}/data/out/")
    s3_bucket.proxy.clear()
    shuffle(source, f"{s3_bucket.url}/data/out/", resume=True)
    check_whole(s3_bucket, shuffle_locally(source, tmp_path / "local"))


@pytest.mark.parametrize("count", range(6))
def test_what_a_store_does_not_let_a_run_delete_is_named(
    bucket: AnyBucket, source: Path, tmp_path: Path, count: int
):
    """Whatever is finished when all requests begin to fail."""
    begun: list[int] = []

    def fail(one: Any) -> bool:
        begun.append(1)
        return bool(len(begun) > count and one.answer(*bucket.refusal[:2]))

    bucket.proxy.call(bucket.requests["journal"], lambda: bucket.proxy.add(".*", fail, 10**6))
    with pytest.raises(OutputError, match=bucket.refusal[2]) as caught:
        shuffle(source, f"{bucket.url}/data/out/")
    bucket.proxy.clear()
    (note,) = caught.value.__notes__
    assert (
        f"{bucket.url}/data/.out.recshuf/: continue with the same command and resume=True, or remove " in note
    )
    shuffle(source, f"{bucket.url}/data/out/", resume=True)
    check_whole(bucket, shuffle_locally(source, tmp_path / "local"), is_lossy=True)


def test_a_complete_run_that_leaves_its_journal_is_not_to_be_run_again(
    s3_bucket: Bucket, source: Path, call: Run
):
    s3_bucket.proxy.answer(s3_bucket.requests["delete"], *EXPIRED, times=100)
    done = call(source, "-o", f"{s3_bucket.url}/data/out/", "--shards", "4")
    assert done.returncode == 0
    (warning, _) = done.stderr.decode().splitlines()
    assert "run again" not in warning
    assert "(ExpiredToken); what is left of this run goes with recshuf clean " in warning


def test_finished_tasks_outlive_a_store_that_does_not_list_them(
    s3_bucket: Bucket, source: Path, tmp_path: Path
):
    proxy = s3_bucket.proxy

    def fail(one: Any) -> bool:
        proxy.answer("GET .*list-type.*tasks", *EXPIRED)
        return bool(one.answer(*EXPIRED))

    def begin() -> None:
        proxy.add(s3_bucket.requests["part"], fail, 1)

    proxy.call("PUT .*/tasks/task-", begin)
    with pytest.raises(OutputError, match="credentials have expired") as caught:
        shuffle(source, f"{s3_bucket.url}/data/out/", temp_dir=f"{s3_bucket.url}/tmp/")
    s3_bucket.proxy.clear()
    assert "continue with the same command and resume=True" in caught.value.__notes__[0]
    assert any("/tasks/task-" in key for key in s3_bucket.list_keys())
    shuffle(source, f"{s3_bucket.url}/data/out/", temp_dir=f"{s3_bucket.url}/tmp/", resume=True)
    check_whole(s3_bucket, shuffle_locally(source, tmp_path / "local"))
