"""How often an output should hold the records of each input, if a run took them as a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from recshuf.errors import UsageError
from recshuf.job.features import Mixture
from recshuf.records.copies import list_quotas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.interfaces import InputFile
    from recshuf.job.job import Job
    from recshuf.output.manifest import Manifest
    from recshuf.records.copies import Quota


@dataclass(frozen=True, slots=True)
class ExpectedCopies:
    """The quotas of a mixture, given the records that its inputs turned out to hold."""

    quotas: Sequence[Quota]

    @classmethod
    def find(
        cls, job: Job, manifest: Manifest | None, files: Sequence[InputFile], counts: Sequence[int]
    ) -> ExpectedCopies | None:
        """Return what the options of a job say, else its manifest; None if the run was no mixture."""
        mixture, total = job.feature, 0
        if isinstance(mixture, Mixture):
            total = int(job.options["head_count"] or 0)
        else:
            sources = [] if manifest is None else manifest.features.get("sources", [])
            if not sources:
                return None
            mixture = Mixture(_list_numbers(sources, "weight"), _list_numbers(sources, "copies"))
            total = sum(int(source["written"]) for source in sources)
            if len(sources) != len(job.inputs):
                raise UsageError(
                    f"{job.output}: is a mixture of {len(sources)} inputs by its manifest, not of {len(job.inputs)}; give "
                    f"those of the run: {', '.join(str(source['input']) for source in sources)}"
                )
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


def _list_numbers(sources: Sequence[dict[str, str]], name: str) -> tuple[Fraction, ...]:
    return tuple(Fraction(source[name]) for source in sources if name in source)
