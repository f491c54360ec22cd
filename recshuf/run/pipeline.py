"""A run from end to end: census, plan, scatter, gather, commit."""

from __future__ import annotations

import secrets
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from recshuf.errors import (
    CheckError,
    ConversionError,
    InputError,
    OutputError,
    PileError,
    Unforeseen,
    UsageError,
)
from recshuf.interfaces import Sink, SupportsStream
from recshuf.job.plan import shard_bounds
from recshuf.job.report import FileReport, PassReport, ShuffleReport
from recshuf.output.commit import commit
from recshuf.output.shard_sync import FinishedShard, ShardKeeper
from recshuf.output.work_folder import WorkFolder
from recshuf.piles.store import set_name
from recshuf.records.keys import ORDER_VERSION
from recshuf.run.gather import Gather
from recshuf.run.opening import Opened, find_destination, open_job
from recshuf.run.resume import Earlier, describe_job, describe_set, describe_shard
from recshuf.run.scatter import Scatter
from recshuf.run.summary import make_manifest
from recshuf.run.workspace import check_space, make_store, open_quarantine, open_scratch
from recshuf.system.listing import check_unchanged
from recshuf.system.memory import peak_bytes, release_freed, resident_bytes
from recshuf.system.page_cache import forget_file
from recshuf.system.paths import write_error
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import BinaryIO

    from recshuf.interfaces import Target
    from recshuf.job.job import Job
    from recshuf.job.plan import Plan
    from recshuf.job.progress import Progress
    from recshuf.records.digests import Digest
    from recshuf.records.input_counts import InputCount, InputCounts


def plan_job(job: Job, progress: Progress) -> Plan:
    """Return the plan of a job without running it.

    Raises
    ------
    RecshufError
        When the job cannot be run.
    """
    destination = find_destination(job)
    if destination is not None:
        destination.check(overwrite=job.overwrite or job.resume)
    return open_job(job, destination, progress).plan


def run_job(job: Job, progress: Progress) -> ShuffleReport:
    """Run a job and return its figures.

    On an error nothing is left under the output's name. What a later run can go on from is left in a work folder beside
    it, and a note of the error says so.

    Raises
    ------
    RecshufError
        When the job cannot be run to its end.
    """
    started = time.perf_counter()
    with ExitStack() as cleanup:
        run = _Run(job, progress, cleanup)
        base_bytes = resident_bytes()
        counts, scatter_pass = run.scatter()
        shard_sizes, gather_pass = run.gather(counts)
        opened = run.opened
        inputs = [
            FileReport(summary.name, count + bad, summary.file_bytes, bad)
            for summary, count, bad in zip(
                opened.source.inputs, counts.records.tolist(), run.bad_counts, strict=True
            )
        ]
        passes = [scatter_pass, gather_pass]
        if job.verify:
            passes.append(run.verify())
        shards, commit_pass = run.commit(inputs, shard_sizes)
    return ShuffleReport(
        version=__version__,
        order=ORDER_VERSION,
        seed=run.seed,
        format=opened.source_name,
        to=opened.target_name,
        records=sum(one.records for one in inputs),
        records_written=sum(shard_sizes),
        byte_count=counts.byte_count,
        spilled_bytes=run.store.spilled_bytes,
        seconds=time.perf_counter() - started,
        passes=(*passes, commit_pass),
        inputs=tuple(inputs),
        shards=tuple(shards),
        plan=opened.plan,
        predicted_peak_bytes=opened.plan.peak_memory_bytes,
        measured_peak_bytes=peak_bytes(),
        base_bytes=base_bytes,
        quarantined=sum(run.bad_counts),
        quarantine=None if job.quarantine is None else str(job.quarantine),
    )


