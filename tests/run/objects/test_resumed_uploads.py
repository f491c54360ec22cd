"""Runs into a bucket that die, are continued elsewhere, overlap, or are cleaned away."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest

from recshuf.errors import AlreadyCompleteError, OutputError, UsageError
from recshuf.output.objects.stage import UploadTransaction
from recshuf.storage.writing.parts import PREFIX, UploadFolder
from tests.support.objects.object_outputs import (
    SHARDS,
    check_whole,
    in_each_store,
    put_old_set,
    shuffle,
    shuffle_locally,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_outputs import AnyBucket, Contents

slow = pytest.mark.slow
OVERWRITE = pytest.mark.parametrize("overwrite", [True, pytest.param(False, marks=slow)])
JOURNAL = "data/.out.recshuf/"


def fail_after(bucket: AnyBucket, request: str, count: int) -> None:
    """Have all requests of a kind but the first ones fail."""
    bucket.proxy.add(request, lambda _: False, count)
    bucket.proxy.answer(request, *bucket.refusal[:2], times=10**6)


def leave_shards(bucket: AnyBucket, source: Path, count: int, **options: Any) -> None:
    """Leave what a run leaves that fails when some shards are finished."""
    fail_after(bucket, bucket.requests["part"], count)
    with pytest.raises(OutputError, match=bucket.refusal[2]) as caught:
        shuffle(source, f"{bucket.url}/data/out/", **options)
    assert "continue with the same command and resume=True" in caught.value.__notes__[0]
    bucket.proxy.clear()
    assert len(bucket.list_uploads()) == count


def leave_commit(
    bucket: AnyBucket, source: Path, count: int, *, overwrite: bool = False, requests: str = "complete"
) -> None:
    """Leave what a run leaves whose commit fails after some completions."""
    if overwrite:
        put_old_set(bucket, source)
    bucket.proxy.clear()
    fail_after(bucket, "|".join(bucket.requests[name] for name in requests.split()), count)
    with pytest.raises(OutputError, match=bucket.refusal[2]) as caught:
        shuffle(source, f"{bucket.url}/data/out/", overwrite=overwrite)
    assert "resume=True" in caught.value.__notes__[0]
    bucket.proxy.clear()


def damage(bucket: AnyBucket, part: str) -> None:
    """Damage the first entry of the journal whose name has a part."""
    key = next(key for key in bucket.list_keys() if part in key)
    bucket.put(key, bucket.read(key)[:-5] + b"xxxxx")


def resume(source: Path, bucket: AnyBucket, **options: Any) -> None:
    shuffle(source, f"{bucket.url}/data/out/", resume=True, **options)


def complete(source: Path, bucket: AnyBucket, **options: Any) -> None:
    """Continue a run that had begun its commit."""
    said = "complete; the commit that an unfinished run had begun"
    with pytest.raises(AlreadyCompleteError, match=said) as done:
        resume(source, bucket, **options)
    assert not hasattr(done.value, "__notes__")


@in_each_store
def test_finished_shards_are_not_uploaded_again(
    bucket: AnyBucket, source: Path, expected: Contents, scratch: Path
):
    leave_shards(bucket, source, 2)
    assert os.listdir(scratch) == []
    assert [key for key in bucket.list_keys() if "/." not in key] == []
    resume(source, bucket, workers=2, memory="100MB")
    check_whole(bucket, expected)
    assert bucket.proxy.count(bucket.requests["part"]) == SHARDS - 2


def test_one_object_is_continued(bucket: AnyBucket, source: Path, tmp_path: Path):
    bucket.proxy.answer(bucket.requests["claim"], *bucket.refusal[:2])
    with pytest.raises(OutputError, match=bucket.refusal[2]):
        shuffle(source, f"{bucket.url}/out.txt", shards=None)
    bucket.proxy.clear()
    shuffle(source, f"{bucket.url}/out.txt", shards=None, resume=True)
    shuffle(source, tmp_path / "out.txt", shards=None)
    check_whole(bucket, {"out.txt": (tmp_path / "out.txt").read_bytes()})
    assert bucket.proxy.count(bucket.requests["part"]) == 0


def test_a_seed_that_was_drawn_is_kept_and_other_options_are_refused(
    bucket: AnyBucket, source: Path, tmp_path: Path
):
    leave_shards(bucket, source, 2, seed=None)
    with pytest.raises(UsageError, match=r"resume=True: the seed was \d+ in the unfinished run and is 6"):
        resume(source, bucket, seed=6)
    assert len(bucket.list_uploads()) == 2
    report = shuffle(source, f"{bucket.url}/data/out/", seed=None, resume=True)
    check_whole(bucket, shuffle_locally(source, tmp_path / "other", seed=report.seed))


def test_an_input_that_changed_is_refused(bucket: AnyBucket, source: Path):
    leave_shards(bucket, source, 2)
    source.write_bytes(source.read_bytes()[::-1])
    with pytest.raises(Exception, match=r"in\.txt: has changed since the unfinished run"):
        resume(source, bucket)
    assert [key for key in bucket.list_keys() if "/." not in key] == []


@pytest.mark.parametrize("harm", ["aborted", "another part", "damaged entry"])
def test_shards_that_are_lost_or_changed_are_written_again(
    bucket: AnyBucket, source: Path, expected: Contents, harm: str
):
    leave_shards(bucket, source, 2)
    harms: dict[str, Callable[[], None]] = {
        "aborted": bucket.abort_one,
        "another part": bucket.damage_one,
        "damaged entry": lambda: damage(bucket, "-000001-"),
    }
    harms[harm]()
    resume(source, bucket)
    check_whole(bucket, expected, is_lossy=harm == "damaged entry")
    assert bucket.proxy.count(bucket.requests["part"]) == SHARDS - 1


def test_an_unfinished_run_is_an_error_with_both_remedies(bucket: AnyBucket, source: Path):
    leave_shards(bucket, source, 2)
    before = bucket.read_all()
    said = (
        r"an unfinished run left .*/data/\.out\.recshuf/, finished shards: 2; give resume=True to continue it, or "
        r"remove it with recshuf clean \w+://.*/data/out/ --yes$"
    )
    with pytest.raises(OutputError, match=said) as caught:
        shuffle(source, f"{bucket.url}/data/out/")
    assert not hasattr(caught.value, "__notes__")
    assert bucket.read_all() == before
    assert len(bucket.list_uploads()) == 2
    # What others have there is named first: `--resume` would name it, too.
    bucket.put("data/out/foo", b"x")
    for resumes in (False, True):
        with pytest.raises(OutputError, match=r"holds .foo., which is not from an earlier run; remove it or"):
            shuffle(source, f"{bucket.url}/data/out/", resume=resumes)
    bucket.delete("data/out/foo")
    resume(source, bucket)


@pytest.mark.parametrize("name", ["data/out/", pytest.param("out.txt", marks=slow)])
def test_a_complete_run_that_is_resumed_may_have_its_report(
    bucket: AnyBucket, source: Path, tmp_path: Path, call: Run, name: str
):
    """Nothing was there to resume before."""
    report = tmp_path / "report"
    command = (source, "-o", f"{bucket.url}/{name}", "--resume", "--report", report)
    assert call(*command).returncode == 0
    first, before = report.read_bytes(), bucket.read_all()
    again = call(*command)
    assert (again.returncode, report.read_bytes(), bucket.read_all()) == (0, first, before)
    assert b"no unfinished run of it is left" in again.stderr
    refused = call(source, "-o", f"{bucket.url}/other/{name}", "--resume", "--report", report)
    assert refused.returncode == 1
    assert b"report: exists; give --overwrite" in refused.stderr


# The commit


@in_each_store
@pytest.mark.parametrize(
    ("count", "overwrite"),
    [(1, True), *(pytest.param(count, count % 2 == 1, marks=slow) for count in (0, 3, SHARDS))],
)
def test_a_commit_that_fails_is_completed(
    bucket: AnyBucket, source: Path, expected: Contents, count: int, overwrite: bool
):
    leave_commit(bucket, source, count, overwrite=overwrite, requests="complete manifest")
    complete(source, bucket, overwrite=overwrite)
    check_whole(bucket, expected)
    assert bucket.proxy.count(bucket.requests["part"]) == 0


@OVERWRITE
@pytest.mark.parametrize("harm", ["aborted", "damaged entry"])
def test_a_commit_that_lost_a_shard_writes_it_again(
    bucket: AnyBucket, source: Path, expected: Contents, harm: str, overwrite: bool
):
    leave_commit(bucket, source, 2 if harm == "aborted" else 0, overwrite=overwrite)
    if harm == "aborted":
        bucket.abort_one()
    else:
        damage(bucket, "-000002-")
    resume(source, bucket, overwrite=overwrite)
    check_whole(bucket, expected, is_lossy=harm != "aborted")
    assert bucket.proxy.count(bucket.requests["part"]) == 1


@pytest.mark.parametrize(
    ("count", "lost", "overwrite"),
    [
        (1, "-000001-", True),
        *(
            pytest.param(*case, marks=slow)
            for case in ((3, ".entry", False), (0, "-000002-", False), (0, ".entry", True))
        ),
    ],
)
def test_entries_that_are_deleted_during_a_commit_are_no_sign_of_its_end(
    bucket: AnyBucket, source: Path, expected: Contents, call: Run, count: int, lost: str, overwrite: bool
):
    leave_commit(bucket, source, count, overwrite=overwrite)
    for key in [key for key in bucket.list_keys() if lost in key]:
        bucket.delete(key)
    if count:
        before = bucket.read_all()
        refused = call("clean", f"{bucket.url}/data/out/", "--yes")
        assert refused.returncode == 1
        assert b"the commit of a run has begun" in refused.stderr
        assert bucket.read_all() == before
    with suppress(AlreadyCompleteError) if count else nullcontext():
        resume(source, bucket, overwrite=overwrite)
    check_whole(bucket, expected, is_lossy=True)


@pytest.mark.parametrize("count", [1, pytest.param(0, marks=slow)])
def test_a_journal_that_cannot_be_deleted_is_told_and_deleted_later(
    bucket: AnyBucket, source: Path, expected: Contents, call: Run, count: int
):
    fail_after(bucket, bucket.requests["delete"], count)
    done = call(source, "-o", f"{bucket.url}/data/out/", "--seed", "5", "--shards", "4")
    assert done.returncode == 0
    warning, _ = done.stderr.decode().splitlines()
    assert warning.endswith(f"what is left of this run goes with recshuf clean {bucket.url}/data/out/ --yes")
    assert "run again" not in warning
    bucket.proxy.clear()
    assert {key for key in bucket.list_keys() if "/." not in key} == set(expected)
    if count and bucket.url.startswith("s3"):
        # A run counts as long as its object is there.
        assert all(key.endswith(".run") for key in bucket.list_keys(JOURNAL))
    with pytest.raises(AlreadyCompleteError):
        resume(source, bucket)
    check_whole(bucket, expected)


def die_after_commit(bucket: AnyBucket, source: Path, patch: pytest.MonkeyPatch, **options: Any) -> None:
    # As by kill -9 at that moment.
    with patch.context() as patched:
        patched.setattr(UploadTransaction, "remove", UploadTransaction.release)
        shuffle(source, f"{bucket.url}/data/out/", **options)


@pytest.mark.parametrize("is_partly_removed", [False, True])
def test_a_run_that_dies_after_its_commit_is_complete(
    bucket: AnyBucket,
    source: Path,
    expected: Contents,
    call: Run,
    monkeypatch: pytest.MonkeyPatch,
    is_partly_removed: bool,
):
    if is_partly_removed:
        put_old_set(bucket, source)
    die_after_commit(bucket, source, monkeypatch, overwrite=is_partly_removed)
    if is_partly_removed:
        for key in bucket.list_keys(JOURNAL):
            if not key.endswith(".run"):
                bucket.delete(key)
        assert call("clean", f"{bucket.url}/data/out/", "--yes").returncode == 0
    else:
        complete(source, bucket)
    check_whole(bucket, expected)


# Runs that overlap


@pytest.mark.parametrize("request_name", ["claim", pytest.param("part", marks=slow)])
def test_a_run_that_was_taken_over_does_not_commit(
    bucket: AnyBucket, source: Path, expected: Contents, request_name: str
):
    bucket.proxy.call(bucket.requests[request_name], lambda: resume(source, bucket))
    with pytest.raises(OutputError):
        shuffle(source, f"{bucket.url}/data/out/")
    if request_name == "part" and not bucket.lists_uploads:
        # The upload stayed open, so an entry was written after the journal was deleted; the next run deletes it.
        assert {key: body for key, body in bucket.read_all().items() if "/." not in key} == expected
        shuffle(source, f"{bucket.url}/data/out/", overwrite=True)
    check_whole(bucket, expected, is_lossy=True)


def test_two_runs_that_complete_one_commit_agree(bucket: AnyBucket, source: Path, expected: Contents):
    bucket.proxy.call(bucket.requests["complete"], lambda: complete(source, bucket))
    shuffle(source, f"{bucket.url}/data/out/")
    check_whole(bucket, expected)


def test_a_run_that_overwrites_is_not_hurt_by_an_old_one(bucket: AnyBucket, source: Path, tmp_path: Path):
    """The old run stops in its commit, is completed and replaced by others, and goes on."""
    put_old_set(bucket, source)

    def take_over() -> None:
        complete(source, bucket, seed=2, shards=3, overwrite=True)
        shuffle(source, f"{bucket.url}/data/out/", shards=8, overwrite=True)

    bucket.proxy.clear()
    bucket.proxy.call(bucket.requests["complete"], take_over)
    with pytest.raises(OutputError):
        shuffle(source, f"{bucket.url}/data/out/", seed=2, shards=3, overwrite=True)
    check_whole(bucket, shuffle_locally(source, tmp_path / "other", shards=8))


def test_two_new_runs_are_one_too_many(bucket: AnyBucket, source: Path, expected: Contents, call: Run):
    bucket.proxy.call(bucket.requests["run"], lambda: shuffle(source, f"{bucket.url}/data/out/"))
    with pytest.raises(
        OutputError, match=r"was written (or deleted )?by another program during this run; remove"
    ):
        shuffle(source, f"{bucket.url}/data/out/", seed=1)
    assert {key: body for key, body in bucket.read_all().items() if "/." not in key} == expected
    assert call("clean", f"{bucket.url}/data/out/", "--yes").returncode == 0
    check_whole(bucket, expected)


# Clean


@in_each_store
def test_clean_lists_and_removes_what_is_left(bucket: AnyBucket, source: Path, call: Run, expected: Contents):
    leave_shards(bucket, source, 2)
    bucket.put("data/other", b"")
    bucket.begin_upload("data/out/of-others")
    before = bucket.read_all()
    listed = call("clean", f"{bucket.url}/data/out")
    assert listed.returncode == 0
    assert listed.stdout.count(b": open upload") == (0 if bucket.url.startswith("az") else 2)
    assert b"/data/.out.recshuf/: run on " in listed.stdout
    assert b"nothing was removed; give --yes" in listed.stdout
    assert bucket.read_all() == before
    assert call("clean", f"{bucket.url}/data/out/", "--yes").stdout.endswith(b"\nremoved\n")
    assert bucket.read_all() == {"data/other": b""}
    assert bucket.list_uploads() == ([] if bucket.url.startswith("az") else ["data/out/of-others"])
    nothing = f"{bucket.url}/data/out/: no run left anything\n".encode()
    assert call("clean", f"{bucket.url}/data/out/").stdout == nothing
    shuffle(source, f"{bucket.url}/data/out/")
    assert bucket.read_all() == expected | {"data/other": b""}


@pytest.mark.parametrize(
    ("count", "overwrite"), [(2, True), *(pytest.param(*one, marks=slow) for one in ((0, True), (4, False)))]
)
def test_a_commit_is_left_to_resume(
    bucket: AnyBucket, source: Path, call: Run, expected: Contents, count: int, overwrite: bool
):
    if overwrite:
        put_old_set(bucket, source)
        bucket.proxy.clear()
    fail_after(bucket, f"{bucket.requests['complete']}|{bucket.requests['manifest']}", count)
    command = (source, "-o", f"{bucket.url}/data/out/", "--seed", "5", "--shards", "4")
    given = ["--overwrite"] if overwrite else []
    failed = call(*command, *given)
    bucket.proxy.clear()
    listed = call("clean", f"{bucket.url}/data/out/")
    assert listed.stdout.decode().endswith(
        "nothing was removed; the commit of a run has begun, complete it with the same command and --resume\n"
    )
    refused = call("clean", f"{bucket.url}/data/out/", "--yes")
    assert b"the commit of a run has begun" in refused.stderr
    again = call(*command, *given)
    assert again.stderr.endswith(b"; give --resume to complete it\n")
    for one in (failed, refused, again):
        assert one.returncode == 1
        assert b"--resume" in one.stderr
        assert b"recshuf clean" not in one.stderr
    complete(source, bucket, overwrite=overwrite)
    check_whole(bucket, expected)


def test_clean_removes_a_commit_that_nobody_can_complete(bucket: AnyBucket, source: Path, call: Run):
    bucket.proxy.call(bucket.requests["claim"], lambda: bucket.put("out.txt", b"precious"))
    with pytest.raises(OutputError, match=r"out\.txt: was written by another program"):
        shuffle(source, f"{bucket.url}/out.txt", shards=None)
    assert call("clean", f"{bucket.url}/out.txt", "--yes").returncode == 0
    check_whole(bucket, {"out.txt": b"precious"})


def test_clean_takes_outputs_in_buckets(call: Run):
    for url in ("data/out/", "http://b/out/", "s3://b", "ftp://b/c"):
        refused = call("clean", url)
        assert refused.returncode == 2
        assert url.encode() in refused.stderr


@pytest.mark.parametrize("request_name", ["claim", pytest.param("part", marks=slow)])
def test_a_run_that_is_cleaned_away_commits_nothing(
    bucket: AnyBucket, source: Path, expected: Contents, request_name: str, run: Run
):
    def clean() -> None:
        assert run("clean", f"{bucket.url}/data/out/", "--yes").returncode == 0
        # moto answers 500 for a part of an aborted upload, which is tried again for a while.
        bucket.proxy.answer(
            f"{bucket.requests['part']}|{bucket.requests['complete']}", 404, "NoSuchUpload", times=10**6
        )

    bucket.proxy.call(bucket.requests[request_name], clean)
    with pytest.raises(OutputError) as caught:
        shuffle(source, f"{bucket.url}/data/out/")
    if request_name == "claim":
        assert str(caught.value).endswith(": was deleted during this run; run again, alone")
        assert not hasattr(caught.value, "__notes__")
    assert [key for key in bucket.list_keys() if "/." not in key] == []
    bucket.proxy.clear()
    run("clean", f"{bucket.url}/data/out/", "--yes")
    shuffle(source, f"{bucket.url}/data/out/")
    check_whole(bucket, expected, is_lossy=True)


def test_a_dead_run_on_this_machine_leaves_no_folder(s3_bucket: AnyBucket, source: Path, scratch: Path):
    """The child ends as by kill -9, in the middle of an upload."""
    script = (
        "import os, recshuf, recshuf.output.objects.uploader as uploader\n"
        "uploader.ShardUploader._send = lambda *_: os._exit(9)\n"
        f"recshuf.shuffle({str(source)!r}, {s3_bucket.url + '/data/out/'!r}, seed=5, shards=4)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    (folder,) = scratch.iterdir()
    assert folder.name.startswith(PREFIX)
    other = UploadFolder(scratch, "of a run that lives")
    resume(source, s3_bucket)
    assert os.listdir(scratch) == [other.path.name]
    other.close()
