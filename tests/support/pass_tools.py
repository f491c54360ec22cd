"""Drives the real scatter and gather over the fake format, with every number of the plan chosen by the test."""

from __future__ import annotations

import tempfile
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from recshuf.job.plan import Plan
from recshuf.job.report import SilentProgress
from recshuf.piles.codec import choose_codec
from recshuf.piles.layout import StorePlan
from recshuf.piles.regions import PileReader
from recshuf.piles.set_folder import Scratch
from recshuf.piles.store import RunPiles
from recshuf.records.keys import draw_keys
from recshuf.run.gather import Gather, GatherTask, check_written
from recshuf.run.scatter import Scatter, ScatterTask
from tests.support.formats.fake_format import FakeTarget, read_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from recshuf.interfaces import Decoder, Sink, Source
    from recshuf.records.digests import Digest, InputCounts
    from tests.support.formats.fake_format import FakeSource

UNLIMITED = 1 << 40


@dataclass(frozen=True)
class Knobs:
    """What a run decides by itself, and a test by hand; the order must depend on none of it."""

    piles: int = 4
    pile_bytes: int = UNLIMITED
    resident_bytes: int = UNLIMITED
    workers: int = 1
    shard_writers: int = 1
    units_in_flight: int = 2
    sets: int = 1
    block_bytes: int = 1 << 20
    joined_bytes: int = 0
    region_piles: int = 1


def make_plan(source: Source, knobs: Knobs, output_count: int | None = None) -> Plan:
    return Plan(
        record_count=None,
        record_count_is_exact=False,
        byte_count=None,
        output_count=output_count,
        pile_count=knobs.piles,
        pile_bytes=knobs.pile_bytes,
        region_piles=knobs.region_piles,
        set_of_input=tuple(index % knobs.sets for index in range(len(source.inputs))),
        block_bytes=knobs.block_bytes,
        max_record_bytes=1 << 20,
        scatter_workers=knobs.workers,
        gather_workers=knobs.workers,
        shard_writers=knobs.shard_writers,
        sink_threads=1,
        units_in_flight=knobs.units_in_flight,
        resident_bytes=knobs.resident_bytes,
        spilled_bytes=0,
        peak_memory_bytes=0,
        peak_disk_bytes=0,
        descriptors=0,
        shard_count=None,
    )


@dataclass(frozen=True)
class ShardsBy:
    """Opens each sink by a function; a shard that is finished is left as it is."""

    open: Callable[[int], Sink]

    def finish(self, shard: int, digest: Digest) -> None: ...


def fill_store(
    source: Source,
    scratch: Scratch,
    knobs: Knobs,
    seed: int,
    *,
    output_count: int | None = None,
    decoder: Decoder | None = None,
) -> tuple[RunPiles, InputCounts]:
    """Run pass 1 and return the store and what was read."""
    plan = make_plan(source, knobs, output_count)
    expected = sum(one.record_count or 0 for one in source.inputs) / plan.set_count
    is_known = all(one.record_count is not None for one in source.inputs)
    sizes = (expected if is_known else None,) * plan.set_count
    store_plan = StorePlan(knobs.piles, sizes, knobs.resident_bytes, output_count, knobs.region_piles)
    store = RunPiles(store_plan, choose_codec(source.schema), scratch)
    return store, Scatter(ScatterTask(source, plan, seed), store, decoder, SilentProgress()).run()


def write_shards(
    source: Source,
    store: RunPiles,
    knobs: Knobs,
    bounds: Sequence[int],
    open_sink: Callable[[int], Sink],
    decoder: Decoder | None = None,
) -> None:
    """Run pass 2."""
    plan, progress = make_plan(source, knobs), SilentProgress()
    task = GatherTask(plan, bounds, joined_bytes=knobs.joined_bytes)
    reader = PileReader(store)
    written = Gather(task, reader, ShardsBy(open_sink), decoder, progress).run()
    check_written(reader, bounds[-1], written.values())


def cut_evenly(count: int, shards: int) -> list[int]:
    return [count * shard // shards for shard in range(shards + 1)]


def shuffle_rows(
    source: FakeSource,
    seed: int,
    knobs: Knobs = Knobs(),
    *,
    shards: int = 1,
    head_count: int | None = None,
    converts: bool = False,
) -> list[list[bytes]]:
    """Return the records of every shard after both passes, and insist that nothing else is left on disk."""
    decoder = source.decoder() if converts else None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scratch = Scratch(folder)
        store, counts = fill_store(source, scratch, knobs, seed, output_count=head_count, decoder=decoder)
        assert counts.records.tolist() == [len(rows) for rows in source.rows]
        if decoder is not None:
            decoder.finish()
        total = counts.record_count
        wanted = total if head_count is None else min(total, head_count)
        target = FakeTarget(None if converts else source.shape)
        paths = [folder / f"{shard}.fake" for shard in range(shards)]
        bounds = cut_evenly(wanted, shards)
        write_shards(source, store, knobs, bounds, lambda shard: target.open(paths[shard], 1), decoder)
        store.close()
        scratch.close()
        assert sorted(folder.iterdir()) == sorted(paths)
        return [read_shard(path) for path in paths]


def sort_rows(
    rows: Sequence[Sequence[bytes]], seed: int, draw: Callable[..., NDArray[np.uint64]] = draw_keys
) -> list[bytes]:
    """Return all records sorted by (key, input, row): what the order means, in one line."""
    keys = draw(seed, [(i, 0, len(part)) for i, part in enumerate(rows)])
    inputs = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    numbers = np.concatenate([np.arange(len(part)) for part in rows])
    flat = [row for part in rows for row in part]
    return [flat[place] for place in np.lexsort((numbers, inputs, keys))]


class InlineExecutor:
    """An executor that runs every task at once, in the thread that submits it: no time goes into threads."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