class _Run:
    """One run in progress: what is open, and the passes in their order.

    Parameters
    ----------
    cleanup
        Gets what must be undone at the end, however the run ends.
    """

    def __init__(self, job: Job, progress: Progress, cleanup: ExitStack) -> None:
        self._progress = progress
        self._staging: WorkFolder | None = None
        destination = find_destination(job)
        if destination is not None and not job.resume:
            destination.check(overwrite=job.overwrite)
        self._name = "standard output" if destination is None else str(destination.path)
        if destination is not None and not destination.is_stream:
            self._staging = WorkFolder(destination)
            cleanup.push(self._leave)
            self._staging.enter(progress.warn, resumes=job.resume)
            if job.resume and self._staging.journal.last("commit") is None:
                destination.check(overwrite=job.overwrite)
        self._earlier = Earlier.of(self._staging.journal.entries) if self._staging else None
        self.opened = open_job(job, destination, progress, self._earlier.piles if self._earlier else None)
        self.seed = _choose_seed(job, self._earlier)
        self._stream: BinaryIO | None = None
        if destination is None:
            self._stream = job.stdout or _find_stdout()
        elif destination.is_stream:
            self._stream = cleanup.enter_context(destination.open_stream())
        self._begin(cleanup)

    def _begin(self, cleanup: ExitStack) -> None:
        """Compare the job with the one that is continued, and open journal and store."""
        opened, staging = self.opened, self._staging
        scratch = open_scratch(opened, staging, self._earlier)
        if staging is not None:
            header = describe_job(opened, self.seed, scratch.kept)
            if self._earlier is None:
                staging.journal.note(header)
            else:
                self._earlier.check(header)
        cleanup.callback(scratch.close)
        if opened.job.check_space:
            check_space(opened, scratch.parent, staging.path if staging else None)
        can_resume = staging is not None and not opened.job.reads_stdin
        self._quarantine = open_quarantine(opened, staging, scratch.parent, cleanup)
        self.store = make_store(opened, scratch, self._note_set if can_resume else None)
        cleanup.callback(self.store.close)

    @property
    def bad_counts(self) -> list[int]:
        """Number of records set aside, for each input."""
        return self._quarantine.counts if self._quarantine else [0] * len(self.opened.source.inputs)

    def verify(self) -> PassReport:
        """Compare the shards, as they lie in the work folder, with the inputs."""
        from recshuf.audit.verify.comparison import verify_job

        started, job, staging = time.perf_counter(), self.opened.job, self._staging
        if staging is None:
            raise RuntimeError("a stream cannot be read again")
        read_again = replace(
            job,
            output=str(staging.shards.written),
            format=self.opened.source_name,
            to=self.opened.target_name,
            resume=False,
        )
        found = verify_job(read_again, self._progress, self.opened.files)
        if not found.is_equal:
            parts = [f"{found.missing:,} records missing, {found.extra:,} extra", *found.differences]
            places = [*found.missing_places, *found.extra_places]
            parts += [f"such as record {places[0].index} of {places[0].name}"] if places else []
            raise CheckError(f"verify: {'; '.join(parts)}; nothing was put in place; report this as a fault")
        return PassReport("verify", time.perf_counter() - started, found.records, 0)

    def _leave(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        """Leave the work folder at the end of a run."""
        if self._staging is None:
            return
        try:
            self._leave_staging(self._staging, error)
        except KeyboardInterrupt as interrupt:  # a signal comes once, and must not cut this short
            self._leave_staging(self._staging, error or interrupt)
            raise

    def _leave_staging(self, staging: WorkFolder, error: BaseException | None) -> None:
        # A fresh run on the same inputs would end the same way, and what failed its check is not to be trusted.
        is_final = (
            isinstance(error, InputError | ConversionError | UsageError) and not staging.journal.entries
        )
        if error is None or is_final or isinstance(error, CheckError) or not staging.journal.is_resumable:
            staging.remove()
            return
        error.add_note(
            f"finished parts are kept in {staging.path}: the same command with --resume goes on from there; delete "
            "that folder to give them up"
        )
        staging.release()

    def scatter(self) -> tuple[InputCounts, PassReport]:
        """Throw all records onto piles, and return what was read of each input."""
        started, opened = time.perf_counter(), self.opened
        plan = opened.plan
        self._progress.start("scatter", plan.record_count, plan.byte_count)
        counts = self._read_inputs(self._adopt_sets())
        seconds = time.perf_counter() - started
        return counts, PassReport("scatter", seconds, counts.record_count, counts.byte_count)

    def _read_inputs(self, finished: dict[int, InputCount]) -> InputCounts:
        """Throw the records of all but finished inputs onto piles, and let the decoder observe those it must."""
        opened = self.opened
        self._scatter = Scatter(
            opened.source,
            opened.plan,
            self.seed,
            self.store,
            opened.decoder,
            self._progress,
            finished,
            self._quarantine.put if self._quarantine else None,
            adds_places=opened.job.provenance,
            on_input=self._forget_input if opened.forgets else None,
        )
        try:
            counts = self._scatter.run()
        except InputError:
            check_unchanged(opened.files)
            raise
        check_unchanged(opened.files)
        if opened.converts:
            # What reads takes its memory from another allocator than what writes, so that both would be held.
            release_freed()
        return counts

    def _forget_input(self, index: int) -> None:
        file = self.opened.files[index]
        if file.path is not None and file.stamp is not None:
            forget_file(file.path)

    def _adopt_sets(self) -> dict[int, InputCount]:
        """Take over the pile sets of the run that is continued, and return what was read of their inputs."""
        finished: dict[int, InputCount] = {}
        for number, sealed in self._earlier.sets.items() if self._earlier else ():
            try:
                self.store.adopt(number, set_name(number), sealed.index_place)
            except PileError as error:
                self._progress.warn(f"{error}; its part of the run is made again")
                continue
            finished |= sealed.inputs
        return finished

    def _note_set(self, set_index: int, index_place: int) -> None:
        counts = {index: self._scatter.count_of(index) for index in self.opened.plan.inputs_of(set_index)}
        if self._staging is not None:
            self._staging.journal.note(describe_set(set_index, index_place, counts))

    def gather(self, counts: InputCounts) -> tuple[list[int], PassReport]:
        """Write all shards, and return the number of records in each."""
        started = time.perf_counter()
        try:
            return self._write_shards(counts, started)
        except (Unforeseen, ConversionError):
            if not self.opened.is_trusting:
                raise
        self._observe_all(counts)
        return self._write_shards(counts, started)

    def _observe_all(self, counts: InputCounts) -> None:
        """Read the inputs again, for the decoder alone, and take back what was written by what it knew before."""
        plan, self.opened = self.opened.plan, self.opened.distrust()
        self._progress.start("observe", plan.record_count, plan.byte_count)
        self._read_inputs({index: counts[index] for index in range(len(self.opened.files))})
        if self._staging is not None:
            self._staging.shards.keep_only(set())

    def _write_shards(self, counts: InputCounts, started: float) -> tuple[list[int], PassReport]:
        opened = self.opened
        bounds = shard_bounds(opened.cut, *_measure_output(opened, counts))
        byte_count = counts.byte_count * bounds[-1] // max(1, counts.record_count)
        self._progress.start("gather", bounds[-1], byte_count)
        target = opened.open_target()
        finished = self._find_finished(bounds, target)
        try:
            with self._keep_shards(target, is_only=len(bounds) == 2) as on_shard:
                Gather(
                    self.store,
                    opened.plan,
                    bounds,
                    self._sink_opener(target),
                    opened.decoder,
                    self._progress,
                    on_shard,
                    finished,
                ).run()
        except BrokenPipeError:
            raise  # whoever reads has had enough, which is no failure
        except OSError as error:
            folder = None if self._staging is None else self._staging.path
            raise write_error(error, self._name, folder, opened.plan.peak_disk_bytes) from error
        seconds = time.perf_counter() - started
        return [stop - start for start, stop in pairwise(bounds)], PassReport(
            "gather", seconds, bounds[-1], byte_count
        )

    def _find_finished(self, bounds: list[int], target: Target) -> dict[int, Digest]:
        """Return the shards of the run that is continued that are as they were written; delete all others."""
        if self._staging is None or self._earlier is None:
            return {}
        paths = {
            shard: self._staging.shards.written_path(shard, target.suffix) for shard in range(len(bounds) - 1)
        }
        finished, damaged = self._earlier.find_shards(bounds, paths, self.opened.find_table_schema())
        if damaged and self._staging.shards.are_committed:
            raise OutputError(
                f"{self._name}: is complete, but {damaged[0]} has changed since; delete {self._staging.path} to "
                "start anew"
            )
        for name in damaged:
            self._progress.warn(f"{name}: has changed since it was written; it is made again")
        self._staging.shards.keep_only({paths[shard].name for shard in finished})
        return finished

    @contextmanager
    def _keep_shards(
        self, target: Target, *, is_only: bool
    ) -> Iterator[Callable[[int, Digest], None] | None]:
        """Give what is to hear of each shard that is written; all of them are kept at the end, unless there is an error."""
        staging = self._staging
        if staging is None:
            yield None
            return
        schema = self.opened.find_table_schema()

        def note(shard: FinishedShard) -> None:
            staging.journal.note(describe_shard(shard.number, shard.path, shard.digest, shard.schema))

        # A single shard is not noted in the journal, since the run ends with it.
        keeper = ShardKeeper(None if is_only else note, forgets=self.opened.forgets)
        try:
            yield lambda shard, digest: keeper.add(
                FinishedShard(shard, staging.shards.path_of(shard, target.suffix), digest, schema)
            )
            keeper.finish()
        finally:
            # Whether parts are finished, and left for a later run, is known when no thread notes one any more.
            keeper.close()

    def commit(self, inputs: list[FileReport], shard_sizes: list[int]) -> tuple[list[FileReport], PassReport]:
        """Put the shards in place, and return them."""
        started = time.perf_counter()
        if self._quarantine is not None:
            self._quarantine.finish()
        if self._staging is None:
            shards = [FileReport(self._name, shard_sizes[0], None)]
        else:
            files = zip(self._staging.shards.list_files(), shard_sizes, strict=True)
            shards = [FileReport(name, count, size) for (name, size), count in files]
            manifest = None
            if self._staging.shards.destination.is_directory:
                manifest = make_manifest(self.opened, self.seed, inputs, shards, self._staging.shards.folder)
            commit(self._staging, manifest)
        if self._quarantine is not None:
            self._quarantine.settle()
        return shards, PassReport("commit", time.perf_counter() - started, sum(shard_sizes), 0)

    def _sink_opener(self, target: Target) -> Callable[[int], Sink]:
        threads, staging = self.opened.plan.sink_threads, self._staging
        if staging is not None:
            return lambda shard: target.open(staging.shards.path_of(shard, target.suffix), threads)
        stream = self._stream
        if stream is None or not isinstance(target, SupportsStream):
            raise UsageError(f"{self.opened.target_name} cannot be written to a stream; give a file with -o")
        return lambda _: target.open_stream(stream, threads)


def _choose_seed(job: Job, earlier: Earlier | None) -> int:
    if job.seed is not None:
        return job.seed
    return earlier.seed if earlier else secrets.randbits(128)


def _find_stdout() -> BinaryIO:
    if sys.stdout is None:
        raise UsageError("standard output is closed; give a file or directory with -o")
    return sys.stdout.buffer


def _measure_output(opened: Opened, counts: InputCounts) -> tuple[int, int]:
    """Return how many records will be written, and about how many bytes, by nothing that the plan decides."""
    records = counts.record_count
    wanted = records if opened.job.head_count is None else min(records, opened.job.head_count)
    file_bytes = _sum([size.file_bytes for size in opened.sizes])
    if file_bytes is None or not opened.keeps_size:
        file_bytes = counts.byte_count
    return wanted, file_bytes * wanted // max(1, records)


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
