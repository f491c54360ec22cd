"""Pictures of an order: records along a Hilbert curve, coloured by their position in the inputs or by label.

A picture is an array of uint8, shape ``(rows, columns, 3)``. A page that has its own text needs `paint_panel` and
`encode_png`; `draw_picture` adds title, legend and caption. Pillow, which draws text and writes PNG, is imported late.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recshuf.audit.reports.captions import PAPER, Style, load_pillow
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from recshuf.audit.reports.colors import Key, Values

    Pixels = NDArray[np.uint8]


SIDE = 512
"""Default side of a panel in pixels: two panels fit a page of 1,200 pixels."""
_PATH_SENTENCE = (
    "Records follow a Hilbert curve from the top left corner to the top right one, "
    "so that neighbours in the data lie close together."
)


def trace_curve(level: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows and columns of the cells of a square of side ``2 ** level``, in the order of the Hilbert curve.

    Near steps are near cells. The curve starts in the top left corner (row 0) and ends in the top right one. Each level
    consists of four smaller curves, the first and last mirrored at a diagonal so that their ends meet::

        0 3
        1 2

    >>> rows, columns = trace_curve(1)
    >>> list(zip(rows.tolist(), columns.tolist()))
    [(0, 0), (1, 0), (1, 1), (0, 1)]
    """
    rows = columns = np.zeros(1, np.int64)
    for side in 2 ** np.arange(level):
        rows, columns = (
            np.concatenate((columns, rows + side, rows + side, side - 1 - columns)),
            np.concatenate((rows, columns, columns + side, 2 * side - 1 - rows)),
        )
    return rows, columns


@dataclass(frozen=True, slots=True)
class Panel:
    """One square of a picture: the records of one data set, in their order."""

    title: str
    values: Values
    """One for each record, or for each of an even sample, in order: fractions for `Ramp`, codes for `Labels`."""
    record_count: int
    """Number of records, sampled or not."""
    note: str = ""
    """A line below the square."""


def sample_rows(record_count: int, side: int = SIDE) -> NDArray[np.int64]:
    """Return the row numbers of the records that a panel shows, ascending: all, or one for each pixel.

    A pixel stands for a stretch of records, all of nearly equal length, and shows a random one, the same in every call.
    The first of each stretch would show only one source of data whose sources take turns.
    """
    cell_count = min(record_count, side * side)
    bounds = np.arange(cell_count + 1) * record_count // max(1, cell_count)
    draws = np.random.Philox(0).random_raw(cell_count) >> np.uint64(1)
    rows: NDArray[np.int64] = bounds[:-1] + draws.astype(np.int64) % np.diff(bounds)
    return rows


def _choose_level(value_count: int, side: int) -> int:
    """Return the level of the smallest curve with a cell for every value, or for every pixel if values are more.

    >>> _choose_level(100, 512), _choose_level(10**9, 512)
    (4, 9)
    """
    return min((max(1, value_count) - 1).bit_length() + 1 >> 1, side.bit_length() - 1)


def paint_panel(panel: Panel, key: Key, side: int = SIDE) -> Pixels:
    """Return a square of `side` pixels with the records of a panel; blank without records.

    A cell of the curve is a pixel, or a square of pixels if there are few records. A record fills one or a few cells.
    """
    if side < 1 or side & side - 1:
        raise UsageError(f"the side of a panel must be a power of two, such as 256 or 512, not {side}")
    values = panel.values[sample_rows(panel.values.size, side)]
    if not values.size:
        return np.full((side, side, 3), PAPER, np.uint8)
    level = _choose_level(values.size, side)
    cells = np.empty((1 << level, 1 << level, 3), np.uint8)
    cells[trace_curve(level)] = key.paint(values)[np.arange(4**level) * values.size >> 2 * level]
    return cells.repeat(side >> level, axis=0).repeat(side >> level, axis=1)


def describe_panels(panels: Sequence[Panel], side: int = SIDE) -> str:
    """Return the caption: how records are laid out, and how many of them are shown.

    >>> describe_panels([Panel("before", np.zeros(9), 9), Panel("after", np.zeros(9), 9)])[-20:]
    'All 9 records shown.'
    """
    counts = [_describe_count(panel, side) for panel in panels]
    if len(set(counts)) == 1:
        sentences = [f"{counts[0][0].upper()}{counts[0][1:]}."]
    else:
        sentences = [f"{panel.title}: {count}." for panel, count in zip(panels, counts, strict=True)]
    return " ".join((_PATH_SENTENCE, *sentences))


def _describe_count(panel: Panel, side: int) -> str:
    shown = min(panel.values.size, side * side)
    if shown == panel.record_count:
        return f"all {shown:,} records shown"
    return f"{shown:,} of {panel.record_count:,} records shown, evenly spread"


def draw_picture(panels: Sequence[Panel], key: Key, title: str, side: int = SIDE) -> Pixels:
    """Return a picture of panels of `side` pixels side by side, with title, legend and caption.

    The size of text grows with the width, so that two panels can be read on a narrow page.
    """
    if not panels:
        raise UsageError("a picture needs at least one panel")
    squares = [paint_panel(panel, key, side) for panel in panels]
    shown = [panel.values[sample_rows(panel.values.size, side)] for panel in panels]
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
    """Return a picture as a PNG file, with a palette, a third of the size, if 256 colours are enough.

    The same pixels give the same bytes with the same release of Pillow.
    """
    pillow = load_pillow()
    codes = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    palette, indices = np.unique(codes, return_inverse=True)
    if palette.size <= 1 << 8:
        image = pillow.fromarray(indices.reshape(codes.shape).astype(np.uint8))
        image.putpalette((palette[:, np.newaxis] >> np.array([16, 8, 0]) & 0xFF).astype(np.uint8).tobytes())
    else:
        image = pillow.fromarray(np.ascontiguousarray(pixels))
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=6)
    return file.getvalue()
