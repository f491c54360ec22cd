"""A strict reader of pages, and the check that they load nothing."""

from __future__ import annotations

import html.parser
import re

EMPTY = {"meta", "link", "img", "br", "hr"}


class Reader(html.parser.HTMLParser):
    """Reads a page strictly: what is opened is closed, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())

    def values(self, tag: str, name: str) -> list[str]:
        return [value for found, key, value in self.attributes if (found, key) == (tag, name)]


def assert_self_contained(page: str) -> None:
    """Raise if a browser would load anything for this page."""
    reader = Reader(page)
    for name in ("src", "href", "action", "data", "poster", "srcset"):
        for tag in {found for found, _, _ in reader.attributes}:
            assert all(value.startswith("data:") for value in reader.values(tag, name))
    assert "script" not in {tag for tag, _, _ in reader.attributes}
    assert not re.search(r"@import|url\((?!data:)|https?://", page)
