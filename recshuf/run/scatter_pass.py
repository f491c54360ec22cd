"""The scatter of one run: adopts finished pile sets, reads all other inputs, and journals new sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import InputError, PileError
from recshuf.run.scatter import Scatter, ScatterCallbacks, ScatterTask
from recshuf.storage.reading.listing import check_unchanged
from recshuf.system.memory import release_freed
from recshuf.system.page_cache import drop_file_pages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recshuf.interfaces import Decoder
    from recshuf.job.report import Progress
    from recshuf.piles.store import Store
    from recshuf.records.digests import InputCount, InputCounts
    from recshuf.run.open_run import Workspace
    from recshuf.run.resolve import ResolvedJob


def scatter_inputs(resolved: ResolvedJob, workspace: Workspace, progress: Progress) -> InputCounts:
    """Fill the pile store, and return the counts of each input."""
    progress.start("scatter", resolved.plan.record_count, resolved.plan.byte_count)
    return _read_inputs(resolved, workspace, _adopt_sets(workspace, progress), progress)


def observe_inputs(
    resolved: ResolvedJob, workspace: Workspace, counts: InputCounts, progress: Progress
) -> None:
    """Read all inputs again for the decoder alone; `counts` are those of the scatter."""
    progress.start("observe", resolved.plan.record_count, resolved.plan.byte_count)
    finished = {index: counts[index] for index in range(len(resolved.inputs.files))}
    _read_inputs(resolved, workspace, finished, progress)


def _adopt_sets(workspace: Workspace, progress: Progress) -> dict[int, InputCount]:
    """Adopt the pile sets of an earlier run, and return the counts of their inputs."""
    finished: dict[int, InputCount] = {}
    for set_index in workspace.earlier.sets if workspace.earlier else ():
        try:
            finished |= workspace.store.adopt(set_index).counts
        except PileError as error:
            progress.warn(f"{error}; its inputs are read again")
    return finished


def _read_inputs(
    resolved: ResolvedJob, workspace: Workspace, finished: Mapping[int, InputCount], progress: Progress
) -> InputCounts:
    """Scatter the records of all inputs not finished, and let the decoder observe those it must."""
    inputs, work, quarantine = resolved.inputs, workspace.work, workspace.quarantine

    def drop_input(index: int) -> None:
        file = inputs.files[index]
        if file.path is not None and file.stamp is not None:
            drop_file_pages(file.path)

    def note_set(set_index: int) -> None:
        if work is not None:
            work.journal.note({"set": set_index})

    adds_provenance = resolved.job.options["provenance"]
    task = ScatterTask(inputs.source, resolved.plan, workspace.seed, finished, adds_provenance)
    callbacks = ScatterCallbacks(
        quarantine.put if quarantine else None, drop_input if inputs.drop_page_cache else None, note_set
    )
    return scatter_parts(resolved, task, workspace.store, resolved.decoder, progress, callbacks)


def scatter_parts(
    resolved: ResolvedJob,
    task: ScatterTask,
    store: Store,
    decoder: Decoder | None,
    progress: Progress,
    callbacks: ScatterCallbacks,
) -> InputCounts:
    """Scatter what a task reads, and check that its inputs have not changed."""
    files = resolved.inputs.files
    read = files if task.parts is None else [files[part.input_index] for part in task.parts]
    try:
        counts = Scatter(task, store, decoder, progress, callbacks).run()
    except InputError:
        check_unchanged(read)
        raise
    check_unchanged(read)
    if resolved.decoding.converts:
        # Readers and writers use different allocators, and both would keep their memory.
        release_freed()
    return counts
