"""Plans, results and figures as lines of text, and a progress display if standard error is a terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from recshuf.job.report import SilentProgress
from recshuf.storage import is_url
from recshuf.system.units import count_of, format_size, one_line, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.progress import Progress as Display
    from rich.progress import TaskID

    from recshuf.audit.order.check import CheckReport
    from recshuf.audit.verify.verification import VerifyReport
    from recshuf.job.plan import Plan
    from recshuf.job.report import Progress, ScatterReport, ShuffleReport


def count_written(written: int, read: int) -> str:
    """Return how many records were written of those read.

    >>> count_written(2, 2), count_written(2, 3), count_written(9, 3)
    ('2 records', '2 of 3 records', '9 records, copies of 3')
    """
    if written > read:
        return f"{count_of(written, 'record')}, copies of {read:,}"
    return ("" if written == read else f"{written:,} of ") + count_of(read, "record")


def duration(seconds: float) -> str:
    """Return a duration for people.

    >>> duration(4.26), duration(3725)
    ('4.3 s', '1 h 2 min 5 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours} h " if hours else "") + f"{minutes} min {rest} s"


def _describe_pile(plan: Plan) -> str:
    parts = plan.count_parts()
    if parts > 1:
        return f"split into {parts:,} when it is gathered"
    return f"at most {format_size(min(plan.pile_bytes, plan.byte_count or plan.pile_bytes))}"


def plan_lines(plan: Plan) -> Iterator[str]:
    streams = plan.byte_count is None
    figures = {
        "records": _or_unknown(plan.record_count, "{:,}" if plan.record_count_is_exact else "about {:,}"),
        "record bytes": "unknown" if streams else format_size(plan.byte_count or 0),
        "piles": f"{plan.pile_count:,}, each {_describe_pile(plan)}",
        "pile sets": f"{plan.set_count:,}",
        "workers": f"{plan.scatter_workers} to scatter, {plan.gather_workers} to gather",
        "peak memory": f"{format_size(plan.peak_memory_bytes)}, beside interpreter and libraries",
        "spilled": _describe_spilled(plan),
        "peak disk": "unknown" if streams else f"{format_size(plan.peak_disk_bytes)}, beside the inputs",
        "descriptors": f"{plan.descriptors:,}",
        "shards": _or_unknown(plan.shard_count, "{:,}"),
    }
    if plan.processes:
        figures["processes"] = f"{plan.processes}, each with these workers and this memory"
    for name, told in plan.features.items():
        heading, figure = _describe_feature(name, told)
        figures[heading] = figure
    if plan.added_bytes:
        figures["record bytes"] += (
            f", with {plan.added_bytes} each for where it was read or by what it is ordered"
        )
    if plan.output_count is not None:
        figures["records"] += f", of which at most {plan.output_count:,} are written"
    return (f"{name:<12}  {figure}" for name, figure in figures.items())


def _describe_feature(name: str, told: Any) -> tuple[str, str]:
    if name == "split":
        return "parts", ", ".join(f"{part} {share}" for part, share in told["shares"].items())
    if name == "group_by":
        return "groups", f"by {', '.join(told['fields'])}, inside in {told['order']} order"
    if name == "dedup":
        fields = told["fields"]
        return "duplicates", f"dropped, by {'record' if isinstance(fields, str) else ', '.join(fields)}"
    numbers = (f"{one['input']} {'x ' + one['copies'] if 'copies' in one else one['weight']}" for one in told)
    return "sources", ", ".join(numbers)


def _describe_spilled(plan: Plan) -> str:
    size = "unknown" if plan.byte_count is None else format_size(plan.spilled_bytes)
    compressed = "" if plan.spill_compression == "none" else f", before {plan.spill_compression}"
    return size + compressed + (f", uploaded to {plan.spilled_to}" if plan.spilled_to else "")


def _or_unknown(number: int | None, pattern: str) -> str:
    return "unknown" if number is None else pattern.format(number)


def summary(report: ShuffleReport, output: str | None) -> str:
    """Return the last line of a run that wrote `output`."""
    records = count_written(report.records_written, report.records)
    rate = format_size(report.byte_count / report.seconds) if report.seconds else "0 B"
    split: Any = report.features.get("split", {"parts": ()})
    groups: Any = report.features.get("group_by")
    compression = report.plan.spill_compression
    facts = [
        f"{records}, {format_size(report.byte_count)} in {duration(report.seconds)} ({rate}/s)",
        _describe_output(report, output),
        *(
            f"{part['records']:,}{_describe_deviation(part.get('deviation'))} in {part['name']}"
            for part in split["parts"]
        ),
    ]
    if groups is not None:
        facts.append(count_of(groups["groups"], "group"))
        if groups["without_value"]:
            facts.append(f"{groups['without_value']:,} of them a record without a value")
    facts += _describe_quarantine(report)
    if report.spilled_bytes and compression != "none":
        facts.append(f"{format_size(report.spilled_bytes)} spilled by {compression}")
    if any(each.name == "verify" for each in report.passes):
        facts.append("verified")
    return ", ".join([*facts, f"seed {report.seed}"])


def _describe_deviation(deviation: int | None) -> str:
    return "" if deviation is None else f" (\u00b1 {deviation:,})"


def _describe_quarantine(report: ShuffleReport | ScatterReport) -> list[str]:
    if report.quarantine is None:
        return []
    return [f"{count_of(report.quarantined, 'bad record')} set aside in {report.quarantine}"]


def _describe_output(report: ShuffleReport, output: str | None) -> str:
    if output is None or output == "-":
        return "to standard output"
    names = [shard.name for shard in report.shards]
    if Path(output).is_dir() or (is_url(output) and names != [output.rpartition("/")[2]]):
        return f"{count_of(len(report.shards), 'shard')} in {output}"
    return f"to {output}"


def scatter_summary(report: ScatterReport) -> str:
    facts = [
        f"{count_of(report.records, 'record')}{_describe_deviation(report.deviation)}",
        f"{format_size(report.byte_count)} in {duration(report.seconds)}",
        f"{count_of(report.pile_count, 'pile')} and {count_of(report.set_count, 'set')} in {report.path}",
        *_describe_quarantine(report),
        f"seed {report.seed}",
    ]
    return ", ".join(facts)


def detail_lines(report: ShuffleReport) -> Iterator[str]:
    """Yield the lines that ``-v`` adds to the summary."""
    yield from plan_lines(report.plan)
    for each in report.passes:
        yield (
            f"{each.name:<12}  {count_of(each.records, 'record')}, {format_size(each.byte_count)} "
            f"in {duration(each.seconds)} ({format_size(each.bytes_per_second)}/s)"
        )
    yield f"{'memory':<12}  peak {format_size(report.measured_peak_bytes)}, {format_size(report.base_bytes)} at the start"
    if report.downloads is not None:
        got = report.downloads
        yield (
            f"{'downloads':<12}  {format_size(got.byte_count)}, {format_size(got.median_request_bytes)} in a median request, "
            f"{count_of(got.requests, 'request')}, {got.retries:,} of them retries"
        )
    if report.uploads is not None:
        sent = report.uploads
        yield (
            f"{'uploads':<12}  {format_size(sent.byte_count)} in {count_of(sent.parts, 'part')}, {count_of(sent.requests, 'request')}, "
            f"{sent.retries:,} of them retries"
        )


def verdict(report: VerifyReport, output: str) -> str:
    """Return the result of a comparison with `output` as one line."""
    if report.is_equal:
        what = count_written(report.records_written, report.records)
        return f"equal: {output} holds {what} of {count_of(len(report.inputs), 'input')}, in {duration(report.seconds)}"
    counts = [
        f"{count_of(count, 'record')} {word}"
        for count, word in ((report.missing, "missing"), (report.extra, "extra"))
        if count
    ]
    if report.differences:
        counts.append(count_of(len(report.differences), "other difference"))
    return f"different: in {output}, {', '.join(counts)}"


def difference_lines(report: VerifyReport) -> Iterator[str]:
    """Yield how an output differs from its inputs, with the first missing and extra records."""
    yield from report.differences
    if not report.are_compared:
        yield "the records were not compared, since the schemas differ"
    for word, count, records in (
        ("missing", report.missing, report.missing_places),
        ("extra", report.extra, report.extra_places),
    ):
        for record in records:
            copies = f", {record.copies:,} of its kind" if record.copies > 1 else ""
            yield f"{word}: {record.name}: record {record.index}{copies}"
        rest = count - sum(record.copies for record in records)
        if records and rest:
            yield f"{word}: {rest:,} more"


def check_lines(report: CheckReport, names: Sequence[str], *, with_all: bool) -> Iterator[str]:
    """Yield the statistics that speak against the order of the data of these names, or all, then notes and verdict."""
    shown = [score for score in report.scores if with_all or score.is_flagged]
    if shown:
        yield f"{'statistic':<14} {'found':>16} {'expected':>16} {'deviations':>11}"
    for score in shown:
        yield f"{score.name:<14} {score.statistic:>16,.1f} {score.expectation:>16,.1f} {score.z:>+11,.1f}"
    for score in report.scores:
        if score.is_flagged:
            yield f"{score.name}: {score.meaning}"
    yield from check_notes(report)
    yield check_verdict(report, names)


def check_verdict(report: CheckReport, names: Sequence[str]) -> str:
    name, verbs = names[0], ("looks", "is")
    if len(names) > 1:
        name, verbs = count_of(len(names), "path"), ("look", "are")
    what = "the records' input positions" if report.basis == "origins" else f"the values of {report.basis}"
    count, flagged = len(report.scores), sum(score.is_flagged for score in report.scores)
    verdict = (
        f"{verbs[0]} uniformly random" if report.is_uniform else f"{verbs[1]} not in a uniformly random order"
    )
    reason = f"{flagged} of {count} statistics of {what} {'is' if flagged == 1 else 'are'} far from what is expected"
    if not flagged:
        reason = f"all {count} statistics of {what} are as expected"
    return f"{name} {verdict}: {reason}, in {duration(report.seconds)}"


def check_notes(report: CheckReport) -> Iterator[str]:
    """Yield the facts that qualify the result: sampling, unmatched records, duplicates, mean move."""
    if report.share < 1:
        yield f"sampled: {report.tested:,} of {count_of(report.records, 'record')} were tested"
    for count, what in (
        (report.missing, "of the inputs are not in the data"),
        (report.extra, "of the data are not in the inputs"),
    ):
        if count:
            yield f"{count_of(count, 'record')} {what}, or not as often; recshuf verify tells if there should be any"
    same = "duplicates" if report.basis == "origins" else "equal values"
    if report.duplicates:
        yield f"{report.duplicates:,} of {count_of(report.tested, 'record')} have {same}, which were told apart at random"
    if not report.is_uniform:
        yield f"records moved {report.mean_move:.1%} of the data on average; 33.3% in a uniformly random order"


def open_terminal(*, shows_records: bool = False) -> Progress:
    """Return a display if standard error is a terminal, which does not show the records, else one that prints warnings only."""
    # A stream that a program has put in its place may lack the method.
    is_terminal = getattr(sys.stderr, "isatty", bool)()
    if not is_terminal or shows_records:
        return Warnings()
    return TerminalProgress()


class Warnings(SilentProgress):
    """Progress that prints warnings only."""

    def warn(self, message: str) -> None:
        say(f"warning: {message}")


class TerminalProgress:
    """Progress display on standard error: records, bytes, rate, time left. It disappears at the end of the run."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._display: Display | None = None
        self._task: TaskID | None = None
        self._records = self._byte_count = 0
        self._total: int | None = None
        self._started = monotonic()

    def start(self, name: str, record_total: int | None, byte_total: int | None) -> None:  # noqa: ARG002 - the time left follows from records
        """Show a new pass instead of the last one."""
        of_total = "" if record_total is None else f" of {record_total:,}"
        with self._lock:
            display = self._display = self._display or _open_display()
            if self._task is not None:
                display.remove_task(self._task)
            self._records = self._byte_count = 0
            self._total = record_total
            self._started = monotonic()
            self._task = display.add_task(
                name, total=record_total, of_total=of_total, share=self._share, amount=""
            )

    @property
    def _share(self) -> str:
        """The part of the records that is done; their number where that is not known."""
        return f"{100 * self._records // max(1, self._total)} %" if self._total else f"{self._records:,}"

    def advance(self, records: int, byte_count: int) -> None:
        with self._lock:
            self._records += records
            self._byte_count += byte_count
            rate = self._byte_count / max(1e-3, monotonic() - self._started)
            amount = f"{format_size(self._byte_count)} at {format_size(rate)}/s"
            if self._display is not None and self._task is not None:
                self._display.update(self._task, completed=self._records, share=self._share, amount=amount)

    def warn(self, message: str) -> None:
        if self._display is None:
            say(f"warning: {message}")
        else:
            text = f"recshuf: warning: {one_line(message)}"
            self._display.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        with self._lock:
            display, self._display, self._task = self._display, None, None
        if display is not None:
            display.stop()


_COLUMNS = (
    (0, "{task.description}"),
    (0, "{task.fields[share]}"),
    (110, "bar"),
    (75, "{task.completed:,.0f}{task.fields[of_total]} records"),
    (95, "{task.fields[amount]}"),
)
"""Columns of the display, with the least width of a terminal that has room for each and those with less."""


def _open_display() -> Display:
    from rich import progress
    from rich.console import Console

    console = Console(file=sys.stderr)
    shown = [
        progress.BarColumn(bar_width=24) if text == "bar" else progress.TextColumn(text, markup=False)
        for least_width, text in _COLUMNS
        if console.width >= least_width
    ]
    display = progress.Progress(
        *shown,
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    display.start()
    return display
