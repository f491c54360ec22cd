"""The report and the manifest of a finished run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recshuf.errors import ConversionError
from recshuf.formats import find_packages
from recshuf.job.features import Dedup, GroupBy, Mixture, SplitFiles
from recshuf.job.report import DownloadReport, FileReport, PassReport, ShuffleReport
from recshuf.output.manifest import Manifest
from recshuf.records.keys import ORDER_VERSION
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN
from recshuf.run.features import count_read, describe_parts, describe_sources
from recshuf.run.filled import count_missing
from recshuf.run.scatter_pass import find_counts
from recshuf.storage.reading.objects import list_requests
from recshuf.system.memory import peak_bytes
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import pyarrow as pa

    from recshuf.output.entries import FinishedShard
    from recshuf.records.digests import InputCounts
    from recshuf.run.resolve import Run


def describe_inputs(run: Run, counts: InputCounts) -> list[FileReport]:
    """Return the figures of each input; `records` includes those in quarantine."""
    summaries, quarantine = run.inputs.source.inputs, run.quarantine
    bad_counts = quarantine.counts if quarantine else [0] * len(summaries)
    found = (counts.records + counts.dropped).tolist()
    read = count_read(run.job, run.inputs, found)
    return [
        FileReport(summary.name, count + bad, summary.file_bytes, bad)
        for summary, count, bad in zip(summaries, read, bad_counts, strict=True)
    ]


def describe_feature(
    run: Run, shards: Sequence[FileReport], finished: Iterable[FinishedShard]
) -> dict[str, Any]:
    """Return what a run did besides the order, as JSON values by name, given its shards."""
    feature = run.job.feature
    if isinstance(feature, GroupBy):
        without_value, *_ = count_missing(run.store, len(feature.fields))
        figures = {"groups": sum(shard.values for shard in finished), "without_value": without_value}
        return {"group_by": feature.to_json() | figures}
    if isinstance(feature, Mixture):
        return {
            "sources": describe_sources(
                run.job, run.inputs, count_read(run.job, run.inputs, find_counts(run).records.tolist())
            )
        }
    if isinstance(feature, SplitFiles):
        return {"split": describe_parts(run, feature, shards)}
    if isinstance(feature, Dedup):
        kept, read = sum(one.records for one in shards), find_counts(run).read_count
        without_value, *_ = count_missing(run.store, len(feature.fields))
        figures = {"kept": kept, "dropped": read - kept, "without_value": without_value}
        return {"dedup": feature.to_json() | figures}
    return {}


def make_report(
    run: Run,
    inputs: Sequence[FileReport],
    shards: Sequence[FileReport],
    passes: Sequence[PassReport],
    finished: Collection[FinishedShard],
    *,
    spilled_bytes: int,
    seconds: float,
    base_bytes: int,
) -> ShuffleReport:
    """Return the report of a run; the first of `passes` is the scatter."""
    job, plan, destination = run.job, run.plan, run.output.destination
    return ShuffleReport(
        version=__version__,
        order=ORDER_VERSION,
        seed=run.seed,
        format=run.inputs.format,
        to=run.output.format,
        records=sum(one.records for one in inputs),
        records_written=sum(one.records for one in shards),
        byte_count=passes[0].byte_count,
        spilled_bytes=spilled_bytes,
        seconds=seconds,
        passes=tuple(passes),
        inputs=tuple(inputs),
        shards=tuple(shards),
        plan=replace(plan, spill_compression=run.store.compression),
        predicted_peak_bytes=plan.peak_memory_bytes,
        measured_peak_bytes=peak_bytes(),
        base_bytes=base_bytes,
        quarantined=sum(one.quarantined for one in inputs),
        quarantine=None if job.quarantine is None else str(job.quarantine),
        features=describe_feature(run, shards, finished),
        uploads=None if destination is None else destination.report(),
        downloads=DownloadReport.of(list_requests(run.inputs.files)),
    )


def make_manifest(
    run: Run,
    inputs: list[FileReport],
    shards: list[FileReport],
    documents: Iterable[str],
    finished: Collection[FinishedShard],
) -> Manifest:
    """Return the manifest of a run, given the names of documents beside the shards; its decoder has observed every record."""
    job = run.job
    return Manifest(
        Path(run.output.name),
        run.output.format,
        tuple(inputs),
        tuple(shards),
        added=(FILE_COLUMN, ROW_COLUMN) if job.options["provenance"] else (),
        format=run.inputs.format,
        seed=run.seed,
        # The first epoch of a store is the order of a shuffle.
        epoch=job.epoch if job.epoch and not job.epoch.is_first else None,
        schema=_find_schema(run),
        counts_quarantined=job.quarantine is not None,
        notes=run.notes,
        features=describe_feature(run, shards, finished),
        packages=find_packages((run.inputs.format, run.output.format)),
        documents=tuple(documents),
    )


def _find_schema(run: Run) -> pa.Schema:
    """Return the schema in table form, or in native form if there is none."""
    source, decoder = run.inputs.source, run.decoder
    schema: pa.Schema = source.schema
    with suppress(ConversionError):
        schema = (source.decoder().schema if decoder is None else decoder.finish()) or schema
    return schema
