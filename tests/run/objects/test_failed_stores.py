"""Runs whose store or disk fails for a time, or whose journal others delete: what is kept, and how to go on."""

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
    from tests.support.objects.object_outputs import AnyBucket, Contents
    from tests.support.objects.object_server import Bucket

slow = pytest.mark.slow
INPUTS = 3
EXPIRED = (400, "ExpiredToken")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of files, larger than what a run looks into before it begins, of each of which a set is spilled."""
    whole = resolve.make_plan

    def plan_small(*arguments: Any) -> Plan:
        plan = whole(*arguments)
        sets = tuple(range(len(plan.set_of_input)))
        return replace(plan, resident_bytes=0, set_of_input=sets, scatter_workers=1)

    # Real sets are hundreds of megabytes.
    monkeypatch.setattr(resolve, "make_plan", plan_small)
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0)
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(INPUTS):
        lines = (b"%d-%0200d\n" % (number, row) for row in range(15_000))
        (folder / f"{number}.txt").write_bytes(b"".join(lines))
    return folder


def count_sets(output: Path) -> int:
    """Return how many pile sets an unfinished run has finished."""
    journal = output.parent / f".{output.name}.recshuf" / "journal.jsonl"
    return journal.read_bytes().count(b'"set"') if journal.exists() else 0


def check_continued(given: Any, output: Path, folder: Path, repair: Callable[[], object], said: str) -> None:
    """Check that a run which fails keeps its pile sets, and is continued once the cause is gone."""
    with pytest.raises(InputError, match=said) as caught:
        shuffle(given, f"{output}/")
    assert count_sets(output) >= 1
    (note,) = caught.value.__notes__
    kept = output.parent / f".{output.name}.recshuf"
    assert note.startswith(f"finished parts are kept in {kept}: continue")
    repair()
    shuffle(given, f"{output}/", resume=True)
    expected = shuffle_locally(folder, output.parent / "whole")
    assert {path.name: path.read_bytes() for path in output.iterdir()} == {
        key.removeprefix("data/out/"): content for key, content in expected.items() if "shard" in key
    }


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ((503, "SlowDown"), "the store is busy"),
        pytest.param(EXPIRED, "the credentials have expired", marks=slow),
        pytest.param(None, "the store cannot be reached", marks=slow),
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


@slow
def test_pile_sets_outlive_a_disk_that_gives_no_input(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "out"
    with monkeypatch.context() as patch:
        for name in ("pread", "preadv"):
            read = getattr(os, name)

            def fail(*given: Any, read: Any = read) -> Any:
                if count_sets(output):
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return read(*given)

            patch.setattr(os, name, fail)
        check_continued(folder, output, folder, patch.undo, "Input/output error")


@pytest.mark.parametrize(
    ("request_name", "answer"),
    [
        ("part", (412, "PreconditionFailed")),
        pytest.param("begin", (404, "NoSuchKey"), marks=slow),
        pytest.param("begin", (409, "OperationAborted"), marks=slow),
    ],
)
def test_a_run_goes_on_after_an_answer_about_a_condition_that_it_has_not_set(
    s3_bucket: Bucket, source: Path, expected: Contents, request_name: str, answer: tuple[int, str]
):
    request = s3_bucket.requests[request_name]
    s3_bucket.proxy.add(request, lambda _: False, 1)
    s3_bucket.proxy.answer(request, *answer, times=100)
    with pytest.raises(OutputError, match=f"the store answers {answer[1]}: injected; check the URL"):
        shuffle(source, f"{s3_bucket.url}/data/out/")
    s3_bucket.proxy.clear()
    shuffle(source, f"{s3_bucket.url}/data/out/", resume=True)
    check_whole(s3_bucket, expected)


@pytest.mark.parametrize("count", [1, *(pytest.param(count, marks=slow) for count in (0, 3, 5))])
def test_what_a_store_does_not_let_a_run_delete_is_named(
    bucket: AnyBucket, source: Path, expected: Contents, count: int
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
    way = f"{bucket.url}/data/.out.recshuf/: continue with the same command and resume=True, or remove "
    assert way in note
    shuffle(source, f"{bucket.url}/data/out/", resume=True)
    check_whole(bucket, expected, is_lossy=True)


def test_finished_tasks_outlive_a_store_that_does_not_list_them(
    s3_bucket: Bucket, source: Path, expected: Contents
):
    proxy = s3_bucket.proxy

    def fail(one: Any) -> bool:
        proxy.answer("GET .*list-type.*tasks", *EXPIRED)
        return bool(one.answer(*EXPIRED))

    proxy.call("PUT .*/tasks/task-", lambda: proxy.add(s3_bucket.requests["part"], fail, 1))
    where = {"temp_dir": f"{s3_bucket.url}/tmp/"}
    with pytest.raises(OutputError, match="credentials have expired") as caught:
        shuffle(source, f"{s3_bucket.url}/data/out/", **where)
    s3_bucket.proxy.clear()
    assert "continue with the same command and resume=True" in caught.value.__notes__[0]
    assert any("/tasks/task-" in key for key in s3_bucket.list_keys())
    shuffle(source, f"{s3_bucket.url}/data/out/", resume=True, **where)
    check_whole(s3_bucket, expected)


# Journals that others delete, as `recshuf clean --yes` does


@pytest.mark.parametrize("others", ["another run", pytest.param("nobody", marks=slow)])
def test_a_run_that_has_lost_its_journal_keeps_nothing_and_says_so(
    bucket: AnyBucket, source: Path, call: Run, others: str
):
    def delete() -> None:
        for key in bucket.list_keys("data/.out.recshuf/"):
            bucket.delete(key)
        if others == "another run":
            bucket.put("data/.out.recshuf/00001.run", b'{"run": "0123456789abcdef"}\n')

    bucket.proxy.add(bucket.requests["part"], lambda _: False, 2)
    bucket.proxy.call(bucket.requests["part"], delete)
    bucket.proxy.answer(bucket.requests["part"], *bucket.refusal[:2], times=10**6)
    told = call(source, "-o", f"{bucket.url}/data/out/", "--shards", "4", "--workers", "1")
    assert told.returncode == 1
    said = b"data/.out.recshuf/: was deleted by others, so nothing of this run is kept; run again"
    assert said in told.stderr
    assert b"--resume" not in told.stderr
    if not bucket.url.startswith("az:"):  # where blocks that are not committed expire
        assert bucket.list_uploads() == []
    # An entry that was on its way stays, and belongs to no run.
    left = [key for key in bucket.list_keys() if not key.endswith(".entry")]
    assert left == (["data/.out.recshuf/00001.run"] if others == "another run" else [])
