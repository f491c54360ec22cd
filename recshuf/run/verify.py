"""Outputs that are complete: whether a command can have written one, and whether it holds the records of its inputs."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any

from recshuf.audit.verify.record_sets import RecordSet, open_record_set, read_manifest
from recshuf.errors import (
    CheckError,
    InputError,
    MemoryLimitError,
    OutputExistsError,
    PileError,
    UnavailableInputError,
    UsageError,
)
from recshuf.formats import keeps_records, load_format, suffix_compression
from recshuf.interfaces import ReadOptions
from recshuf.job.features import Dedup, Mixture, SplitFiles, show_features
from recshuf.job.job import Epoch, Job
from recshuf.job.options import find_own, flag_of
from recshuf.job.plan import Cut
from recshuf.job.report import FileReport, PassReport, Progress, SilentProgress
from recshuf.piles.kept.stored import StoredPiles, open_place
from recshuf.run.inputs import PileSource, list_inputs
from recshuf.run.open_run import explain_again
from recshuf.system.units import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from recshuf.audit.verify.mismatches import RecordHashing
    from recshuf.audit.verify.verification import VerifyReport
    from recshuf.interfaces import Source
    from recshuf.output import Destination
    from recshuf.output.manifest import Manifest
    from recshuf.run.resolve import Run


_HASHED_BYTES = 4 << 20
"""Hashing a block of so many bytes takes less memory than scattering it, which comes after that."""
_Input = tuple[str, int | None]
"""Name and size of an input; None if it has no size."""


def refuse_other_command(job: Job, destination: Destination) -> None:
    """Refuse a complete output whose manifest shows that another command has written it.

    A single file has no manifest, and inputs that are gone are not compared.
    """
    manifest = read_manifest(job, destination.name) if destination.is_directory else None
    if manifest is None:
        return
    difference = _compare_options(job, manifest)
    with suppress(InputError, UsageError, PileError):
        difference = difference or _compare_inputs(job, destination, manifest)
    if difference is not None:
        raise OutputExistsError(
            f"{destination.name}: holds the output of another command: {difference}; give --overwrite in place of "
            "--resume, or another output"
        )


def find_difference(job: Job, manifest: Manifest, inputs: Iterable[Sequence[Any]]) -> str | None:
    """Describe the first difference between a manifest and a job whose header names these inputs, with sizes."""
    given = [(name, size) for name, size, *_ in inputs]
    return _compare_options(job, manifest) or _compare_files(given, manifest.inputs)


def _compare_options(job: Job, manifest: Manifest) -> str | None:
    """Describe the first difference between the options that a manifest shows and those of a job."""
    given, to = job.options["format"] or manifest.format, job.options["to"]
    seed = manifest.seed if job.options["seed"] is None else job.options["seed"]
    found = sum(one.records for one in manifest.inputs) - sum(one.quarantined for one in manifest.inputs)
    sample = job.count_sample(found)
    records = found if sample is None else min(found, sample)
    does, did = show_features(job.features), show_features(manifest.features)
    written = sum(one.records for one in manifest.shards)
    cut = job.cut or Cut(shards=len(job.part_names) or len(manifest.inputs))
    compression = _find_compression(manifest)
    epoch, before = (one if one and not one.is_first else Epoch() for one in (job.epoch, manifest.epoch))
    pairs = [
        ("seed", manifest.seed, seed),
        *zip(("epoch", "reshuffle", "mix"), before, epoch, strict=True),
        ("format of the inputs", manifest.format, given),
        ("format of the shards", manifest.to, to or given),
        ("number of records", written, written if manifest.features else records),
        ("number of shards", len(manifest.shards), manifest.count_planned(cut)),
        ("compression", compression, compression and job.write.compression),
    ]
    if does != did:
        return f"it was written with {did or 'none of --group-by, --dedup, --split and --weights'}, and this command has {does or 'none'}"
    for name, was, now in pairs:
        if now is not None and was != now:
            return f"its {name} is {was}, and that of this command {now}"
    if bool(manifest.added) != job.options["provenance"]:
        return f"it was written {'with' if manifest.added else 'without'} --provenance"
    return None


def _find_compression(manifest: Manifest) -> str | None:
    """Return the compression that the names of the shards tell; None if they do not."""
    traits = load_format(manifest.to).traits
    is_named = (traits.is_lines or traits.is_wrapped) and manifest.shards
    return suffix_compression(manifest.shards[0].name, traits) if is_named else None


def _compare_inputs(job: Job, destination: Destination, manifest: Manifest) -> str | None:
    """Describe the first difference between the inputs that a manifest shows and those of a job."""
    if job.epoch is None:
        files = list_inputs(job, destination, SilentProgress())
        return _compare_files([(one.name, one.stamp and one.stamp.size) for one in files], manifest.inputs)
    with closing(StoredPiles(open_place(job.inputs[0], job.storage))) as piles:
        if job.options["seed"] not in (None, piles.seed):
            return _compare_files([(str(piles.path), None)], manifest.inputs)
        if piles.seed != manifest.seed:
            return f"its seed is {manifest.seed}, and that of the store {piles.seed}"
        return _compare_files([(name, None) for name in piles.sources], manifest.inputs)


def _compare_files(given: list[_Input], recorded: tuple[FileReport, ...]) -> str | None:
    if len(given) != len(recorded):
        return f"it has {len(recorded):,} inputs, and this command {len(given):,}"
    for (name, size), before in zip(given, recorded, strict=True):
        if not _may_be_same(name, before.name):
            return f"it has the input {before.name} in place of {name}"
        if None not in (size, before.file_bytes) and size != before.file_bytes:
            return f"its input {before.name} had {before.file_bytes:,} bytes, and {name} has {size:,}"
    return None


def _may_be_same(name: str, before: str) -> bool:
    """Tell whether two names may be of one input, seen from different working directories."""
    shorter, longer = sorted((_list_parts(name), _list_parts(before)), key=len)
    if longer[len(longer) - len(shorter) :] == shorter:
        return True
    with suppress(OSError):
        return Path(name).samefile(before)
    return False


def _list_parts(name: str) -> list[str]:
    """Return the parts of a path without those that lead up at its beginning."""
    parts = list(PurePosixPath(name).parts)
    while parts[:1] == [".."]:
        del parts[0]
    return parts


def verify_written(run: Run, progress: Progress) -> PassReport:
    """Compare the shards in the stage."""
    written = None if run.stage is None else run.stage.written
    if written is None:
        raise RuntimeError("the shards cannot be read again")
    return _verify(run, str(written), progress, "nothing was put in place; report this as a fault")


def verify_committed(run: Run, progress: Progress) -> PassReport:
    """Compare an output that is in place, since it could not be read before; also with its manifest."""
    name = run.output.name
    remedy = f"{name} is in place: do not use it, write it again with --overwrite, and report this as a fault"
    try:
        return _verify(run, name, progress, remedy)
    except CheckError:
        raise
    except BaseException as error:
        error.add_note(f"{name} is in place, and was not compared: {explain_again(run.job)}")
        raise


def _verify(run: Run, shards: str, progress: Progress, remedy: str) -> PassReport:
    from recshuf.audit.verify.verification import verify_job  # most runs do not verify

    started = time.perf_counter()
    options = run.job.options | {
        "format": run.inputs.format,
        "to": run.output.format,
        "resume": False,
    }
    # Records and chunks that the run has written may be longer than those of its inputs.
    longest = max(run.job.read.max_record_bytes, ReadOptions().max_record_bytes)
    read = replace(run.job.read, max_record_bytes=longest)
    job = replace(run.job, output=shards, options=options, read=read)
    try:
        found = verify_job(job, progress, _open_given(run), run.hashing)
    except InputError as error:
        # What the error advises is for inputs.
        is_of_shards = error.name == shards or error.name.startswith(shards.rstrip("/") + "/")
        if isinstance(error, UnavailableInputError) or not is_of_shards:
            raise
        problem = f"{error.place}: {error.problem}" if error.place else error.problem
        name = PurePath(error.name).name
        raise CheckError(f"verify: {name} does not read back: {problem}; {remedy}") from error
    if not found.is_equal:
        raise CheckError(f"verify: {'; '.join(_describe(found))}; {remedy}")
    return PassReport("verify", time.perf_counter() - started, found.records, 0)


def start_hashing(run: Run) -> RecordHashing | None:
    """Return what hashes the records of a run while they are scattered; None if the inputs are to be read again.

    That is so if the run has only some records to scatter, or leaves some out, or writes others.
    """
    from recshuf.audit.verify.mismatches import RecordHashing

    job, inputs = run.job, run.inputs
    keeps_records = not (isinstance(job.feature, Dedup | Mixture) or job.options["head_count"])
    has_marks = isinstance(job.feature, SplitFiles) and job.feature.fields
    scatters_all = inputs.stored is None and run.results is None
    if run.decoding.converts or has_marks or not (keeps_records and scatters_all):
        return None
    return RecordHashing(len(inputs.files)) if run.plan.block_bytes >= _HASHED_BYTES else None


def check_memory(run: Run) -> None:
    """Refuse a memory limit under which the inputs could not be read once the shards are written, and a store that is read otherwise."""
    from recshuf.audit.verify.comparison import RecordReader
    from recshuf.records.word_hashing import HashKey

    source = _find_source(run)
    for name, (own, _) in find_own(dict(run.job.read.own)).items() if isinstance(source, PileSource) else ():
        if own.side == "both":  # records of inputs are read as it says
            raise UsageError(
                f"--verify: the records of a store do not show what {flag_of(name)} changes; leave it out, and compare the output "
                f"with the inputs by recshuf verify INPUT... OUTPUT {flag_of(name)}"
            )
    given = RecordSet("inputs", run.inputs.format, source, run.inputs.files)
    if not keeps_records(given.format, run.output.format):
        given.decoder = given.source.decoder()
    try:
        RecordReader(given, HashKey(), run.job, run.progress)
    except MemoryLimitError as error:
        raise MemoryLimitError(f"--verify: {error} or leave out --verify") from error


def _open_given(run: Run) -> RecordSet:
    """Return the records of the inputs, or of the store."""
    inputs, source = run.inputs, _find_source(run)
    if isinstance(source, PileSource):
        return RecordSet("store", inputs.format, source, inputs.files, is_from_program=source.is_from_program)
    if run.hashing is not None:
        are_tables = any(file.table is not None for file in inputs.files)
        return RecordSet("inputs", inputs.format, source, inputs.files, is_from_program=are_tables)
    return open_record_set("inputs", inputs.files, inputs.format, run.job.read)


def _find_source(run: Run) -> Source:
    inputs = run.inputs
    return inputs.source if inputs.stored is None else PileSource(inputs.source, inputs.stored)


def _describe(found: VerifyReport) -> list[str]:
    parts = [f"{count_of(found.missing, 'record')} missing, {found.extra:,} extra", *found.differences]
    examples = [*found.missing_places, *found.extra_places]
    return parts + ([f"such as record {examples[0].index} of {examples[0].name}"] if examples else [])
