"""Pictures of the order of records, of data alone or of inputs beside an output, and HTML pages about orders, runs and shufflers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.audit.order.battery import LIMIT, run_battery
from recshuf.audit.order.check import (
    MOST_LABELS,
    CheckReport,
    check_order,
    match_output,
    name_codes,
    rank_densely,
    sample_column,
)
from recshuf.audit.order.matching import Matching
from recshuf.audit.order.shufflers import METHODS
from recshuf.audit.reports.html import (
    Cell,
    Grid,
    Pictures,
    Row,
    Table,
    Text,
    draw_panels,
    draw_square,
    render_page,
    show_deviations,
)
from recshuf.audit.reports.picture import Labels, Panel, Ramp, draw_picture, encode_png
from recshuf.audit.reports.text import check_notes, check_verdict, duration, plan_lines
from recshuf.errors import UsageError
from recshuf.output.manifest import manifest_path
from recshuf.system.units import count_of, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from recshuf.audit.order.battery import Score
    from recshuf.audit.order.matching import BottomKSample
    from recshuf.audit.order.shufflers import Method
    from recshuf.audit.reports.html import Part
    from recshuf.audit.reports.picture import Key
    from recshuf.job.job import Job
    from recshuf.job.report import FileReport, Progress, ShuffleReport


BEFORE, AFTER = "before", "after"
_FEW = 10
"""Smaller figures have three decimals."""
_MANY = 10_000_000
"""From here figures are in millions, so that the table fits a phone."""
_MAX_FILES = 50
"""A longer table of files is folded."""
_DRAWN = 100_000
"""Records in each picture of the gallery."""
_SEED = 7
_FILE_COUNT = 100
_SIDE = 128
_ROW_SIDE = 256
ROW: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "one buffer, 10 %": ("one buffer", {"ratio": 0.1}),
    "uneven interleave": ("parallel interleave, uneven shards", {"shard_count": 8, "parallel_reads": 8}),
    "two-stage sharding": ("two-stage sharding", {"shard_count": 8, "parallel_reads": 8}),
    "exact: two passes": ("two passes", {}),
}
"""The methods of `draw_row` and their settings, by title."""


def draw_matching(matching: Matching) -> list[Panel]:
    """Return the panels of inputs and output, coloured by the records' positions in the inputs."""
    count = len(matching.order)
    positions = np.arange(count) / max(1, count - 1)
    before = Panel(BEFORE, positions, round(count / matching.share))
    return [before, Panel(AFTER, positions[matching.order], matching.records)]


def draw_values(samples: Sequence[BottomKSample], column: str) -> tuple[list[Panel], Key]:
    """Return a panel for each of one or two samples of a column's values, and the colours of all panels."""
    taken = [sample.take().values for sample in samples]
    try:
        both = pa.chunked_array([values.cast(taken[0].type) for values in taken])
    except pa.ArrowException as error:
        raise UsageError(f"column {column!r} is not the same before and after: {error}") from error
    codes, key = _choose_key(both, column)
    parts = np.split(codes, np.cumsum([len(values) for values in taken])[:-1])
    titles = [BEFORE, AFTER] if len(samples) > 1 else [""]
    panels = [
        Panel(title, values, sample.records)
        for title, values, sample in zip(titles, parts, samples, strict=True)
    ]
    return panels, key


def picture_matching(job: Job, progress: Progress, id_column: str | None, title: str) -> bytes:
    """Return a PNG of the records of inputs and output, coloured by their positions in the inputs."""
    panels = draw_matching(match_output(job, progress, id_column))
    return encode_png(draw_picture(panels, Ramp(), title))


def picture_values(jobs: Sequence[Job], progress: Progress, column: str, title: str) -> bytes:
    """Return a PNG of the records of one or two jobs' inputs, coloured by the values of a column."""
    panels, key = draw_values([sample_column(job, progress, column, len(jobs)) for job in jobs], column)
    return encode_png(draw_picture(panels, key, title))


def _choose_key(values: pa.ChunkedArray, column: str) -> tuple[np.ndarray, Key]:
    """Return a number for each value and its colours: label codes if there are few labels, else ranks on a ramp."""
    codes = rank_densely(values)
    sizes = np.bincount(codes)
    if len(sizes) <= MOST_LABELS and len(sizes) < len(codes):
        return codes, Labels(name_codes(values, codes), sizes.tolist(), column)
    return codes / max(1, len(sizes) - 1), Ramp(f"{column}, by rank", "lowest", "highest")


def report_check(
    jobs: Sequence[Job],
    progress: Progress,
    column: str | None,
    id_column: str | None,
    names: Sequence[str],
) -> tuple[CheckReport, str]:
    """Test an order as `recshuf.audit.order.check` does; return the result and a page about it.

    Without a column, the jobs are those of `check_order`, and the page shows the first output. With one, the inputs of
    the only job are tested. `names` are those of the data.
    """
    checked, pictures = _examine(jobs, progress, column, id_column)
    title = f"Order of {names[0] if len(names) == 1 else count_of(len(names), 'path')}"
    mood = "good" if checked.is_uniform else "bad"
    parts = pictures, _tabulate_scores(checked)
    return checked, render_page(title, parts, [*check_notes(checked)], check_verdict(checked, names), mood)


