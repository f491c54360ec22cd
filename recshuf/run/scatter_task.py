"""Tasks of the first pass: count the rows of parts of inputs, and write a pile set each."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recshuf.job.report import SilentProgress
from recshuf.output.run_log import read_results
from recshuf.piles.store import name_set
from recshuf.run.bad_records import keep_bad
from recshuf.run.open_run import make_quarantine
from recshuf.run.scatter import ScatterCallbacks, ScatterTask
from recshuf.run.scatter_pass import scatter_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.output.quarantine import Quarantine
    from recshuf.piles.set_folder import SetFolder
    from recshuf.records.batch_groups import InputPart
    from recshuf.records.digests import InputCounts
    from recshuf.run.open_run import OpenRun


def count_part(opened: OpenRun, number: int) -> dict[str, Any]:
    """Return the number of rows of a part."""
    part, plan = opened.run.tasks.counted[number], opened.resolved.plan
    fragments = opened.resolved.inputs.source.fragments(
        part.input_index, plan.block_bytes, plan.max_record_bytes
    )
    rows = sum(batch.num_rows for one in part.choose(fragments) for batch in one.batches())
    return {"rows": rows}


def scatter_set(opened: OpenRun, number: int, cleanup: ExitStack) -> dict[str, Any]:
    """Write a pile set with a name of its own, and return what belongs to it; `cleanup` deletes it."""
    resolved, plan = opened.resolved, opened.run.tasks
    set_index = number - plan.scatter.start
    parts = _number_rows(opened, plan.sets[set_index])
    prefix = f"set-{set_index:05d}-{secrets.token_hex(8)}"
    name = name_set(prefix, 0)
    decoder = resolved.scan_fully().decoder
    with opened.open_piles(prefix, _estimate(opened, parts)) as store, ExitStack() as inner:
        cleanup.callback(store.folder.discard, name)
        quarantine = _open_quarantine(opened, store.folder, inner)
        sealed: list[int] = []
        callbacks = ScatterCallbacks(quarantine.put if quarantine else None, on_set=sealed.append)
        task = _make_task(opened, parts)
        counts = scatter_parts(resolved, task, store, decoder, SilentProgress(), callbacks)
        if sealed:
            store.folder.keep(name)
        bad = None if quarantine is None else keep_bad(store.folder, quarantine, cleanup)
    return {
        "set": name if sealed else None,
        "counts": [_pack_count(part.input_index, counts) for part in parts],
        "records": counts.record_count,
        "bytes": counts.byte_count,
        "spilled_bytes": store.spilled_bytes,
        "state": None if decoder is None else decoder.state(),
        "bad": bad,
    }


def _pack_count(index: int, counts: InputCounts) -> list[int]:
    """Return input, bytes and digest."""
    byte_count, digest = counts[index]
    return [index, byte_count, digest.records, digest.byte_count, digest.fingerprint]


def _make_task(opened: OpenRun, parts: Sequence[InputPart]) -> ScatterTask:
    """Return the task that reads parts of inputs into set 0 of a store."""
    resolved = opened.resolved
    return ScatterTask(
        resolved.inputs.source,
        replace(resolved.plan, set_of_input=(0,) * len(resolved.inputs.files)),
        opened.seed,
        adds_provenance=resolved.job.options["provenance"],
        parts=parts,
    )


def _number_rows(opened: OpenRun, parts: Sequence[InputPart]) -> list[InputPart]:
    """Return parts with their first rows, which other tasks have counted if need be."""
    counted = opened.run.tasks.counted
    if all(part.first_row >= 0 for part in parts):
        return list(parts)
    results = read_results(opened.tasks, opened.run.id, range(len(counted)))
    ends: dict[tuple[int, int | None], int] = {}
    for part, result in zip(counted, results.values(), strict=True):
        first_row = part.first_row if part.first_row >= 0 else ends[part.input_index, part.start]
        ends[part.input_index, part.stop] = first_row + result["rows"]
    return [
        part if part.first_row >= 0 else part._replace(first_row=ends[part.input_index, part.start])
        for part in parts
    ]


def _estimate(opened: OpenRun, parts: Sequence[InputPart]) -> float | None:
    """Return the number of records to expect in parts; None if it is not known."""
    counts = [opened.resolved.inputs.sizes[part.input_index].record_count for part in parts]
    if None in counts:
        return None
    # The parts of an input are about equally large.
    shares = [1 if part.is_whole else opened.run.tasks.count_parts(part.input_index) for part in parts]
    return sum((count or 0) / share for count, share in zip(counts, shares, strict=True))


def _open_quarantine(opened: OpenRun, sets: SetFolder, cleanup: ExitStack) -> Quarantine | None:
    """Return a quarantine for the bad records of one task, in a folder of pile sets; None if they are errors."""
    if opened.resolved.job.quarantine is None:
        return None
    token, folder = secrets.token_hex(8), sets.make_kept()
    quarantine = make_quarantine(opened.resolved, folder / f"bad-{token}.jsonl", folder, token)
    cleanup.callback(quarantine.close)
    cleanup.callback(quarantine.withdraw)
    return quarantine
