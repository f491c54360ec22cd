"""The jobs of `recshuf.check` and `recshuf.picture`: what they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from recshuf.errors import UsageError
from recshuf.job.arguments import list_paths, make_job, split_names
from recshuf.job.option_types import make_plain
from recshuf.job.options import CheckOptions, OrderOptions, refuse_unknown
from recshuf.system.memory import choose_allocators

if TYPE_CHECKING:
    from recshuf.job.job import Job
    from recshuf.job.options import Options, Paths


class OrderJobs(NamedTuple):
    """Makes the jobs of `recshuf.check` and `recshuf.picture` from their arguments."""

    data: list[str]
    against: list[str]
    column: str | None
    """The column to test, by default the only one of the records; None if the test has another basis."""
    provenance: bool
    id_column: str | None
    options: Options
    """Options of the jobs."""

    @classmethod
    def of(cls, data: Paths, options: OrderOptions) -> OrderJobs:
        """Parse the arguments.

        Raises
        ------
        UsageError
            When one is no path, or several columns could be meant.
        """
        refuse_unknown(options, OrderOptions)
        options = cast("OrderOptions", make_plain(options, OrderOptions))
        against = list_paths("against", options.get("against") or ())
        provenance, column = options.get("provenance", False), options.get("column")
        shared = {name: value for name, value in options.items() if name in CheckOptions.__annotations__}
        if column is None and not against and not provenance:
            column = _find_column(options)
        id_column = options.get("id_column")
        return cls(list_paths("data", data), against, column, provenance, id_column, cast("Options", shared))

    def make_check_jobs(self) -> list[Job]:
        """Return a job for each shuffle of the data; one job for all of it if a column is tested."""
        if bool(self.against) + (self.column is not None) + self.provenance != 1:
            raise UsageError("give either --against INPUT..., --column NAME or --provenance")
        if self.column is not None:
            return [self._make_job(self.data, None)]
        if self.provenance:
            return [self._make_job([output], None) for output in self.data]
        return [self._make_job(self.against, output) for output in self.data]

    def make_picture_job(self) -> Job:
        """Return the job of the inputs to the data; without inputs, the job whose inputs are the data."""
        if self.column is None and not self.against and not self.provenance:
            raise UsageError("no colours; give --column NAME, --against INPUT... or --provenance")
        if self.provenance and (self.column is not None or self.against):
            raise UsageError("--provenance and --against or --column contradict each other; give one of them")
        if self.provenance and len(self.data) > 1:
            raise UsageError("--provenance draws one shuffle; name one file or directory")
        if self.against and len(self.data) > 1:
            raise UsageError("--against draws one output; name one file or directory before it")
        return self._make_job(self.against, self.data[0]) if self.against else self._make_job(self.data, None)

    def make_output_job(self) -> Job:
        """Return the job whose inputs are the data, which were the output of the job of `make_picture_job`."""
        return make_job(self.data, None, self.options | {"format": self.options.get("to"), "to": None})

    def _make_job(self, inputs: list[str], output: str | None) -> Job:
        if self.id_column is not None and not self.against:
            raise UsageError("--id works with --against only")
        job = make_job(inputs, output, self.options)
        choose_allocators(job.memory_bytes)
        return job


def _find_column(options: OrderOptions) -> str | None:
    """Return the only column that is read; None if all are."""
    names = [
        *(split_names("--datasets", options.get("datasets")) or ()),
        *(split_names("--columns", options.get("columns")) or ()),
    ]
    if len(names) > 1:
        raise UsageError(f"several columns: {', '.join(names)}; choose one with --column NAME")
    return names[0] if names else None
