"""Runs into a bucket that die, are continued elsewhere, overlap, or are cleaned away."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest

from recshuf.errors import AlreadyCompleteError, OutputError, UsageError
from recshuf.output.objects.stage import UploadTransaction
from recshuf.storage.writing.parts import PREFIX, UploadFolder
from tests.support.objects.object_outputs import (
    SHARDS,
    check_whole,
    put_old_set,
    shuffle,
    shuffle_locally,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_outputs import AnyBucket


@pytest.fixture
def expected(source: Path, tmp_path: Path) -> dict[str, bytes]:
    return shuffle_locally(source, tmp_path / "local")


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


@pytest.mark.parametrize("count", [1, 2, 3])
def test_finished_shards_are_not_uploaded_again(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], count: int, scratch: Path
):
    leave_shards(bucket, source, count)
    assert os.listdir(scratch) == []
    assert [key for key in bucket.list_keys() if "/." not in key] == []
    shuffle(source, f"{bucket.url}/data/out/", resume=True, workers=2, memory="100MB")
    check_whole(bucket, expected)
    assert bucket.proxy.count(bucket.requests["part"]) == SHARDS - count


def test_one_object_is_continued(bucket: AnyBucket, source: Path, tmp_path: Path):
    bucket.proxy.answer(bucket.requests["claim"], *bucket.refusal[:2])
    with pytest.raises(OutputError, match=bucket.refusal[2]):
        shuffle(source, f"{bucket.url}/out.txt", shards=None)
    bucket.proxy.clear()
    shuffle(source, f"{bucket.url}/out.txt", shards=None, resume=True)
    shuffle(source, tmp_path / "out.txt", shards=None)
    check_whole(bucket, {"out.txt": (tmp_path / "out.txt").read_bytes()})
    assert bucket.proxy.count(bucket.requests["part"]) == 0


def test_a_seed_that_was_drawn_is_kept(bucket: AnyBucket, source: Path, tmp_path: Path):
    leave_shards(bucket, source, 2, seed=None)
    report = shuffle(source, f"{bucket.url}/data/out/", seed=None, resume=True)
    check_whole(bucket, shuffle_locally(source, tmp_path / "local", seed=report.seed))


def test_other_options_are_refused(bucket: AnyBucket, source: Path):
    leave_shards(bucket, source, 2)
    with pytest.raises(UsageError, match="resume=True: the seed was 5 in the unfinished run and is 6"):
        shuffle(source, f"{bucket.url}/data/out/", seed=6, resume=True)
    assert len(bucket.list_uploads()) == 2


@pytest.mark.parametrize("damage", ["aborted", "another part"])
def test_uploads_that_are_lost_or_changed_are_made_again(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], damage: str
):
    leave_shards(bucket, source, 2)
    (bucket.abort_one if damage == "aborted" else bucket.damage_one)()
    shuffle(source, f"{bucket.url}/data/out/", resume=True)
    check_whole(bucket, expected)
    assert bucket.proxy.count(bucket.requests["part"]) == SHARDS - 1


def test_entries_that_are_damaged_are_left_out(bucket: AnyBucket, source: Path, expected: dict[str, bytes]):
    leave_shards(bucket, source, 2)
    key = next(key for key in bucket.list_keys() if "-000001-" in key)
    bucket.put(key, bucket.read(key)[:-5] + b"xxxxx")
    shuffle(source, f"{bucket.url}/data/out/", resume=True)
    check_whole(bucket, expected, is_lossy=True)
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


def test_objects_of_others_are_named_before_an_unfinished_run(bucket: AnyBucket, source: Path):
    """Whose `--resume` would name them, too."""
    leave_shards(bucket, source, 2)
    bucket.put("data/out/foo", b"x")
    for resume in (False, True):
        with pytest.raises(
            OutputError,
            match=r"holds .foo., which is not from an earlier run; remove it or choose another output",
        ):
            shuffle(source, f"{bucket.url}/data/out/", resume=resume)
    bucket.delete("data/out/foo")
    shuffle(source, f"{bucket.url}/data/out/", resume=True)


def test_nothing_to_resume_is_told_or_run(bucket: AnyBucket, source: Path, expected: dict[str, bytes]):
    shuffle(source, f"{bucket.url}/data/out/", resume=True)
    check_whole(bucket, expected)
    with pytest.raises(AlreadyCompleteError, match="exists, and no unfinished run of it is left"):
        shuffle(source, f"{bucket.url}/data/out/", resume=True)
    check_whole(bucket, expected)


@pytest.mark.parametrize("name", ["data/out/", "out.txt"])
def test_a_complete_run_that_is_resumed_may_have_its_report(
    bucket: AnyBucket, source: Path, tmp_path: Path, call: Run, name: str
):
    report = tmp_path / "report"
    command = (source, "-o", f"{bucket.url}/{name}", "--resume", "--report", report)
    assert call(*command).returncode == 0
    first = report.read_bytes()
    again = call(*command)
    assert (again.returncode, report.read_bytes()) == (0, first)
    refused = call(source, "-o", f"{bucket.url}/other/{name}", "--resume", "--report", report)
    assert refused.returncode == 1
    assert b"report: exists; give --overwrite" in refused.stderr


# The commit


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("count", range(SHARDS + 1))
def test_a_commit_that_fails_is_completed(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], count: int, overwrite: bool
):
    if overwrite:
        put_old_set(bucket, source)
    bucket.proxy.clear()
    fail_after(bucket, f"{bucket.requests['complete']}|{bucket.requests['manifest']}", count)
    with pytest.raises(OutputError, match=bucket.refusal[2]) as caught:
        shuffle(source, f"{bucket.url}/data/out/", overwrite=overwrite)
    assert "resume=True" in caught.value.__notes__[0]
    bucket.proxy.clear()
    with pytest.raises(
        AlreadyCompleteError, match="complete; the commit that an unfinished run had begun"
    ) as done:
        shuffle(source, f"{bucket.url}/data/out/", overwrite=overwrite, resume=True)
    assert not hasattr(done.value, "__notes__")
    check_whole(bucket, expected)
    assert bucket.proxy.count(bucket.requests["part"]) == 0


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_commit_whose_upload_is_lost_writes_that_shard_again(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], overwrite: bool
):
    if overwrite:
        put_old_set(bucket, source)
        bucket.proxy.clear()
    fail_after(bucket, bucket.requests["complete"], 2)
    with pytest.raises(OutputError, match=bucket.refusal[2]):
        shuffle(source, f"{bucket.url}/data/out/", overwrite=overwrite)
    bucket.proxy.clear()
    bucket.abort_one()
    shuffle(source, f"{bucket.url}/data/out/", overwrite=overwrite, resume=True)
    check_whole(bucket, expected)
    assert bucket.proxy.count(bucket.requests["part"]) == 1


def test_a_commit_whose_entry_is_damaged_writes_that_shard_again(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes]
):
    fail_after(bucket, bucket.requests["complete"], 0)
    with pytest.raises(OutputError, match=bucket.refusal[2]):
        shuffle(source, f"{bucket.url}/data/out/")
    bucket.proxy.clear()
    key = next(key for key in bucket.list_keys() if "-000002-" in key)
    bucket.put(key, bucket.read(key)[:-5] + b"xxxxx")
    shuffle(source, f"{bucket.url}/data/out/", resume=True)
    check_whole(bucket, expected, is_lossy=True)
    assert bucket.proxy.count(bucket.requests["part"]) == 1


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("lost", ["-000001-", "-000002-", ".entry"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_entries_that_are_deleted_during_a_commit_are_no_sign_of_its_end(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], count: int, lost: str, overwrite: bool
):
    if overwrite:
        put_old_set(bucket, source)
        bucket.proxy.clear()
    fail_after(bucket, bucket.requests["complete"], count)
    with pytest.raises(OutputError, match=bucket.refusal[2]):
        shuffle(source, f"{bucket.url}/data/out/", overwrite=overwrite)
    bucket.proxy.clear()
    for key in [key for key in bucket.list_keys() if lost in key]:
        bucket.delete(key)
    with suppress(AlreadyCompleteError) if count else nullcontext():
        shuffle(source, f"{bucket.url}/data/out/", overwrite=overwrite, resume=True)
    check_whole(bucket, expected, is_lossy=True)


@pytest.mark.parametrize("count", [0, 1])
def test_a_journal_that_cannot_be_deleted_is_told_and_deleted_later(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], call: Run, count: int
):
    fail_after(bucket, bucket.requests["delete"], count)
    done = call(source, "-o", f"{bucket.url}/data/out/", "--seed", "5", "--shards", "4")
    assert done.returncode == 0
    said = f"what is left of this run goes with recshuf clean {bucket.url}/data/out/ --yes\n"
    assert said in done.stderr.decode()
    bucket.proxy.clear()
    assert {key for key in bucket.list_keys() if "/." not in key} == set(expected)
    with pytest.raises(AlreadyCompleteError):
        shuffle(source, f"{bucket.url}/data/out/", resume=True)
    check_whole(bucket, expected)


def test_a_run_that_dies_after_its_commit_is_complete(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(UploadTransaction, "remove", UploadTransaction.release)
        shuffle(source, f"{bucket.url}/data/out/")
    with pytest.raises(AlreadyCompleteError):
        shuffle(source, f"{bucket.url}/data/out/", resume=True)
    check_whole(bucket, expected)


# Runs that overlap


def interfere(bucket: AnyBucket, request: str, function: Callable[[], object]) -> None:
    """Call a function before the next request of a kind; requests of the function itself are not struck."""
    bucket.proxy.call(request, function, times=1)


@pytest.mark.parametrize("request_name", ["part", "claim"])
def test_a_run_that_was_taken_over_does_not_commit(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], request_name: str
):
    def take_over() -> None:
        shuffle(source, f"{bucket.url}/data/out/", resume=True)

    interfere(bucket, bucket.requests[request_name], take_over)
    with pytest.raises(OutputError):
        shuffle(source, f"{bucket.url}/data/out/")
    if request_name == "part" and not bucket.lists_uploads:
        # The upload stayed open, so an entry was written after the journal was deleted; the next run deletes it.
        assert {key: body for key, body in bucket.read_all().items() if "/." not in key} == expected
        shuffle(source, f"{bucket.url}/data/out/", overwrite=True)
    check_whole(bucket, expected, is_lossy=True)


def test_two_runs_that_complete_one_commit_agree(bucket: AnyBucket, source: Path, expected: dict[str, bytes]):
    def take_over() -> None:
        with pytest.raises(AlreadyCompleteError):
            shuffle(source, f"{bucket.url}/data/out/", resume=True)

    interfere(bucket, bucket.requests["complete"], take_over)
    shuffle(source, f"{bucket.url}/data/out/")
    check_whole(bucket, expected)


def test_a_run_that_overwrites_is_not_hurt_by_an_old_one(bucket: AnyBucket, source: Path, tmp_path: Path):
    """The old run stops in its commit, is completed and replaced by others, and goes on."""
    put_old_set(bucket, source)

    def take_over() -> None:
        with pytest.raises(AlreadyCompleteError):
            shuffle(source, f"{bucket.url}/data/out/", seed=2, shards=3, overwrite=True, resume=True)
        shuffle(source, f"{bucket.url}/data/out/", shards=8, overwrite=True)

    bucket.proxy.clear()
    interfere(bucket, bucket.requests["complete"], take_over)
    with pytest.raises(OutputError):
        shuffle(source, f"{bucket.url}/data/out/", seed=2, shards=3, overwrite=True)
    check_whole(bucket, shuffle_locally(source, tmp_path / "local", shards=8))


def test_two_new_runs_are_one_too_many(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], call: Run
):
    def run_first() -> None:
        shuffle(source, f"{bucket.url}/data/out/")

    interfere(bucket, bucket.requests["run"], run_first)
    with pytest.raises(
        OutputError, match=r"was written (or deleted )?by another program during this run; remove"
    ):
        shuffle(source, f"{bucket.url}/data/out/", seed=1)
    assert {key: body for key, body in bucket.read_all().items() if "/." not in key} == expected
    assert call("clean", f"{bucket.url}/data/out/", "--yes").returncode == 0
    check_whole(bucket, expected)


# Clean


def test_clean_lists_and_removes_what_is_left(
    bucket: AnyBucket, source: Path, call: Run, expected: dict[str, bytes]
):
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
    assert (
        call("clean", f"{bucket.url}/data/out/").stdout
        == f"{bucket.url}/data/out/: no run left anything\n".encode()
    )
    shuffle(source, f"{bucket.url}/data/out/")
    assert bucket.read_all() == expected | {"data/other": b""}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("count", [0, 2, SHARDS])
def test_a_commit_is_left_to_resume(
    bucket: AnyBucket, source: Path, call: Run, expected: dict[str, bytes], count: int, overwrite: bool
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
    with pytest.raises(AlreadyCompleteError):
        shuffle(source, f"{bucket.url}/data/out/", resume=True)
    check_whole(bucket, expected)


@pytest.mark.parametrize("lost", ["-000001-", ".entry"])
def test_clean_leaves_a_commit_without_its_entries_to_resume(
    bucket: AnyBucket, source: Path, call: Run, expected: dict[str, bytes], lost: str
):
    fail_after(bucket, bucket.requests["complete"], 2)
    with pytest.raises(OutputError, match=bucket.refusal[2]):
        shuffle(source, f"{bucket.url}/data/out/")
    bucket.proxy.clear()
    for key in [key for key in bucket.list_keys() if lost in key]:
        bucket.delete(key)
    before = bucket.read_all()
    refused = call("clean", f"{bucket.url}/data/out/", "--yes")
    assert refused.returncode == 1
    assert b"the commit of a run has begun" in refused.stderr
    assert bucket.read_all() == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_clean_removes_what_is_left_of_a_journal_after_the_commit(
    bucket: AnyBucket,
    source: Path,
    call: Run,
    expected: dict[str, bytes],
    overwrite: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    if overwrite:
        put_old_set(bucket, source)
    with monkeypatch.context() as patch:
        patch.setattr(UploadTransaction, "remove", UploadTransaction.release)
        shuffle(source, f"{bucket.url}/data/out/", overwrite=overwrite)
    for key in bucket.list_keys("data/.out.recshuf/"):
        if not key.endswith(".run"):
            bucket.delete(key)
    assert call("clean", f"{bucket.url}/data/out/", "--yes").returncode == 0
    check_whole(bucket, expected)


def test_clean_removes_a_commit_that_nobody_can_complete(bucket: AnyBucket, source: Path, call: Run):
    bucket.proxy.call(bucket.requests["claim"], lambda: bucket.put("out.txt", b"precious"))
    with pytest.raises(OutputError, match=r"out\.txt: was written by another program"):
        shuffle(source, f"{bucket.url}/out.txt", shards=None)
    assert call("clean", f"{bucket.url}/out.txt", "--yes").returncode == 0
    check_whole(bucket, {"out.txt": b"precious"})


@pytest.mark.parametrize("url", ["data/out/", "http://b/out/", "s3://b", "ftp://b/c"])
def test_clean_takes_outputs_in_buckets(url: str, call: Run):
    refused = call("clean", url)
    assert refused.returncode == 2
    assert url.encode() in refused.stderr


@pytest.mark.parametrize("request_name", ["part", "claim"])
def test_a_run_that_is_cleaned_away_commits_nothing(
    bucket: AnyBucket, source: Path, expected: dict[str, bytes], request_name: str, run: Run
):
    # moto answers 500 for a part of an aborted upload, which is tried again for a while.
    def clean() -> None:
        assert run("clean", f"{bucket.url}/data/out/", "--yes").returncode == 0
        bucket.proxy.answer(
            f"{bucket.requests['part']}|{bucket.requests['complete']}", 404, "NoSuchUpload", times=10**6
        )

    interfere(bucket, bucket.requests[request_name], clean)
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


def test_a_dead_run_on_this_machine_leaves_no_folder(
    bucket: AnyBucket, source: Path, scratch: Path, run: Run
):
    """The child ends as by kill -9, in the middle of an upload."""
    script = (
        "import os, recshuf, recshuf.output.objects.uploader as uploader\n"
        "uploader.ShardUploader._send = lambda *_: os._exit(9)\n"
        f"recshuf.shuffle({str(source)!r}, {bucket.url + '/data/out/'!r}, seed=5, shards=4)"
    )
    import subprocess
    import sys

    assert subprocess.run([sys.executable, "-c", script]).returncode == 9
    (folder,) = scratch.iterdir()
    assert folder.name.startswith(PREFIX)
    other = UploadFolder(scratch, "of a run that lives")
    shuffle(source, f"{bucket.url}/data/out/", resume=True)
    assert os.listdir(scratch) == [other.path.name]
    other.close()
