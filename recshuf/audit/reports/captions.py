"""The text around the panels of a picture, drawn as strips of full width to be stacked."""

from __future__ import annotations

import math
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from recshuf.audit.reports.colors import Entry

    Pixels = NDArray[np.uint8]

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
    """Return a strip of paper."""
    return np.full((height, width, 3), PAPER, np.uint8)


def widen(pixels: Pixels, width: int) -> Pixels:
    """Return pixels padded with paper, or cut, at the right to a width."""
    return np.concatenate((pixels, blank(len(pixels), max(0, width - pixels.shape[1]))), axis=1)[:, :width]


def join(patches: Sequence[Pixels], gap: int) -> Pixels:
    """Return patches of one height side by side."""
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
