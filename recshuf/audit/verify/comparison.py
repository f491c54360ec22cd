"""Two record sets opened so that equal records hash alike, and the comparison of their schemas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.audit.verify.record_readers import RecordReader
from recshuf.audit.verify.record_sets import (
    RecordSet,
    list_files,
    open_record_set,
    options_of_inputs,
    options_of_output,
)
from recshuf.audit.verify.type_classes import find_difference, find_exact_difference
from recshuf.audit.verify.word_hashing import HashKey
from recshuf.errors import InputError, UsageError
from recshuf.formats import detect_format
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN
from recshuf.storage.reading.listing import leave_out_output
from recshuf.storage.reading.objects import Stores

if TYPE_CHECKING:
    from recshuf.interfaces import InputFile
    from recshuf.job.job import Job
    from recshuf.job.progress import Progress
    from recshuf.output.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Comparison:
    """The two record sets that are compared."""

    inputs: RecordReader
    output: RecordReader | None
    """None if no file of the output exists."""

    @property
    def readers(self) -> list[RecordReader]:
        """Those that exist, inputs first."""
        return [self.inputs, self.output] if self.output else [self.inputs]

    def compare_schemas(self) -> str | None:
        """Return how the schemas differ so that records cannot be compared; None if they can."""
        if self.output is None:
            return None
        given, made = self.inputs.record_set, self.output.record_set
        if given.decoder is not None:
            before, after = self.inputs.infer_schema(), self.output.infer_schema()
            if before is None or after is None:
                raise RuntimeError("one record set has a decoder, and the other has none")
            after = made.list_compared(after)
            difference = find_difference(before, after, is_text="text" in (given.format, made.format))
        else:
            headers = [getattr(one.source.layout, "header", b"") for one in (given, made)]
            if all(headers) and headers[0] != headers[1]:
                return "the header lines differ"
            before, after = given.source.schema, made.list_compared(made.source.schema)
            difference = find_exact_difference(before, after)
        if difference and FILE_COLUMN in after.names and FILE_COLUMN not in before.names:
            return f"{difference}; if a run added it, give --provenance"
        return difference

    def compare_repeated(self) -> list[str]:
        """Return how the data differs that every file has beside its records, a sentence each."""
        if self.output is None:
            return []
        before, after = (reader.record_set.source.repeated for reader in self.readers)
        return [
            f"dataset {name!r}, which every shard repeats, differs"
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name)
        ]


def open_comparison(
    job: Job,
    output: str,
    manifest: Manifest | None,
    progress: Progress,
    given: RecordSet | None = None,
    *,
    as_tables: bool = False,
) -> Comparison:
    """Open the inputs of a job and an output.

    Parameters
    ----------
    given
        The job's inputs, if they are open already.
    as_tables
        Whether to decode both sets to tables even if they have one format.

    Raises
    ------
    InputError
        When a file cannot be opened, or there are no inputs.
    """
    stores = Stores(job.storage, job.memory_bytes, job.workers)
    given = given or _open_inputs(job, output, stores, progress)
    given_format, key = given.format, HashKey()
    files = _list_output(output, manifest, job.options["to"], stores, progress)
    made_format = job.options["to"] or (manifest.to if manifest else None) or detect_format(files)
    decodes = as_tables or made_format != given_format
    given.decoder = given.source.decoder() if decodes else None
    given.nan_as_null = job.options["nan_as_null"]
    if given.nan_as_null and (given_format == made_format or made_format != "jsonl"):
        raise UsageError("--nan-as-null: for a conversion to jsonl only; leave it out")
    inputs = RecordReader(given, key, job, progress)
    if not files:
        return Comparison(inputs, None)
    added = (FILE_COLUMN, ROW_COLUMN) if job.options["provenance"] else manifest.added if manifest else ()
    schema = _add_fields(inputs.infer_schema(), added)
    # What was found in the inputs holds for an output of their format, which may show too few records to find it.
    found = given.source.options if made_format == given_format else None
    read = options_of_output(found or job.read, given_format, made_format, schema)
    made = open_record_set("output", files, made_format, read)
    made.added = added
    if (given.source.options or job.read).datasets:
        made.order = tuple(given.source.schema.names)  # the datasets of a file have no order
    # A difference of types alone, which the format of the output forces, leaves the values to compare.
    if given.is_from_program and find_exact_difference(
        given.source.schema, made.list_compared(made.source.schema)
    ):
        given.decoder, decodes = given.source.decoder(), True
    made.decoder = made.source.decoder() if decodes else None
    return Comparison(inputs, RecordReader(made, key, job, progress))


def _open_inputs(job: Job, output: str, stores: Stores, progress: Progress) -> RecordSet:
    listed = list_files(job.inputs, job.options["format"], stores, progress)
    files = leave_out_output(listed, job.inputs, output)
    if not files:
        raise InputError(job.inputs[0], "holds no file beside those of the output")
    name = job.options["format"] or detect_format(files)
    return open_record_set("inputs", files, name, options_of_inputs(job.read, name))


def _add_fields(schema: pa.Schema | None, added: tuple[str, ...]) -> pa.Schema | None:
    """Return a schema with the columns of provenance."""
    if schema is None or not added:
        return schema
    kinds = (pa.large_string(), pa.int64())
    return pa.schema([*schema, *map(pa.field, added, kinds)])


def open_tables(job: Job, progress: Progress, wanted: tuple[str, ...] = ()) -> RecordReader:
    """Open the inputs of a job as tables and infer their schema; columns other than those `wanted` may be missing."""
    stores = Stores(job.storage, job.memory_bytes, job.workers)
    files = list_files(job.inputs, job.options["format"], stores, progress)
    name = job.options["format"] or detect_format(files)
    read = options_of_inputs(job.read, name)
    record_set = open_record_set("inputs", files, name, read)
    if wanted and name == "parquet" and {*wanted} <= {*record_set.source.schema.names}:
        record_set = open_record_set("inputs", files, name, replace(read, columns=wanted))
    record_set.decoder = record_set.source.decoder()
    reader = RecordReader(record_set, HashKey(), job, progress)
    reader.infer_schema()
    return reader


def _list_output(
    output: str, manifest: Manifest | None, name: str | None, stores: Stores, progress: Progress
) -> list[InputFile]:
    if not manifest:
        return list_files([output], name, stores, progress)
    present = manifest.find_present()
    return list_files(present, None, stores, progress) if present else []
