"""The plan: whatever goes in, what comes out keeps its promises, and the memory that an error names is enough."""

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recshuf.errors import MemoryLimitError, UsageError
from recshuf.job.parts import MOST_SETS, TaskPlan, divide, find_large_inputs
from recshuf.job.plan import (
    INPUT_BYTES,
    Costs,
    Cut,
    InputSize,
    InputSizes,
    Limits,
    Plan,
    shard_bounds,
    sum_known,
)
from recshuf.job.planner import make_plan
from recshuf.job.sizing import (
    MAX_PLANNED_PILES,
    MAX_SETS,
    OBJECT_REGION_BYTES,
    SMALLEST_BLOCK,
    Reading,
    TooLittle,
    choose_reading,
    fit,
    halve_blocks,
)
from recshuf.output.objects.uploader import UploadLimits
from recshuf.piles.layout import PileLayout, region_bytes
from recshuf.records.keys import MAX_PILES
from recshuf.storage.reading.objects import count_read_bytes
from recshuf.system.units import format_size, parse_size
from tests.support.effort import examples

MB = 10**6
GB = 10**9
COSTS = Costs(lambda block: 2 * block, lambda threads: MB * threads)
CUT = Cut(shards=1)

known_sizes = st.builds(
    lambda count, width: InputSize(count, count * (width + 8), count * width),
    st.integers(0, 10**9),
    st.integers(0, 5000),
)
sizes = st.lists(known_sizes | st.just(InputSize(None, None, None)), min_size=1, max_size=300)
limits = st.builds(
    Limits,
    memory_bytes=st.integers(64 * MB, 64 * GB),
    workers=st.integers(1, 64),
    max_record_bytes=st.integers(1, 2**32 - 1),
    pile_count=st.none() | st.integers(1, MAX_PILES),
)
cuts = st.one_of(
    st.builds(Cut, shards=st.integers(1, 5000)),
    st.builds(Cut, shard_records=st.integers(1, 10**9)),
    st.builds(Cut, shard_bytes=st.integers(1, 10**12)),
)
costs = st.builds(
    lambda factor, sink, decoding: Costs(
        lambda block: int(factor * block), lambda threads: sink * threads, decoding
    ),
    st.floats(1, 6),
    st.integers(0, 20 * MB),
    st.sampled_from([1.0, 1.5]),
)


def test_a_sample_of_more_records_than_there_are_is_planned_as_all_of_them() -> None:
    inputs, limits = [InputSize(10**6, GB, GB)], Limits(256 * MB, 2, 1 << 30)
    whole, sample = (make_plan(inputs, limits, COSTS, CUT, count) for count in (None, 10**8))
    assert dataclasses.replace(sample, output_count=None) == whole


def plan_or_skip(*arguments: object) -> Plan:
    try:
        return make_plan(*arguments)
    except MemoryLimitError:
        assume(False)
        raise


@settings(max_examples=examples(300))
@given(inputs=sizes, limits=limits, costs=costs, cut=cuts, output_count=st.none() | st.integers(0, 10**9))
def test_every_plan_keeps_its_promises(inputs, limits, costs, cut, output_count):
    try:
        plan = plan_or_skip(inputs, limits, costs, cut, output_count)
    except UsageError as error:
        assert "shards, and 1,000,000 are possible" in str(error)
        return
    assert (plan.shard_count or 1) <= 10**6
    assert plan.record_count_is_exact == all(one.record_count is not None for one in inputs)
    assert plan.peak_memory_bytes <= limits.memory_bytes
    assert 0 <= plan.resident_bytes <= limits.memory_bytes
    assert 1 <= plan.pile_count <= MAX_PILES
    assert limits.pile_count in (None, plan.pile_count)
    assert plan.set_count + plan.scatter_workers + plan.shard_writers <= plan.descriptors < 256
    assert 1 <= plan.scatter_workers <= limits.workers
    assert 1 <= plan.shard_writers <= limits.workers
    assert plan.shard_writers <= (plan.shard_count or limits.workers)
    assert plan.sink_threads * plan.shard_writers <= limits.workers
    assert plan.units_in_flight >= 1
    assert plan.max_record_bytes <= limits.max_record_bytes
    assert min(plan.pile_bytes, plan.block_bytes, plan.max_record_bytes) > 0
    needed = plan.scatter_workers * (costs.reading_bytes(plan.block_bytes) + plan.block_bytes)
    assert needed + plan.resident_bytes <= limits.memory_bytes
    if output_count is None:
        staying = (
            plan.resident_bytes if plan.byte_count is None else min(plan.resident_bytes, plan.byte_count)
        )
        assert plan.peak_memory_bytes >= needed + staying
    assert plan.to_json()["set_count"] == plan.set_count <= MAX_SETS
    assert len(plan.set_of_input) == len(inputs)
    assert plan.set_of_input[0] == 0
    assert all(right - left in (0, 1) for left, right in pairwise(plan.set_of_input))