def report_run(done: ShuffleReport, job: Job, progress: Progress) -> str:
    """Return a page about a finished run; reads its files again unless they are standard input or output."""
    parts: list[Part] = []
    notes: list[str] = []
    mood = "good"
    if job.reads_stdin or job.writes_stdout:
        notes.append("the order was not tested: standard input and output cannot be read again")
    else:
        try:
            checked, pictures = _examine([job], progress, None, None)
        except UsageError as error:
            notes.append(f"the order was not tested: {error}")
        else:
            notes += [check_verdict(checked, [str(job.output)]), *check_notes(checked)]
            parts += [pictures, _tabulate_scores(checked)]
            mood = "good" if checked.is_uniform else "bad"
    parts += [
        _tabulate_run(done),
        _tabulate_plan(done),
        _tabulate_files("Inputs", done.inputs),
        _tabulate_files("Shards", done.shards),
        *_quote_manifest(job),
        Text("Everything", "the report as JSON", json.dumps(done.to_json(), indent=2)),
    ]
    written = f"{count_of(done.records_written, 'record')} written in {count_of(len(done.shards), 'shard')}"
    title, verdict = (
        f"Shuffle of {count_of(done.records, 'record')}",
        f"{written} in {duration(done.seconds)}",
    )
    return render_page(title, parts, notes, verdict, mood)


def _examine(
    jobs: Sequence[Job], progress: Progress, column: str | None, id_column: str | None
) -> tuple[CheckReport, Pictures]:
    """Read the files once; return the result of the check and pictures."""
    drawn: list[Pictures] = []

    def draw(tested: Matching | BottomKSample) -> None:
        if isinstance(tested, Matching):
            drawn.append(draw_panels("Before and after", draw_matching(tested), Ramp()))
        else:
            drawn.append(draw_panels("In the order of the records", *draw_values([tested], str(column))))

    return check_order(jobs, progress, column, id_column, draw), drawn[0]


def _tabulate_scores(checked: CheckReport) -> Table:
    rows = []
    for score in checked.scores:
        figures = show_deviations(score.z), _show_figure(score.statistic), _show_figure(score.expectation)
        note = score.meaning if score.is_flagged else f"Too high: {score.higher} Too low: {score.lower}"
        rows.append(Row((score.name, *figures), score.is_flagged, note))
    columns = "statistic", "deviations", "found", "expected"
    return Table(f"Statistics: random within {LIMIT:g} deviations", columns, tuple(rows), has_numbers=True)


def _show_figure(value: float) -> str:
    """Return a figure in few letters; M means million.

    >>> _show_figure(0.12345), _show_figure(961), _show_figure(123456.7), _show_figure(13_333_333_333)
    ('0.123', '961.0', '123,457', '13,333 M')
    """
    size = abs(value)
    if size >= _MANY:
        return f"{value / 1e6:,.{0 if size >= 100 * _MANY else 1}f} M"
    decimals = 3 if size < _FEW else 1 if size < 100 * _FEW else 0
    return f"{value:z,.{decimals}f}"


def _tabulate_run(done: ShuffleReport) -> Table:
    facts = {
        "records": f"{done.records:,} read, {done.records_written:,} written",
        "formats": done.format if done.format == done.to else f"{done.format} to {done.to}",
        "record bytes": format_size(done.byte_count),
        "time": duration(done.seconds),
        "spilled": format_size(done.spilled_bytes),
        "seed": str(done.seed),
        "version": f"recshuf {done.version}, order {done.order}",
    }
    facts |= {
        each.name: f"{format_size(each.bytes_per_second)}/s for {duration(each.seconds)}"
        for each in done.passes
        if each.byte_count
    }
    if done.quarantine is not None:
        facts["set aside"] = f"{count_of(done.quarantined, 'bad record')} in {done.quarantine}"
    return Table("The run", ("what", "how much"), tuple(map(Row, facts.items())))


def _tabulate_plan(done: ShuffleReport) -> Table:
    measured = {
        "records": f"{done.records:,}",
        "record bytes": format_size(done.byte_count),
        "spilled": format_size(done.spilled_bytes),
        "peak memory": f"{format_size(max(0, done.measured_peak_bytes - done.base_bytes))}, beside "
        f"{format_size(done.base_bytes)} at the start",
        "shards": f"{len(done.shards):,}",
    }
    planned = [line.split("  ", 1) for line in plan_lines(done.plan)]
    rows = tuple(Row((name, figure.strip(), measured.get(name, ""))) for name, figure in planned)
    return Table("Plan and measurement", ("what", "planned", "measured"), rows)


