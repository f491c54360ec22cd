"""The public functions that look at existing data: verify, check, picture; and pages about them."""

from __future__ import annotations

import os  # noqa: TC003 - `typing.get_type_hints` needs it, as it does the names below
from collections.abc import Mapping  # noqa: TC003
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Unpack, cast

import recshuf  # noqa: TC001
from recshuf.api import listen
from recshuf.errors import UsageError
from recshuf.job.arguments import list_paths, make_job, make_plain, parse_place
from recshuf.job.features import split_names
from recshuf.job.options import (
    CheckOptions,
    Inputs,
    Options,
    OrderOptions,
    Paths,
    VerifyOptions,
    refuse_unknown,
)
from recshuf.job.report import Progress  # noqa: TC001
from recshuf.piles.epochs import MAX_EPOCH, Reshuffle
from recshuf.records.keys import MAX_PILES
from recshuf.storage import parse_storage
from recshuf.system.memory import choose_allocators
from recshuf.system.units import check_number

if TYPE_CHECKING:
    from recshuf.job.job import Job


def verify(
    inputs: Inputs,
    output: str | os.PathLike[str],
    *,
    progress: Progress | bool | None = None,
    **options: Unpack[VerifyOptions],
) -> recshuf.VerifyReport:
    """Compare the records of an output with those of the inputs, in any order.

    Parameters
    ----------
    inputs
        As for `shuffle`; not standard input.
    output
        File or directory that `shuffle` wrote.
    **options
        See `recshuf.VerifyOptions`.

    Raises
    ------
    UsageError
        When options are out of range or contradict each other.
    InputError
        When an input or the output cannot be read.
    """
    refuse_unknown(options, VerifyOptions)
    job = make_job(inputs, output, cast("Options", options), needs_local_scratch=True)
    choose_allocators(job.memory_bytes)
    from recshuf.audit.verify.verification import verify_job

    with listen(progress) as listener:
        found = verify_job(job, listener)
        return listener.sign(replace(found, differences=tuple(map(listener.words, found.differences))))


def write_run(
    done: recshuf.ShuffleReport,
    inputs: Inputs,
    output: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | bool | None = None,
    **options: Unpack[Options],
) -> str:
    """Return an HTML page about a finished `shuffle` with the same arguments; reads the files again."""
    from recshuf.audit.reports.pages import report_run

    with listen(progress) as listener:
        return report_run(done, make_job(inputs, output, options), listener)


def check(
    data: Paths, *, progress: Progress | bool | None = None, **options: Unpack[OrderOptions]
) -> recshuf.CheckReport:
    """Test whether records are in a uniformly random order.

    Parameters
    ----------
    data
        Files, directories and globs. With `against` or `provenance`, each is a shuffle with its own seed, and all
        are tested together.
    **options
        See `recshuf.OrderOptions`. One of `against`, `column` and `provenance` is needed.

    Raises
    ------
    UsageError
        When options contradict each other, there are fewer than 1,000 records, or a column is missing.
    InputError
        When a file cannot be read.
    """
    order = OrderJobs.of(data, options)
    jobs = order.make_check_jobs()
    from recshuf.audit.order.check import check_order

    with listen(progress) as listener:
        return listener.sign(check_order(jobs, listener, order.column, order.id_column))


