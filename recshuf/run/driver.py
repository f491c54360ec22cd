"""A run from end to end: begin, scatter what the store lacks, gather what the stage lacks, verify, commit."""

from __future__ import annotations

import time
import weakref
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from recshuf.errors import (
    AlreadyCompleteError,
    ConversionError,
    MemoryLimitError,
    PileError,
    SchemaMismatch,
    UsageError,
)
from recshuf.formats import load_format
from recshuf.interfaces import ShardFile, Target
from recshuf.job.features import Dedup
from recshuf.job.report import FileReport, PassReport, Progress, ShuffleReport, SilentProgress
from recshuf.output.entries import FinishedShard, find_shards
from recshuf.run.engine_map import LocalMap, TaskMap
from recshuf.run.features import describe_inputs, find_counts, make_manifest, make_report
from recshuf.run.gather import check_written
from recshuf.run.header import Header, check_sets, divide_job
from recshuf.run.inputs import open_records, open_stored
from recshuf.run.open_run import begin_output, find_header, open_run
from recshuf.run.resolve import Run, find_destination, resolve_job, resolve_opened
from recshuf.run.scatter_pass import check_fields, check_set, check_sizes, observe
from recshuf.run.shards import Bounds, cut_shards, iterate_records, learn, open_groups, settle
from recshuf.storage import is_url
from recshuf.system.memory import resident_bytes
from recshuf.system.units import count_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from recshuf.job.job import Job
    from recshuf.job.plan import Plan
    from recshuf.output import Destination
    from recshuf.piles.layout import PileLayout, SealedSet
    from recshuf.records.digests import InputCounts


def plan_job(job: Job, progress: Progress) -> Plan:
    destination = find_destination(job, progress)
    if destination is not None:
        destination.check(overwrite=job.options["overwrite"] or job.options["resume"])
    check_sets(job)
    run = resolve_job(job, destination, progress)
    _check_rereading(run)
    run = _choose_engine(run)
    return divide_job(run).fit(run.plan) if run.job.uses_tasks else run.plan


def run_job(job: Job, progress: Progress, planned: Header | None = None) -> ShuffleReport:
    """Run a job and return its figures.

    On an error the output is as it was, unless ``--verify`` finds that one in an object store is wrong. Finished parts
    are kept in a work folder beside it for ``--resume``; a note on the error names the folder.

    `planned` is the saved plan of its tasks, which the job must fit; None if it has none.
    """
    started = time.perf_counter()
    with ExitStack() as cleanup:
        run = _begin(job, progress, cleanup, planned)
        engine = _choose_map(run, cleanup)
        base_bytes = resident_bytes()
        timer = _Timer()
        sets = _fill(run, engine)
        counts = _check_counts(run)
        reports = [timer.report("scatter", counts.read_count, counts.byte_count)]
        bounds = _cut(run, counts)
        try:
            shards = _write(run, engine, bounds)
        except (SchemaMismatch, ConversionError):
            if not run.decoding.infers_from_prefix:
                raise
            # Types that the first records tell do not fit all others: all are observed, and all shards are written again.
            run = run.scan_fully()
            observe(run)
            if run.stage is not None:
                run.stage.keep_only(set())
            shards = _write(run, engine, bounds)
        _say_notes(run)
        totals = [shards[number].total for number in range(bounds.shard_count)]
        check_written(open_groups(run), bounds.record_count, totals)
        kept_count = sum(shard.records for shard in shards.values())
        reports.append(timer.report("gather", kept_count, bounds.byte_count))
        verifies_late = _verifies_late(job, run.output.destination)
        if job.options["verify"]:
            from recshuf.run.verify import verify_committed, verify_written  # reads data sets of any format
        if job.options["verify"] and not verifies_late:
            reports.append(verify_written(run, progress))
            timer.start()
        inputs = describe_inputs(run, counts)
        files = _commit(run, inputs, bounds, shards)
        reports.append(timer.report("commit", kept_count))
        if run.stage is not None and verifies_late:
            run.stage.remove()
            reports.append(verify_committed(run, progress))
    return make_report(
        run,
        inputs,
        files,
        reports,
        shards.values(),
        spilled_bytes=run.store.spilled_bytes + sum(entry.spilled_bytes for entry in sets),
        seconds=time.perf_counter() - started,
        base_bytes=base_bytes,
    )


class RecordStream:
    """The records of a job in order, as an iterator of batches: the second pass, done when they are asked for.

    What the run holds, in memory and on disk, is freed at the end, by an error, or when this is deleted.
    """

    def __init__(self, job: Job, progress: Progress, cleanup: ExitStack) -> None:
        with cleanup:
            run = _begin(job, progress, cleanup, None)
            _fill(run, _choose_map(run, cleanup))
            bounds = _cut(run, _check_counts(run))
            self.schema, self._batches = iterate_records(run, bounds)
            _say_notes(run)
            progress.start("gather", bounds.record_count, bounds.byte_count)
            # Threads that load records end before what they read is closed.
            cleanup.callback(self._batches.close)
            self._close = weakref.finalize(self, cleanup.pop_all().close)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._batches)
        except BaseException:
            self._close()
            raise


