"""Runs into a bucket that die, are continued elsewhere, overlap, or are cleaned away."""

import os
import re
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from recshuf.errors import AlreadyCompleteError, OutputError
from recshuf.storage.writing import PREFIX, UploadFolder
from tests.conftest import Run
from tests.support.objects.object_outputs import (
    SHARDS,
    AnyBucket,
    Output,
    check_whole,
    clean,
    in_each_store,
    read_visible,
    shuffle,
    shuffle_locally,
)

slow = pytest.mark.slow
JOURNAL = "data/.out.recshuf/"


def leave_shards(output: Output, count: int, **options: Any) -> None:
    """Leave what a run leaves that fails when some shards are finished."""
    caught = output.fail("part", count, **options)
    assert "continue with the same command and resume=True" in caught.__notes__[0]
    assert len(output.bucket.list_uploads()) == count


def damage(bucket: AnyBucket, part: str) -> None:
    """Damage the first entry of the journal whose name has a part."""
    key = next(key for key in bucket.list_keys() if part in key)
    bucket.put(key, bucket.read(key)[:-5] + b"xxxxx")


def complete(output: Output, **options: Any) -> None:
    """Continue a run that had begun its commit."""
    said = "complete; the commit that an unfinished run had begun"
    with pytest.raises(AlreadyCompleteError, match=said) as done:
        output.shuffle(resume=True, **options)
    assert not hasattr(done.value, "__notes__")


@in_each_store
def test_finished_shards_are_not_uploaded_again(bucket: AnyBucket, output: Output, scratch: Path):
    leave_shards(output, 2)
    assert os.listdir(scratch) == []
    assert read_visible(bucket) == {}
    output.shuffle(resume=True, workers=2, memory="100MB")
    output.check()
    assert bucket.proxy.count(bucket.requests["part"]) == SHARDS - 2


def test_an_output_whose_shards_others_have_changed_is_not_complete(bucket: AnyBucket, output: Output):
    output.shuffle()
    with pytest.raises(AlreadyCompleteError):
        output.shuffle(resume=True)
    key = next(iter(bucket.list_keys("data/out/")))
    bucket.put(key, bucket.read(key)[:-1])
    with pytest.raises(OutputError, match="is not empty") as caught:
        output.shuffle(resume=True)
    assert not isinstance(caught.value, AlreadyCompleteError)


def test_parts_are_continued_replaced_and_cleaned(bucket: AnyBucket, source: Path, tmp_path: Path, call: Run):
    given = {"split": "a=0.6,b=0.4"}
    expected = shuffle_locally(source, tmp_path / "split", **given)
    output = Output(bucket, source)
    output.fail("part", 2, **given)
    output.shuffle(resume=True, **given)
    check_whole(bucket, expected)
    assert bucket.proxy.count(bucket.requests["part"]) == SHARDS - 2
    output.fail("complete", 1, overwrite=True, split="b=0.5,c=0.5")
    complete(output, overwrite=True, split="b=0.5,c=0.5")
    check_whole(bucket, shuffle_locally(source, tmp_path / "other", split="b=0.5,c=0.5"))
    assert not [key for key in bucket.list_keys() if "/a/" in key]
    bucket.begin_upload("data/out/b/of-others")
    output.fail("part", 2, overwrite=True, **given)
    assert call("clean", output.url, "--yes").stdout.endswith(b"\nremoved\n")
    # Of Azure, only blocks that a journal names are seen.
    assert bucket.list_uploads() == ([] if bucket.url.startswith("az:") else ["data/out/b/of-others"])


def test_one_object_is_continued(bucket: AnyBucket, source: Path, tmp_path: Path):
    bucket.proxy.answer(bucket.requests["claim"], *bucket.refusal[:2])
    with pytest.raises(OutputError, match=bucket.refusal[2]):
        shuffle(source, f"{bucket.url}/out.txt", shards=None)
    bucket.proxy.clear()
    shuffle(source, f"{bucket.url}/out.txt", shards=None, resume=True)
    shuffle(source, tmp_path / "out.txt", shards=None)
    check_whole(bucket, {"out.txt": (tmp_path / "out.txt").read_bytes()})
    assert bucket.proxy.count(bucket.requests["part"]) == 0
    with pytest.raises(AlreadyCompleteError):
        shuffle(source, f"{bucket.url}/out.txt", shards=None, resume=True)


