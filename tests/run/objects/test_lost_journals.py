"""Runs into a bucket whose journal others delete, as `recshuf clean --yes` does, and which then fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_outputs import AnyBucket


@pytest.mark.parametrize("others", ["nobody", "another run"])
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
    assert (
        b"data/.out.recshuf/: was deleted by others, so nothing of this run is kept; run again" in told.stderr
    )
    assert b"--resume" not in told.stderr
    if not bucket.url.startswith("az:"):  # where blocks that are not committed expire
        assert bucket.list_uploads() == []
    # An entry that was on its way stays, and belongs to no run.
    left = [key for key in bucket.list_keys() if not key.endswith(".entry")]
    assert left == (["data/.out.recshuf/00001.run"] if others == "another run" else [])


def test_a_run_that_keeps_its_journal_says_how_to_go_on(bucket: AnyBucket, source: Path, call: Run):
    bucket.proxy.add(bucket.requests["part"], lambda _: False, 2)
    bucket.proxy.answer(bucket.requests["part"], *bucket.refusal[:2], times=10**6)
    told = call(source, "-o", f"{bucket.url}/data/out/", "--shards", "4", "--workers", "1")
    assert told.returncode == 1
    assert b"was deleted" not in told.stderr
    assert b"--resume" in told.stderr
    assert len(bucket.list_uploads()) == 2
