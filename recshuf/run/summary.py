"""What a run did: its report, and the manifest beside its shards."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from recshuf.errors import ConversionError
from recshuf.job.report import FileReport, ShuffleReport
from recshuf.records.keys import ORDER_VERSION
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN
from recshuf.system.memory import peak_bytes
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.job.report import PassReport
    from recshuf.records.input_counts import InputCounts
    from recshuf.run.resolve import ResolvedJob
    from recshuf.run.workspace import Workspace


def describe_inputs(resolved: ResolvedJob, workspace: Workspace, counts: InputCounts) -> list[FileReport]:
    """Return the figures of each input; records that were set aside count as read."""
    summaries, quarantine = resolved.inputs.source.inputs, workspace.quarantine
    bad_counts = quarantine.counts if quarantine else [0] * len(summaries)
    return [
        FileReport(summary.name, count + bad, summary.file_bytes, bad)
        for summary, count, bad in zip(summaries, counts.records.tolist(), bad_counts, strict=True)
    ]


def make_report(
    resolved: ResolvedJob,
    seed: int,
    inputs: Sequence[FileReport],
    shards: Sequence[FileReport],
    passes: Sequence[PassReport],
    *,
    spilled_bytes: int,
    seconds: float,
    base_bytes: int,
) -> ShuffleReport:
    """Return the figures of a run, whose scatter is the first pass; most are named as in `ShuffleReport`."""
    job, plan = resolved.job, resolved.plan
    return ShuffleReport(
        version=__version__,
        order=ORDER_VERSION,
        seed=seed,
        format=resolved.inputs.format,
        to=resolved.output.format,
        records=sum(one.records for one in inputs),
        records_written=sum(one.records for one in shards),
        byte_count=passes[0].byte_count,
        spilled_bytes=spilled_bytes,
        seconds=seconds,
        passes=tuple(passes),
        inputs=tuple(inputs),
        shards=tuple(shards),
        plan=plan,
        predicted_peak_bytes=plan.peak_memory_bytes,
        measured_peak_bytes=peak_bytes(),
        base_bytes=base_bytes,
        quarantined=sum(one.quarantined for one in inputs),
        quarantine=None if job.quarantine is None else str(job.quarantine),
    )


def make_manifest(
    resolved: ResolvedJob, seed: int, inputs: list[FileReport], shards: list[FileReport]
) -> dict[str, object]:
    """Return the manifest of a run, whose decoder has seen every record."""
    return {
        "recshuf": __version__,
        "order": ORDER_VERSION,
        "seed": str(seed),
        "format": resolved.inputs.format,
        "to": resolved.output.format,
        "records": sum(one.records for one in shards),
        "inputs": [
            {"name": one.name, "records": one.records, "bytes": one.file_bytes}
            | ({"quarantined": one.quarantined} if resolved.job.quarantine else {})
            for one in inputs
        ],
        "shards": [{"name": one.name, "records": one.records, "bytes": one.file_bytes} for one in shards],
        "schema": _describe_schema(resolved),
    } | ({"provenance": [FILE_COLUMN, ROW_COLUMN]} if resolved.job.options["provenance"] else {})


def _describe_schema(resolved: ResolvedJob) -> list[dict[str, object]]:
    """Return the fields of a record in table form, or in native form where there is no other."""
    schema: pa.Schema = resolved.inputs.source.schema
    with suppress(ConversionError):
        decoder = resolved.decoder
        schema = (resolved.inputs.source.decoder().schema if decoder is None else decoder.finish()) or schema
    return [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]