@pytest.mark.parametrize("harm", ["aborted", "another part", "damaged entry"])
def test_shards_that_are_lost_or_changed_are_written_again(bucket: AnyBucket, output: Output, harm: str):
    leave_shards(output, 2)
    harms: dict[str, Callable[[], None]] = {
        "aborted": bucket.abort_one,
        "another part": bucket.damage_one,
        "damaged entry": lambda: damage(bucket, "-000001-"),
    }
    harms[harm]()
    output.shuffle(resume=True)
    output.check(is_lossy=harm == "damaged entry")
    assert bucket.proxy.count(bucket.requests["part"]) == SHARDS - 1


def test_an_unfinished_run_is_an_error_with_both_remedies(bucket: AnyBucket, output: Output):
    leave_shards(output, 2)
    before = bucket.read_all()
    said = (
        r"an unfinished run left .*/data/\.out\.recshuf/, finished shards: 2; give resume=True to continue it, or "
        r"remove it with recshuf clean \w+://.*/data/out/ --yes$"
    )
    with pytest.raises(OutputError, match=said) as caught:
        output.shuffle()
    assert not hasattr(caught.value, "__notes__")
    assert bucket.read_all() == before
    assert len(bucket.list_uploads()) == 2
    # What others have there is named first: `--resume` would name it, too.
    bucket.put("data/out/foo", b"x")
    for resumes in (False, True):
        with pytest.raises(OutputError, match=r"holds .foo., which is not from an earlier run; move it away"):
            output.shuffle(resume=resumes)
    bucket.delete("data/out/foo")
    output.shuffle(resume=True)


# The commit


@in_each_store
@pytest.mark.parametrize(
    ("count", "overwrite"),
    [(1, True), pytest.param(SHARDS, False, marks=slow)],
)
def test_a_commit_that_fails_is_left_to_resume_and_completed(
    bucket: AnyBucket, output: Output, call: Run, count: int, overwrite: bool
):
    if overwrite:
        output.put_old()
    output.refuse("complete manifest", count)
    command = (output.source, "-o", output.url, "--seed", "5", "--shards", "4", "--workers", "1")
    given = ["--overwrite"] if overwrite else []
    failed = call(*command, *given)
    bucket.proxy.clear()
    listed = call("clean", output.url)
    assert listed.stdout.decode().endswith(
        "nothing was removed; the commit of a run has begun, complete it with the same command and --resume\n"
    )
    refused = call("clean", output.url, "--yes")
    assert b"the commit of a run has begun" in refused.stderr
    again = call(*command, *given)
    assert again.stderr.endswith(b"; give --resume to complete it\n")
    for one in (failed, refused, again):
        assert one.returncode == 1
        assert b"--resume" in one.stderr
        assert b"recshuf clean" not in one.stderr
    complete(output, overwrite=overwrite)
    output.check()
    assert bucket.proxy.count(bucket.requests["part"]) == 0


def test_a_commit_that_has_not_deleted_old_shards_is_not_cleaned_away(
    bucket: AnyBucket, output: Output, call: Run
):
    output.put_old()
    bucket.proxy.answer("DELETE .*shard", *bucket.refusal[:2], times=10**6)
    with pytest.raises(OutputError, match=bucket.refusal[2]):
        output.shuffle(overwrite=True)
    bucket.proxy.clear()
    assert b"the commit of a run has begun" in call("clean", output.url, "--yes").stderr
    complete(output, overwrite=True)
    output.check()


@pytest.mark.parametrize(
    ("count", "lost", "overwrite"),
    [
        (1, "-000001-", True),
        (0, "-000002-", False),
        pytest.param(3, ".entry", False, marks=slow),
    ],
)
def test_entries_that_are_deleted_during_a_commit_are_no_sign_of_its_end(
    bucket: AnyBucket, output: Output, call: Run, count: int, lost: str, overwrite: bool
):
    if overwrite:
        output.put_old()
    output.fail("complete", count, overwrite=overwrite)
    for key in [key for key in bucket.list_keys() if lost in key]:
        bucket.delete(key)
    if count:
        before = bucket.read_all()
        refused = call("clean", output.url, "--yes")
        assert refused.returncode == 1
        assert b"the commit of a run has begun" in refused.stderr
        assert bucket.read_all() == before
    with suppress(AlreadyCompleteError) if count else nullcontext():
        output.shuffle(resume=True, overwrite=overwrite)
    output.check(is_lossy=True)


