"""Proof from the files alone that an output holds the same multiset of records as the inputs."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from recshuf.audit.verify.mismatches import Found, Place, Search, Tally
from recshuf.audit.verify.record_readers import SideReader, compare_schemas, open_pair
from recshuf.audit.verify.record_sets import INPUTS, OUTPUT, read_manifest
from recshuf.errors import UsageError
from recshuf.job.report import FileReport
from recshuf.piles.scratch import Scratch
from recshuf.system.listing import check_unchanged
from recshuf.system.paths import choose_temp_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from recshuf.audit.verify.record_sets import Side
    from recshuf.interfaces import InputFile
    from recshuf.job.job import Job
    from recshuf.job.progress import Progress


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """A record that one side has and the other has not."""

    name: str
    """Its file."""
    index: int
    """Its place in the file, from 0."""
    copies: int
    """How many equal ones are missing or extra in all."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a comparison found."""

    format: str
    to: str
    are_compared: bool
    """Whether the records were compared: not where the schemas differ."""
    records: int
    """Records of the inputs."""
    records_written: int
    """Records of the output."""
    missing: int
    """Records of the inputs that the output should hold and does not."""
    extra: int
    """Records of the output that the inputs do not hold, or not as often."""
    missing_places: tuple[RecordPlace, ...]
    """The first few, by file and index."""
    extra_places: tuple[RecordPlace, ...]
    differences: tuple[str, ...]
    """Other differences, each in a sentence: of the schemas, and of the files from the manifest."""
    inputs: tuple[FileReport, ...]
    shards: tuple[FileReport, ...]
    seconds: float

    @property
    def is_equal(self) -> bool:
        """Tell whether the output holds exactly the records of the inputs, or a sample of them if that was asked."""
        return not (self.missing or self.extra or self.differences)

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {"equal": self.is_equal} | asdict(self)


def verify_job(job: Job, progress: Progress, files: list[InputFile] | None = None) -> VerifyReport:
    """Compare the records of a job's output with those of its inputs; how it was ordered and cut does not matter.

    `files` are the inputs, where it is already known what those of the job stand for.

    Every file is read once, inputs of JSONL without a schema in a conversion twice; where something differs, once
    more.

    Raises
    ------
    InputError
        When a file of either side cannot be read, or has changed meanwhile.
    RecshufError
        When the comparison cannot be made.
    """
    started = time.perf_counter()
    if job.output is None or not job.inputs or "-" in (*job.inputs, job.output):
        raise UsageError("verify reads its files more than once; name files as inputs and output, and no -")
    manifest = read_manifest(job.output)
    readers = open_pair(job, job.output, manifest, progress, files)
    given, made = readers[INPUTS].side, readers[OUTPUT].side if len(readers) > 1 else None
    differences = manifest.compare_files() if manifest else []
    if manifest and made:
        differences += manifest.compare_format(made.format)
    tallies, found = [Tally(len(reader.side.files)) for reader in readers], Found()
    schema_difference = compare_schemas(readers)
    if schema_difference:
        differences.append(f"schemas: {schema_difference}")
    else:
        tallies = [_tally(reader) for reader in readers]
        found = _find_differing(readers, tallies, job)
        if manifest:
            names = made.names if made else []
            records = tallies[OUTPUT].records if made else []
            differences += manifest.compare_counts(names, records, sum(tallies[INPUTS].records))
    check_unchanged(file for reader in readers for file in reader.side.files)
    return VerifyReport(
        format=given.format,
        to=made.format if made else given.format,
        are_compared=not schema_difference,
        records=sum(tallies[INPUTS].records),
        records_written=sum(tallies[OUTPUT].records) if made else 0,
        missing=found.missing,
        extra=found.extra,
        missing_places=_name_places(readers, found.missing_places),
        extra_places=_name_places(readers, found.extra_places),
        differences=tuple(differences),
        inputs=_report_files(given, tallies[INPUTS]),
        shards=_report_files(made, tallies[OUTPUT]) if made else (),
        seconds=time.perf_counter() - started,
    )


def _tally(reader: SideReader) -> Tally:
    """Return numbers and sums of hashes of all records of a side."""
    tally = Tally(len(reader.side.files))
    lock = threading.Lock()

    def visit(hashes: NDArray[np.uint64], file: int, _: int) -> None:
        own = Tally(len(reader.side.files))
        own.add(hashes, file)
        with lock:
            tally.merge(own)

    reader.read_hashes("read", visit)
    return tally


def _find_differing(readers: list[SideReader], tallies: list[Tally], job: Job) -> Found:
    """Return which records differ; read once more only if any do."""
    both = [*tallies, Tally(0)][: OUTPUT + 1]
    differing = both[INPUTS].find_differing(both[OUTPUT])
    if not differing.any():
        return Found()
    expected = sum(int(tally.counts[differing].sum()) for tally in both)
    scratch = Scratch(choose_temp_dir(job.temp_dir))
    with closing(scratch), closing(Search(differing, expected, scratch, job.memory_bytes)) as search:
        for number, reader in enumerate(readers):
            reader.read_hashes("search", partial(search.add, number))
        found = search.run()
    if job.head_count is None:
        return found
    total = sum(both[INPUTS].records)
    return found.without_missing(total - min(total, job.head_count))


def _name_places(readers: list[SideReader], places: Sequence[Place]) -> tuple[RecordPlace, ...]:
    names = [reader.side.names for reader in readers]
    return tuple(RecordPlace(names[one.side][one.file], one.row, one.copies) for one in places)


def _report_files(side: Side, tally: Tally) -> tuple[FileReport, ...]:
    files = zip(side.source.inputs, tally.records, strict=True)
    return tuple(FileReport(one.name, records, one.file_bytes) for one, records in files)
