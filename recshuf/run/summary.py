"""The manifest: what a run did, beside its shards."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from recshuf.errors import ConversionError
from recshuf.records.keys import ORDER_VERSION
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN
from recshuf.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

    from recshuf.job.report import FileReport
    from recshuf.run.opening import Opened


def make_manifest(
    opened: Opened, seed: int, inputs: list[FileReport], shards: list[FileReport]
) -> dict[str, object]:
    """Return the manifest of a run, whose decoder has seen every record."""
    return {
        "recshuf": __version__,
        "order": ORDER_VERSION,
        "seed": str(seed),
        "format": opened.source_name,
        "to": opened.target_name,
        "records": sum(one.records for one in shards),
        "inputs": [
            {"name": one.name, "records": one.records, "bytes": one.file_bytes}
            | ({"quarantined": one.quarantined} if opened.job.quarantine else {})
            for one in inputs
        ],
        "shards": [{"name": one.name, "records": one.records, "bytes": one.file_bytes} for one in shards],
        "schema": _describe_schema(opened),
    } | ({"provenance": [FILE_COLUMN, ROW_COLUMN]} if opened.job.provenance else {})


def _describe_schema(opened: Opened) -> list[dict[str, object]]:
    """Return the fields of a record in table form, or in native form where there is no other."""
    schema: pa.Schema = opened.source.schema
    with suppress(ConversionError):
        decoder = opened.decoder
        schema = (opened.source.decoder().schema if decoder is None else decoder.finish()) or schema
    return [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]