def check_loader(
    store: str | os.PathLike[str],
    *,
    seed: int | None = None,
    epoch: int = 1,
    reshuffle: Reshuffle = "rotate",
    mix: int = 1,
    endpoint_url: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> recshuf.CheckReport:
    """Test what a `PileLoader` yields in two epochs, `epoch` and the next one: every record once, and in random order.

    Records are told apart by their ``_id``; their values are not compared. Takes 40 bytes of memory for each record. A further
    statistic, ``meetings``, says how much more often than by chance two records that shared a group in one epoch do so in the
    next. It is compared with that of other seeds.

    Parameters
    ----------
    seed, epoch, reshuffle, mix
        As for `PileLoader`; `epoch` is the first of the two. Default of `seed`: that of the store.
    endpoint_url, storage_options
        As for `PileLoader`.

    Raises
    ------
    UsageError
        When there is no store, or it has fewer than 1,000 records.
    PileError
        When it is damaged.
    CheckError
        When a record comes twice or not at all, or the order of both epochs is the same.
    """
    mix = check_number("--mix", mix, MAX_PILES, least=1)
    epoch = check_number("--epoch", epoch, MAX_EPOCH - 1)
    from recshuf.piles.kept.stored import open_place
    from recshuf.train.check import check_epochs

    place = open_place(parse_place("store", store), parse_storage(endpoint_url, storage_options))
    with listen(progress) as listener:
        return listener.sign(check_epochs(place, seed, epoch, reshuffle, mix, listener))


def write_check(
    data: Paths, *, progress: Progress | bool | None = None, **options: Unpack[OrderOptions]
) -> tuple[recshuf.CheckReport, str]:
    """Return the result of `check` and a self-contained HTML page about it."""
    order = OrderJobs.of(data, options)
    jobs = order.make_check_jobs()
    from recshuf.audit.reports.html import check_libraries
    from recshuf.audit.reports.pages import report_check

    check_libraries()
    with listen(progress) as listener:
        done, page = report_check(jobs, listener, order.column, order.id_column, order.data)
        return listener.sign(done), page


def picture(
    data: Paths,
    *,
    title: str | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[OrderOptions],
) -> bytes:
    """Return a PNG of the order of records, as points along a Hilbert curve.

    Parameters
    ----------
    data
        Files, directories and globs; with `against`, one path.
    title
        Heading of the picture. Default: names of the data.
    **options
        See `recshuf.OrderOptions`. Colours are the values of `column`, or else positions by `against` or
        `provenance`. With `against`, its records are drawn beside the data.

    Raises
    ------
    UsageError
        When options contradict each other, a column is missing, or Pillow is not installed.
    InputError
        When a file cannot be read.
    """
    order = OrderJobs.of(data, options)
    job = order.make_picture_job()
    heading = title or ", ".join(order.data[:2]) + (", ..." if len(order.data) > 2 else "")
    from recshuf.audit.reports.pages import picture_matching, picture_values
    from recshuf.audit.reports.picture import load_pillow

    load_pillow()
    with listen(progress) as listener:
        if order.column is None:
            return picture_matching(job, listener, order.id_column, heading)
        jobs = [job, order.make_output_job()] if order.against else [job]
        return picture_values(jobs, listener, order.column, heading)


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
        refuse_unknown(options, OrderOptions)
        own = {name: value for name, value in options.items() if name not in OrderOptions.__annotations__}
        known = {name: value for name, value in options.items() if name not in own}
        options = cast("OrderOptions", make_plain(known, OrderOptions))
        against = list_paths("against", options.get("against") or ())
        provenance, column = options.get("provenance", False), options.get("column")
        shared = own | {
            name: value for name, value in options.items() if name in CheckOptions.__annotations__
        }
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
        options = self.options | {"format": self.options.get("to"), "to": None}
        return _make_order_job(self.data, None, options)

    def _make_job(self, inputs: list[str], output: str | None) -> Job:
        if self.id_column is not None and not self.against:
            raise UsageError("--id works with --against only")
        job = _make_order_job(inputs, output, self.options)
        choose_allocators(job.memory_bytes)
        return job


def _make_order_job(inputs: list[str], output: str | None, options: Options) -> Job:
    """Return a job of records whose order alone matters, whatever their files say of them."""
    job = make_job(inputs, output, options)
    return replace(job, read=replace(job.read, first_metadata=True))


def _find_column(options: OrderOptions) -> str | None:
    """Return the only column that is read; None if all are."""
    names = [
        *(split_names("--datasets", options.get("datasets")) or ()),
        *(split_names("--columns", options.get("columns")) or ()),
    ]
    if len(names) > 1:
        raise UsageError(f"several columns: {', '.join(names)}; choose one with --column NAME")
    return names[0] if names else None
