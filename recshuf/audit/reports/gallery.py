"""A page of how other shufflers order records: pictures and scores side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recshuf.audit.order.battery import LIMIT, run_battery
from recshuf.audit.order.shufflers import METHODS
from recshuf.audit.reports.html import Cell, Grid, Row, Table, draw_square, render_page, show_deviations
from recshuf.audit.reports.picture import Panel, Ramp, draw_picture, encode_png

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from recshuf.audit.order.battery import Score
    from recshuf.audit.order.shufflers import Method


COUNT = 100_000
SEED = 7
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


def render_gallery(say: Callable[[str], object], count: int = COUNT) -> str:
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


def draw_row(count: int = COUNT) -> bytes:
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
    order = method.shuffle(count, SEED, **settings)
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