def _begin(job: Job, progress: Progress, cleanup: ExitStack, planned: Header | None) -> Run:
    """Return a run that is open until `cleanup`."""
    destination = find_destination(job, progress)
    check_sets(job)
    try:
        stage = begin_output(job, destination, progress, cleanup)
    except AlreadyCompleteError:
        from recshuf.run.verify import refuse_other_command, verify_committed

        if planned is None and destination is not None:
            refuse_other_command(job, destination)
        # The run that put it in place may have died before it compared it.
        if _verifies_late(job, destination):
            verify_committed(_resolve(job, destination, progress, cleanup), progress)
        raise
    before = planned or find_header(job, destination, stage)
    if before is not None:
        if job.options["engine"] is None and before.job.get("processes"):
            job = job.divide()
        before.check_given(job)
        if job.options["seed"] is None:
            job = replace(job, options=job.options | {"seed": before.seed})
    run = _resolve(job, destination, progress, cleanup, None if before is None else before.layout)
    _check_rereading(run)
    run = open_run(run if before else _choose_engine(run), stage, before, cleanup)
    if job.options["verify"] and before is None:
        from recshuf.run.verify import start_hashing  # most runs do not verify

        run = replace(run, hashing=start_hashing(run))
    return run


_DIVIDED_BYTES = 4 * 10**9
"""So many records pay for the start of processes."""
_LINE_WORKERS, _FEWEST_WORKERS = 8, 16
"""From how many workers on processes are faster by the model of docs/growth.md: for lines that stay as they are, and for all else."""


def _choose_engine(run: Run) -> Run:
    """Return a run, by processes of this machine where the model says that they are faster and no record would stay in memory."""
    job, plan = run.job, run.plan
    may_divide = job.options["engine"] is None and job.temp_url is None and job.epoch is None
    is_light = load_format(run.inputs.format).traits.is_lines and not run.decoding.converts
    is_local = not (job.reads_stdin or job.writes_stdout or job.streams or job.holds_tables)
    if (
        not (may_divide and is_local)
        or plan.resident_bytes
        or job.workers < (_LINE_WORKERS if is_light else _FEWEST_WORKERS)
        or (plan.byte_count or 0) < _DIVIDED_BYTES
        or any(map(is_url, (*job.inputs, job.output or "")))
        or min(plan.shard_count or 0, len(divide_job(run).sets)) < job.workers
    ):
        return run
    from recshuf.run.engines import can_start_processes  # most runs end above

    if not can_start_processes():
        return run
    try:
        own = job.divide()
        if own.processes < job.workers:  # there is not enough memory for as many
            return run
        divided = resolve_opened(own, run.output.destination, run.inputs, None, SilentProgress())
    except (UsageError, MemoryLimitError):  # processes would have too little, or the format needs all keys
        return run
    return replace(divided, progress=run.progress)


def _verifies_late(job: Job, destination: Destination | None) -> bool:
    """Tell whether the output is to be compared after the commit, as nobody can read it before."""
    return job.options["verify"] and destination is not None and destination.local_path is None


def _resolve(
    job: Job,
    destination: Destination | None,
    progress: Progress,
    cleanup: ExitStack,
    layout: PileLayout | None = None,
) -> Run:
    if job.epoch is None:
        return resolve_job(job, destination, progress, layout)

    from recshuf.piles.kept.stored import StoredPiles, open_place

    piles = StoredPiles(open_place(job.inputs[0], job.storage))
    cleanup.callback(piles.close)
    seed = job.options["seed"]
    if seed in (None, piles.seed):
        inputs, layout = open_stored(piles)
        return resolve_opened(job, destination, inputs, layout, progress)
    given = {
        "--provenance": job.options["provenance"],
        "--epoch": job.epoch.number,
        "--mix": job.epoch.mix > 1,
    }
    if option := next((name for name, is_given in given.items() if is_given), None):
        raise UsageError(
            f"{option} needs the keys of the store, and --seed {seed} draws new ones; leave out one of them, or give the seed of "
            f"the store, {piles.seed}"
        )
    return resolve_opened(job, destination, open_records(piles), None, progress)


def _check_rereading(run: Run) -> None:
    """Refuse a memory limit that is too low for ``--verify``."""
    if run.job.options["verify"]:
        from recshuf.run.verify import check_memory  # most runs do not verify

        check_memory(run)


def _choose_map(run: Run, cleanup: ExitStack) -> LocalMap:
    """Return what does the passes of a run, until `cleanup`."""
    return LocalMap() if run.results is None else TaskMap(run, run.results, cleanup)


