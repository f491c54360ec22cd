"""`--verify`: the shards of a run are read again, and compared with its inputs or with the store that they are from."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from recshuf.errors import CheckError, InputError, UnavailableInputError
from recshuf.job.report import PassReport
from recshuf.run.stores.stored_inputs import PileSource
from recshuf.run.workspace import explain_again

if TYPE_CHECKING:
    from recshuf.audit.verify.record_sets import RecordSet
    from recshuf.audit.verify.verification import VerifyReport
    from recshuf.job.progress import Progress
    from recshuf.output.transaction import Transaction
    from recshuf.run.resolving.resolve import ResolvedJob


def verify_written(resolved: ResolvedJob, work: Transaction | None, progress: Progress) -> PassReport:
    """Compare the shards in the work folder.

    Raises
    ------
    CheckError
        When they do not hold the records.
    """
    written = None if work is None else work.written
    if written is None:
        raise RuntimeError("the shards cannot be read again")
    return _verify(resolved, str(written), progress, "nothing was put in place; report this as a fault")


def verify_committed(resolved: ResolvedJob, progress: Progress) -> PassReport:
    """Compare an output that is in place, since it could not be read before; also with its manifest.

    Raises
    ------
    CheckError
        When it does not hold the records.
    """
    name = resolved.output.name
    remedy = f"{name} is in place: do not use it, write it again with --overwrite, and report this as a fault"
    try:
        return _verify(resolved, name, progress, remedy)
    except CheckError:
        raise
    except BaseException as error:
        error.add_note(f"{name} is in place, and was not compared: {explain_again(resolved.job)}")
        raise


def _verify(resolved: ResolvedJob, shards: str, progress: Progress, remedy: str) -> PassReport:
    from recshuf.audit.verify.verification import verify_job  # most runs do not verify

    started = time.perf_counter()
    options = resolved.job.options | {
        "format": resolved.inputs.format,
        "to": resolved.output.format,
        "resume": False,
    }
    job = replace(resolved.job, output=shards, options=options)
    try:
        found = verify_job(job, progress, _open_given(resolved))
    except InputError as error:
        # What the error advises is for inputs.
        if isinstance(error, UnavailableInputError) or not _is_of(shards, error.name):
            raise
        problem = f"{error.place}: {error.problem}" if error.place else error.problem
        name = PurePath(error.name).name
        raise CheckError(f"verify: {name} does not read back: {problem}; {remedy}") from error
    if not found.is_equal:
        raise CheckError(f"verify: {'; '.join(_describe(found))}; {remedy}")
    return PassReport("verify", time.perf_counter() - started, found.records, 0)


def _is_of(shards: str, name: str) -> bool:
    """Return whether a name is that of an output, or of a file in it."""
    return name == shards or name.startswith(shards.rstrip("/") + "/")


def _open_given(resolved: ResolvedJob) -> RecordSet:
    """Return the records of the inputs, or of the store."""
    from recshuf.audit.verify.record_sets import RecordSet, open_record_set, options_of_inputs

    inputs = resolved.inputs
    if inputs.stored is not None:
        source = PileSource(inputs.source, inputs.stored)
        is_from_program = inputs.stored.info.origin is None
        return RecordSet("store", inputs.format, source, inputs.files, is_from_program=is_from_program)
    read = options_of_inputs(resolved.job.read, inputs.format)
    return open_record_set("inputs", inputs.files, inputs.format, read)


def _describe(found: VerifyReport) -> list[str]:
    """Return what differs."""
    parts = [f"{found.missing:,} records missing, {found.extra:,} extra", *found.differences]
    examples = [*found.missing_places, *found.extra_places]
    return parts + ([f"such as record {examples[0].index} of {examples[0].name}"] if examples else [])
