"""The journal of objects: entries in order, one owner at a time, and nothing of owners that were replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.errors import OutputError
from recshuf.output.objects.log import ObjectLog
from recshuf.storage.settings import StorageOptions
from recshuf.storage.writing.s3 import S3Bucket

if TYPE_CHECKING:
    from tests.support.objects.object_server import Bucket

HEADER = {"pile_count": 1}


def open_journal(bucket: Bucket) -> ObjectLog:
    journal = ObjectLog(S3Bucket(bucket.name, StorageOptions()), "a/.out.recshuf/", "s3://b/a/.out.recshuf/")
    journal.load()
    return journal


def begin(bucket: Bucket, token: str) -> ObjectLog:
    journal = open_journal(bucket)
    journal.begin({"run": token})
    return journal


def test_entries_are_read_as_they_were_written(bucket: Bucket):
    first = begin(bucket, "1" * 32)
    entries = [HEADER, {"shard": 1, "name": "é"}, {"shard": 0}]
    for entry in entries:
        first.note(entry)
    second = begin(bucket, "2" * 32)
    second.note({"shard": 2})
    third = open_journal(bucket)
    assert first.read() == entries
    assert third.entries == [*entries, {"shard": 2}]
    assert third.header == HEADER
    assert third.is_resumable
    assert [run["run"][0] for run in third.runs] == ["1", "2"]


def test_the_last_run_commits(bucket: Bucket):
    first = begin(bucket, "1" * 32)
    second = begin(bucket, "2" * 32)
    with pytest.raises(OutputError, match="has taken it over"):
        first.claim({"run": "1" * 32, "commit": {"a": 1}})
    assert not first.is_latest()
    second.claim({"run": "2" * 32, "commit": {"a": 2}})
    assert second.is_latest()
    assert open_journal(bucket).last("commit") == {"a": 2}


def test_a_run_whose_journal_was_deleted_neither_commits_nor_counts(bucket: Bucket):
    """Another run with the same number has begun since."""
    first = begin(bucket, "1" * 32)
    first.note(HEADER)
    open_journal(bucket).delete()
    second = begin(bucket, "2" * 32)
    second.note(HEADER)
    first.note({"shard": 7})
    assert not first.is_latest()
    assert second.is_latest()
    with pytest.raises(OutputError, match="was deleted during this run; run again"):
        first.claim({"run": "1" * 32, "commit": {}})
    assert not first.is_latest()
    found = open_journal(bucket)
    assert found.entries == [HEADER]
    assert found.last("commit") is None
    second.claim({"run": "2" * 32, "commit": {"a": 2}})
    assert open_journal(bucket).last("commit") == {"a": 2}
