"""A page of text, pictures and tables as one HTML file that loads nothing."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, NamedTuple

from recshuf.audit.reports.picture import (
    SIDE,
    describe_panels,
    encode_png,
    load_pillow,
    paint_panel,
    sample_rows,
)
from recshuf.errors import UsageError
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.audit.reports.picture import Entry, Key, Panel


_MANY_DEVIATIONS = 100
"""From here fractions of a deviation are not shown."""


class Picture(NamedTuple):
    """A picture as base64 of a PNG."""

    png: str
    name: str
    alt: str


class Pictures(NamedTuple):
    """Pictures side by side, with one legend."""

    heading: str
    pictures: tuple[Picture, ...]
    subject: str
    """What the colours show of a record."""
    legend: tuple[Entry, ...]
    caption: str


class Row(NamedTuple):
    """A row of a table; the first cell names it."""

    cells: tuple[str, ...]
    is_flagged: bool = False
    note: str = ""
    """A sentence below its cells."""


class Table(NamedTuple):
    """A table; it scrolls if it is wider than the page."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    summary: str = ""
    """The text of a folded table. Empty: the table is shown."""
    has_numbers: bool = False
    """Whether all columns but the first hold numbers."""
    names_files: bool = False
    """Whether the first column holds paths, whose lines may break at any letter."""


class Text(NamedTuple):
    """Long preformatted text, folded."""

    heading: str
    summary: str
    text: str


class Cell(NamedTuple):
    """A small picture with lines of text."""

    picture: Picture
    lines: tuple[str, ...]
    is_flagged: bool


class Grid(NamedTuple):
    """Small pictures in rows and columns."""

    heading: str
    text: str
    source: str
    columns: tuple[str, ...]
    """Their names; one empty name for a single column."""
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    """The name of each row, as for columns, and its cells."""
    figures: Table


Part = Pictures | Table | Text | Grid


def render_page(
    title: str, parts: Sequence[Part], notes: Sequence[str] = (), verdict: str = "", mood: str = ""
) -> str:
    """Return a page; its `mood` is ``good``, ``bad`` or empty: the colour of the verdict."""
    jinja = _load_jinja()
    environment = jinja.Environment(
        loader=jinja.PackageLoader("recshuf.audit.reports"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html: str = environment.get_template("page.html").render(
        title=title,
        parts=[(type(part).__name__.lower(), part) for part in parts],
        notes=notes,
        verdict=verdict,
        mood=mood,
        version=__version__,
    )
    # A page cannot hold file names that are not UTF-8.
    return html.encode("utf-8", "backslashreplace").decode("utf-8")


def check_libraries() -> None:
    """Refuse a page for which a library is missing, before its data is read."""
    load_pillow()
    _load_jinja()


def _load_jinja() -> Any:
    try:
        import jinja2
    except ImportError:
        raise UsageError("a page takes Jinja; install recshuf[report]") from None
    return jinja2


def show_deviations(z: float) -> str:
    """Return a number of deviations in few letters.

    >>> show_deviations(-1.26), show_deviations(87205.4)
    ('-1.3', '+87,205')
    """
    return f"{z:+z,.{0 if abs(z) >= _MANY_DEVIATIONS else 1}f}"


def draw_panels(heading: str, panels: Sequence[Panel], key: Key) -> Pictures:
    caption = describe_panels(panels)
    about = f"{key.subject} of each record, as a colour. {caption}"
    pictures = tuple(draw_square(panel, key, f"{panel.title or heading}: {about}") for panel in panels)
    legend = key.list_entries([panel.values[sample_rows(panel.values.size)] for panel in panels])
    return Pictures(heading, pictures, key.subject, tuple(legend), caption)


def draw_square(panel: Panel, key: Key, alt: str, side: int = SIDE) -> Picture:
    """Return a panel as a picture; `alt` is its alternative text."""
    png = base64.b64encode(encode_png(paint_panel(panel, key, side))).decode()
    return Picture(png, panel.title, alt)
