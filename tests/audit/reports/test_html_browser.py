"""Pages in a browser: they load nothing, fit phones, screens and paper, and can be read by all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recshuf.api import checks, runs
from recshuf.audit.order.shufflers import use_buffer
from recshuf.audit.reports.gallery import render_gallery
from tests.support.pages.browser import Browser, BrowserError
from tests.support.pages.page_faults import (
    find_colour_faults,
    find_layout_faults,
    find_loading_faults,
    find_reading_faults,
    probe,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("PIL.Image", reason="pages take Pillow")
pytest.importorskip("jinja2", reason="pages take Jinja")

pytestmark = pytest.mark.slow
COUNT = 20_000
LONG_NAME = "part-00000-of-00002-" + "0123456789abcdef" * 6
PAPER_WIDTH = 718
"""Of A4 without the margins, in pixels of CSS."""

BAD_PAGE = """<!doctype html><html><meta name="viewport" content="width=device-width"><body>
<h1>one</h1><h3>three</h3><p style="color: #888; background: #777">pale</p>
<div style="width: 3000px">wide</div><p style="font-size: 6px">tiny</p><img src="http://127.0.0.1:9/x.png">
<div style="overflow-x: auto"><p style="width: 2000px; text-align: right">hidden away</p></div>
<table><tr><th>head</th></tr></table><table><tr><td>cell</td></tr></table>
<script>console.error("no good"); missing()</script></body></html>"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        started = Browser()
    except BrowserError as error:
        pytest.skip(f"pages are not tried: {error}")
    with started:
        yield started


@pytest.fixture(scope="module")
def pages(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    given, shuffled, buffered = (folder / name for name in ("in", "out", "buffered"))
    given.mkdir()
    numbers = np.arange(COUNT)
    labels = np.array(["cat & <mouse>", "dog", "a label that goes on and on and on"])[numbers * 3 // COUNT]
    table = pa.table({"id": numbers, "label": labels})
    for number, half in enumerate((table[: COUNT // 2], table[COUNT // 2 :])):
        pq.write_table(half, given / f"{number}-{LONG_NAME}.parquet")
    buffered.mkdir()
    pq.write_table(table.take(use_buffer(COUNT, 1)), buffered / "data.parquet")
    run = {"inputs": given, "output": f"{shuffled}/", "seed": 5, "shards": 3}
    done = runs.shuffle(**run)
    texts = {
        "run": checks.write_run(done, **run),
        "good": checks.write_check(shuffled, against=given)[1],
        "bad": checks.write_check(buffered, against=given)[1],
        "labels": checks.write_check(buffered, column="label")[1],
        "gallery": render_gallery(str, 2000),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(params=["run", "good", "bad", "labels", "gallery"])
def page(request: pytest.FixtureRequest, pages: dict[str, Path]) -> Path:
    return pages[request.param]


def test_a_page_loads_nothing_and_nobody_complains(browser: Browser, page: Path):
    browser.show(1200)
    browser.open(page)
    assert list(find_loading_faults(browser, page.as_uri())) == []
    assert len(browser.find_events("Network.requestWillBeSent")) > 1, "pictures are requests, too"


def test_a_page_may_not_load_anything(browser: Browser, page: Path):
    browser.show(1200)
    browser.open(page)
    refused = browser.evaluate(
        """new Promise(resolve => {
        document.addEventListener('securitypolicyviolation', event => resolve(event.blockedURI));
        const image = new Image(); image.onerror = () => setTimeout(resolve, 1000, 'nothing');
        image.src = 'http://127.0.0.1:9/x.png' })"""
    )
    assert refused == "http://127.0.0.1:9/x.png"


def test_a_page_fits_every_window_and_paper(browser: Browser, page: Path):
    for width in (320, 360, 800, 1200, 1920):
        browser.show(width)
        browser.open(page)
        assert list(find_layout_faults(browser, width)) == []
    browser.show(PAPER_WIDTH, is_dark=True, media="print")
    browser.open(page)
    browser.evaluate("document.querySelectorAll('details').forEach(folded => folded.open = true)")
    assert list(find_layout_faults(browser, PAPER_WIDTH)) == []
    assert list(find_colour_faults(browser, is_dark=False)) == []
    assert probe(browser)["paper"] == 1


def test_all_text_can_be_read_in_the_light_in_the_dark_and_aloud(browser: Browser, page: Path):
    for is_dark in (True, False):
        browser.show(800, is_dark=is_dark)
        browser.open(page)
        assert list(find_colour_faults(browser, is_dark=is_dark)) == []
    assert list(find_reading_faults(browser)) == []


def test_a_bad_page_does_not_pass(browser: Browser, tmp_path: Path):
    page = tmp_path / "page.html"
    page.write_text(BAD_PAGE)
    browser.show(360)
    browser.open(page)
    loading = "\n".join(find_loading_faults(browser, page.as_uri()))
    for fault in ("asks for http://127.0.0.1:9/x.png", "says ", "no good", "fails with Uncaught"):
        assert fault in loading
    layout = "\n".join(find_layout_faults(browser, 360))
    tiny = (
        "the page is ",
        "'tiny' is only 6 large",
        "a picture is not",
        "'hidden away' goes",
        "a div is wider",
    )
    for fault in tiny:
        assert fault in layout
    assert re.search("'pale' has a contrast of 1", "\n".join(find_colour_faults(browser, is_dark=False)))
    assert any("background" in fault for fault in find_colour_faults(browser, is_dark=True))
    reading = "\n".join(find_reading_faults(browser))
    unread = (
        "no language",
        "1 nameless",
        "1 unscoped",
        "1 headless",
        "1 unreached",
        "0 parts are main",
        "headings skip",
    )
    for fault in unread:
        assert fault in reading
