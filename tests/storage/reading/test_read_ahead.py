"""Segments and ranges of objects: the bytes of any read in any order, in few requests, within their memory."""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.interfaces import InputFile, Stamp
from recshuf.storage.reading.fetching import Fetcher
from recshuf.storage.reading.objects import ObjectFile, look_ahead
from recshuf.storage.reading.read_ahead import PART_BYTES, UNIT_BYTES, SegmentCache, SegmentedObject
from recshuf.storage.requests import Requests
from tests.support.effort import examples

MB = 1 << 20
CONTENT = random.Random(3).randbytes(40 * MB)


class Reply(bytearray):
    """Bytes that tell when they are given up."""


class MemoryStore:
    """A store that holds one object."""

    is_bound = True

    def __init__(self, content: bytes = CONTENT) -> None:
        self.requests = Requests()
        self.content = content
        self.ranges: list[tuple[int, int]] = []
        self._replies: list[weakref.ref[Reply]] = []
        self._asked = threading.Condition()

    def find(self, key: str) -> Stamp | None:
        return Stamp(len(self.content))

    def list(self, prefix: str) -> list:
        return []

    def get(self, key: str, begin: int, end: int, stamp: Stamp) -> Reply:
        assert 0 <= begin < end <= len(self.content)
        reply = Reply(self.content[begin:end])
        with self._asked:
            self.ranges.append((begin, end))
            self._replies.append(weakref.ref(reply))
            self._asked.notify_all()
        return reply

    def wait_for(self, ranges: list[tuple[int, int]]) -> None:
        """Wait until so many ranges were asked for, and compare them."""
        with self._asked:
            assert self._asked.wait_for(lambda: len(self.ranges) >= len(ranges), 60)
            assert sorted(self.ranges) == ranges

    @property
    def byte_count(self) -> int:
        return sum(end - begin for begin, end in self.ranges)

    @property
    def held_bytes(self) -> int:
        """Bytes of replies that nobody has given up."""
        return sum(len(reply) for one in self._replies if (reply := one()) is not None)


def open_object(
    most_bytes: int = 512 * MB, workers: int = 2, content: bytes = CONTENT
) -> tuple[SegmentedObject, MemoryStore, SegmentCache]:
    store, cache = MemoryStore(content), SegmentCache(most_bytes, workers)
    return SegmentedObject("s3://b/k", "k", Stamp(len(content)), store, cache), store, cache


def read(content: SegmentedObject, begin: int, size: int, expected: Sequence[tuple[int, int]] = ()) -> bytes:
    """Return what is read, which is what the object holds there."""
    buffer = bytearray(size)
    found = bytes(buffer[: content.readinto_at(begin, memoryview(buffer), expected)])
    assert found == CONTENT[begin : min(begin + size, content.stamp.size)]
    return found


reads = st.lists(
    st.tuples(
        st.integers(0, 3 * MB + 10), st.sampled_from([0, 1, 7, 5000, UNIT_BYTES, 300_001, 2 * MB, 4 * MB])
    ),
    max_size=30,
)


@settings(max_examples=examples(100))
@given(reads=reads, most_bytes=st.sampled_from([1, MB, 4 * MB, 64 * MB]), expects=st.booleans())
def test_any_read_gives_the_bytes_of_the_object(reads: list[tuple[int, int]], most_bytes: int, expects: bool):
    content, *_ = open_object(most_bytes, content=CONTENT[: 3 * MB + 5])
    expected = content.expect(sorted({(begin, begin + 5000) for begin, _ in reads})) if expects else []
    for begin, size in reads:
        read(content, begin, size, expected)


def test_threads_can_read_the_same_object():
    content, *_ = open_object(most_bytes=12 * MB)
    size = 700_000
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda begin: read(content, begin, size), range(0, len(CONTENT), size)))
    assert b"".join(found) == CONTENT


@pytest.mark.parametrize("step", [100_003, 5 * MB])
def test_a_read_in_order_takes_each_byte_once_in_large_requests(step: int):
    content, store, _ = open_object()
    assert b"".join(read(content, begin, step) for begin in range(0, len(CONTENT), step)) == CONTENT
    assert store.byte_count == len(CONTENT)
    sizes = sorted(end - begin for begin, end in store.ranges)
    assert sizes[-1] == PART_BYTES
    assert len(sizes) <= 8