@pytest.mark.parametrize(("count", "way"), [(1, "resume"), (0, "clean")])
def test_a_journal_that_cannot_be_deleted_is_told_and_deleted_later(
    bucket: AnyBucket, output: Output, call: Run, count: int, way: str
):
    """Its entries go with the first request, and the objects of its runs with the second one."""
    is_s3 = bucket.url.startswith("s3")
    if is_s3:  # others delete old shards by the same requests
        output.put_old()
    output.refuse("delete", count)
    done = call(output.source, "-o", output.url, "--seed", "5", "--shards", "4", "--overwrite")
    assert done.returncode == 0
    warning, _ = done.stderr.decode().splitlines()
    assert warning.endswith(f"what is left of this run goes with recshuf clean {bucket.url}/data/out/ --yes")
    assert "run again" not in warning
    bucket.proxy.clear()
    assert read_visible(bucket) == output.expected
    if count and is_s3:
        # A run counts as long as its object is there.
        assert all(key.endswith(".run") for key in bucket.list_keys(JOURNAL))
    if way == "clean":
        assert call("clean", output.url, "--yes").returncode == 0
    else:
        with pytest.raises(AlreadyCompleteError):
            output.shuffle(resume=True, overwrite=True)
    output.check()


# Runs that overlap


@pytest.mark.parametrize(
    ("request_name", "ends", "said"),
    [
        ("claim", True, "was deleted during this run; run again"),
        ("claim", False, "another run is writing this output, or has taken it over"),
        pytest.param("part", True, None, marks=slow),
    ],
)
def test_a_run_that_was_taken_over_does_not_commit(
    bucket: AnyBucket, output: Output, request_name: str, ends: bool, said: str | None
):
    take_over = output.shuffle if ends else partial(output.fail, "complete")
    bucket.proxy.call(bucket.requests[request_name], partial(take_over, resume=True))
    with pytest.raises(OutputError, match=said):
        output.shuffle()
    if not ends:
        complete(output)
    if request_name == "part" and not bucket.lists_uploads:
        # The upload stayed open, so an entry was written after the journal was deleted; the next run deletes it.
        assert read_visible(bucket) == output.expected
        output.shuffle(overwrite=True)
    output.check(is_lossy=True)


def test_two_runs_that_complete_one_commit_agree(bucket: AnyBucket, output: Output):
    bucket.proxy.call(bucket.requests["complete"], lambda: complete(output))
    output.shuffle()
    output.check()


def test_a_run_that_overwrites_is_not_hurt_by_an_old_one(bucket: AnyBucket, output: Output, tmp_path: Path):
    """The old run stops in its commit, is completed and replaced by others, and goes on."""
    output.put_old()

    def take_over() -> None:
        complete(output, seed=2, shards=3, overwrite=True)
        output.shuffle(shards=8, overwrite=True)

    bucket.proxy.call(bucket.requests["complete"], take_over)
    with pytest.raises(OutputError):
        output.shuffle(seed=2, shards=3, overwrite=True)
    check_whole(bucket, shuffle_locally(output.source, tmp_path / "other", shards=8))


# Clean


@in_each_store
def test_clean_lists_and_removes_what_is_left(bucket: AnyBucket, output: Output, call: Run):
    leave_shards(output, 2)
    bucket.put("data/other", b"")
    bucket.begin_upload("data/out/of-others")
    before = bucket.read_all()
    listed = call("clean", f"{bucket.url}/data/out")
    assert listed.returncode == 0
    assert listed.stdout.count(b": open upload") == (0 if bucket.url.startswith("az") else 2)
    assert b"/data/.out.recshuf/: run on " in listed.stdout
    assert b"nothing was removed; give --yes" in listed.stdout
    assert bucket.read_all() == before
    assert call("clean", output.url, "--yes").stdout.endswith(b"\nremoved\n")
    assert bucket.read_all() == {"data/other": b""}
    assert bucket.list_uploads() == ([] if bucket.url.startswith("az") else ["data/out/of-others"])
    nothing = f"{bucket.url}/data/out/: no run left anything\n".encode()
    assert call("clean", output.url).stdout == nothing
    output.shuffle()
    assert bucket.read_all() == output.expected | {"data/other": b""}


