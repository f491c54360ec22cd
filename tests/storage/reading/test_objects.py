"""Objects as inputs: the ends of many are fetched at once, each in one request."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from recshuf.interfaces import InputFile, Stamp
from recshuf.storage.reading.objects import ObjectFile, look_ahead
from recshuf.storage.reading.read_ahead import UNIT_BYTES, SegmentCache, SegmentedObject
from recshuf.storage.requests import Requests

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

AT_ONCE = 4
MB = 1 << 20


class ManyStore:
    """A store of objects that are all zeros; the first requests wait for each other."""

    is_bound = True

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self.requests = Requests()
        self.ranges: list[tuple[str, int, int]] = []
        self._at_once = at_once
        self._barrier = threading.Barrier(at_once, timeout=60)
        self._lock = threading.Lock()

    def find(self, key: str) -> Stamp | None:
        raise NotImplementedError

    def list(self, prefix: str, warn: object = None) -> list:
        raise NotImplementedError

    def get(self, key: str, begin: int, end: int, stamp: Stamp) -> bytes:
        with self._lock:
            self.ranges.append((key, begin, end))
            waits = len(self.ranges) <= self._at_once
        if waits:
            self._barrier.wait()
        return bytes(end - begin)


def make_objects(store: ManyStore, sizes: Sequence[int], most_bytes: int = 256 * MB) -> list[InputFile]:
    cache = SegmentCache(most_bytes, 2)
    return [
        InputFile(
            name := f"s3://b/{index}",
            None,
            stamp=Stamp(size, etag="x"),
            opener=ObjectFile(
                SegmentedObject(name, str(index), Stamp(size, etag="x"), store, cache), store.requests
            ),
        )
        for index, size in enumerate(sizes)
    ]


def read_ends(file: InputFile, head: int, tail: int) -> None:
    assert file.opener is not None
    handle, size = file.opener.open(), file.stamp.size if file.stamp else 0
    assert handle.read_at(0, head) == bytes(min(head, size))
    assert handle.read_at(max(0, size - tail), tail) == bytes(min(tail, size))
    handle.close()


@pytest.mark.parametrize("size", [0, 3000, 2 * UNIT_BYTES, 5 * MB])
def test_the_ends_of_many_objects_are_fetched_at_once(size: int):
    store = ManyStore(AT_ONCE if size else 0)
    files = make_objects(store, [size] * 40)
    seen = []
    for file in look_ahead(files, head_bytes=UNIT_BYTES, tail_bytes=1000):
        read_ends(file, UNIT_BYTES, 1000)
        seen.append(file)
    assert seen == files
    assert len(set(store.ranges)) == len(store.ranges)
    assert len(store.ranges) == len(files) * (0 if not size else 1 if size <= 2 * UNIT_BYTES else 2)


def test_little_memory_means_fewer_requests_at_once_and_none_twice():
    store = ManyStore(0)
    files = make_objects(store, [5 * MB] * 20, most_bytes=8 * MB)
    for file in look_ahead(files, head_bytes=UNIT_BYTES):
        read_ends(file, UNIT_BYTES, 0)
    assert len(store.ranges) == len(files)


def test_files_are_not_opened(tmp_path: Path):
    files = [InputFile("missing", tmp_path / "missing"), InputFile("-", None)]
    assert list(look_ahead(files, head_bytes=UNIT_BYTES)) == files
