"""The gallery: every method with all its settings, and the scores that it is known for."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from recshuf.audit.order.shufflers import METHODS
from recshuf.audit.reports.gallery import ROW, draw_method, draw_row

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run

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
    monkeypatch.setattr("recshuf.audit.reports.gallery.render_gallery", lambda say: "page")
    monkeypatch.setattr("recshuf.audit.reports.gallery.draw_row", lambda: b"picture")
    assert call("gallery", "-o", tmp_path / "new").returncode == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert written == {"index.html": b"page", "row.png": b"picture"}
    monkeypatch.setattr("recshuf.audit.reports.gallery.draw_row", None)
    assert call("gallery", "-o", tmp_path / "other").returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
