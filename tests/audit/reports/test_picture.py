"""Pictures show each record in its colour at its position on the curve, say what is shown, and have a full legend."""

import io
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.audit.reports.picture import (
    GREY,
    LABEL_COLOURS,
    PAPER,
    RAMP,
    Labels,
    Panel,
    Ramp,
    describe_panels,
    draw_picture,
    encode_png,
    paint_panel,
    sample_rows,
    trace_curve,
)
from recshuf.errors import UsageError
from tests.support.effort import examples

needs_pillow = pytest.mark.skipif(find_spec("PIL") is None, reason="needs Pillow")

SIDE = 64
PETS = Labels(["cat", "dog"], [2, 2])


def make_panel(values, title="before", record_count=None):
    values = np.asarray(values)
    return Panel(title, values, values.size if record_count is None else record_count)


def read_png(data):
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def count_pixels(pixels, colour):
    return np.count_nonzero((pixels == np.asarray(colour)).all(axis=-1))


# Colours


def test_the_ends_of_the_ramp_are_first_and_last_and_a_missing_value_is_grey():
    painted = Ramp().paint(np.array([0.0, 1.0, np.nan]))
    assert np.array_equal(painted, [*RAMP[[0, -1]], GREY])


def test_the_most_frequent_labels_have_colours():
    key = Labels([f"label {code}" for code in range(10)], [1, *range(100, 108), 1])
    colours = key.paint(np.arange(10))
    assert np.array_equal(colours, [GREY, *LABEL_COLOURS, GREY])
    names = [entry.ends for entry in key.list_entries([np.arange(10)])]
    assert names == [(f"label {code}",) for code in range(1, 9)] + [("2 others",)]


# Panels


@pytest.mark.parametrize("level", [0, 1, 2, 5, 6])
def test_the_curve_fills_squares_in_squares_step_by_step(level):
    """Of curves that go from corner to corner along a side, Hilbert's alone."""
    rows, columns = trace_curve(level)
    assert np.array_equal(np.sort(rows << level | columns), np.arange(4**level))
    assert np.all(np.abs(np.diff(rows)) + np.abs(np.diff(columns)) == 1)
    assert (rows[0], columns[0], rows[-1], columns[-1]) == (0, 0, 0, 2**level - 1)
    for inner in range(level):
        for cells in (rows, columns):
            squares = cells.reshape(-1, 4**inner) >> inner
            assert (squares == squares[:, :1]).all()


@pytest.mark.parametrize("position", [0, 700, 4095])
def test_a_record_has_its_colour_at_its_position_on_the_curve(position):
    values = np.zeros(SIDE * SIDE, np.int64)
    values[position] = 1
    pixels = paint_panel(make_panel(values), PETS, SIDE)
    rows, columns = trace_curve(6)
    assert np.argwhere((pixels == LABEL_COLOURS[1]).all(axis=-1)).tolist() == [
        [rows[position], columns[position]]
    ]
    assert count_pixels(pixels, LABEL_COLOURS[0]) == SIDE * SIDE - 1


@settings(max_examples=examples(100))
@given(st.integers(1, 300))
def test_every_one_of_few_records_is_shown_in_its_order(record_count):
    values = np.linspace(0, 1, record_count)
    along = paint_panel(make_panel(values), Ramp(), 16)[trace_curve(4)]
    shown = sample_rows(record_count, 16)
    places = {tuple(colour): place for place, colour in enumerate(RAMP.tolist())}
    assert np.all(np.diff([places[tuple(colour)] for colour in along.tolist()]) >= 0)
    assert len(np.unique(along, axis=0)) == len(np.unique(Ramp().paint(values[shown]), axis=0))