def _fill(run: Run, engine: LocalMap) -> list[SealedSet]:
    """Fill the store with the sets that are sealed already, and have all others made; return them by number."""
    held: dict[int, SealedSet] = {}
    for entry in engine.list_sets(run):
        try:
            check_set(run, run.store, entry, run.quarantine)
        except PileError as error:
            run.progress.warn(f"{error}; {engine.forget_set(run, entry, error)}")
        else:
            held[entry.number] = entry
    count = run.plan.set_count if run.results is None else len(run.tasks.sets)
    made = engine.scatter(run, [number for number in range(count) if number not in held])
    held |= {entry.number: entry for entry in made}
    sets = [held[number] for number in sorted(held)]
    learn(run, sets)
    return sets


def _check_counts(run: Run) -> InputCounts:
    """Return the counts of all inputs in the store; values that give keys must occur, and fit in memory."""
    counts = find_counts(run)
    check_fields(run, counts.read_count)
    check_sizes(run)
    return counts


def _say_notes(run: Run) -> None:
    run.find_table_schema()  # else only tasks, which have written the shards, have made notes
    for note in run.decoding.inner.notes if run.decoding.inner else ():
        run.progress.warn(note)


def _cut(run: Run, counts: InputCounts) -> Bounds:
    """Return the bounds of the shards. Those of tasks may be planned ones, of which each settles its own."""
    groups = open_groups(run)
    bounds = cut_shards(run, counts, groups)
    return bounds if run.results else settle(run, bounds, groups, range(bounds.shard_count))


def _write(run: Run, engine: LocalMap, bounds: Bounds) -> dict[int, FinishedShard]:
    """Have all shards written that are not finished, and return all by number."""
    run.progress.start("gather", bounds.record_count, bounds.byte_count)
    finished = engine.list_shards(run, bounds)
    lacking = [number for number in range(bounds.shard_count) if number not in finished]
    shards = finished | engine.gather(run, lacking, bounds)
    _warn_of_empty(run, bounds, {number for number, shard in shards.items() if not shard.records})
    return shards


def _warn_of_empty(run: Run, bounds: Bounds, empty: set[int]) -> None:
    """Warn of shards without records, if there are records."""
    if not empty or not bounds.record_count:
        return
    are, verb = ("is" if count == 1 else "are" for count in (bounds.record_count, len(empty)))
    reason, parts = f"as there {are} {count_of(bounds.record_count, 'record')}", bounds.list_empty_parts()
    if run.job.keeps_keys_together:
        reason = "as each value goes to one shard"
    if isinstance(run.job.feature, Dedup):
        reason = "as few records are kept"
    run.progress.warn(
        f"{len(empty):,} of {bounds.shard_count:,} shards {verb} empty, {reason}"
        + (f": all of {', '.join(parts)}" if parts else "")
    )


def _commit(
    run: Run, inputs: list[FileReport], bounds: Bounds, shards: Mapping[int, FinishedShard]
) -> list[FileReport]:
    """Put the shards in place, and return them."""
    stage, quarantine, destination = run.stage, run.quarantine, run.output.destination
    if quarantine is not None:
        quarantine.finish()
    if stage is None or destination is None:
        files = [FileReport(run.output.name, sum(shard.records for shard in shards.values()), None)]
    else:
        target = run.open_target()
        noted = find_shards(stage.log.read())
        names, sizes = bounds.name_shards(stage, target.suffix), stage.find_sizes()
        files = [
            FileReport(
                name,
                shards[number].records,
                sizes[name],
                checksum=noted[number].checksum if number in noted else None,
            )
            for number, name in enumerate(names)
        ]
        if destination.is_directory:
            documents = _describe_shards(target, files, run.job.part_names)
            companions = tuple(one for number in range(len(names)) for one in noted[number].companions)
            manifest = replace(
                make_manifest(run, inputs, files, documents, shards.values()), companions=companions
            )
            stage.commit(manifest, documents)
        else:
            stage.commit(None, {})
    if quarantine is not None:
        quarantine.settle()
    return files


def _describe_shards(target: Target, files: Sequence[FileReport], parts: Sequence[str]) -> dict[str, bytes]:
    """Return the documents that lie beside the shards, of each part those in its folder, and those of all parts."""
    folders: dict[str, list[ShardFile]] = {}
    for file in files:
        folder, slash, name = file.name.rpartition("/")
        folders.setdefault(folder + slash, []).append(ShardFile(name, file.records, file.checksum))
    documents = dict(target.describe_parts(parts)) if parts else {}
    return documents | {
        folder + name: content
        for folder, shards in folders.items()
        for name, content in target.describe(shards).items()
    }


class _Timer:
    """Measures the passes, which follow each other."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._begun = time.perf_counter()

    def report(self, name: str, record_count: int, byte_count: int = 0) -> PassReport:
        """Return the report of a pass that ends now; the next begins."""
        seconds = time.perf_counter() - self._begun
        self.start()
        return PassReport(name, seconds, record_count, byte_count)
