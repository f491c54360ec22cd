"""Runs whose store or disk fails for a time, or whose journal others delete: what is kept, and how to go on."""

import signal
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from recshuf.errors import InputError, OutputError, RecshufWarning
from recshuf.job.plan import Plan
from recshuf.run import resolve
from recshuf.system.files import format_line
from tests.conftest import Run
from tests.support.objects.object_outputs import (
    AnyBucket,
    Output,
    check_whole,
    kill_at,
    put_files,
    shuffle,
    shuffle_locally,
)
from tests.support.objects.object_server import Bucket
from tests.support.processes.command_line import DEADLINE
from tests.support.processes.killed_runs import read_journal
from tests.support.small_runs import Listener

slow = pytest.mark.slow
INPUTS = 3


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


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ((503, "SlowDown"), "the store is busy"),
        (None, "the store cannot be reached"),
    ],
)
def test_pile_sets_outlive_a_store_that_gives_no_input(
    tmp_path: Path, folder: Path, s3_bucket: Bucket, fault: tuple[int, str] | None, said: str
):
    put_files(s3_bucket, folder)
    output = tmp_path / "out"

    def fail(one: Any) -> bool:
        if not count_sets(output):
            return False
        return bool(one.answer(*fault) if fault else one.drop())

    s3_bucket.proxy.add("GET .*/in/", fail, 10**6)
    with pytest.raises(InputError, match=said) as caught:
        shuffle(f"{s3_bucket.url}/in/", f"{output}/")
    assert count_sets(output) >= 1
    (note,) = caught.value.__notes__
    assert note.startswith(f"finished parts are kept in {tmp_path}/.out.recshuf: continue")
    s3_bucket.proxy.clear()
    shuffle(f"{s3_bucket.url}/in/", f"{output}/", resume=True)
    expected = shuffle_locally(folder, tmp_path / "whole")
    assert {f"data/out/{path.name}": path.read_bytes() for path in output.iterdir()} == {
        key: content for key, content in expected.items() if "shard" in key
    }


@pytest.mark.parametrize(
    ("request_name", "count"),
    [("run", 1), ("journal", 1), pytest.param("journal", 4, marks=slow)],
)
def test_what_a_store_does_not_let_a_run_delete_is_named(
    bucket: AnyBucket, output: Output, request_name: str, count: int
):
    """Whatever is finished when all requests begin to fail: so many after the first one to begin a run, or to note an entry."""
    begun: list[int] = []

    def fail(one: Any) -> bool:
        begun.append(1)
        return bool(len(begun) > count and one.answer(*bucket.refusal[:2]))

    bucket.proxy.call(bucket.requests[request_name], lambda: bucket.proxy.add(".*", fail, 10**6))
    with pytest.raises(OutputError, match=bucket.refusal[2]) as caught:
        output.shuffle()
    bucket.proxy.clear()
    (note,) = caught.value.__notes__
    way = f"continue with the same command and resume=True, or remove them with recshuf clean {output.url} --yes"
    assert note.endswith(f"{bucket.url}/data/.out.recshuf/: {way}")
    output.shuffle(resume=True)
    output.check(is_lossy=True)


@pytest.mark.parametrize("is_of_dead_run", [False, True])
def test_what_a_store_does_not_let_a_run_delete_there_is_named(
    bucket: AnyBucket, source: Path, tmp_path: Path, call: Run, is_of_dead_run: bool
):
    output = f"{tmp_path}/out/"
    write = partial(shuffle, source, output, temp_dir=f"{bucket.url}/tmp")
    if is_of_dead_run:
        assert kill_at(bucket.proxy, 0, write, r"(PUT|POST) .*\.piles") == -signal.SIGKILL
        bucket.put(f"tmp/{name_sets(tmp_path)}/set-00000.piles", b"left")
        write = partial(shuffle, source, output)
    bucket.proxy.answer(bucket.requests["delete"], *bucket.refusal[:2], times=10**6)
    way = rf"/tmp/recshuf-piles-.*{bucket.refusal[2]}.*; recshuf clean {bucket.url}/tmp/ lists and removes"
    with pytest.warns(RecshufWarning, match=way):
        write()
    bucket.proxy.clear()
    assert {path.name for path in tmp_path.iterdir()} >= {"out", ".out.recshuf.json"}
    assert not (tmp_path / ".out.recshuf").exists()
    assert bucket.list_keys("tmp/recshuf-piles-")
    assert call("clean", f"{bucket.url}/tmp/", "--yes").stdout.endswith(b"\nremoved\n")
    check_whole(bucket, {})


def name_sets(folder: Path) -> str:
    """Return the name of the prefix that a run to ``out`` in a folder has chosen for its sets."""
    sets: str = read_journal(folder / "out")[0]["piles"]
    return sets.rstrip("/").rpartition("/")[2]


class Heard(Listener):
    """Lets others wait for a warning."""

    def __init__(self) -> None:
        super().__init__()
        self.said = threading.Event()

    def warn(self, message: str) -> None:
        super().warn(message)
        self.said.set()


def test_a_store_that_is_silent_is_named_while_the_run_waits(
    bucket: AnyBucket, output: Output, monkeypatch: pytest.MonkeyPatch
):
    """The first request is answered once that is said."""
    heard = Heard()
    monkeypatch.setattr("recshuf.storage.requests.SILENCE_SECONDS", 0.01)
    bucket.proxy.call("", lambda: heard.said.wait(DEADLINE))
    output.shuffle(progress=heard)
    said = "the store has not answered for 0 seconds; waits, and tries again up to 8 times"
    assert [text.partition(": ")[2] for text in heard.warnings] == [said]
    assert heard.warnings[0].startswith(f"{bucket.url}/data/")


def test_a_store_that_stays_busy_is_named_while_the_run_waits(
    bucket: AnyBucket, output: Output, monkeypatch: pytest.MonkeyPatch
):
    heard, journal = Heard(), bucket.requests["journal"]
    bucket.proxy.call(journal, lambda: monkeypatch.setattr("recshuf.storage.requests.SILENCE_SECONDS", 0))
    bucket.proxy.answer(journal, 503, "SlowDown", times=3)
    output.shuffle(progress=heard)
    (said,) = heard.warnings
    assert said.endswith("; waits, and tries again up to 8 times")
    assert "the store is busy" in said


# Journals that others delete, as `recshuf clean --yes` does


@pytest.mark.parametrize("others", ["another run", pytest.param("nobody", marks=slow)])
def test_a_run_that_has_lost_its_journal_keeps_nothing_and_says_so(
    bucket: AnyBucket, source: Path, call: Run, others: str
):
    def delete() -> None:
        for key in bucket.list_keys("data/.out.recshuf/"):
            bucket.delete(key)
        if others == "another run":
            bucket.put("data/.out.recshuf/00001.run", format_line({"run": "0123456789abcdef"}))

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
