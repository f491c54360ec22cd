"""Pictures show each record in its colour at its position on the curve, say what is shown, and have a full legend."""

from __future__ import annotations

import io
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recshuf.audit.reports.captions import BORDER, PAPER, Style
from recshuf.audit.reports.colors import (
    GREY,
    LABEL_COLOURS,
    OKLAB_TO_ROOTS,
    RAMP_STEPS,
    ROOTS_TO_LINEAR,
    Entry,
    Labels,
    Ramp,
    convert_oklab,
    make_ramp,
    trace_ramp,
)
from recshuf.audit.reports.picture import (
    Panel,
    describe_panels,
    draw_picture,
    encode_png,
    paint_panel,
    sample_rows,
    trace_curve,
)
from recshuf.errors import UsageError

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


def see(colours):
    """Return OKLab coordinates of rows of sRGB."""
    bright = np.asarray(colours) / 255
    linear = np.where(bright <= 0.04045, bright / 12.92, ((bright + 0.055) / 1.055) ** 2.4)
    roots = np.cbrt(linear @ np.linalg.inv(ROOTS_TO_LINEAR).T)
    return roots @ np.linalg.inv(OKLAB_TO_ROOTS).T


def see_without_green(colours):
    """Return what is left of OKLab without cones for green: lightness, and blue against yellow."""
    return see(colours)[:, [0, 2]]


# Colours


def test_the_ramp_gets_lighter_in_steps_that_look_even():
    seen = see(make_ramp())
    assert len(seen) == RAMP_STEPS
    assert np.all(np.diff(seen[:, 0]) > 0)
    # Steps of 8 bits are rough, so four are compared at a time.
    steps = np.linalg.norm(seen[4:] - seen[:-4], axis=1)
    assert steps.max() < 1.4 * steps.min()


def test_the_ramp_lies_within_what_a_screen_shows():
    colours = convert_oklab(trace_ramp(1000))
    assert colours.min() >= -0.001
    assert colours.max() <= 1.001


def test_labels_grey_and_paper_differ_without_seeing_green():
    seen = see_without_green([*LABEL_COLOURS, GREY, PAPER])
    distances = np.linalg.norm(seen[:, np.newaxis] - seen, axis=2)
    assert distances[np.triu_indices(len(seen), 1)].min() > 0.05


def test_the_ends_of_the_ramp_are_first_and_last():
    assert np.array_equal(Ramp().paint(np.array([0.0, 1.0])), make_ramp()[[0, -1]])


def test_a_missing_value_is_grey():
    assert Ramp().paint(np.array([np.nan])).tolist() == [GREY.tolist()]


def test_the_most_frequent_labels_have_colours():
    key = Labels([f"label {code}" for code in range(10)], [1, *range(100, 108), 1])
    colours = key.paint(np.arange(10))
    assert np.array_equal(colours, [GREY, *LABEL_COLOURS, GREY])
    names = [entry.ends for entry in key.list_entries([np.arange(10)])]
    assert names == [(f"label {code}",) for code in range(1, 9)] + [("2 others",)]


def test_a_single_other_label_is_one_other():
    assert Labels(list("abcdefghi"), [1] * 9).list_entries([])[-1].ends == ("1 other",)


def test_each_label_has_its_own_colour_where_there_are_enough():
    colours = Labels(list("abcdefgh"), [1] * 8).paint(np.arange(8))
    assert len(np.unique(colours, axis=0)) == 8


@pytest.mark.parametrize(
    ("key", "value"), [(Ramp(), -0.1), (Ramp(), 1.1), (Ramp(), np.inf), (PETS, -1), (PETS, 2)]
)
def test_a_value_without_a_colour_is_refused(key, value):
    with pytest.raises(UsageError, match="for a picture must be"):
        paint_panel(make_panel([0, value, 1]), key, SIDE)


# Panels


@pytest.mark.parametrize("position", [0, 1, 700, 4095])
def test_a_record_has_its_colour_at_its_position_on_the_curve(position):
    values = np.zeros(SIDE * SIDE, np.int64)
    values[position] = 1
    pixels = paint_panel(make_panel(values), PETS, SIDE)
    rows, columns = trace_curve(6)
    assert np.argwhere((pixels == LABEL_COLOURS[1]).all(axis=-1)).tolist() == [
        [rows[position], columns[position]]
    ]
    assert count_pixels(pixels, LABEL_COLOURS[0]) == SIDE * SIDE - 1