@settings(max_examples=examples(100))
@given(st.integers(0, 10**12), st.integers(0, 5))
def test_samples_hold_one_record_of_each_stretch(record_count, level):
    side = 1 << level
    rows = sample_rows(record_count, side)
    assert rows.size == min(record_count, side * side)
    cells = np.arange(rows.size)
    if rows.size:
        assert np.all(cells * record_count // rows.size <= rows)
        assert np.all(rows < (cells + 1) * record_count // rows.size)


# Captions


def test_the_caption_says_how_many_of_how_many_are_shown():
    panels = [make_panel(np.zeros(4096)), make_panel(np.zeros(4096), "after")]
    assert describe_panels(panels, SIDE).endswith(" All 4,096 records shown.")
    some = describe_panels([make_panel(np.zeros(5000))], SIDE)
    assert some.endswith(" 4,096 of 5,000 records shown, evenly spread.")
    panels = [make_panel(np.zeros(10)), make_panel(np.zeros(4096), "after", 10**9)]
    caption = describe_panels(panels, SIDE)
    assert "before: all 10 records shown. after: 4,096 of 1,000,000,000 records shown" in caption


# Pictures


@needs_pillow
def test_a_picture_holds_its_panels_pixel_by_pixel():
    after = make_panel([0, 1, 1, 0], "after")
    picture = draw_picture([make_panel([0, 0, 1, 1]), after], PETS, "Pets", 128)
    square = paint_panel(after, PETS, 128)
    windows = np.lib.stride_tricks.sliding_window_view(picture, (128, 128, 3))[:, :, 0]
    starts = np.argwhere((windows[:, :, 0, 0] == square[0, 0]).all(axis=-1))
    assert sum(np.array_equal(windows[row, column], square) for row, column in starts) == 1


@needs_pillow
def test_the_legend_has_the_whole_ramp():
    picture = draw_picture([make_panel([0.5])], Ramp(), "Halves", 256).reshape(-1, 3)
    colours, counts = np.unique(picture, axis=0, return_counts=True)
    shown = dict(zip(map(tuple, colours.tolist()), counts.tolist(), strict=True))
    assert all(shown.get(tuple(colour), 0) >= 15 for colour in RAMP.tolist())


@needs_pillow
def test_long_and_foreign_names_stay_inside():
    names = ["a name that does not end " * 20, "\u732b\n\t\0", "", "caf\u00e9"]
    picture = draw_picture([make_panel([0, 1, 2, 3], names[0])], Labels(names, [1] * 4), names[0], 128)
    assert picture.shape[1] == 128 + 2 * 16
    assert np.all(picture[1:-1, 1:16] == PAPER)
    assert np.all(picture[1:-1, -16:-1] == PAPER)
    assert all(count_pixels(picture, colour) >= 15 * 15 for colour in LABEL_COLOURS[:4])


# Files


@needs_pillow
@pytest.mark.parametrize("colour_count", [1, 256, 257, 4000])
def test_a_file_holds_the_same_pixels(colour_count):
    codes = np.random.default_rng(0).integers(0, 1 << 24, colour_count)
    pixels = (np.resize(codes, (64, 80))[:, :, np.newaxis] >> np.array([16, 8, 0]) & 255).astype(np.uint8)
    assert np.array_equal(read_png(encode_png(pixels)), pixels)


def test_without_pillow_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"install recshuf\[report\]"):
        encode_png(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(UsageError, match=r"install recshuf\[report\]"):
        draw_picture([make_panel([0])], PETS, "Pets")
    assert paint_panel(make_panel([0]), PETS, SIDE).shape == (SIDE, SIDE, 3)


# Pictures of files: what is drawn beside what, and what is refused


@pytest.fixture(scope="module")
def sorted_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inputs") / "in.parquet"
    numbers = np.arange(4096)
    labels = np.array(["cat", "dog"])[numbers * 2 // 4096]
    pq.write_table(pa.table({"id": numbers, "label": labels, "list": [[1]] * 4096}), path)
    return path


@needs_pillow
def test_a_column_may_be_that_of_an_output_in_another_format_beside_the_inputs(
    tmp_path: Path, sorted_file: Path
):
    options = {
        "columns": "id,label",
        "format": "parquet",
        "to": "jsonl",
    }  # the name of the output does not tell
    recshuf.shuffle(sorted_file, tmp_path / "out", seed=1, **options)
    both = read_png(recshuf.picture(tmp_path / "out", against=sorted_file, column="label", **options))
    rows = slice(both.shape[0] // 3, both.shape[0] // 2)  # no text
    changes = [
        int((half[rows, 1:] != half[rows, :-1]).any(axis=2).sum()) for half in np.array_split(both, 2, axis=1)
    ]
    assert changes[1] > 5 * changes[0]


@needs_pillow
def test_each_record_has_the_colour_of_its_place_in_the_inputs(tmp_path: Path, sorted_file: Path):
    """The first quarter comes last, so that it is not at the left but at the right end of the curve."""
    order = np.roll(np.arange(4096), -4096 // 4)
    pq.write_table(pq.read_table(sorted_file).take(order), tmp_path / "out.parquet")
    picture = read_png(recshuf.picture(tmp_path / "out.parquet", against=sorted_file))
    before, after = np.array_split(picture.astype(np.int64) @ [1 << 16, 1 << 8, 1], 2, axis=1)
    first = RAMP.astype(np.int64)[: len(RAMP) // 4] @ [1 << 16, 1 << 8, 1]
    columns = [np.flatnonzero(np.isin(panel, first).sum(axis=0) > 100) for panel in (before, after)]
    assert columns[0].max() < before.shape[1] * 0.55
    assert columns[1].min() > after.shape[1] * 0.45


@needs_pillow
def test_what_cannot_be_drawn_is_refused(tmp_path: Path, sorted_file: Path):
    pq.write_table(pa.table({"label": pa.array([1.5] * 10)}), tmp_path / "out.parquet")
    for words, options in (
        (r"column=NAME, against=INPUT... or provenance=True", {}),
        ("have no order", {"column": "list"}),
        (
            "'label' is not the same before and after",
            {"column": "label", "against": tmp_path / "out.parquet"},
        ),
    ):
        with pytest.raises(UsageError, match=words):
            recshuf.picture(sorted_file, **options)
