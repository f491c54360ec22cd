"""The memory that an error names is enough for the same run, and little less is not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recshuf.errors import MemoryLimitError
from recshuf.job.plan import Costs, Cut, InputSize, Limits
from recshuf.job.planner import make_plan
from recshuf.job.sizing import Reading, choose_reading, fit, halve_blocks
from recshuf.output.objects.uploader import UploadLimits
from recshuf.storage.reading.objects import count_read_bytes
from recshuf.system.units import format_size, parse_size
from tests.support.effort import examples

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 10**6
SHOWN = 0.011
"""Share by which a size of three digits may exceed what it stands for."""


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    workers, read, writes = draw(st.integers(1, 64)), draw(st.integers(0, 2)), draw(st.booleans())

    def count_reserved_bytes(memory_bytes: int) -> int:
        written_bytes = UploadLimits.within(memory_bytes // 4, workers).memory_bytes if writes else 0
        return written_bytes + read * count_read_bytes(memory_bytes, workers)

    memory_bytes = draw(st.integers(64 * MB, 1000 * MB))
    return Limits(memory_bytes, workers, 1 << 30, count_reserved_bytes=count_reserved_bytes)


def find_named(plan: Callable[[Limits], object], limits: Limits) -> int:
    try:
        plan(limits)
    except MemoryLimitError as error:
        named, limit = re.findall(r"[\d.]+ [KMGT]?B", str(error))
        assert limit == format_size(limits.memory_bytes)
        return parse_size(named)
    assume(False)
    raise AssertionError


def check_named(plan: Callable[[Limits], object], limits: Limits) -> None:
    named = find_named(plan, limits)
    plan(replace(limits, memory_bytes=named))
    less = int(named * (1 - SHOWN))
    if less > limits.memory_bytes:
        with pytest.raises(MemoryLimitError):
            plan(replace(limits, memory_bytes=less))


@settings(max_examples=examples(100), deadline=None)
@given(
    limits=limits(),
    count=st.sampled_from([1, 3000]),
    size=st.none() | st.integers(0, 10**12),
    reading=st.integers(0, 1000),
    sink=st.integers(0, 1000),
    decoding=st.sampled_from([1.0, 1.5]),
)
def test_the_memory_that_a_plan_lacks_is_named(
    limits: Limits, count: int, size: int | None, reading: int, sink: int, decoding: float
):
    costs = Costs(lambda block: 2 * block + reading * MB, lambda threads: threads * sink * MB, decoding)
    inputs = [InputSize(None if size is None else 10**6, size, size)] * count
    check_named(lambda given: make_plan(inputs, given, costs, Cut(shards=2)), limits)


@settings(max_examples=examples(100), deadline=None)
@given(limits=limits(), reading=st.integers(1, 5000))
def test_the_memory_that_reading_lacks_is_named(limits: Limits, reading: int):
    def plan(given: Limits) -> Reading:
        worker_bytes = lambda block: 2 * block + reading * MB  # noqa: E731
        return choose_reading(worker_bytes, given, halve_blocks(8 << 20), 0.6, 0, "reading")

    check_named(lambda given: fit(plan, given), limits)
