"""Pass 1 into several stores: a split of the inputs, such as one to train on and one to validate on."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from recshuf.errors import CheckError, OutputExistsError, UsageError
from recshuf.piles.kept.folder import StoreFolder
from recshuf.piles.kept.snapshots import Snapshot
from recshuf.piles.split import SplitStore
from recshuf.records.key_makers import PositionKeys, find_deviation
from recshuf.records.part_keys import PlacedParts, ValueParts
from recshuf.records.split import Split, apportion
from recshuf.run.counting import count_records, require_files
from recshuf.run.inputs import list_inputs
from recshuf.run.keys import open_fields
from recshuf.run.resolve import find_limits, resolve_inputs
from recshuf.run.scatter import Scatter, ScatterTask
from recshuf.run.stores.scatter_store import (
    SCATTER_NAME,
    ScatteredSets,
    choose_observer,
    choose_pile_count,
    describe_scatter,
    fill_snapshot,
    note_nulls,
    open_piles,
    plan_scatter,
)
from recshuf.system.atomic import sync
from recshuf.system.locks import lock_folder
from recshuf.system.paths import real_path, write_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from recshuf.job.features import SplitFiles
    from recshuf.job.job import Job
    from recshuf.job.plan import Plan
    from recshuf.job.report import Progress, ScatterReport
    from recshuf.records.part_keys import PartFinder
    from recshuf.run.inputs import Inputs


@dataclass(frozen=True, slots=True)
class _Part:
    """A store to be made."""

    name: str
    share: float
    snapshot: Snapshot
    folder: StoreFolder
    plan: Plan


def scatter_split(job: Job, path: Path, feature: SplitFiles, progress: Progress) -> ScatterReport:
    """Scatter the inputs of a job into new stores, the folders in `path` with the names of the parts.

    They appear all at once. On an error nothing of them can be seen.
    """
    started = time.perf_counter()
    if os.path.lexists(path):
        raise OutputExistsError(f"{path}: exists already; choose another folder, or delete it")
    files = list_inputs(job, None, progress)
    if job.quarantine is not None:
        raise UsageError("--split and --on-bad-record quarantine: exclude each other; leave one of them out")
    shares = feature.shares
    if feature.counts_records:
        job.require_rereading("--split")
        require_files("--split", files, ", or --split-by")
    inputs = resolve_inputs(job, files, progress)
    seed = secrets.randbits(128) if job.options["seed"] is None else job.options["seed"]
    finder, sizes = _choose_finder(job, feature, inputs, seed, progress)
    with _hidden_folder(path) as work:
        plan = plan_scatter(job, inputs, 1)
        parts = [
            _Part(
                name,
                float(share),
                Snapshot.new(seed, choose_pile_count(job, inputs, float(share))),
                StoreFolder(work / name),
                plan,
            )
            for name, share in shares.items()
        ]
        made = _scatter_parts(inputs, parts, seed, finder, feature.fields, progress)
        found = [one.counts.record_count for one in made]
        if found != (sizes or found):
            raise CheckError(
                f"scatter: {found} records in the parts of the split, {sizes} planned; run again"
            )
        snapshots = [
            part.folder.create(fill_snapshot(part.snapshot, one, job))
            for part, one in zip(parts, made, strict=True)
        ]
    seconds = time.perf_counter() - started
    reports = tuple(
        describe_scatter(str(path / part.name), snapshot, one, seconds)
        for part, snapshot, one in zip(parts, snapshots, made, strict=True)
    )
    return replace(
        reports[0],
        path=str(path),
        deviation=None,
        records=sum(found),
        byte_count=sum(one.byte_count for one in reports),
        pile_count=sum(one.pile_count for one in reports),
        set_count=sum(one.set_count for one in reports),
        inputs=tuple(
            replace(one, records=sum(part.inputs[index].records for part in reports))
            for index, one in enumerate(reports[0].inputs)
        ),
        parts=reports,
    )


def _choose_finder(
    job: Job, feature: SplitFiles, inputs: Inputs, seed: int, progress: Progress
) -> tuple[PartFinder, list[int] | None]:
    """Return what tells the part of records, and how many each part has; None if only reading tells."""
    shares = tuple(feature.shares.values())
    if feature.fields:
        reader = open_fields("--split-by", feature.fields, inputs)
        return ValueParts(reader, feature.seed, shares), None
    counts = count_records(inputs, find_limits(job), progress)
    sizes = apportion(sum(counts), shares)
    return PlacedParts(Split.find(seed, counts, sizes)), sizes


@contextmanager
def _hidden_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder for stores beside `path`, which gets its place and name at the end, unless there is an error.

    The folder itself is renamed, so that a process that dies after that leaves nothing else.
    """
    target = real_path(path)
    work = target.parent / f".{target.name}.scatter"
    with ExitStack() as cleanup:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            cleanup.callback(os.close, lock_folder(work, str(path)))
            for store in list(work.iterdir()):
                StoreFolder(store).check_free()
                shutil.rmtree(store, ignore_errors=True)
            with _removed_on_error(work):
                yield work
                part = next(work.iterdir())
                work.chmod(stat.S_IMODE(part.stat().st_mode))  # that of new folders; a lock's is private
                sync(work)
                work.rename(target)
            sync(target.parent)
        except OSError as error:
            raise write_error(error, str(path), target.parent) from error


@contextmanager
def _removed_on_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _scatter_parts(
    inputs: Inputs,
    parts: Sequence[_Part],
    seed: int,
    finder: PartFinder,
    fields: Sequence[str],
    progress: Progress,
) -> list[ScatteredSets]:
    """Write the records of all parts to pile sets, synced to disk."""
    observer = choose_observer(inputs.source)
    with ExitStack() as cleanup:
        opened = []
        for part in parts:
            cleanup.enter_context(part.folder.hold_name(SCATTER_NAME))
            plan = replace(part.plan, pile_count=part.snapshot.pile_count)
            opened.append(open_piles(plan, inputs, part.folder, SCATTER_NAME, cleanup, part.share))
        store = SplitStore(opened, finder, len(inputs.source.inputs))
        task = ScatterTask(inputs.source, parts[0].plan, seed, PositionKeys(seed), adds_provenance=True)
        progress.start("scatter", task.plan.record_count, task.plan.byte_count)
        counts = Scatter(task, store, observer, progress).run(inputs.files)
        for name, count in zip(fields, store.missing.tolist(), strict=False):
            if counts.record_count == count > 0:
                raise UsageError(
                    f"--split-by: no record has a value of {name!r}; name a field that some have"
                )
    table = observer.finish_form(progress)
    return [
        ScatteredSets(
            note_nulls(sealed, observer, inputs),
            store.codec.schema,
            counts,
            inputs,
            table,
            deviation=find_deviation(part.share, store.squares) if fields else None,
        )
        for part, sealed, counts in zip(parts, store.sealed, store.counts, strict=True)
    ]
