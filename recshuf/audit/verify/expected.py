"""Which records an output should hold: the first of each value with --dedup, copies of a mixture, those of a part of a split."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from recshuf.audit.verify.mismatches import WordStore
from recshuf.errors import UsageError
from recshuf.formats.texts import find_value_reader
from recshuf.job.features import Dedup, Mixture, SplitFiles
from recshuf.piles.slices import Origin
from recshuf.records.duplicates import Duplicates
from recshuf.records.key_makers import find_starts, list_quotas
from recshuf.records.keys import RowRange
from recshuf.records.provenance import pack_provenance
from recshuf.records.value_keys import ValueParts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.audit.verify.comparison import Comparison
    from recshuf.audit.verify.mismatches import Mismatches, Tally
    from recshuf.audit.verify.record_sets import RecordSet
    from recshuf.interfaces import InputFile
    from recshuf.job.job import Job
    from recshuf.output.manifest import Manifest
    from recshuf.piles.set_folder import SetFolder
    from recshuf.records.key_makers import Quota

    Words = NDArray[np.uint64]


_WORDS = ("second", "location", "hash", "other")
_MARK = np.uint64(0x9E3779B97F4A7C15)


def find_dedup(job: Job, manifest: Manifest | None) -> Dedup | None:
    """Return by what a run told records apart, as the options of a job say, else its manifest; None if it kept all."""
    if job.feature is not None:
        return job.feature if isinstance(job.feature, Dedup) else None
    described = {} if manifest is None else manifest.features.get("dedup", {})
    if not described:
        return None
    if job.options["head_count"] is not None:
        raise UsageError(
            f"{job.output}: holds the first record of each value by its manifest; leave out --head-count"
        )
    fields = described["fields"]
    return Dedup(() if fields == "record" else tuple(map(str, fields)))


class FirstRecords:
    """Collects what tells the records of the inputs apart, and yields the first of each; many threads may add."""

    def __init__(
        self, inputs: RecordSet, dedup: Dedup, expected: int, folder: SetFolder, memory_bytes: int
    ) -> None:
        reader = find_value_reader(inputs.source, inputs.traits, dedup.fields) if dedup.fields else None
        if dedup.fields and reader is None:
            raise UsageError(
                f"{dedup.flag} {','.join(dedup.fields)}: {inputs.format} has no fields; leave it out"
            )
        columns, seed = len(inputs.source.schema), secrets.randbits(64)
        self._duplicates = Duplicates(seed, reader, are_lines=inputs.traits.is_lines, column_count=columns)
        self._store = WordStore(_WORDS, expected, folder, memory_bytes)

    def add(self, batch: pa.RecordBatch, hashes: Words, file: int, first_row: int) -> None:
        """Add consecutive native records with their hashes, shape ``(n, 2)``."""
        if not batch.num_rows:
            return
        keyed = self._duplicates.draw(batch, [RowRange(file, first_row, batch.num_rows)])
        rows = np.arange(batch.num_rows)
        if keyed.repeats is not None:
            rows = np.delete(rows, keyed.repeats)
        first, second = (word[rows] for word in keyed.words)
        location = pack_provenance(np.int64(file), rows + first_row)
        self._store.add(Origin(file, first_row), first, (second, location, *hashes[rows].T))

    def find(self) -> Iterator[tuple[Words, Words]]:
        """Yield the hashes, shape ``(n, 2)``, and the provenance of the first record of each value, pile by pile."""
        for keys, (second, location, *hashes) in self._store.read_piles():
            order = np.lexsort((location, second, keys))
            chosen = order[find_starts([keys[order], second[order]])]
            yield np.stack(hashes, axis=1)[chosen], location[chosen]

    def close(self) -> None:
        """Free memory and disk. Idempotent."""
        self._store.close()


@dataclass(frozen=True, slots=True)
class ExpectedCopies:
    """The quotas of a mixture, given the records that its inputs turned out to hold."""

    quotas: Sequence[Quota]

    @classmethod
    def find(cls, job: Job, files: Sequence[InputFile], counts: Sequence[int]) -> ExpectedCopies | None:
        """Return what the job says, with `take_mixture` from its manifest; None if the run was no mixture."""
        mixture = job.feature
        if not isinstance(mixture, Mixture):
            return None
        total = int(job.options["head_count"] or 0)
        arguments = [file.argument for file in files]
        return cls(
            list_quotas(counts, arguments, copies=mixture.copies, weights=mixture.weights, total=total)
        )

    @property
    def record_count(self) -> int:
        return sum(quota.taken for quota in self.quotas)

    @property
    def limits(self) -> list[tuple[int, int]]:
        """How often the output holds each record of each input at least and at most."""
        return [
            (quota.taken // quota.records if quota.records else 0, quota.most_copies)
            for quota in self.quotas
            for _ in quota.inputs
        ]


def take_mixture(job: Job, manifest: Manifest | None) -> Job:
    """Return a job with the mixture that its manifest tells of, and its size, as far as the options say neither."""
    sources = [] if manifest is None or job.feature is not None else manifest.features.get("sources", [])
    if not sources:
        return job
    if len(sources) != len(job.inputs):
        raise UsageError(
            f"{job.output}: is a mixture of {len(sources)} inputs by its manifest, not of {len(job.inputs)}; give "
            f"those of the run: {', '.join(str(source['input']) for source in sources)}"
        )
    mixture = Mixture(_list_numbers(sources, "weight"), _list_numbers(sources, "copies"))
    count = job.options["head_count"]
    if mixture.copies and count is not None:
        raise UsageError(
            f"{job.output}: has --copies by its manifest, which tell its size; leave out --head-count"
        )
    if mixture.weights and count is None:
        count = sum(int(source["written"]) for source in sources)
    return replace(job, feature=mixture, options=job.options | {"head_count": count})


def _list_numbers(sources: Sequence[dict[str, str]], name: str) -> tuple[Fraction, ...]:
    return tuple(Fraction(source[name]) for source in sources if name in source)


def find_value_split(job: Job, manifest: Manifest | None) -> SplitFiles | None:
    """Return the split by values that the options of a job say, else its manifest; None if there was none."""
    if isinstance(job.feature, SplitFiles):
        return job.feature if job.feature.fields else None
    found = manifest.split if manifest else None
    if found is None or "by" not in found:
        return None
    shares = {name: Fraction(share) for name, share in found["shares"].items()}
    return SplitFiles(shares, tuple(found["by"]), int(found["seed"]))


def mark_parts(comparison: Comparison, job: Job, manifest: Manifest | None) -> SplitFiles | None:
    """Have equal records of different parts hash differently in their second word, and return the split, if there was one."""
    split, output = find_value_split(job, manifest), comparison.output
    if split is None or output is None:
        return None
    inputs = comparison.inputs.record_set
    reader = find_value_reader(inputs.source, inputs.traits, split.fields)
    if reader is None:
        return None
    finder = ValueParts(reader, split.seed, tuple(split.shares.values()))
    numbers = {name: number for number, name in enumerate(split.shares)}
    part_of_file = [numbers.get(PurePath(name).parent.name, len(numbers)) for name in output.record_set.names]

    def mark_input(batch: pa.RecordBatch, file: int, first_row: int) -> NDArray[np.uint64]:
        parts = finder.find_parts(batch, [RowRange(file, first_row, batch.num_rows)]).parts
        return parts.astype(np.uint64) * _MARK

    def mark_output(batch: pa.RecordBatch, file: int, _: int) -> NDArray[np.uint64]:
        return np.full(batch.num_rows, part_of_file[file], np.uint64) * _MARK

    comparison.inputs.mark, output.mark = mark_input, mark_output
    return split


def describe_misplaced(before: Tally, after: Tally, found: Mismatches, split: SplitFiles | None) -> list[str]:
    """Return a sentence if the output holds all records, some of them in other parts than their values tell."""
    is_same = (before.counts == after.counts).all() and (before.sums[0] == after.sums[0]).all()
    if split is None or not (is_same and found.extra):
        return []
    values = ", ".join(map(repr, split.fields))
    return [f"{found.extra:,} records are in another part than their values of {values} tell"]
