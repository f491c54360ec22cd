"""How other shufflers order records: their pictures and scores side by side, on one page."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from recshuf.battery import LIMIT, run_battery
from recshuf.methods import METHODS
from recshuf.pages import Cell, Grid, Page, draw_square, render_page
from recshuf.pictures import Panel, Ramp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from recshuf.methods import Method

COUNT = 100_000
SEED = 7
FILE_COUNT = 100
_SIDE = 128


def render_gallery(say: Callable[[str], object], count: int = COUNT) -> str:
    """Return the page; `say` hears of each method as it is drawn.

    Raises
    ------
    UsageError
        Pillow or Jinja is not installed.
    """
    grids = []
    for name, method in METHODS.items():
        say(name)
        grids.append(draw_method(name, method, count))
    notes = (
        (
            f"{count:,} records, as if from {FILE_COUNT} files of one size, are laid along a Hilbert curve in the order that "
            "a method gives them; dark ones come from the beginning of the data, light ones from the end. Noise is good."
        ),
        (
            f"Below each picture: how many of the statistics of recshuf check are more than {LIMIT:g} deviations away from those "
            "of a uniformly random order, and which is farthest."
        ),
    )
    page = Page("How shufflers shuffle", "", "", notes, tuple(grids))
    return render_page(page)


def draw_method(name: str, method: Method, count: int) -> Grid:
    """Return the pictures of a method, under all settings that it is compared under."""
    rows, columns = [("", [None]), ("", [None]), *method.axes.items()][-2:]
    cells = {
        (row, column): draw_cell(method, choose_settings((rows[0], row), (columns[0], column)), count)
        for row, column in product(rows[1], columns[1])
    }
    return Grid(
        heading=name,
        text=method.sentence,
        source=method.source,
        axes=" by ".join(describe(axis) for axis, _ in (rows, columns) if axis),
        columns=tuple(show(column) for column in columns[1]),
        rows=tuple((show(row), tuple(cells[row, column] for column in columns[1])) for row in rows[1]),
    )


def choose_settings(*chosen: tuple[str, float | None]) -> dict[str, float]:
    """Return the settings that have a name.

    >>> choose_settings(("ratio", 0.5), ("", None))
    {'ratio': 0.5}
    """
    return {name: value for name, value in chosen if name and value is not None}


def draw_cell(method: Method, settings: Mapping[str, float], count: int) -> Cell:
    """Return the picture and the score of a method under some settings."""
    order = method.shuffle(count, SEED, **settings)
    sizes = np.bincount(np.arange(count) * FILE_COUNT // count).tolist()
    scores = run_battery(order, sizes)
    flagged = [score for score in scores if score.is_flagged]
    farthest = max(scores, key=lambda score: abs(score.z))
    text = f"{len(flagged)} of {len(scores)}: {farthest.name} {farthest.z:+,.0f}" if flagged else "none"
    words = ", ".join(f"{describe(name)} {show(value)}" for name, value in settings.items())
    picture = draw_square(
        Panel("", order / (count - 1), count), Ramp(), f"{words or 'as it is'}: {text}", _SIDE
    )
    return Cell(picture, text, bool(flagged))


def describe(setting: str) -> str:
    """Return a setting's name for people.

    >>> describe("shard_count")
    'shard count'
    """
    return setting.replace("_", " ")


def show(value: float | None) -> str:
    """Return a setting's value for people."""
    return "" if value is None else f"{value:g}"
