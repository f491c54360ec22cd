"""Files that are used again: never while somebody has a view of one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from recshuf.train import parcels, shared_files
from recshuf.train.parcels import Parcel, receive
from recshuf.train.shared_files import Borrower, FilePool, SharedFile

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Lending:
    """A worker and its consumer, both in this process."""

    def __init__(self) -> None:
        self.pool, self.borrower = FilePool(), Borrower()

    def send(self, size: int) -> tuple[SharedFile, NDArray[np.uint8]]:
        """Return a file that the worker has taken, sent and let go, and the consumer's view."""
        file = self.pool.take(size)
        file.is_sent = True
        self.pool.give(file)
        return file, self.borrower.borrow(file.address, size)


def test_a_file_is_taken_again_when_the_last_view_of_it_is_gone() -> None:
    lending = Lending()
    pool = lending.pool
    file, lease = lending.send(1000)
    file.memory[:1000] = 7
    part = lease[10:20].view(np.int8)
    del lease
    assert pool.take(1000) is not file
    assert part.tolist() == [7] * 10
    del part
    assert pool.take(1000) is file


def test_a_file_that_nobody_has_received_is_not_taken_again() -> None:
    pool = FilePool()
    file = pool.take(10)
    file.is_sent = True
    pool.give(file)
    assert pool.take(10) is not file


def test_a_file_that_was_not_sent_is_taken_again() -> None:
    pool = FilePool()
    file = pool.take(10)
    pool.give(file)
    assert pool.take(10) is file


def test_the_smallest_file_that_is_large_enough_is_taken() -> None:
    pool = FilePool()
    files = {size: pool.take(size) for size in (100, 10_000, 1_000)}
    for file in files.values():
        pool.give(file)
    assert pool.take(900) is files[1_000]


def test_a_larger_file_comes_in_place_of_a_free_one() -> None:
    lending = Lending()
    small, lease = lending.send(100)
    del lease
    large, _ = lending.send(100_000)
    assert list(lending.borrower._mappings) == [large.address.number]
    assert lending.pool.take(100) is not small


def test_a_file_is_not_taken_again_when_a_process_was_forked_that_may_have_a_view_of_it() -> None:
    lending = Lending()
    file, lease = lending.send(10)
    child = os.fork()
    if not child:
        del lease  # not for this process to give back
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not file.is_returned
    assert lease.tolist() == [0] * 10
    del lease
    taken, _ = lending.send(10)
    assert taken is not file
    assert list(lending.borrower._mappings) == [taken.address.number]  # the memory of the other is free


def test_files_that_a_consumer_keeps_are_closed_by_the_worker() -> None:
    lending, kept = Lending(), []
    before = count_descriptors()
    for number in range(shared_files._MOST_AWAY + 40):
        _, lease = lending.send(10)
        lease[:] = number % 256
        kept.append(lease)
    del _
    lending.pool.take(10)
    # One for each view, and two for each file that the worker still has.
    assert count_descriptors() - before <= len(kept) + 2 * (shared_files._MOST_AWAY + 2)
    assert [set(lease.tolist()) for lease in kept] == [{number % 256} for number in range(len(kept))]


def test_a_process_that_was_forked_fills_files_of_its_own() -> None:
    held = Parcel([make_batch(0, 3)])
    del held  # its file is free
    child = os.fork()
    if not child:
        label = Parcel([make_batch(0, 3)]).send(0)
        os._exit(label.address.process != os.getpid())
    assert os.waitpid(child, 0)[1] == 0


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def make_batch(first: int, count: int) -> pa.RecordBatch:
    ids = np.arange(first, first + count)
    return pa.record_batch({"id": ids, "text": [f"{one}" * (one % 50) for one in ids.tolist()]})


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 300), st.booleans()), max_size=30), st.data())
def test_what_a_consumer_holds_never_changes(
    given_parcels: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    held: list[tuple[pa.RecordBatch, pa.RecordBatch]] = []
    first = 0
    for batches, rows, all_are_sent in given_parcels:
        made = [make_batch(first + 1000 * number, rows) for number in range(batches)]
        first += 1000 * batches
        parcel = Parcel(made)
        sent = range(batches if all_are_sent else 1)
        held += [(receive(parcel.send(number)), made[number]) for number in sent]
        del parcel
        while held and data.draw(st.booleans()):
            del held[data.draw(st.integers(0, len(held) - 1))]
        for received, expected in held:
            assert received.equals(expected)
    parcels._senders.clear()