def test_what_follows_is_fetched_before_it_is_read():
    content, store, _ = open_object()
    read(content, 0, PART_BYTES)
    ends = (0, PART_BYTES, 2 * PART_BYTES, len(CONTENT))
    store.wait_for(list(pairwise(ends)))


@pytest.mark.parametrize("is_expected", [False, True])
def test_a_read_elsewhere_takes_little(is_expected: bool):
    content, store, cache = open_object(most_bytes=32 * MB)
    expected = content.expect([(0, 40 * MB)]) if is_expected else []
    begins = (10 * MB + 17, 30 * MB, len(CONTENT) - 4)
    for begin in begins[::-1]:
        read(content, begin, 100, expected)
    units = [
        (10 * MB, 10 * MB + UNIT_BYTES),
        (30 * MB, 30 * MB + UNIT_BYTES),
        (40 * MB - UNIT_BYTES, 40 * MB),
    ]
    store.wait_for([(0, cache.part_bytes)] * is_expected + units)


def test_expected_ranges_are_fetched_together_and_nothing_else():
    content, store, _ = open_object()
    ranges = [(MB, 3 * MB), (3 * MB + 100, 4 * MB), (20 * MB, 21 * MB)]
    expected = content.expect(ranges)
    for begin, end in ranges:
        for at in range(begin, end, 1 << 18):
            read(content, at, min(1 << 18, end - at), expected)
    assert sorted(store.ranges) == [(MB, 4 * MB), (20 * MB, 21 * MB)]


@pytest.mark.parametrize(
    ("most_bytes", "workers", "step", "size", "factor"),
    [(8 * MB, 2, 5 * MB, 1 << 16, 1.1), (10 * MB, 1, 4 * MB, 100_000, 1.02)],
)
def test_expected_ranges_that_do_not_fit_are_read_by_parts_in_turn(
    most_bytes: int, workers: int, step: int, size: int, factor: float
):
    content, store, cache = open_object(most_bytes, workers)
    expected = content.expect([(begin, begin + step) for begin in range(0, 40 * MB, step)])
    for at in range(0, step, size):
        for begin, end in expected:
            read(content, begin + at, min(size, end - begin - at), expected)
    assert store.byte_count <= factor * len(CONTENT)
    assert cache.held_bytes <= most_bytes


def test_what_a_read_of_an_expected_range_leaves_out_comes_with_it():
    content, store, cache = open_object(most_bytes=32 * MB)
    part = cache.part_bytes
    expected = content.expect([(0, 40 * MB)])
    for begin in range(0, 40 * MB, MB):
        for at in (min(begin + 3 * MB, 40 * MB - 100), begin):
            read(content, at, 100, expected)
        read(content, begin, MB, expected)
    assert sorted(store.ranges) == [(at, min(at + part, 40 * MB)) for at in range(0, 40 * MB, part)]


def test_segments_stay_within_their_memory():
    content, store, cache = open_object(most_bytes=10 * MB)
    for begin in range(0, len(CONTENT), MB):
        read(content, begin, MB)
        # A reply that arrives late may be of a segment that was dropped.
        assert store.held_bytes <= 10 * MB + cache.part_bytes
        assert cache.held_bytes <= 10 * MB


# The ends of many objects are fetched at once, each in one request

AT_ONCE = 4


class ManyStore(MemoryStore):
    """A store of objects that are all zeros; the first requests wait for each other."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        super().__init__(b"")
        self.asked: list[tuple[str, int, int]] = []
        self._at_once = at_once
        self._barrier = threading.Barrier(max(1, at_once), timeout=60)
        self._lock = threading.Lock()

    def get(self, key: str, begin: int, end: int, stamp: Stamp) -> Reply:
        with self._lock:
            self.asked.append((key, begin, end))
            waits = len(self.asked) <= self._at_once
        if waits:
            self._barrier.wait()
        return Reply(end - begin)


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
    assert len(set(store.asked)) == len(store.asked)
    assert len(store.asked) == len(files) * (0 if not size else 1 if size <= 2 * UNIT_BYTES else 2)


# Ranges are fetched ahead as memory allows, each byte once, whoever reads them


class Server:
    """Counts the requests for a file that is its number of bytes before `CONTENT`."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def get(self, file: int, begin: int, end: int) -> bytes:
        self.gate.wait()
        self.asked.append((begin, end))
        return CONTENT[file + begin : file + end]


