"""Memory to read into: where it lies, and when it is used again."""

import gc
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from recshuf.system.buffers import BufferPool, Slab, allocate

MANY = 1 << 20


def address_of(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


@given(size=st.integers(0, 10_000), offset=st.integers(0, 1 << 40))
def test_memory_lies_as_in_the_file(size: int, offset: int) -> None:
    for memory in (allocate, BufferPool(32 * MANY).allocate, Slab([20_000], allocate).allocate):
        found = memory(size, offset)
        assert (len(found), found.dtype) == (size, np.uint8)
        assert found.flags.writeable
        assert not size or (address_of(found) - offset) % 64 == 0


def test_what_nobody_has_is_used_again() -> None:
    for size in (300_000, MANY, 5 * MANY):
        pool = BufferPool(32 * MANY)
        first = pool.allocate(size)
        place = address_of(first)
        del first
        assert address_of(pool.allocate(size - 1000)) == place


def test_what_somebody_has_a_view_of_is_not_used_again() -> None:
    for view in (lambda a: a[10:20], lambda a: a.view(np.uint64)[5:], lambda a: memoryview(a), pa.py_buffer):
        pool = BufferPool(32 * MANY)
        first = pool.allocate(MANY)
        place = address_of(first)
        first[:] = 7
        held = view(first)
        del first
        gc.collect()
        others = [pool.allocate(MANY) for _ in range(3)]
        for other in others:
            other[:] = 9
        assert place not in map(address_of, others)
        assert np.unique(np.frombuffer(held, np.uint8)).tolist() == [7]
        del held
        assert address_of(pool.allocate(MANY)) == place


def test_a_pool_holds_no_more_than_was_in_use_at_once() -> None:
    pool = BufferPool(32 * MANY)
    for size in (MANY, 2 * MANY, 3 * MANY, 4 * MANY):
        assert len(pool.allocate(size)) == size
    assert len(pool._free) == 1


def test_parts_of_a_slab_do_not_overlap() -> None:
    slab = Slab([1000, 1000, 1000], allocate)
    parts = [slab.allocate(1000, offset) for offset in (0, 7, 8, 11)]
    for number, part in enumerate(parts):
        part[:] = number
    assert [set(part.tolist()) for part in parts] == [{0}, {1}, {2}, {3}]