def test_clean_removes_a_commit_that_nobody_can_complete(bucket: AnyBucket, source: Path, call: Run):
    bucket.proxy.call(bucket.requests["claim"], lambda: bucket.put("out.txt", b"precious"))
    with pytest.raises(OutputError, match=r"out\.txt: was written by another program"):
        shuffle(source, f"{bucket.url}/out.txt", shards=None)
    assert call("clean", f"{bucket.url}/out.txt", "--yes").returncode == 0
    check_whole(bucket, {"out.txt": b"precious"})


def test_clean_names_what_it_has_asked_for_in_its_errors(s3_bucket: AnyBucket, call: Run):
    for spared in range(4):
        s3_bucket.proxy.clear()
        s3_bucket.proxy.call("", lambda: None, times=spared)
        s3_bucket.proxy.answer("", *s3_bucket.refusal[:2], times=10**6)
        told = call("clean", f"{s3_bucket.url}/out/").stderr.decode()
        assert re.search(rf" {s3_bucket.url}/\S*out\S*: the credentials have expired", told), spared
    s3_bucket.proxy.clear()
    told = call("clean", "s3://no-such-bucket/out/").stderr.decode()
    assert told.endswith(" s3://no-such-bucket: there is no such bucket; check the name, or create it\n")
    for url in ("data/out/", "http://b/out/", "s3://b", "ftp://b/c"):
        refused = call("clean", url)
        assert refused.returncode == 2
        assert url.encode() in refused.stderr


def test_clean_finds_what_is_left_by_the_options_given(
    s3_bucket: AnyBucket, call: Run, monkeypatch: pytest.MonkeyPatch
):
    s3_bucket.begin_upload("out/shard-00000.txt")
    keys = {name: os.environ[f"AWS_{name}".upper()] for name in ("access_key_id", "secret_access_key")}
    for name in keys:
        monkeypatch.delenv(f"AWS_{name}".upper())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    options = [word for name, key in keys.items() for word in ("--storage-option", f"{name}={key}")]
    server = ["--endpoint-url", s3_bucket.proxy.url]
    done = call("clean", f"{s3_bucket.url}/out/", "--yes", *server, *options)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, b"removed"), done.stderr
    assert s3_bucket.list_uploads() == []


@pytest.mark.parametrize(
    ("request_name", "has_others"),
    [("claim", True), ("part", False)],
)
def test_a_run_that_is_cleaned_away_commits_nothing(
    bucket: AnyBucket, output: Output, tmp_path: Path, request_name: str, has_others: bool
):
    """Others may have begun a run since, whose journal has the same number, and in which some of its entries arrive late."""

    def strike() -> None:
        late = {key: bucket.read(key) for key in bucket.list_keys(JOURNAL) if key.endswith(".entry")}
        clean(output.url)
        if has_others:
            output.fail("part", 2, seed=2)
            for key, content in late.items():
                bucket.put(key.replace("00001-0", "00001-9"), content)
            return
        # moto answers 500 for a part of an aborted upload, which is tried again for a while.
        for name in ("part", "complete"):
            bucket.proxy.answer(bucket.requests[name], 404, "NoSuchUpload", times=10**6)

    bucket.proxy.call(bucket.requests[request_name], strike)
    with pytest.raises(OutputError) as caught:
        output.shuffle()
    if request_name == "claim":
        assert str(caught.value).endswith(": was deleted during this run; run again, alone")
        assert not hasattr(caught.value, "__notes__")
    assert read_visible(bucket) == {}
    bucket.proxy.clear()
    if has_others:
        output.shuffle(resume=True, seed=2)
        assert bucket.proxy.count(bucket.requests["part"]) == SHARDS - 2
        check_whole(bucket, shuffle_locally(output.source, tmp_path / "other", seed=2))
    else:
        clean(output.url)
        output.shuffle()
        output.check(is_lossy=True)


def test_the_folder_of_a_dead_run_is_deleted_by_the_next(s3_bucket: AnyBucket, source: Path, scratch: Path):
    other = UploadFolder(scratch, "of a run that lives")
    (scratch / f"{PREFIX}dead" / "data").mkdir(parents=True)
    Output(s3_bucket, source).shuffle()
    assert os.listdir(scratch) == [other.path.name]
    other.close()