def read_from(fetcher: Fetcher[int], begin: int, end: int, file: int = 0) -> bytes:
    view = memoryview(bytearray(end - begin))
    assert fetcher.read_into(file, view, begin) == end - begin
    return bytes(view)


def test_what_is_expected_is_fetched_once_and_given_up_when_it_is_read() -> None:
    server = Server()
    fetcher = Fetcher(1_000_000, server.get)
    ranges = [(200_000, 300_000), (0, 100_000), (700_000, 900_000), (300_100, 310_000)]
    fetcher.expect(0, ranges)
    for begin, end in ranges:
        assert read_from(fetcher, begin, end) == CONTENT[begin:end]
    # Two that are near each other are one request.
    assert sorted(server.asked) == [(0, 100_000), (200_000, 310_000), (700_000, 900_000)]
    assert fetcher.held_bytes == 0


def test_no_more_is_held_than_memory_allows_but_what_is_read_is_there() -> None:
    server = Server()
    fetcher = Fetcher(1_000_000, server.get)
    ranges = [(begin, begin + 400_000) for begin in range(0, 4_000_000, 500_000)]
    fetcher.expect(0, ranges)
    assert fetcher.held_bytes == 800_000
    assert read_from(fetcher, *ranges[6]) == CONTENT[slice(*ranges[6])]  # out of turn
    for begin, end in [*ranges[:6], ranges[7]]:
        assert fetcher.held_bytes <= 1_200_000
        assert read_from(fetcher, begin, end) == CONTENT[begin:end]
    assert sorted(server.asked) == ranges
    # What somebody expected who has ended is given up.
    fetcher.expect(1, ranges[:5])
    fetcher.expect(0, ranges[:4])
    fetcher.forget(1)
    assert fetcher.held_bytes == 800_000
    for begin, end in ranges[:4]:
        assert read_from(fetcher, begin, end) == CONTENT[begin:end]
    assert fetcher.held_bytes == 0


@pytest.mark.parametrize("seed", range(3))
def test_random_reads_give_the_bytes(seed: int) -> None:
    draw, server = random.Random(seed), Server()
    fetcher = Fetcher(300_000, server.get)
    for _ in range(60):
        begin = draw.randrange(900_000)
        end = begin + draw.randrange(1, 100_000)
        if draw.random() < 0.5:
            fetcher.expect(draw.randrange(2), [(begin, end)])
        else:
            file = draw.randrange(2)
            assert read_from(fetcher, begin, end, file) == CONTENT[file + begin : file + end]
    for file in range(2):
        fetcher.forget(file)
    assert fetcher.held_bytes == 0


def test_a_failure_is_raised_where_it_is_read_and_asked_for_again() -> None:
    server, fails = Server(), [True]

    def get(file: int, begin: int, end: int) -> bytes:
        if fails:
            raise OSError(fails.pop())
        return server.get(file, begin, end)

    fetcher = Fetcher(1_000_000, get)
    fetcher.expect(0, [(0, 1000)])
    with pytest.raises(OSError, match="True"):
        read_from(fetcher, 0, 1000)
    assert read_from(fetcher, 0, 1000) == CONTENT[:1000]


@pytest.mark.parametrize(("urgent", "at_once"), [(3, 3), (18, 16)])
def test_what_is_hastened_is_alone_in_flight(urgent: int, at_once: int) -> None:
    server = Server()
    server.gate.clear()
    fetcher = Fetcher(4_000_000, server.get)
    ranges = [(begin, begin + 100_000) for begin in range(0, 4_000_000, 200_000)]
    fetcher.expect(0, ranges[:urgent])
    fetcher.hasten()
    fetcher.expect(0, ranges[urgent:])
    in_flight = fetcher.held_bytes
    server.gate.set()
    assert in_flight == 100_000 * at_once
    for begin, end in ranges:
        assert read_from(fetcher, begin, end) == CONTENT[begin:end]
    assert len(server.asked) == len(ranges)
    assert max(server.asked[:urgent]) < min(server.asked[urgent:]), (
        "what follows began before the first had begun"
    )
    fetcher.hasten()  # nothing is in flight: nothing waits for it
    fetcher.expect(0, ranges)
    assert read_from(fetcher, *ranges[-1]) == CONTENT[slice(*ranges[-1])]
