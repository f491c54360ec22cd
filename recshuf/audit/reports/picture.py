"""Pictures of an order: records along a Hilbert curve, coloured by their position in the inputs or by label.

A picture is an array of uint8, shape ``(rows, columns, 3)``. A page that has its own text needs `paint_panel` and
`encode_png`; `draw_picture` adds title, legend and caption. Pillow, which draws text and writes PNG, is imported late.
"""

from __future__ import annotations

import io
import math
import unicodedata
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recshuf.dataclass import dataclass
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]
    Values = NDArray[np.floating] | NDArray[np.integer]


SIDE = 512
"""Default side of a panel in pixels: two panels fit a page of 1,200 pixels."""
_PATH_SENTENCE = (
    "Records follow a Hilbert curve from the top left corner to the top right one, "
    "so that neighbours in the data lie close together."
)
PAPER = (250, 250, 250)
_INK = (33, 33, 33)
_PALE_INK = (85, 85, 85)
_BORDER = 198
_MARGIN_SHARE = 16
_TEXT_SHARE = 41
_MIN_TEXT = 15
_TEXT_GREYS = 32
_TITLE_SCALE = 1.4
_LINE_SCALE = 1.4


RAMP = np.frombuffer(
    bytes.fromhex(
        "2b0c4d2c0e4f2d10522f125430145631165932185b331a5e341c60351d63361f6537216738236a3a256c3b276f3c2871"
        "3d2a743e2c763f2e7940307c41317e423381433583443786453988463b8b473d8e483e90484191484492474693474994"
        "464b95464d9545509645529744559843579943599a425c9b415e9c40609d3f639e3e659e3d679f3c6aa03a6ca1396ea2"
        "3771a33673a43475a53278a5317aa6317ca5317ea53180a43282a43284a33286a33288a2338aa1338ca1338ea03390a0"
        "34929f34949e35969e35989d359a9c369c9c369e9b37a09a37a29938a49938a69839a89739aa963aac953aae943fb093"
        "44b19249b3914db58f51b68e55b88c59b98b5dbb8a61bc8865be8769bf856cc18370c28273c48077c57e7ac77c7ec87a"
        "81ca7985cb7788cd748bce728fd07092d16e95d36b98d4699cd6669fd764a2d962a7da63abdb63b0dc64b4dd64b8de65"
        "bde066c1e166c5e267c9e368cde468d2e569d6e76adae86adee96be2ea6ce6eb6ceaec6deeed6ef2ee6ef6f06ffaf170"
    ),
    np.uint8,
).reshape(-1, 3)
"""Steps from dark violet to light yellow, ever lighter, so that the order shows without hues: at even distances in OKLab."""
LABEL_COLOURS = np.frombuffer(
    bytes.fromhex("0072b2 e69f00 009e73 cc79a7 56b4e9 d55e00 f0e442 000000"), np.uint8
).reshape(-1, 3)
"""The palette of Okabe and Ito, safe for colour-blind readers; the first two differ most."""
GREY = np.array([216, 216, 216], np.uint8)
"""Colour of missing values and of labels without one. A darker grey looks purple to readers who do not see green."""


class Entry(NamedTuple):
    """An entry of a legend."""

    colours: Pixels
    """Shape ``(n, 3)``: one colour, or the steps of a ramp."""
    ends: tuple[str, ...]
    """The name of the colour, or of both ends of the ramp."""

    @property
    def css(self) -> list[str]:
        return [f"rgb({red}, {green}, {blue})" for red, green, blue in self.colours.tolist()]


@dataclass(frozen=True, slots=True)
class Ramp:
    """Pixels for values from 0 to 1, from dark violet to light yellow; NaN is grey."""

    subject: str = "position in the input"
    """What a value shows of a record."""
    first: str = "first"
    last: str = "last"

    def paint(self, values: Values) -> Pixels:
        is_missing = np.isnan(values)
        steps = np.where(is_missing, 0, values * len(RAMP)).astype(np.int64)
        colours = RAMP[np.minimum(steps, len(RAMP) - 1)]
        colours[is_missing] = GREY
        return colours

    def list_entries(self, panels: Sequence[Values]) -> list[Entry]:
        is_missing = any(np.isnan(values).any() for values in panels)
        missing = [Entry(GREY[np.newaxis], ("no value",))] if is_missing else []
        return [Entry(RAMP, (self.first, self.last)), *missing]