def test_sorted_data_runs_along_the_curve():
    pixels = paint_panel(make_panel(np.linspace(0, 1, SIDE * SIDE)), Ramp(), SIDE)
    along = pixels[trace_curve(6)]
    assert np.array_equal(along, make_ramp()[np.arange(SIDE * SIDE) * RAMP_STEPS // (SIDE * SIDE)])


def test_few_records_fill_the_square_in_their_order():
    pixels = paint_panel(make_panel([0, 0, 1, 0]), PETS, SIDE)
    assert np.all(pixels[SIDE // 2 :, SIDE // 2 :] == LABEL_COLOURS[1])
    assert count_pixels(pixels, LABEL_COLOURS[1]) == SIDE * SIDE // 4


@given(st.integers(1, 300))
def test_every_one_of_few_records_is_shown_in_its_order(record_count):
    values = np.linspace(0, 1, record_count)
    along = paint_panel(make_panel(values), Ramp(), 16)[trace_curve(4)]
    shown = sample_rows(record_count, 16)
    lightness = see(along)[:, 0]
    assert np.all(np.diff(lightness) >= 0)
    assert len(np.unique(along, axis=0)) == len(np.unique(Ramp().paint(values[shown]), axis=0))


def test_no_records_leave_a_blank_square():
    assert count_pixels(paint_panel(make_panel(np.array([])), Ramp(), SIDE), PAPER) == SIDE * SIDE


@pytest.mark.parametrize("side", [0, -64, 100])
def test_a_side_that_is_no_power_of_two_is_refused(side):
    with pytest.raises(UsageError, match="power of two"):
        paint_panel(make_panel([0]), PETS, side)


@given(st.integers(0, 10**12), st.integers(0, 5))
def test_samples_hold_one_record_of_each_stretch(record_count, level):
    side = 1 << level
    rows = sample_rows(record_count, side)
    assert rows.size == min(record_count, side * side)
    cells = np.arange(rows.size)
    if rows.size:
        assert np.all(cells * record_count // rows.size <= rows)
        assert np.all(rows < (cells + 1) * record_count // rows.size)


def test_a_sample_shows_as_all_records_do():
    values = np.random.default_rng(0).random(100_000)
    sample = make_panel(values[sample_rows(values.size, SIDE)], record_count=values.size)
    assert np.array_equal(paint_panel(sample, Ramp(), SIDE), paint_panel(make_panel(values), Ramp(), SIDE))


def test_records_that_take_turns_are_sampled_from_all_of_them():
    turns = np.arange(8 * SIDE * SIDE) % 8
    shown = np.bincount(turns[sample_rows(turns.size, SIDE)], minlength=8)
    assert shown.min() > 0.8 * SIDE * SIDE / 8


# Captions


def test_the_caption_says_that_all_are_shown():
    panels = [make_panel(np.zeros(4096)), make_panel(np.zeros(4096), "after")]
    assert describe_panels(panels, SIDE).endswith(" All 4,096 records shown.")


def test_the_caption_says_how_many_of_how_many_are_shown():
    assert describe_panels([make_panel(np.zeros(5000))], SIDE).endswith(
        " 4,096 of 5,000 records shown, evenly spread."
    )


def test_the_caption_tells_panels_with_different_counts_apart():
    panels = [make_panel(np.zeros(10)), make_panel(np.zeros(4096), "after", 10**9)]
    caption = describe_panels(panels, SIDE)
    assert "before: all 10 records shown. after: 4,096 of 1,000,000,000 records shown" in caption


# Pictures


def find_panels(picture, side, panel_count):
    """Return where the panels are: their tops and lefts, found by what is on no other row or column."""
    is_cat = (picture == LABEL_COLOURS[0]).all(axis=-1)
    rows = np.flatnonzero(is_cat.sum(axis=1) == panel_count * side)
    columns = np.flatnonzero(is_cat.sum(axis=0) >= side)
    return rows, columns


@needs_pillow
@pytest.mark.parametrize("panel_count", [1, 2, 3])
@pytest.mark.parametrize("side", [128, 512])
def test_the_panels_stand_side_by_side(panel_count, side):
    panels = [make_panel([0, 0], f"panel {number}") for number in range(panel_count)]
    picture = draw_picture(panels, PETS, "Pets", side)
    rows, columns = find_panels(picture, side, panel_count)
    assert rows.tolist() == list(range(rows[0], rows[0] + side))
    assert columns.size == panel_count * side
    assert np.count_nonzero(np.diff(columns) > 1) == panel_count - 1
    assert picture.shape[1] == columns[-1] + 1 + columns[0]


@needs_pillow
def test_a_picture_holds_its_panels_pixel_by_pixel():
    after = make_panel([0, 1, 1, 0], "after")
    picture = draw_picture([make_panel([0, 0, 1, 1]), after], PETS, "Pets", 128)
    square = paint_panel(after, PETS, 128)
    windows = np.lib.stride_tricks.sliding_window_view(picture, (128, 128, 3))[:, :, 0]
    starts = np.argwhere((windows[:, :, 0, 0] == square[0, 0]).all(axis=-1))
    assert sum(np.array_equal(windows[row, column], square) for row, column in starts) == 1


@needs_pillow
def test_a_note_stands_below_its_panel():
    plain, noted = (
        draw_picture([make_panel([0, 0]), Panel("after", np.array([0, 0]), 2, note)], PETS, "Pets", 128)
        for note in ("", "a note")
    )
    assert len(noted) > len(plain)
    (end, *_), (noted_end, *_) = (find_panels(picture, 128, 2)[0][::-1] for picture in (plain, noted))
    assert noted_end == end
    strip = noted[noted_end + 1 : noted_end + 1 + len(noted) - len(plain)]
    is_ink = (strip < 128).all(axis=-1)
    assert not is_ink[:, : strip.shape[1] // 2].any()
    assert is_ink.any()


@needs_pillow
def test_the_legend_has_the_colours_of_labels_that_no_panel_shows():
    picture = draw_picture([make_panel([0, 0])], PETS, "Pets", 128)
    assert count_pixels(picture, LABEL_COLOURS[1]) >= 15 * 15


@needs_pillow
def test_the_legend_has_the_whole_ramp():
    picture = draw_picture([make_panel([0.5])], Ramp(), "Halves", 256)
    assert all(count_pixels(picture, colour) >= 15 for colour in make_ramp())


@needs_pillow
def test_the_legend_of_missing_values_is_there_only_with_them():
    whole, broken = (draw_picture([make_panel([0.5, last])], Ramp(), "Halves", 128) for last in (1, np.nan))
    assert count_pixels(whole, GREY) == 0
    assert count_pixels(broken, GREY) >= 128 * 128 // 2 + 15 * 15


@needs_pillow
def test_text_is_drawn_and_wrapped():
    short, long = (draw_picture([make_panel([0])], PETS, "word " * count, 128) for count in (2, 40))
    assert long.shape[1] == short.shape[1]
    assert long.shape[0] > short.shape[0] + 100
    assert not np.array_equal(
        draw_picture([make_panel([0], "before")], PETS, "Pets", 128),
        draw_picture([make_panel([0], "after")], PETS, "Pets", 128),
    )


@needs_pillow
def test_long_and_foreign_names_stay_inside():
    names = ["a name that does not end " * 20, "\u732b\n\t\0", "", "caf\u00e9"]
    picture = draw_picture([make_panel([0, 1, 2, 3], names[0])], Labels(names, [1] * 4), names[0], 128)
    assert picture.shape[1] == 128 + 2 * 16
    assert np.all(picture[1:-1, 1:16] == PAPER)
    assert np.all(picture[1:-1, -16:-1] == PAPER)
    assert all(count_pixels(picture, colour) >= 15 * 15 for colour in LABEL_COLOURS[:4])


@needs_pillow
def test_a_name_is_cut_where_its_room_ends():
    style = Style(1, 128)
    whole, cut = (style.draw_legend("a", [Entry(GREY[np.newaxis], ("name " * count,))]) for count in (2, 40))
    assert cut.shape == whole.shape
    assert np.all(cut[:, -10:] == PAPER)


@needs_pillow
def test_a_picture_has_a_border_for_dark_pages():
    picture = draw_picture([make_panel([0])], PETS, "Pets", 128)
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert np.all(edge == BORDER)


@needs_pillow
def test_a_picture_without_panels_is_refused():
    with pytest.raises(UsageError, match="at least one panel"):
        draw_picture([], PETS, "Pets")


# Files


@needs_pillow
@pytest.mark.parametrize("colour_count", [1, 2, 256, 257, 4000])
def test_a_file_holds_the_same_pixels(colour_count):
    codes = np.random.default_rng(0).integers(0, 1 << 24, colour_count)
    pixels = (np.resize(codes, (64, 80))[:, :, np.newaxis] >> np.array([16, 8, 0]) & 255).astype(np.uint8)
    assert np.array_equal(read_png(encode_png(pixels)), pixels)


@needs_pillow
@pytest.mark.parametrize("key", [Ramp(), Labels([f"label {code}" for code in range(20)], range(20))])
def test_a_whole_picture_needs_no_more_than_a_palette(key):
    values = np.linspace(0, 1, 4096) if isinstance(key, Ramp) else np.arange(4096) % 20
    picture = draw_picture(
        [make_panel(values), make_panel(values, "after")], key, "Colours of all kinds", 256
    )
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) <= 256


@needs_pillow
def test_the_same_picture_is_the_same_bytes():
    values = np.random.default_rng(0).random(10_000)
    files = [encode_png(draw_picture([make_panel(values.copy())], Ramp(), "Twice", 128)) for _ in range(2)]
    assert files[0] == files[1]


def test_without_pillow_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"install recshuf\[report\]"):
        encode_png(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(UsageError, match=r"install recshuf\[report\]"):
        draw_picture([make_panel([0])], PETS, "Pets")
    assert paint_panel(make_panel([0]), PETS, SIDE).shape == (SIDE, SIDE, 3)


def test_pillow_is_not_loaded_before_it_is_needed():
    program = "import sys, recshuf.cli.main, recshuf.audit.reports.picture; sys.exit('PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
