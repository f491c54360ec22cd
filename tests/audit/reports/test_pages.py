"""Pages: what is on them, that they hold together as HTML, and that they load nothing."""

import base64
import html.parser
import io
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recshuf.audit.order.shufflers import METHODS
from recshuf.audit.reports.pages import ROW, draw_method, draw_row
from recshuf.output.manifest import manifest_path
from tests.conftest import Run

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


pillow = pytest.importorskip("PIL.Image")
pytest.importorskip("jinja2")
COUNT = 5000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    numbers = np.arange(COUNT)
    labels = np.array(["cat & <mouse>", "dog"])[numbers * 2 // COUNT]
    pq.write_table(pa.table({"id": numbers, "label": labels}), folder / "in.parquet")
    return folder


def test_a_page_of_a_check_shows_findings_and_pictures(tmp_path: Path, inputs: Path, call: Run):
    done = call("check", inputs, "--column", "label", "--html", tmp_path / "page.html")
    assert done.returncode == 3
    assert done.stderr.startswith(f"recshuf: wrote {tmp_path / 'page.html'}, ".encode())
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert_self_contained(page)
    reader = Reader(page)
    assert any("is not in a uniformly random order" in text for text in reader.text)
    assert {"same-label", "blocks", "cat & <mouse>", "dog"} <= set(reader.text)
    (source,) = reader.values("img", "src")
    picture = pillow.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))
    assert picture.size == (512, 512)
    assert all("label of each record" in alt for alt in reader.values("img", "alt"))
    assert reader.values("html", "lang") == ["en"]
    assert reader.values("meta", "name") == ["viewport", "generator"]


def test_a_page_of_a_run_shows_plan_passes_and_order(tmp_path: Path, inputs: Path, call: Run):
    output = tmp_path / "out"
    done = call(
        inputs, "-o", f"{output}/", "--shards", 3, "--seed", 5, "--html", tmp_path / "page.html", "-q"
    )
    assert (done.returncode, done.stderr) == (0, b"")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert_self_contained(page)
    reader = Reader(page)
    assert any("looks uniformly random" in text for text in reader.text)
    shown = {
        "Plan and measurement",
        "scatter",
        "gather",
        "shard-00002.parquet",
        "before",
        "after",
    }
    assert shown <= set(reader.text)
    assert any(text.startswith("Too high: Parts of the input are still together") for text in reader.text)
    assert f"{COUNT:,} records written in 3 shards in" in page, "the seed is no headline"
    manifest, report = (json.loads(text) for text in reader.text if text.startswith("{"))
    assert manifest == json.loads(manifest_path(output).read_text(encoding="utf-8"))
    assert (report["records"], report["seed"], len(report["shards"])) == (COUNT, "5", 3)


def test_a_page_of_a_run_with_parts_tests_each_of_them(tmp_path: Path, inputs: Path, call: Run):
    reader = make_page(call, tmp_path, inputs, "-o", tmp_path / "out", "--seed", 5, "--split", "a=0.4,b=0.6")
    assert any("looks uniformly random" in text for text in reader.text)


def make_page(call: Run, folder: Path, *arguments: object) -> Reader:
    done = call(*arguments, "--html", folder / "page.html", "-q")
    assert (done.returncode, done.stderr) == (0, b"")
    return Reader((folder / "page.html").read_text(encoding="utf-8"))


def test_a_run_whose_order_cannot_be_tested_has_a_page_without_pictures(tmp_path: Path, call: Run):
    (tmp_path / "in.txt").write_bytes(b"1\n2\n")
    for output, reason in (("-", "cannot be read again"), (tmp_path / "out.txt", "2 records are too few")):
        reader = make_page(call, tmp_path, tmp_path / "in.txt", "-o", output, "--overwrite")
        assert any("the order was not tested: " in text and reason in text for text in reader.text)
        assert reader.values("img", "src") == []


def test_many_files_are_shown_when_asked_for(tmp_path: Path, call: Run):
    for number in range(60):
        (tmp_path / f"{number}.txt").write_bytes(b"%d\n" % number * 20)
    reader = make_page(call, tmp_path, *tmp_path.glob("*.txt"), "-o", tmp_path / "out/", "--shards", 2)
    assert "60 files" in reader.text
    assert "2 files" not in reader.text


def test_a_result_beside_a_page_lists_warnings(tmp_path: Path, inputs: Path, call: Run):
    call(inputs, "-o", f"{tmp_path / 'out'}/", "--group-by", "label", "-q")
    check = "check", tmp_path / "out", "--column", "id", "--json"
    alone, beside = (
        json.loads(call(*check, *page).stdout)["warnings"]
        for page in ((), ("--html", tmp_path / "page.html"))
    )
    assert beside == alone
    assert "its records are in groups by label" in alone[0]


# The gallery: every method with all its settings, and the scores that it is known for

pytest.importorskip("PIL")
QUICK = ("two passes", "strided chunks into buckets")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_grids_have_a_cell_for_each_setting_and_tell_exact_methods_from_others(name: str):
    method = METHODS[name]
    grid = draw_method(name, method, 20_000)
    sizes = [1, 1, *(len(values) for values in method.axes.values())]
    assert [len(grid.rows), len(grid.columns)] == sizes[-2:]
    assert all(len(cells) == len(grid.columns) for _, cells in grid.rows)
    cells = [cell for _, row in grid.rows for cell in row]
    assert any(cell.is_flagged for cell in cells) is not method.is_exact
    assert len({cell.picture.png for cell in cells}) > len(cells) // 2
    assert grid.figures is not None
    assert len(grid.figures.rows) == len(cells)
    assert all(len(row.cells[1].split(", ")) == 16 for row in grid.figures.rows)


def test_the_row_has_a_picture_of_each_method_and_ends_with_an_exact_one():
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(draw_row(20_000)))
    assert image.width > len(ROW) * 256
    is_exact = [METHODS[name].is_exact for name, _ in ROW.values()]
    assert is_exact == [False] * (len(ROW) - 1) + [True]
    assert all(settings.keys() <= METHODS[name].axes.keys() for name, settings in ROW.values())


def test_the_command_writes_a_page_and_a_picture_into_a_new_folder_or_leaves_none(
    tmp_path: Path, call: Run, monkeypatch: pytest.MonkeyPatch
):
    """Drawing all methods takes minutes."""
    monkeypatch.setattr("recshuf.audit.reports.pages.render_gallery", lambda say: "page")
    monkeypatch.setattr("recshuf.audit.reports.pages.draw_row", lambda: b"picture")
    assert call("gallery", "-o", tmp_path / "new").returncode == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert written == {"index.html": b"page", "row.png": b"picture"}
    monkeypatch.setattr("recshuf.audit.reports.pages.draw_row", None)
    assert call("gallery", "-o", tmp_path / "other").returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
