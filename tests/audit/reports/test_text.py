"""Text of other origin stays on one line, with what a terminal would obey escaped."""

from __future__ import annotations

import pytest

from recshuf.audit.reports.text import one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", r"a\nb"),
        ("a\rb\x1b", r"a\rb\x1b"),
        ("é\udcff", r"é\xff"),
        ("\u2028", r"\u2028"),
        ("\ud800", r"\ud800"),
    ],
)
def test_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown
