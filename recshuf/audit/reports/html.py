"""A page of text, pictures, tables and bars as one HTML file that loads nothing."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from recshuf.audit.reports.picture import SIDE, describe_panels, encode_png, paint_panel, sample_rows
from recshuf.errors import UsageError
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.audit.reports.colors import Key
    from recshuf.audit.reports.picture import Panel


_MANY_DEVIATIONS = 100
"""From here fractions of a deviation are not shown."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as base64 of a PNG."""

    png: str
    name: str
    alt: str


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A colour, or a ramp of colours, in CSS."""

    colours: tuple[str, ...]
    first: str
    last: str = ""


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures side by side, with one legend."""

    kind: ClassVar[str] = "pictures"
    heading: str
    pictures: tuple[Picture, ...]
    subject: str
    """What the colours show of a record."""
    legend: tuple[LegendEntry, ...]
    caption: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    is_number: bool = False
    is_path: bool = False
    """Whether lines may break at any letter."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table; the first cell names it."""

    cells: tuple[str, ...]
    is_flagged: bool = False
    note: str = ""
    """A sentence below its cells."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; it scrolls if it is wider than the page."""

    kind: ClassVar[str] = "table"
    heading: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    summary: str = ""
    """The text of a folded table. Empty: the table is shown."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with its figure."""

    name: str
    text: str
    share: float
    """Length as a share of the longest possible bar, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Bars:
    """A chart of horizontal bars."""

    kind: ClassVar[str] = "bars"
    heading: str
    columns: tuple[str, str]
    """Headings of names and figures."""
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """Long preformatted text, folded."""

    kind: ClassVar[str] = "text"
    heading: str
    summary: str
    text: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A small picture with lines of text."""

    picture: Picture
    lines: tuple[str, ...]
    is_flagged: bool


@dataclass(frozen=True, slots=True)
class Grid:
    """Small pictures in rows and columns."""

    kind: ClassVar[str] = "grid"
    heading: str
    text: str
    source: str
    columns: tuple[str, ...]
    """Their names; one empty name for a single column."""
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    """The name of each row, as for columns, and its cells."""
    figures: Table | None = None


Part = Pictures | Table | Bars | Text | Grid


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page."""

    title: str
    verdict: str
    mood: str
    """``good``, ``bad`` or empty: the colour of the verdict."""
    notes: tuple[str, ...]
    parts: tuple[Part, ...]


def render_page(page: Page) -> str:
    try:
        from jinja2 import Environment, PackageLoader
    except ImportError:
        raise UsageError("a page takes Jinja; install recshuf[report]") from None
    environment = Environment(
        loader=PackageLoader("recshuf.audit.reports"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    html: str = environment.get_template("page.html").render(page=page, version=__version__)
    # A page cannot hold file names that are not UTF-8.
    return html.encode("utf-8", "backslashreplace").decode("utf-8")


def show_deviations(z: float) -> str:
    """Return a number of deviations in few letters.

    >>> show_deviations(-1.26), show_deviations(87205.4)
    ('-1.3', '+87,205')
    """
    return f"{z:+z,.{0 if abs(z) >= _MANY_DEVIATIONS else 1}f}"


def draw_panels(heading: str, panels: Sequence[Panel], key: Key) -> Pictures:
    caption = describe_panels(panels)
    shown = [panel.values[sample_rows(panel.values.size)] for panel in panels]
    pictures = tuple(
        draw_square(
            panel, key, f"{panel.title or heading}: {key.subject} of each record, as a colour. {caption}"
        )
        for panel in panels
    )
    legend = tuple(
        LegendEntry(
            tuple(f"rgb({red}, {green}, {blue})" for red, green, blue in entry.colours.tolist()), *entry.ends
        )
        for entry in key.list_entries(shown)
    )
    return Pictures(heading, pictures, key.subject, legend, caption)


def draw_square(panel: Panel, key: Key, alt: str, side: int = SIDE) -> Picture:
    """Return a panel as a picture; `alt` is its alternative text."""
    png = base64.b64encode(encode_png(paint_panel(panel, key, side))).decode()
    return Picture(png, panel.title, alt)
