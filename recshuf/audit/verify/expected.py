"""Which records an output should hold: the first of each value with --dedup, copies of a mixture, those of a part of a split."""

from __future__ import annotations

import secrets
from dataclasses import replace
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
    from recshuf.job.features import Feature
    from recshuf.job.job import Job
    from recshuf.output.manifest import Manifest
    from recshuf.piles.set_folder import SetFolder
    from recshuf.records.key_makers import Quota

    Words = NDArray[np.uint64]


_WORDS = ("second", "location", "hash", "other")
_MARK, _ONE = np.uint64(0x9E3779B97F4A7C15), np.uint64(1)


def take_feature(job: Job, manifest: Manifest | None) -> Job:
    """Return a job with what its manifest says that the run did besides the order, if the options say nothing of it."""
    if job.feature is not None or manifest is None:
        return job
    told = manifest.features
    if dedup := told.get("dedup"):
        if job.options["head_count"] is not None:
            raise UsageError(
                f"{job.output}: holds the first record of each value by its manifest; leave out --head-count"
            )
        fields = dedup["fields"]
        return replace(job, feature=Dedup(() if fields == "record" else tuple(map(str, fields))))
    if (split := told.get("split")) and "by" in split:
        shares = {name: Fraction(share) for name, share in split["shares"].items()}
        return replace(job, feature=SplitFiles(shares, tuple(split["by"]), int(split["seed"])))
    return _take_mixture(job, told["sources"]) if told.get("sources") else job


def _take_mixture(job: Job, sources: Sequence[dict[str, str]]) -> Job:
    """Return a job with the mixture of these sources, and its size."""
    if len(sources) != len(job.inputs):
        raise UsageError(
            f"{job.output}: is a mixture of {len(sources)} inputs by its manifest, not of {len(job.inputs)}; give "
            f"those of the run: {', '.join(str(source['input']) for source in sources)}"
        )
    mixture = Mixture(
        *(tuple(Fraction(one[name]) for one in sources if name in one) for name in ("weight", "copies"))
    )
    count = job.options["head_count"]
    if mixture.copies and count is not None:
        raise UsageError(
            f"{job.output}: has --copies by its manifest, which tell its size; leave out --head-count"
        )
    if mixture.weights and count is None:
        count = sum(int(source["written"]) for source in sources)
    return replace(job, feature=mixture, options=job.options | {"head_count": count})


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


def find_quotas(job: Job, files: Sequence[InputFile], counts: Sequence[int]) -> list[Quota]:
    """Return how often the output of a job holds the records of its inputs, given how many they are; none without a mixture."""
    if not isinstance(job.feature, Mixture):
        return []
    total, arguments = int(job.options["head_count"] or 0), [file.argument for file in files]
    return list_quotas(counts, arguments, copies=job.feature.copies, weights=job.feature.weights, total=total)


def mark_parts(comparison: Comparison, split: Feature | None) -> SplitFiles | None:
    """Have equal records of different parts hash differently in their second word; return the split, if it is by values."""
    output = comparison.output
    if not isinstance(split, SplitFiles) or not split.fields or output is None:
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
        return parts.astype(np.uint64) * _MARK | _ONE

    def mark_output(batch: pa.RecordBatch, file: int, _: int) -> NDArray[np.uint64]:
        return np.full(batch.num_rows, part_of_file[file], np.uint64) * _MARK | _ONE

    # Factors, since the sums of a class would lose what is added to a record and taken from another one.
    comparison.inputs.mark, output.mark = mark_input, mark_output
    return split


def describe_misplaced(before: Tally, after: Tally, found: Mismatches, split: SplitFiles | None) -> list[str]:
    """Return a sentence if the output holds all records, some of them in other parts than their values tell."""
    is_same = (before.counts == after.counts).all() and (before.sums[0] == after.sums[0]).all()
    if split is None or not (is_same and found.extra):
        return []
    values = ", ".join(map(repr, split.fields))
    return [f"{found.extra:,} records are in another part than their values of {values} tell"]
