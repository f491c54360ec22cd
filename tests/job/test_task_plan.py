"""The division into tasks: every fragment in one part, rows numbered or counted, every shard in one task."""

import json
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.job.parts import MOST_SETS, TaskPlan, divide, find_large_inputs
from recshuf.job.plan import Costs, Cut, InputSize, Limits, Plan
from recshuf.job.planner import make_plan
from recshuf.job.sizing import OBJECT_REGION_BYTES
from tests.support.effort import examples

GB = 10**9
COSTS = Costs(lambda block: 2 * block, lambda threads: 10**6 * threads)

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