def _quote_manifest(job: Job) -> Iterator[Text]:
    if job.output is not None and (path := manifest_path(Path(job.output))).is_file():
        yield Text("Manifest", f"{path.name}, beside the folder of shards", path.read_text(encoding="utf-8"))


def _tabulate_files(heading: str, files: Sequence[FileReport]) -> Table:
    rows = tuple(
        Row((file.name, f"{file.records:,}", "" if file.file_bytes is None else format_size(file.file_bytes)))
        for file in files
    )
    summary = count_of(len(rows), "file") if len(rows) > _MAX_FILES else ""
    return Table(heading, ("file", "records", "size"), rows, summary, has_numbers=True, names_files=True)


# The gallery


class Drawing(NamedTuple):
    """A method's order under some settings, and its scores."""

    name: str
    order: NDArray[np.int64]
    scores: Sequence[Score]

    @property
    def farthest(self) -> Score:
        return max(self.scores, key=lambda score: abs(score.z))

    def make_panel(self, title: str = "", note: str = "") -> Panel:
        return Panel(title, self.order / (self.order.size - 1), self.order.size, note)


def render_gallery(say: Callable[[str], object], count: int = _DRAWN) -> str:
    """Return the page; `say` is called with the name of each method before it is drawn."""
    grids = []
    for name, method in METHODS.items():
        say(name)
        grids.append(draw_method(name, method, count))
    notes = (
        (
            f"{count:,} records, as if from {_FILE_COUNT} files of one size, are laid along a Hilbert curve in the order that "
            "a method gives them; dark ones come from the beginning of the data, light ones from the end. Noise is good."
        ),
        (
            f"Below each picture: how many of the statistics of recshuf check are more than {LIMIT:g} deviations away from those "
            "of a uniformly random order, and how many deviations the farthest one is away."
        ),
    )
    return render_page("How shufflers shuffle", grids, notes)


def draw_row(count: int = _DRAWN) -> bytes:
    """Return the methods of `ROW` side by side, with their farthest scores, as a PNG."""
    panels = []
    for title, (name, settings) in ROW.items():
        drawn = _apply_method(METHODS[name], settings, count)
        farthest = drawn.farthest
        panels.append(drawn.make_panel(title, f"{show_deviations(farthest.z)} ({farthest.name})"))
    title = f"Four shufflers, {count:,} records; below each, the statistic that is most deviations off: random within {LIMIT:g}"
    return encode_png(draw_picture(panels, Ramp(), title, _ROW_SIDE))


def draw_method(name: str, method: Method, count: int) -> Grid:
    """Return the pictures of a method under all settings to compare."""
    axes: list[dict[str, dict[str, float]]] = [{"": {}}, {"": {}}]
    axes += [
        {_name_setting(axis, value): {axis: value} for value in values}
        for axis, values in method.axes.items()
    ]
    row_axis, column_axis = axes[-2:]
    drawings = [
        [_apply_method(method, row | column, count) for column in column_axis.values()]
        for row in row_axis.values()
    ]
    return Grid(
        heading=name,
        text=method.sentence,
        source=method.source,
        columns=tuple(column_axis),
        rows=tuple(
            (row, tuple(map(_draw_cell, drawn))) for row, drawn in zip(row_axis, drawings, strict=True)
        ),
        figures=_list_scores(name, [drawing for drawn in drawings for drawing in drawn]),
    )


def _apply_method(method: Method, settings: Mapping[str, float], count: int) -> Drawing:
    order = method.shuffle(count, _SEED, **settings)
    sizes = np.bincount(np.arange(count) * _FILE_COUNT // count).tolist()
    name = ", ".join(_name_setting(*setting) for setting in settings.items())
    return Drawing(name or "as it is", order, run_battery(order, sizes))


def _draw_cell(drawing: Drawing) -> Cell:
    count = sum(score.is_flagged for score in drawing.scores)
    lines = [f"{count or 'none'} of {len(drawing.scores)}"]
    lines += [drawing.farthest.name, show_deviations(drawing.farthest.z)] if count else []
    alt = f"order of the records, {drawing.name}: {' '.join(lines)}"
    return Cell(draw_square(drawing.make_panel(), Ramp(), alt, _SIDE), tuple(lines), bool(count))


def _list_scores(heading: str, drawings: Sequence[Drawing]) -> Table:
    rows = []
    for drawing in drawings:
        shown = (f"{score.name}\N{NO-BREAK SPACE}{show_deviations(score.z)}" for score in drawing.scores)
        rows.append(Row((drawing.name, ", ".join(shown))))
    columns = "settings", "deviations of all statistics"
    return Table(f"{heading}: deviations", columns, tuple(rows), "all deviations")


def _name_setting(axis: str, value: float) -> str:
    """Return a setting in words.

    >>> _name_setting("shard_count", 8)
    'shard count 8'
    """
    return f"{axis.replace('_', ' ')} {value:g}"
