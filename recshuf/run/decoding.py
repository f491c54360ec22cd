"""How native records become output records: which options fit the formats, the decoder, and columns of provenance."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from recshuf.dataclass import dataclass
from recshuf.errors import UsageError
from recshuf.formats import keeps_records, list_formats, list_names, load_format
from recshuf.interfaces import Decoder, FieldAdder, InputSummary, Source, SupportsPrefixInference, Traits
from recshuf.job.features import Dedup
from recshuf.job.options import OPTIONS, find_own, flag_of
from recshuf.job.plan import Costs, sum_known
from recshuf.job.sizing import PREFIX_BYTES
from recshuf.records.keys import KEY_BYTES
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN, ProvenanceDecoder, check_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recshuf.job.job import Job
    from recshuf.run.inputs import Inputs


def check_options(job: Job, source_name: str, target_name: str) -> None:
    """Refuse options that would have no effect."""
    check_sides(job, source_name, target_name)
    source, target = (load_format(name).traits for name in (source_name, target_name))
    is_conversion, pair = not keeps_records(source_name, target_name), f"{source_name} to {target_name}"
    sets_aside = source.sets_bad_aside if is_conversion else source.checks_records
    if job.quarantine is not None and not sets_aside:
        *names, last = list_formats(lambda traits: traits.sets_bad_aside)
        natives = list_formats(lambda traits: traits.checks_records)
        formats = f"{', '.join(names)} or {last}, and {' and '.join(f'{name} to {name}' for name in natives)}"
        raise UsageError(f"--on-bad-record: for a conversion of {formats} only; leave it out")
    if job.options["provenance"] and not target.has_columns:
        raise UsageError(f"--provenance: {target_name} has no columns; give --to parquet or --to jsonl")
    if job.options["provenance"] and not takes_provenance(source, target):
        raise UsageError(f"--provenance: not possible from {pair}; give --to parquet")
    if job.read.schema is not None and not is_conversion:
        raise UsageError(f"--schema: {pair} is no conversion; leave it out")
    if source.is_lines and job.read.columns and job.feature == Dedup(()):
        raise UsageError(
            f"--dedup record: lines of {source.name} are compared whole, and --columns keeps a part of them; give --dedup "
            f"{','.join(job.read.columns)}"
        )
    if not is_conversion:
        _refuse_unheeded(job, source, [*dict(job.read.own)])


def takes_provenance(source: Traits, target: Traits) -> bool:
    """Tell whether records that are written can get the columns of `--provenance`."""
    return target.has_columns and (source.adds_columns or not keeps_records(source.name, target.name))


def check_stored(job: Job, source_name: str) -> None:
    """Refuse options that would have no effect on inputs that are kept as they are, in a store."""
    check_sides(job, source_name, source_name)
    _refuse_unheeded(job, load_format(source_name).traits)


def _refuse_unheeded(job: Job, source: Traits, own: Sequence[str] = ()) -> None:
    """Refuse options that have no effect on records that are kept as they are."""
    for name in ("columns", *own):
        if name in source.converted_options and (name in own or job.read.columns is not None):
            raise UsageError(
                f"{flag_of(name)}: records of {source.name} are kept as they are, unless they are converted to another format; "
                "leave it out"
            )


def check_sides(job: Job, source_name: str, target_name: str) -> None:
    """Refuse options of formats that are not read or written."""
    source, target = (load_format(name).traits for name in (source_name, target_name))
    for name, option in OPTIONS.items():
        if option.field and job.is_given(name) and option.field not in source.read_options:
            takers = [one for one in list_names() if option.field in load_format(one).traits.read_options]
            raise UsageError(
                f"{flag_of(name)}: for inputs of {' or '.join(takers)} only; here: {source.name}"
            )
    for name, (own, owners) in find_own(dict(job.read.own)).items():
        pair = f"{source.name} to {target.name}"
        if own.side in ("both", "native"):
            is_read = is_written = source.name == target.name and own in source.options
            formats = " or ".join(f"{owner} to {owner}" for owner in owners)
            problem = f"for {formats} only; here: {pair}; leave it out"
        else:
            is_read = own.side != "output" and own in source.options
            is_written = own.side != "inputs" and own in target.options
            shown = {"inputs": source.name, "output": target.name}.get(own.side, pair)
            problem = f"for {own.side} of {' or '.join(owners)} only; here: {shown}"
        if not (is_read or is_written):
            raise UsageError(f"{flag_of(name)}: {problem}")


def check_streams(job: Job, source_name: str, target_name: str, *, to_stream: bool) -> None:
    """Refuse formats that cannot be read from or written to a stream."""
    for streams, name, what, remedy in (
        (job.reads_stdin, source_name, "read from standard input", "give its path"),
        (
            to_stream,
            target_name,
            "written to standard output or a device",
            "give a file or directory with -o",
        ),
    ):
        traits = load_format(name).traits
        if streams and not (traits.is_lines or traits.has_streams):
            raise UsageError(f"{name} cannot be {what}, which cannot seek; {remedy}")


_CONVERSION_FACTOR = 1.5
"""Memory of a batch in table form, as a multiple of its native size; offsets and validity add to it."""
_UNKNOWN_RECORD_BYTES = 32  # of inputs of unknown size


@dataclass(frozen=True, slots=True)
class Decoding:
    """How records of the inputs are brought to the form of the output."""

    converts: bool
    """Whether the output format differs from that of the inputs."""
    inner: Decoder | None
    """Decodes records without provenance; None if they are written in native form."""
    decoder: Decoder | None
    """Appends the provenance columns to the result of `inner`, if they are wanted; else `inner`."""
    infers_from_prefix: bool = False
    """Whether `inner` infers the schema from a prefix of the records."""

    @classmethod
    def choose(cls, inputs: Inputs, to: str, *, provenance: bool, sets_aside: bool = False) -> Decoding:
        """Return how records of inputs are decoded for the format `to`; `sets_aside` says whether bad ones are told."""
        source, converts = inputs.source, not keeps_records(inputs.format, to)
        inner = source.decoder() if converts else _choose_field_adder(source) if provenance else None
        if inner is None and sets_aside:
            inner = source.checker()
        if inner is None or not provenance:
            return cls(converts, inner, inner)
        names = [one.name for one in source.inputs]
        check_names(names, None if inputs.stored is None else [one.record_count for one in source.inputs])
        is_lean = load_format(to).traits.keeps_dictionaries or isinstance(inner, FieldAdder)
        return cls(converts, inner, ProvenanceDecoder(inner, names, as_dictionary=is_lean))

    def infer_from_prefix(self, job: Job, source: Source) -> Decoding:
        """Return a decoding that infers the schema from a prefix, or this one if that is not possible.

        The inputs must be readable again. Changes the decoder.
        """
        inner = self.inner
        if inner is None or inner.schema is not None or not isinstance(inner, SupportsPrefixInference):
            return self
        # In a sample, records that are left out must be valid, too. A resumed run must agree with finished shards.
        # A task would see the first record that does not fit when others have written shards.
        if (
            job.quarantine is not None
            or job.options["head_count"] is not None
            or job.feature
            or job.options["resume"]
            or job.uses_tasks
        ):
            return self
        ends = accumulate(one.native_bytes or 0 for one in source.inputs)
        large = next((index for index, end in enumerate(ends) if end > PREFIX_BYTES), None)
        if large is None:
            return self
        inner.infer_from_prefix(large)
        return replace(self, infers_from_prefix=True)

    def count_table_bytes(self, inputs: Sequence[InputSummary]) -> int | None:
        """Return the most memory of all records in table form; None if that is not known before they are read."""
        records = sum_known([one.record_count for one in inputs])
        native_bytes = sum_known([one.native_bytes for one in inputs])
        if self.decoder is None or records is None or native_bytes is None:
            return None
        return self.decoder.table_bytes(records, native_bytes)

    def find_costs(self, source: Source, sink_bytes: Callable[[int], int], added_bytes: int = 0) -> Costs:
        """Return the memory needs of a run whose piles hold so many bytes more with each record."""
        grows = self.converts or isinstance(self.inner, FieldAdder)
        costs = Costs(source.reading_bytes, sink_bytes, _CONVERSION_FACTOR if grows else 1.0)
        if not added_bytes:
            return costs
        column_bytes = self.decoder.column_bytes if isinstance(self.decoder, ProvenanceDecoder) else 0
        return _add_costs(costs, source.inputs, added_bytes, column_bytes)


def _choose_field_adder(source: Source) -> Decoder:
    """Return a decoder that keeps records in native form and can add columns."""
    adder = source.field_adder((FILE_COLUMN, ROW_COLUMN))
    if adder is not None:
        return adder
    decoder = source.decoder()
    if decoder.schema != source.schema:
        raise UsageError("--provenance: this format takes no further columns; give --to parquet")
    return decoder


def _add_costs(costs: Costs, inputs: Sequence[InputSummary], added_bytes: int, column_bytes: int) -> Costs:
    """Return the memory needs with further columns in piles, which become columns of `column_bytes` per row."""
    counted = [
        (one.native_bytes, one.record_count) for one in inputs if one.native_bytes and one.record_count
    ]
    records = sum(count for _, count in counted)
    record_bytes = sum(size for size, _ in counted) / records if records else _UNKNOWN_RECORD_BYTES
    share = added_bytes / record_bytes

    def reading_bytes(block: int) -> int:
        # Three copies of the columns: as made, in pile order, and while it is reordered.
        return costs.reading_bytes(block) + int(3 * share * block)

    return replace(
        costs,
        reading_bytes=reading_bytes,
        decoding_factor=costs.decoding_factor + column_bytes / (record_bytes + KEY_BYTES + added_bytes),
        added_bytes=added_bytes,
    )
