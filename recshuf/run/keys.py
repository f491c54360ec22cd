"""Which keys the records of a run get, and what reads the values that give them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from recshuf.errors import UsageError
from recshuf.formats import load_format
from recshuf.job.features import Dedup, GroupBy, Mixture, SplitFiles, find_fields
from recshuf.records.key_makers import PositionKeys
from recshuf.records.provenance import check_count
from recshuf.run.mixture import find_quotas
from recshuf.run.parts import choose_part_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.interfaces import ValueReader
    from recshuf.job.job import Job
    from recshuf.job.plan import Costs
    from recshuf.records.duplicates import Duplicates
    from recshuf.records.key_makers import KeyMaker
    from recshuf.run.inputs import Inputs
    from recshuf.run.resolve import Run


_VALUE_BYTES = 8 << 20
"""Memory of a worker for the values of a piece: parsed, as texts and as Python objects."""


def choose_keys(run: Run) -> KeyMaker:
    """Return what gives the records of a run their keys."""
    feature = run.job.feature
    if isinstance(feature, GroupBy) and run.values is not None:
        from recshuf.records.value_keys import FieldKeys, ValueKeys

        row_seed = run.seed if feature.order == "random" else None
        return FieldKeys(run.values, ValueKeys(run.seed), row_seed)
    if isinstance(feature, Mixture):
        from recshuf.records.copies import CopyKeys  # a plain shuffle starts faster

        return CopyKeys(run.seed, find_quotas(run.job, run.inputs), run.inputs.counts)
    if isinstance(feature, SplitFiles):
        return choose_part_keys(run, feature)
    return find_duplicates(run) or PositionKeys(run.seed)


def find_duplicates(run: Run) -> Duplicates | None:
    """Return what tells which records of a run repeat others; None if all are kept."""
    if not isinstance(run.job.feature, Dedup):
        return None
    from recshuf.records.duplicates import Duplicates

    are_lines = load_format(run.inputs.format).traits.is_lines
    column_count = len(run.inputs.source.schema)
    return Duplicates(run.seed, run.values, are_lines=are_lines, column_count=column_count)


def open_values(job: Job, inputs: Inputs) -> ValueReader | None:
    """Return what reads the fields by which a job tells records apart; None if it does not."""
    named = find_fields(job.feature)
    return None if named is None else open_fields(*named, inputs)


def open_fields(flag: str, fields: Sequence[str], inputs: Inputs) -> ValueReader:
    """Return what reads some fields, which an option names."""
    from recshuf.formats.texts import find_value_reader  # imports what other runs do not need

    check_count(len(inputs.source.inputs), flag)
    traits = load_format(inputs.format).traits
    try:
        reader = find_value_reader(inputs.source, traits, fields)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from error
    if reader is None:
        remedy = "give --dedup record" if flag == Dedup.flag else "leave it out"
        if traits.is_lines:
            remedy = "give --format jsonl or csv if its lines have some"
        raise UsageError(f"{flag} {','.join(fields)}: {inputs.format} has no fields; {remedy}")
    return reader


def add_values(costs: Costs, job: Job, values: ValueReader | None) -> Costs:
    """Return the memory needs of a run that reads values besides, and copies the records that it keeps."""
    copies = isinstance(job.feature, Dedup)
    if values is None and not copies:
        return costs
    return replace(
        costs, reading_bytes=lambda block: costs.reading_bytes(block) + copies * block + _VALUE_BYTES
    )
