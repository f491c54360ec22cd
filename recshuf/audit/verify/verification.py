"""Proof from the files alone that an output holds the same multiset of records as the inputs."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from recshuf.audit.verify.comparison import open_comparison, open_inputs, open_stores
from recshuf.audit.verify.expected import (
    FirstRecords,
    describe_misplaced,
    find_quotas,
    mark_parts,
    take_feature,
)
from recshuf.audit.verify.mismatches import INPUTS, OUTPUT, Mismatches, Search, Tally
from recshuf.audit.verify.record_sets import read_manifest
from recshuf.errors import SchemaMismatch, UsageError
from recshuf.formats import LAST_RESORT, detect_format, load_format
from recshuf.job.features import Dedup
from recshuf.job.report import DownloadReport, FileReport, Report
from recshuf.output.manifest import Manifest
from recshuf.piles.set_folder import SetFolder
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN
from recshuf.storage import is_url
from recshuf.storage.reading import check_unchanged
from recshuf.storage.reading.objects import list_requests
from recshuf.system.paths import choose_temp_dir, real_path
from recshuf.system.units import count_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.audit.verify.comparison import Comparison, RecordReader
    from recshuf.audit.verify.mismatches import Mismatch, RecordHashing
    from recshuf.audit.verify.record_sets import RecordSet
    from recshuf.job.job import Job
    from recshuf.job.report import Progress
    from recshuf.records.key_makers import Quota
    from recshuf.storage.reading.objects import Stores


@dataclass(frozen=True, slots=True)
class DifferingRecord:
    """A record that only one of inputs and output holds, or that one holds more often."""

    name: str
    """Its file."""
    index: int
    """Its row number in the file, from 0."""
    copies: int
    """Number of records equal to it that are missing or extra, itself included."""


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport(Report):
    """The result of a comparison.

    Attributes
    ----------
    format
        Format of the inputs.
    to
        Format of the output.
    are_compared
        Whether the records were compared. False if the schemas differ.
    records
        Number of records in the inputs.
    records_written
        Number of records in the output.
    missing
        Number of records that the output should hold and does not.
    extra
        Number of records in the output that the inputs do not hold, or not as often.
    missing_places
        The first ten of the missing records, each with `name` of its file, `index` and `copies`; of equal records the
        first.
    extra_places
        The first ten of the extra records, likewise.
    differences
        Other differences, a sentence each: between the schemas, and between files and manifest.
    inputs
        Each input: `name`, `records`, `file_bytes`.
    shards
        Each file of the output, likewise.
    seconds
        Wall time.
    downloads
        Requests to object stores; None if no file is there.
    warnings
        What the comparison warned of, a sentence each.
    """

    format: str
    to: str
    are_compared: bool
    records: int
    records_written: int
    missing: int
    extra: int
    missing_places: tuple[DifferingRecord, ...]
    extra_places: tuple[DifferingRecord, ...]
    differences: tuple[str, ...]
    inputs: tuple[FileReport, ...]
    shards: tuple[FileReport, ...]
    seconds: float
    downloads: DownloadReport | None = None
    warnings: tuple[str, ...] = ()

    def summarize(self) -> Iterator[str]:
        """Yield the result and the first differences."""
        yield f"{'equal' if self.is_equal else 'different'}, {self.records_written:,} of {count_of(self.records, 'record')}"
        if not self.is_equal:
            others = count_of(len(self.differences), "other difference")
            yield f"{self.missing:,} missing, {self.extra:,} extra, {others}"
        yield from self.differences[:5]

    @property
    def is_equal(self) -> bool:
        """Whether the output holds exactly the records of the inputs, or the sample of them that was asked for."""
        return not (self.missing or self.extra or self.differences)

    def __bool__(self) -> bool:
        """Return `is_equal`."""
        return self.is_equal

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {"equal": self.is_equal} | asdict(self)


def verify_job(
    job: Job, progress: Progress, inputs: RecordSet | None = None, hashing: RecordHashing | None = None
) -> VerifyReport:
    """Compare the records of a job's output with those of its inputs, in whatever order and shards.

    Every file is read once, and once more if records differ. JSONL and CSV inputs of a conversion without a
    schema are so, too, if a record does not fit the types of the first ones. `inputs` are those of the job if they
    are open already. Those that `hashing` has seen are read only if the output differs from it, or is compared as tables.
    """
    started = time.perf_counter()
    path = job.output
    if path is None or not job.inputs or "-" in (*job.inputs, path):
        raise UsageError("verify reads its files more than once; name files as inputs and output, and no -")
    job.require_rereading("verify")
    manifest = read_manifest(job, path)
    job = take_feature(job, manifest)
    stores = open_stores(job, progress)
    if inputs is None:
        inputs = open_inputs(job, stores, progress, path)
        if inputs.source.metadata is not None and inputs.source.metadata.differences:
            progress.warn(inputs.source.metadata.differences)
    compare = partial(_compare, job, path, manifest, progress, inputs, stores, hashing=hashing)
    found = inputs.try_prefix(compare)
    if found.missing and found.format == found.to and load_format(found.to).traits.drops_blank_end:
        # A blank line of the inputs may come last in a shard, where it would be no record of an input.
        again = inputs.try_prefix(partial(compare, keeps_blank_end=True))
        found = again if again.is_equal else found
    return replace(found, seconds=time.perf_counter() - started)


def _compare(
    job: Job,
    path: str,
    manifest: Manifest | None,
    progress: Progress,
    inputs: RecordSet,
    stores: Stores,
    *,
    hashing: RecordHashing | None,
    keeps_blank_end: bool = False,
) -> VerifyReport:
    """Compare an output with the inputs of a job; see `RecordSet.try_prefix` for the schema of these."""
    key = None if hashing is None else hashing.key
    comparison = open_comparison(
        job, path, manifest, progress, inputs, stores, keeps_blank_end=keeps_blank_end, key=key
    )
    output = comparison.output.record_set if comparison.output else None
    differences = manifest.compare_files() if manifest else []
    if manifest and output:
        differences += manifest.compare_format(output.format)
    before, after, mismatches = (
        Tally(len(inputs.files)),
        Tally(len(output.files) if output else 0),
        Mismatches(),
    )
    differences += comparison.compare_beside()
    schema_difference = comparison.compare_schemas()
    if schema_difference:
        if inputs.is_from_prefix:
            raise SchemaMismatch
        differences.append(f"schemas: {schema_difference}")
    else:
        split = mark_parts(comparison, job.feature)
        after = _count(comparison.output)
        if isinstance(job.feature, Dedup):
            before, mismatches = _compare_firsts(comparison, after, job, job.feature)
        else:
            before = hashing.tally if hashing and inputs.decoder is None else _count(comparison.inputs)
            quotas = find_quotas(job, inputs.files, before.records)
            mismatches = _find_mismatches(comparison, before, after, job, quotas)
            taken = sum(quota.taken for quota in quotas)
            if quotas and sum(after.records) != taken:
                differences.append(
                    f"{path}: holds {sum(after.records):,} records, and the mixture has {taken:,}"
                )
        differences += describe_misplaced(before, after, mismatches, split)
        if manifest:
            names = output.names if output else []
            differences += manifest.compare_counts(names, after.records, sum(before.records))
    if mismatches.missing and not manifest:
        differences += _suggest_folder(path)
        if output and mismatches.missing == sum(before.records):
            differences += _suggest_provenance(output, job)
            differences += _suggest_format(output, job)
    files = [file for reader in comparison.readers for file in reader.record_set.files]
    check_unchanged(files)
    return VerifyReport(
        format=inputs.format,
        to=output.format if output else inputs.format,
        are_compared=not schema_difference,
        records=sum(before.records),
        records_written=sum(after.records),
        missing=mismatches.missing,
        extra=mismatches.extra,
        missing_places=_name_records(inputs, mismatches.first_missing),
        extra_places=_name_records(output, mismatches.first_extra) if output else (),
        differences=tuple(differences),
        inputs=_report_files(inputs, before),
        shards=_report_files(output, after) if output else (),
        seconds=0.0,
        downloads=DownloadReport.of(list_requests(files)),
    )


def _count(reader: RecordReader | None) -> Tally:
    """Return the tally of all records of a set; an empty one without a reader."""
    if reader is None:
        return Tally(0)
    tally = Tally(len(reader.record_set.files))
    reader.read_hashes("read", lambda hashes, file, _: tally.add(hashes, file))
    return tally


def _find_mismatches(
    comparison: Comparison, before: Tally, after: Tally, job: Job, quotas: Sequence[Quota]
) -> Mismatches:
    """Return which records the output lacks or should not hold; reads the files once more only if there are any."""
    mismatches = Mismatches()
    differing = before.find_differing(after) | bool(quotas)
    if differing.any():
        expected = sum(int(tally.counts[differing].sum()) for tally in (before, after))
        folder = SetFolder(choose_temp_dir(job.temp_dir))
        with (
            closing(folder),
            closing(Search(differing, expected, folder, job.memory_bytes, quotas)) as search,
        ):
            for set_index, reader in zip((INPUTS, OUTPUT), comparison.readers, strict=False):
                reader.read_hashes("search", partial(search.add, set_index))
            mismatches = search.run()
    head_count = job.count_sample(sum(before.records))
    if head_count is None:
        return mismatches
    return mismatches.without_missing(max(0, sum(before.records) - head_count))


def _compare_firsts(comparison: Comparison, after: Tally, job: Job, dedup: Dedup) -> tuple[Tally, Mismatches]:
    """Return the tally of the inputs, and how the output differs from the first records of all values."""
    inputs = comparison.inputs.record_set
    before, kept, mismatches = Tally(len(inputs.files)), Tally(1), Mismatches()
    expected = 2 * sum(after.records)

    def add(batch: pa.RecordBatch, hashes: NDArray[np.uint64], file: int, first_row: int) -> None:
        before.add(hashes, file)
        firsts.add(batch, hashes, file, first_row)

    with (
        closing(SetFolder(choose_temp_dir(job.temp_dir))) as folder,
        closing(FirstRecords(inputs, dedup, expected, folder, job.memory_bytes // 2)) as firsts,
    ):
        comparison.inputs.read_both("read", add)
        for hashes, _ in firsts.find():
            kept.add(hashes, 0)
        differing = kept.find_differing(after)
        if differing.any():
            count = int(kept.counts[differing].sum() + after.counts[differing].sum())
            with closing(Search(differing, count, folder, job.memory_bytes)) as search:
                for found in firsts.find():
                    search.add_located(*found)
                if comparison.output is not None:
                    comparison.output.read_hashes("search", partial(search.add, OUTPUT))
                mismatches = search.run()
    return before, mismatches


def _suggest_folder(output: str) -> list[str]:
    """Return a sentence if an output is one of several shards."""
    if is_url(output):
        return []
    path = real_path(output)
    try:
        whole = Manifest.read(path.parent)
    except (OSError, ValueError):
        return []
    names = {shard.name for shard in whole.shards} if whole else set()
    if len(names) < 2 or path.name not in names:
        return []
    return [
        f"{output}: is one of {len(names):,} shards; give their folder {path.parent} to compare all of them"
    ]


def _suggest_provenance(output: RecordSet, job: Job) -> list[str]:
    """Return a sentence if an output seems to have the columns of a run with provenance."""
    columns = FILE_COLUMN, ROW_COLUMN
    if job.options["provenance"] or not output.seems_to_have(columns, job.read.max_record_bytes):
        return []
    return [f"{job.output}: records have {FILE_COLUMN!r}; if a run added it, give --provenance"]


def _suggest_format(output: RecordSet, job: Job) -> list[str]:
    """Return a sentence if an output was read as of the format of the inputs, and its content is of another one."""
    found = job.options["to"] or detect_format(output.files, job.read)
    if found in (job.options["to"], output.format):
        return []
    problem = f"{job.output}: was read as {output.format}, and does not look like it"
    way = "with --to" if found == LAST_RESORT else f"such as --to {found}"  # any lines may be text
    return [f"{problem}; if a run wrote another format, give that one, {way}"]


def _name_records(record_set: RecordSet, mismatches: Sequence[Mismatch]) -> tuple[DifferingRecord, ...]:
    names = record_set.names
    return tuple(DifferingRecord(names[each.file], each.row, each.copies) for each in mismatches)


def _report_files(record_set: RecordSet, tally: Tally) -> tuple[FileReport, ...]:
    files = zip(record_set.source.inputs, tally.records, strict=True)
    return tuple(FileReport(file.name, records, file.file_bytes) for file, records in files)