class Labels:
    """Pixels for label codes: one for each of the most frequent labels, grey for the others.

    A code has its name in `names` and its number of records in `counts`.
    """

    def __init__(self, names: Sequence[str], counts: Sequence[int], subject: str = "label") -> None:
        self.names = names
        self.subject = subject
        frequent = np.argsort(-np.asarray(counts), kind="stable")[: len(LABEL_COLOURS)]
        # In the order of codes, so that colours do not depend on small differences of frequency.
        self._coloured = np.sort(frequent)
        self._colours = np.tile(GREY, (len(names), 1))
        self._colours[self._coloured] = LABEL_COLOURS[: frequent.size]

    def paint(self, values: Values) -> Pixels:
        return self._colours[values.astype(np.int64)]

    def list_entries(self, panels: Sequence[Values]) -> list[Entry]:  # noqa: ARG002 - all labels, shown or not
        entries = [Entry(self._colours[[code]], (self.names[code],)) for code in self._coloured]
        other_count = len(self.names) - len(entries)
        if other_count:
            entries.append(Entry(GREY[np.newaxis], (f"{other_count:,} other{'s' * (other_count > 1)}",)))
        return entries


Key = Ramp | Labels
"""What maps values to colours and describes the colours in a legend."""


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


class Panel(NamedTuple):
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

    The side is a power of two. A cell of the curve is a pixel, or a square of pixels if there are few records. A record fills
    one or a few cells.
    """
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
    writer = _Writer(len(panels), side)
    space, gap = blank(writer.size // 2, writer.width), blank(writer.size // 4, writer.width)
    notes = [panel.note for panel in panels]
    shown = [panel.values[sample_rows(panel.values.size, side)] for panel in panels]
    strips = [
        writer.wrap(title, _INK, _TITLE_SCALE),
        space,
        writer.write_each([panel.title for panel in panels], _INK),
        gap,
        join([paint_panel(panel, key, side) for panel in panels], writer.margin),
        *([gap, writer.write_each(notes, _PALE_INK)] if any(notes) else []),
        space,
        writer.draw_legend(key.subject, key.list_entries(shown)),
        space,
        writer.wrap(describe_panels(panels, side), _PALE_INK),
    ]
    around = writer.margin - 1
    page = np.pad(np.concatenate(strips), [(around, around)] * 2 + [(0, 0)], constant_values=PAPER[0])
    return np.pad(page, [(1, 1)] * 2 + [(0, 0)], constant_values=_BORDER)


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


class _Writer:
    """Draws the text around panels, as strips as wide as all panels, of `side` pixels, and the margins between them."""

    def __init__(self, panel_count: int, side: int) -> None:
        self._pillow = load_pillow()
        self._side = side
        self.margin = max(16, side // _MARGIN_SHARE)
        self.width = panel_count * (side + self.margin) - self.margin
        self.size = max(_MIN_TEXT, self.width // _TEXT_SHARE)
        """Of text."""

    def wrap(self, text: str, ink: tuple[int, int, int], scale: float = 1) -> Pixels:
        size = round(self.size * scale)
        words = [self._write(word, size, ink, self.width) for word in text.split()]
        return _flow(words, max(4, size // 4), self.width)

    def write_each(self, texts: Sequence[str], ink: tuple[int, int, int]) -> Pixels:
        """Return a line for each panel."""
        patches = [self._write(text, self.size, ink, self._side) for text in texts]
        return join([widen(patch, self._side) for patch in patches], self.margin)

    def draw_legend(self, subject: str, entries: Sequence[Entry]) -> Pixels:
        chips = [self._write(f"{subject}:", self.size, _INK, self.width), *map(self._draw_chip, entries)]
        return _flow(chips, self.size, self.width)

    def _draw_chip(self, entry: Entry) -> Pixels:
        """Return a colour and its name, or a ramp between the names of its ends."""
        gap = self.size // 2
        names = [self._write(name, self.size, _INK, self.width // 3) for name in entry.ends]
        colours = entry.colours.repeat(self.size, axis=0)
        if len(names) > 1:
            room = self.width - sum(name.shape[1] + gap for name in names)
            bar_width = min(self._side // 2, room)
            colours = entry.colours[np.arange(bar_width) * len(entry.colours) // bar_width]
        patch = blank(len(names[0]), len(colours))
        top = (len(patch) - self.size) // 2
        patch[top : top + self.size] = colours
        return join([*names[:-1], patch, names[-1]], gap)

    def _write(self, text: str, size: int, ink: tuple[int, int, int], max_width: int) -> Pixels:
        """Return one line of text, cut to a width in pixels."""
        from PIL import ImageDraw, ImageFont

        font = ImageFont.load_default(size)  # Pillow's own: the same on every system, ASCII only
        plain = _spell(text)[:max_width]
        shown = plain
        while shown and font.getlength(shown) > max_width:
            plain = plain[:-1]
            shown = f"{plain}..."
        height = round(size * _LINE_SCALE)
        image = self._pillow.new("L", (math.ceil(font.getlength(shown)), height))
        ImageDraw.Draw(image).text((0, height // 2), shown, 255, font, "lm")
        # Few greys leave room in the palette for the colours of the panels.
        greys = np.rint(np.linspace(PAPER, ink, _TEXT_GREYS)).astype(np.uint8)
        patch: Pixels = greys[np.asarray(image) // (256 // _TEXT_GREYS)]
        return patch
