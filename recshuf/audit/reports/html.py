"""A page of what was found: words, pictures, tables and bars, in one HTML file that loads nothing."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from recshuf.audit.reports.picture import SIDE, describe_panels, encode_png, paint_panel, sample_places
from recshuf.errors import UsageError
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.audit.reports.picture import Key, Panel


_MANY_DEVIATIONS = 100
"""From there on fractions of a deviation say nothing."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A square of a picture, as base64 of a PNG."""

    png: str
    name: str
    alt: str


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A colour, or the colours from a first to a last one, as CSS has them."""

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
    """What the colours tell of a record."""
    legend: tuple[LegendEntry, ...]
    caption: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    is_number: bool = False
    is_path: bool = False
    """Whether names may be broken at any letter."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table; the first cell names it."""

    cells: tuple[str, ...]
    is_flagged: bool = False
    note: str = ""
    """What is to be said of the row, below its cells."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; one wider than the page scrolls by itself."""

    kind: ClassVar[str] = "table"
    heading: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    summary: str = ""
    """What stands for the table until it is asked for; nothing shows it at once."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with its figure in words."""

    name: str
    text: str
    share: float
    """Of the longest bar possible, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Bars:
    """A chart of bars, one below the other."""

    kind: ClassVar[str] = "bars"
    heading: str
    columns: tuple[str, str]
    """What names and figures are."""
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """Long text as it stands, shown when asked for."""

    kind: ClassVar[str] = "text"
    heading: str
    summary: str
    text: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A small picture with what is said of it."""

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
    """Their names, empty where there is only one."""
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    """The name of each, as for columns, and its cells."""
    figures: Table | None = None
    """What the pictures show, in figures."""


Part = Pictures | Table | Bars | Text | Grid


@dataclass(frozen=True, slots=True)
class Page:
    """All of a page."""

    title: str
    verdict: str
    mood: str
    """``good``, ``bad`` or nothing: how the verdict looks."""
    notes: tuple[str, ...]
    parts: tuple[Part, ...]


def render_page(page: Page) -> str:
    """Return the page as HTML.

    Raises
    ------
    UsageError
        Jinja is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader
    except ImportError:
        raise UsageError('a page takes Jinja; pip install "recshuf[report]" brings it') from None
    environment = Environment(
        loader=PackageLoader("recshuf.audit.reports"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    html: str = environment.get_template("page.html").render(page=page, version=__version__)
    # File names that are no UTF-8 have no place in a page.
    return html.encode("utf-8", "backslashreplace").decode("utf-8")


def show_deviations(z: float) -> str:
    """Return a score in few letters.

    >>> show_deviations(-1.26), show_deviations(87205.4)
    ('-1.3', '+87,205')
    """
    return f"{z:+z,.{0 if abs(z) >= _MANY_DEVIATIONS else 1}f}"


def draw_panels(heading: str, panels: Sequence[Panel], key: Key) -> Pictures:
    """Return panels as a part of a page.

    Raises
    ------
    UsageError
        Pillow is not installed.
    """
    caption = describe_panels(panels)
    shown = [panel.values[sample_places(panel.values.size)] for panel in panels]
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
    """Return a panel as a picture; `alt` says in words what it shows.

    Raises
    ------
    UsageError
        Pillow is not installed.
    """
    png = base64.b64encode(encode_png(paint_panel(panel, key, side))).decode()
    return Picture(png, panel.title, alt)
