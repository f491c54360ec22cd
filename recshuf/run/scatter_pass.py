"""The scatter of one run: takes over finished pile sets, reads all other inputs, and notes the sets in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import InputError, PileError
from recshuf.piles.spilled import SealedSet
from recshuf.run.resume import describe_set
from recshuf.run.scatter import Scatter, ScatterCallbacks, ScatterTask
from recshuf.run.workspace import make_store
from recshuf.system.listing import check_unchanged
from recshuf.system.memory import release_freed
from recshuf.system.page_cache import drop_file_pages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recshuf.job.progress import Progress
    from recshuf.records.input_counts import InputCount, InputCounts
    from recshuf.run.resolve import ResolvedJob
    from recshuf.run.scatter import SetResult
    from recshuf.run.workspace import Workspace


class ScatterPass:
    """Fills a pile store, which belongs to it until it is closed."""

    def __init__(self, resolved: ResolvedJob, workspace: Workspace, progress: Progress) -> None:
        self._resolved = resolved
        self._workspace = workspace
        self._progress = progress
        can_resume = workspace.work is not None and not resolved.job.reads_stdin
        self.store = make_store(resolved, workspace.scratch, keeps_sets=can_resume)

    def run(self) -> InputCounts:
        """Scatter all records, and return what was read of each input.

        Raises
        ------
        InputError
            When an input cannot be read, or has changed meanwhile.
        RecshufError
            When the pass fails for another reason.
        """
        plan = self._resolved.plan
        self._progress.start("scatter", plan.record_count, plan.byte_count)
        return self._read_inputs(self._resolved, self._adopt_sets())

    def observe_all(self, resolved: ResolvedJob, counts: InputCounts) -> None:
        """Read all inputs again for the decoder of `resolved` alone; `counts` tells what was read of them."""
        plan = resolved.plan
        self._progress.start("observe", plan.record_count, plan.byte_count)
        self._read_inputs(resolved, {index: counts[index] for index in range(len(resolved.inputs.files))})

    def _read_inputs(self, resolved: ResolvedJob, finished: Mapping[int, InputCount]) -> InputCounts:
        """Scatter the records of all but finished inputs, and let the decoder observe those it must."""
        quarantine, files = self._workspace.quarantine, resolved.inputs.files
        source, adds_provenance = resolved.inputs.source, resolved.job.provenance
        task = ScatterTask(source, resolved.plan, self._workspace.seed, finished, adds_provenance)
        callbacks = ScatterCallbacks(
            quarantine.put if quarantine else None,
            self._drop_input if resolved.inputs.drop_page_cache else None,
            self._note_set,
        )
        try:
            counts = Scatter(task, self.store, resolved.decoder, self._progress, callbacks).run()
        except InputError:
            check_unchanged(files)
            raise
        check_unchanged(files)
        if resolved.decoding.converts:
            # What reads takes its memory from another allocator than what writes, so that both would be held.
            release_freed()
        return counts

    def _drop_input(self, index: int) -> None:
        file = self._resolved.inputs.files[index]
        if file.path is not None and file.stamp is not None:
            drop_file_pages(file.path)

    def _adopt_sets(self) -> dict[int, InputCount]:
        """Take over the pile sets of the run that is continued, and return what was read of their inputs."""
        finished: dict[int, InputCount] = {}
        earlier = self._workspace.earlier
        for number, sealed in earlier.sets.items() if earlier else ():
            try:
                self.store.adopt(SealedSet(number, sealed.index_place))
            except PileError as error:
                self._progress.warn(f"{error}; its part of the run is made again")
                continue
            finished |= sealed.inputs
        return finished

    def _note_set(self, result: SetResult) -> None:
        if self._workspace.work is not None:
            self._workspace.work.journal.note(
                describe_set(result.set_index, result.index_offset, result.inputs)
            )
