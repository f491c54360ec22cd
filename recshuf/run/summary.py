"""The manifest of a run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from recshuf.errors import ConversionError
from recshuf.output.manifest import Manifest
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from recshuf.job.report import FileReport
    from recshuf.run.opening import Opened


def make_manifest(
    opened: Opened, seed: int, inputs: list[FileReport], shards: list[FileReport], folder: Path
) -> Manifest:
    """Return the manifest of a run, whose decoder has seen every record, for the folder of its shards."""
    return Manifest(
        folder,
        opened.target_name,
        tuple(inputs),
        tuple(shards),
        added=(FILE_COLUMN, ROW_COLUMN) if opened.job.provenance else (),
        format=opened.source_name,
        seed=seed,
        schema=_find_schema(opened),
        counts_quarantined=opened.job.quarantine is not None,
    )


def _find_schema(opened: Opened) -> pa.Schema:
    """Return the fields of a record in table form, or in native form where there is no other."""
    schema: pa.Schema = opened.source.schema
    with suppress(ConversionError):
        decoder = opened.decoder
        schema = (opened.source.decoder().schema if decoder is None else decoder.finish()) or schema
    return schema
