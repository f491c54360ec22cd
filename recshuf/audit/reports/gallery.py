"""A page of how other shufflers order records: pictures and scores side by side."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from recshuf.audit.order.battery import LIMIT, run_battery
from recshuf.audit.order.shufflers import METHODS
from recshuf.audit.reports.colors import Ramp
from recshuf.audit.reports.html import (
    Cell,
    Column,
    Grid,
    Page,
    Row,
    Table,
    draw_square,
    render_page,
    show_deviations,
)
from recshuf.audit.reports.picture import Panel, draw_picture, encode_png

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


@dataclass(frozen=True, slots=True)
class Drawing:
    """A method's order under some settings, and its scores."""

    name: str
    order: NDArray[np.int64]
    scores: Sequence[Score]

    @property
    def flagged_count(self) -> int:
        """Number of statistics that speak against the order."""
        return sum(score.is_flagged for score in self.scores)

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
    page = Page("How shufflers shuffle", "", "", notes, tuple(grids))
    return render_page(page)


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
    rows, columns = [("", [None]), ("", [None]), *method.axes.items()][-2:]
    drawings = {
        (row, column): _apply_method(method, _choose_settings((rows[0], row), (columns[0], column)), count)
        for row, column in product(rows[1], columns[1])
    }
    return Grid(
        heading=name,
        text=method.sentence,
        source=method.source,
        columns=tuple(_name_setting(columns[0], column) for column in columns[1]),
        rows=tuple(
            (_name_setting(rows[0], row), tuple(_draw_cell(drawings[row, column]) for column in columns[1]))
            for row in rows[1]
        ),
        figures=_list_scores(name, list(drawings.values())),
    )


def _apply_method(method: Method, settings: Mapping[str, float], count: int) -> Drawing:
    order = method.shuffle(count, SEED, **settings)
    sizes = np.bincount(np.arange(count) * _FILE_COUNT // count).tolist()
    name = ", ".join(_name_setting(*setting) for setting in settings.items())
    return Drawing(name or "as it is", order, run_battery(order, sizes))


def _draw_cell(drawing: Drawing) -> Cell:
    count = drawing.flagged_count
    lines = [f"{count or 'none'} of {len(drawing.scores)}"]
    lines += [drawing.farthest.name, show_deviations(drawing.farthest.z)] if count else []
    alt = f"order of the records, {drawing.name}: {' '.join(lines)}"
    picture = draw_square(drawing.make_panel(), Ramp(), alt, _SIDE)
    return Cell(picture, tuple(lines), bool(count))


def _list_scores(heading: str, drawings: Sequence[Drawing]) -> Table:
    rows = []
    for drawing in drawings:
        shown = (f"{score.name}\N{NO-BREAK SPACE}{show_deviations(score.z)}" for score in drawing.scores)
        rows.append(Row((drawing.name, ", ".join(shown))))
    columns = Column("settings"), Column("deviations of all statistics")
    return Table(f"{heading}: deviations", columns, tuple(rows), "all deviations")


def _name_setting(axis: str, value: float | None) -> str:
    """Return a setting in words; an empty text without one.

    >>> _name_setting("shard_count", 8)
    'shard count 8'
    """
    return "" if value is None else f"{axis.replace('_', ' ')} {value:g}"


def _choose_settings(*chosen: tuple[str, float | None]) -> dict[str, float]:
    """Return the settings that have a name and a value.

    >>> _choose_settings(("ratio", 0.5), ("", None))
    {'ratio': 0.5}
    """
    return {name: value for name, value in chosen if name and value is not None}
