"""Pictures of an order: records laid along a Hilbert curve, coloured by where they came from or by label.

A picture is an array of uint8 with an axis each for rows, columns, and red, green and blue. `paint_panel` and
`encode_png` are enough for a page that has its own text; `draw_picture` adds title, legend and caption. Pillow, which
draws the text and writes the file, is loaded when it is needed.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recshuf.audit.reports.captions import PAPER, Style, load_pillow
from recshuf.audit.reports.colors import Key, Labels, Ramp
from recshuf.audit.reports.hilbert import trace_curve
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from recshuf.audit.reports.colors import Values

    Pixels = NDArray[np.uint8]

__all__ = [
    "Key",
    "Labels",
    "Panel",
    "Ramp",
    "describe_panels",
    "draw_picture",
    "encode_png",
    "paint_panel",
    "sample_places",
]

SIDE = 512
"""Pixels of a panel's side unless told otherwise: two panels fit a page of 1,200 pixels."""

PATH_SENTENCE = (
    "Records follow a Hilbert curve from the top left corner to the top right one, "
    "so that neighbours in the data lie close together."
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One square of a picture: the records of one file or set, in their order."""

    title: str
    values: Values
    """In the order of the records: fractions for `Ramp`, codes for `Labels`; of all records, or of a sample that is
    spread over them as `sample_places` does it."""
    record_count: int
    """How many records there are in all."""
    note: str = ""
    """What stands below the square, on one line."""


def sample_places(record_count: int, side: int = SIDE) -> NDArray[np.int64]:
    """Return the places of the records that a panel shows, ascending: all of them, or one for each pixel.

    Each pixel stands for a stretch of records, all of nearly one length, and shows one that is drawn from it, the same
    in every call. The first of each would show a file that takes turns between sources as if it held only one.
    """
    cell_count = min(record_count, side * side)
    bounds = np.arange(cell_count + 1) * record_count // max(1, cell_count)
    draws = np.random.Philox(0).random_raw(cell_count) >> np.uint64(1)
    places: NDArray[np.int64] = bounds[:-1] + draws.astype(np.int64) % np.diff(bounds)
    return places


def choose_level(value_count: int, side: int) -> int:
    """Return the level of the smallest curve that has a cell for every value, or else for every pixel.

    >>> choose_level(100, 512), choose_level(10**9, 512)
    (4, 9)
    """
    return min((max(1, value_count) - 1).bit_length() + 1 >> 1, side.bit_length() - 1)


def paint_panel(panel: Panel, key: Key, side: int = SIDE) -> Pixels:
    """Return a square of `side` pixels that shows the records of a panel; without records it is blank.

    A cell is a pixel, or a square of pixels where there are few records. A record fills a cell, or a few in a row
    where there are more cells than records.

    Raises
    ------
    UsageError
        `side` is not a power of two, or a value has no colour.
    """
    if side < 1 or side & side - 1:
        raise UsageError(f"the side of a panel must be a power of two, such as 256 or 512, not {side}")
    values = panel.values[sample_places(panel.values.size, side)]
    if not values.size:
        return np.full((side, side, 3), PAPER, np.uint8)
    level = choose_level(values.size, side)
    cells = np.empty((1 << level, 1 << level, 3), np.uint8)
    cells[trace_curve(level)] = key.paint(values)[np.arange(4**level) * values.size >> 2 * level]
    return cells.repeat(side >> level, axis=0).repeat(side >> level, axis=1)


def describe_panels(panels: Sequence[Panel], side: int = SIDE) -> str:
    """Return the caption: how places were laid out, and how many of the records are shown.

    >>> describe_panels([Panel("before", np.zeros(9), 9), Panel("after", np.zeros(9), 9)])[-20:]
    'All 9 records shown.'
    """
    counts = [describe_count(panel, side) for panel in panels]
    if len(set(counts)) == 1:
        sentences = [f"{counts[0][0].upper()}{counts[0][1:]}."]
    else:
        sentences = [f"{panel.title}: {count}." for panel, count in zip(panels, counts, strict=True)]
    return " ".join((PATH_SENTENCE, *sentences))


def describe_count(panel: Panel, side: int) -> str:
    """Return how many of a panel's records are shown."""
    shown = min(panel.values.size, side * side)
    if shown == panel.record_count:
        return f"all {shown:,} records shown"
    return f"{shown:,} of {panel.record_count:,} records shown, evenly spread"


def draw_picture(panels: Sequence[Panel], key: Key, title: str, side: int = SIDE) -> Pixels:
    """Return the picture of one or more panels side by side, with title, legend and caption.

    Text is as large as the width asks for, so that a picture of two panels can be read on a narrow page. The paper is
    light and has a border, which suits white pages and dark ones.

    Parameters
    ----------
    panels
        From left to right; one or two can be read well.
    key
        The colours of all panels.
    title
        The heading of the whole picture.
    side
        Pixels of a panel's side, a power of two.

    Raises
    ------
    UsageError
        A panel cannot be painted, there is none, or Pillow is not installed.
    """
    if not panels:
        raise UsageError("a picture needs at least one panel")
    squares = [paint_panel(panel, key, side) for panel in panels]
    shown = [panel.values[sample_places(panel.values.size, side)] for panel in panels]
    style = Style(len(panels), side)
    strips = [
        style.draw_title(title),
        style.draw_headings([panel.title for panel in panels]),
        style.join_panels(squares, [panel.note for panel in panels]),
        style.draw_legend(key.subject, key.list_entries(shown)),
        style.draw_caption(describe_panels(panels, side)),
    ]
    return style.frame(np.concatenate(strips))


def encode_png(pixels: Pixels) -> bytes:
    """Return a PNG file of the same colours: with a palette, a third of the size, where 256 are enough.

    The same pixels give the same bytes with the same release of Pillow.

    Raises
    ------
    UsageError
        Pillow is not installed.
    """
    pillow = load_pillow()
    codes = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    palette, places = np.unique(codes, return_inverse=True)
    if palette.size <= 1 << 8:
        image = pillow.fromarray(places.reshape(codes.shape).astype(np.uint8))
        image.putpalette((palette[:, np.newaxis] >> np.array([16, 8, 0]) & 0xFF).astype(np.uint8).tobytes())
    else:
        image = pillow.fromarray(np.ascontiguousarray(pixels))
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=6)
    return file.getvalue()