@settings(max_examples=examples(300))
@given(
    limits=limits,
    costs=costs,
    share=st.floats(0.1, 1),
    power=st.integers(0, 6),
    least=st.sampled_from([0, 4 * SMALLEST_BLOCK]),
)
def test_reading_takes_its_share_and_no_choice_before_it_would(
    limits: Limits, costs: Costs, share: float, power: int, least: int
):
    blocks = halve_blocks(SMALLEST_BLOCK << power)
    choices = [
        (n, block) for n in range(limits.workers, 0, -1) for block in blocks if n == 1 or block >= least
    ]
    fitting = [n * costs.reading_bytes(block) <= share * limits.room_bytes for n, block in choices]
    fitting[-1] = costs.reading_bytes(SMALLEST_BLOCK) <= limits.room_bytes
    if not any(fitting):
        with pytest.raises(TooLittle, match="reading"):
            choose_reading(costs.reading_bytes, limits, blocks, share, least, "reading")
        return
    plan = choose_reading(costs.reading_bytes, limits, blocks, share, least, "reading")
    assert (plan.workers, plan.block_bytes) == choices[fitting.index(True)]
    assert plan.max_record_bytes <= limits.max_record_bytes


@settings(max_examples=examples(200))
@given(byte_count=st.integers(1, 200 * GB), limits=limits, costs=costs)
def test_piles_are_not_so_large_that_chance_splits_them(byte_count: int, limits: Limits, costs: Costs):
    """A pile is split above the plan's size: half of all would be, were that size what is expected of each."""
    given = dataclasses.replace(limits, pile_count=None)
    plan = plan_or_skip(
        [InputSize(byte_count // 100 + 1, byte_count, byte_count)], given, costs, Cut(shards=1)
    )
    if plan.pile_count < MAX_PLANNED_PILES:
        assert plan.pile_bytes >= 1.2 * byte_count / plan.pile_count


@given(sizes)
def test_columns_hold_the_sizes_of_inputs(inputs: list[InputSize]):
    columns = InputSizes.of(inputs)
    assert list(columns) == inputs
    assert list(columns[1:]) == inputs[1:]
    totals = columns.record_count, columns.byte_count, columns.file_bytes
    assert totals == tuple(sum_known(size[field] for size in inputs) for field in range(3))
    assert columns.byte_counts.tolist() == [size.byte_count or 0 for size in inputs]
    assert columns.are_exact == all(size.is_exact for size in inputs)


def test_a_run_that_goes_on_keeps_piles_and_sets():
    inputs = [InputSize(10**6, 10**8, 10**8)] * 3
    layout = PileLayout(4096, (0, 1, 2))
    plan = make_plan(inputs, Limits(256 * MB, 2, GB), COSTS, CUT, piles=layout)
    assert PileLayout(plan.pile_count, plan.set_of_input) == layout


def test_piles_that_a_user_insists_on_are_split_only_where_memory_has_no_room():
    inputs = [InputSize(10**7, GB, GB)]
    plan = make_plan(inputs, Limits(256 * MB, 2, GB, 64), COSTS, CUT)
    assert plan.pile_bytes >= 1.2 * GB / 64
    plan = make_plan(inputs, Limits(256 * MB, 2, GB, 1), COSTS, CUT)
    assert plan.pile_bytes < 256 * MB


def test_what_fits_is_not_spilled_and_what_does_not_is():
    for count, spills in ((10**5, False), (10**8, True)):
        inputs = [InputSize(count, count * 100, count * 92)]
        plan = make_plan(inputs, Limits(300 * MB, 2, GB), COSTS, CUT)
        assert (plan.spilled_bytes > 0) == spills
        assert plan.peak_disk_bytes == plan.spilled_bytes + count * 92


def test_nothing_stays_in_memory_of_what_is_far_from_fitting():
    """Half in memory is slower than none: each batch would be copied for it."""
    limits = Limits(2000 * MB, workers=2, max_record_bytes=1 << 30)
    most = make_plan([InputSize(None, None, None)], limits, COSTS, CUT).resident_bytes
    for factor, expected in ((0.5, True), (1.1, True), (1.5, False), (20, False)):
        size = int(factor * most)
        plan = make_plan([InputSize(size // 100, size, size)], limits, COSTS, CUT)
        assert (plan.resident_bytes > 0) == expected, factor
        expected = 0 if factor < 1 else size - plan.resident_bytes
        assert expected <= plan.spilled_bytes <= 1.01 * expected


@settings(max_examples=examples(200))
@given(limits=limits, sink_bytes=st.integers(0, 100 * MB), decoding=st.sampled_from([1.0, 1.5]))
def test_piles_of_a_stream_are_as_large_as_reading_it_leaves_room_for(
    limits: Limits, sink_bytes: int, decoding: float
) -> None:
    """The fewer they are, the longer is what a block adds to each; the smaller, the more stays in memory."""
    limits = dataclasses.replace(limits, pile_count=None)
    costs = Costs(lambda block: 2 * block, lambda _: sink_bytes, decoding)
    plan = plan_or_skip([InputSize(None, None, None)], limits, costs, Cut(shards=1))
    assert 512 <= plan.pile_count <= 1024
    assert plan.pile_count == 1024 or plan.pile_count * plan.pile_bytes >= 8 * GB
    given = plan_or_skip(
        [InputSize(None, None, None)],
        dataclasses.replace(limits, pile_count=1024),
        costs,
        Cut(shards=1),
    )
    assert plan.pile_bytes >= given.pile_bytes
    assert plan.resident_bytes == given.resident_bytes, "no pile is larger at the cost of what stays"


def test_an_impossible_limit_names_both_numbers_and_the_option():
    for costs, what in (
        (Costs(lambda block: block + GB, lambda _: MB), "reading the inputs"),
        (Costs(lambda block: block, lambda _: GB), "writing a shard"),
    ):
        with pytest.raises(MemoryLimitError, match=what) as caught:
            make_plan([InputSize(10, 100, 100)], Limits(100 * MB, 4, GB), costs, Cut(shards=1))
        needed, limit = re.findall(r"[\d.]+ [MG]B", str(caught.value))
        assert parse_size(limit) == 100 * MB
        assert parse_size(needed) >= GB
        assert "--memory" in str(caught.value)


# Shards


def test_millions_of_shards_are_refused() -> None:
    inputs = [InputSize(1_000_002, 1_000_002, 1_000_002)]
    for name, remedy in (
        ("shard_bytes", "give more, with a unit, such as 512MB"),
        ("shard_records", "give more"),
    ):
        said = rf"^--{name.replace('_', '-')} 1: makes 1,00\d,\d\d\d shards, and 1,000,000 .*; {remedy}$"
        with pytest.raises(UsageError, match=said):
            make_plan(inputs, Limits(256 * MB, 2, GB), COSTS, Cut(**{name: 1}))


@settings(max_examples=examples(300))
@given(cut=cuts, count=st.integers(0, 10**6), output_bytes=st.integers(0, 10**6))
def test_bounds_cover_every_record_once(cut: Cut, count: int, output_bytes: int):
    if cut.shard_records is not None:
        assume(count / cut.shard_records < 10_000)
    if cut.shard_bytes is not None:
        assume(output_bytes / cut.shard_bytes < 10_000)
    bounds = shard_bounds(cut, count, output_bytes)
    lengths = [stop - start for start, stop in pairwise(bounds)]
    assert (bounds[0], bounds[-1]) == (0, count)
    assert lengths
    assert min(lengths) >= 0
    if cut.shard_records is None:
        assert max(lengths) - min(lengths) <= 1
        assert lengths == sorted(lengths, reverse=True)
    elif count:
        assert all(length == cut.shard_records for length in lengths[:-1])
        assert 0 < lengths[-1] <= cut.shard_records
    if cut.shards is not None:
        assert len(lengths) == cut.shards


@settings(max_examples=examples(100))
@given(count=st.floats(0, 10**6), width=st.floats(1, 10**4))
def test_a_region_has_room_for_six_sigma(count: float, width: float):
    capacity = region_bytes(count, width, width * width)
    assert capacity >= width * (count + 6 * count**0.5) * (1 - 1e-9)
    assert capacity <= width * (count + 6 * count**0.5) * (1 + 1e-9) + 1


def test_what_is_kept_of_each_input_is_planned_with() -> None:
    for resident in (True, False):
        size = (50 if resident else 5000) * MB
        plans = [
            make_plan([InputSize(10, size // count, None)] * count, Limits(memory, 2, GB), COSTS, CUT)
            for count, memory in ((1, 200 * MB), (5000, 200 * MB), (1, 200 * MB + 4999 * INPUT_BYTES))
        ]
        one, many, roomy = (plan.peak_memory_bytes for plan in plans)
        assert many <= 200 * MB
        assert (plans[0].resident_bytes > 0) == resident
        assert (plans[1].block_bytes, plans[1].pile_bytes) <= (plans[0].block_bytes, plans[0].pile_bytes)
        if resident:
            assert plans[1].resident_bytes <= plans[0].resident_bytes - 0.7 * 4999 * INPUT_BYTES
            assert many - one >= 0.5 * 4999 * INPUT_BYTES
        assert one <= roomy


# The memory that an error names is enough for the same run, and little less is not

SHOWN = 0.011
"""Share by which a size of three digits may exceed what it stands for."""


@st.composite
def limits_of_runs(draw: st.DrawFn) -> Limits:
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
    limits=limits_of_runs(),
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
@given(limits=limits_of_runs(), reading=st.integers(1, 5000))
def test_the_memory_that_reading_lacks_is_named(limits: Limits, reading: int):
    def plan(given: Limits) -> Reading:
        worker_bytes = lambda block: 2 * block + reading * MB  # noqa: E731
        return choose_reading(worker_bytes, given, halve_blocks(8 << 20), 0.6, 0, "reading")

    check_named(lambda given: fit(plan, given), limits)


# The division into tasks: every fragment in one part, rows numbered or counted, every shard in one task

inputs = st.lists(
    st.tuples(
        st.integers(0, 300 * GB), st.none() | st.lists(st.none() | st.integers(0, 10**6), max_size=400)
    ),
    min_size=1,
    max_size=40,
)


def plan_inputs(byte_counts: list[int], shards: int | None) -> Plan:
    sizes = [InputSize(one // 100, one, one) for one in byte_counts]
    cut = Cut(shard_records=10**6) if shards is None else Cut(shards=shards)
    return make_plan(sizes, Limits(8 * GB, 1, 1 << 20, spills_all=True), COSTS, cut)


def divide_inputs(found: list[tuple[int, list[int | None] | None]], shards: int | None) -> TaskPlan:
    byte_counts = [byte_count for byte_count, _ in found]
    plan = plan_inputs(byte_counts, shards)
    large = find_large_inputs(plan, byte_counts)
    fragments = {index: found[index][1] for index in large if found[index][1] is not None}
    return divide(plan, byte_counts, fragments)


@settings(max_examples=examples(300), deadline=None)
@given(inputs, st.none() | st.integers(1, 5000), st.integers(0, 5000))
def test_parts_hold_every_fragment_once_and_tasks_of_the_gather_every_shard(found, shards, written):
    tasks = divide_inputs(found, shards)
    assert TaskPlan.from_json(json.loads(json.dumps(tasks.to_json()))) == tasks
    assert len(tasks.sets) <= MOST_SETS
    parts = [part for parts in tasks.sets for part in parts]
    assert [index for index, *_ in parts] == sorted(index for index, *_ in parts)
    for index in range(len(found)):
        own = [part for part in parts if part.input_index == index]
        assert own[0].start == 0
        assert own[-1].stop is None
        assert all(one.stop == other.start for one, other in pairwise(own))
    for one in tasks.sets:
        assert len({part.input_index for part in one}) == len(one)
    assert [*tasks.piles.set_of_input] == [
        next(number for number, one in enumerate(tasks.sets) if index in {part.input_index for part in one})
        for index in range(len(found))
    ]
    counted = {(part.input_index, part.stop) for part in tasks.counted}
    for part in parts:
        rows = (found[part.input_index][1] or [])[: part.start]
        assert part.first_row == (-1 if None in rows else sum(rows))
        if part.first_row < 0:
            assert (part.input_index, part.start) in counted
    chosen = [tasks.choose_shards(number, written) for number in tasks.gather]
    assert [shard for one in chosen for shard in one] == [*range(written)]
    assert shards is None or len(tasks.gather) <= shards
    stages = [range(len(tasks.counted)), tasks.scatter, tasks.gather, range(tasks.commit, tasks.commit + 1)]
    assert [number for stage in stages for number in stage] == [*range(tasks.commit + 1)]


def test_regions_in_an_object_store_are_large():
    for byte_count in (GB, 100 * GB, 10_000 * GB):
        plan = replace(plan_inputs([byte_count], 64), spilled_to="s3://bucket/tmp/")
        tasks = divide(plan, [byte_count], {0: [None] * 6000})
        assert len(tasks.sets) > 1
        assert byte_count / len(tasks.sets) / tasks.piles.pile_count >= OBJECT_REGION_BYTES
