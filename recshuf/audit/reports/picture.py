"""Pictures of an order: records along a Hilbert curve, coloured by their position in the inputs or by label.

A picture is an array of uint8, shape ``(rows, columns, 3)``. A page that has its own text needs `paint_panel` and
`encode_png`; `draw_picture` adds title, legend and caption. Pillow, which draws text and writes PNG, is imported late.
The text around panels is drawn as strips of full width to be stacked.
"""

from __future__ import annotations

import io
import math
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from recshuf.audit.reports.colors import Entry, Key, Values

    Pixels = NDArray[np.uint8]


SIDE = 512
"""Default side of a panel in pixels: two panels fit a page of 1,200 pixels."""
_PATH_SENTENCE = (
    "Records follow a Hilbert curve from the top left corner to the top right one, "
    "so that neighbours in the data lie close together."
)
PAPER = (250, 250, 250)
_INK = (33, 33, 33)
_PALE_INK = (85, 85, 85)
BORDER = (198, 198, 198)
_MARGIN_SHARE = 16
_TEXT_SHARE = 41
_MIN_TEXT = 15
_TEXT_GREYS = 32
_TITLE_SCALE = 1.4
_LINE_SCALE = 1.4


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


def load_pillow() -> Any:
    """Return the module of Pillow's images."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError("pictures take Pillow; install recshuf[report]") from error
    return Image


def _spell(text: str) -> str:
    r"""Return text as one line of ASCII.

    >>> _spell("Café\n№ 5 中")
    'Cafe No 5 ?'
    """
    plain = "".join(
        letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter)
    )
    printable = (letter if letter.isprintable() else "?" for letter in " ".join(plain.split()))
    return "".join(printable).encode("ascii", "replace").decode()


def mix(paper: tuple[int, int, int], ink: tuple[int, int, int], step_count: int) -> Pixels:
    """Return `step_count` colours in even steps from paper to ink."""
    return np.rint(np.linspace(paper, ink, step_count)).astype(np.uint8)


def blank(height: int, width: int) -> Pixels:
    return np.full((height, width, 3), PAPER, np.uint8)


def widen(pixels: Pixels, width: int) -> Pixels:
    """Return pixels padded with paper, or cut, at the right to a width."""
    return np.concatenate((pixels, blank(len(pixels), max(0, width - pixels.shape[1]))), axis=1)[:, :width]


def join(patches: Sequence[Pixels], gap: int) -> Pixels:
    space = blank(len(patches[0]), gap)
    return np.concatenate([part for patch in patches for part in (space, patch)][1:], axis=1)


def _flow(patches: Iterable[Pixels], gap: int, width: int) -> Pixels:
    """Return patches of one height laid out like words in lines of a width."""
    lines: list[Pixels] = []
    for patch in patches:
        if lines and lines[-1].shape[1] + gap + patch.shape[1] <= width:
            lines[-1] = join((lines[-1], patch), gap)
        else:
            lines.append(patch)
    return np.concatenate([widen(line, width) for line in lines]) if lines else blank(0, width)


class Style:
    """Draws the strips of a picture with panels side by side.

    A strip is as wide as all panels, of `side` pixels, and the gaps between them. `frame` adds the margin.
    """

    def __init__(self, panel_count: int, side: int) -> None:
        self._pillow = load_pillow()
        self.side = side
        self.margin = max(16, side // _MARGIN_SHARE)
        self.width = panel_count * (side + self.margin) - self.margin
        self.text_size = max(_MIN_TEXT, self.width // _TEXT_SHARE)

    def draw_title(self, title: str) -> Pixels:
        return np.concatenate((self._wrap(title, round(self.text_size * _TITLE_SCALE), _INK), self._room()))

    def draw_headings(self, titles: Sequence[str]) -> Pixels:
        return np.concatenate((self._write_each(titles, _INK), blank(self.text_size // 4, self.width)))

    def join_panels(self, squares: Sequence[Pixels], notes: Sequence[str]) -> Pixels:
        """Return the panels side by side, with a note below each if there are any."""
        row = join(squares, self.margin)
        if any(notes):
            row = np.concatenate(
                (row, blank(self.text_size // 4, self.width), self._write_each(notes, _PALE_INK))
            )
        return np.concatenate((row, self._room()))

    def draw_legend(self, subject: str, entries: Sequence[Entry]) -> Pixels:
        chips = [self._write(f"{subject}:", self.text_size, _INK, self.width)]
        chips += [self._draw_chip(entry) for entry in entries]
        return np.concatenate((_flow(chips, self.text_size, self.width), self._room()))

    def draw_caption(self, caption: str) -> Pixels:
        """Return the caption in pale ink."""
        return self._wrap(caption, self.text_size, _PALE_INK)

    def frame(self, strip: Pixels) -> Pixels:
        height, width, _ = strip.shape
        picture = np.full((height + 2 * self.margin, width + 2 * self.margin, 3), BORDER, np.uint8)
        picture[1:-1, 1:-1] = PAPER
        picture[self.margin : -self.margin, self.margin : -self.margin] = strip
        return picture

    def _draw_chip(self, entry: Entry) -> Pixels:
        """Return a colour and its name, or a ramp between the names of its ends."""
        gap = self.text_size // 2
        names = [self._write(name, self.text_size, _INK, self.width // 3) for name in entry.ends]
        colours = entry.colours.repeat(self.text_size, axis=0)
        if len(names) > 1:
            room = self.width - sum(name.shape[1] + gap for name in names)
            bar_width = min(self.side // 2, room)
            colours = entry.colours[np.arange(bar_width) * len(entry.colours) // bar_width]
        line = self._line(self.text_size)
        patch = blank(line, len(colours))
        top = (line - self.text_size) // 2
        patch[top : top + self.text_size] = colours
        return join([*names[:-1], patch, names[-1]], gap)

    def _write_each(self, texts: Sequence[str], ink: tuple[int, int, int]) -> Pixels:
        patches = [self._write(text, self.text_size, ink, self.side) for text in texts]
        return join([widen(patch, self.side) for patch in patches], self.margin)

    def _wrap(self, text: str, size: int, ink: tuple[int, int, int]) -> Pixels:
        words = [self._write(word, size, ink, self.width) for word in text.split()]
        return _flow(words, max(4, size // 4), self.width)

    def _write(self, text: str, size: int, ink: tuple[int, int, int], max_width: int) -> Pixels:
        """Return one line of text, cut to a width in pixels."""
        from PIL import ImageDraw, ImageFont

        font = ImageFont.load_default(size)  # Pillow's own: the same on every system, ASCII only
        plain = _spell(text)[:max_width]
        shown = plain
        while shown and font.getlength(shown) > max_width:
            plain = plain[:-1]
            shown = f"{plain}..."
        image = self._pillow.new("L", (math.ceil(font.getlength(shown)), self._line(size)))
        ImageDraw.Draw(image).text((0, self._line(size) // 2), shown, 255, font, "lm")
        # Few greys leave room in the palette for the colours of the panels.
        greys = mix(PAPER, ink, _TEXT_GREYS)
        patch: Pixels = greys[np.asarray(image) // (256 // _TEXT_GREYS)]
        return patch

    def _line(self, size: int) -> int:
        return round(size * _LINE_SCALE)

    def _room(self) -> Pixels:
        return blank(self.text_size // 2, self.width)
