"""Pictures of files: what is drawn beside what, and what is refused."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.audit.reports.colors import LABEL_COLOURS, make_ramp
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

pillow = pytest.importorskip("PIL.Image")
COUNT = 4096


@pytest.fixture(scope="module")
def sorted_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inputs") / "in.parquet"
    numbers = np.arange(COUNT)
    labels = np.array(["cat", "dog"])[numbers * 2 // COUNT]
    pq.write_table(pa.table({"id": numbers, "label": labels, "list": [[1]] * COUNT}), path)
    return path


def read_png(content: bytes) -> NDArray[np.uint8]:
    return np.asarray(pillow.open(io.BytesIO(content)).convert("RGB"))


def count_colour(pixels: NDArray[np.uint8], colour: NDArray[np.uint8]) -> int:
    return int((pixels == colour).all(axis=2).sum())


def test_labels_have_as_many_pixels_as_records(sorted_file: Path):
    pixels = read_png(recshuf.picture(sorted_file, column="label"))
    for colour in LABEL_COLOURS[:2]:
        assert count_colour(pixels, colour) == pytest.approx(512 * 512 // 2, rel=0.01)  # and the legend


def test_a_column_may_be_that_of_an_output_in_another_format_beside_the_inputs(
    tmp_path: Path, sorted_file: Path
):
    recshuf.shuffle(sorted_file, tmp_path / "out.jsonl", seed=1, columns="id,label")
    both = read_png(
        recshuf.picture(tmp_path / "out.jsonl", against=sorted_file, column="label", columns="id,label")
    )
    rows = slice(both.shape[0] // 3, both.shape[0] // 2)  # no text
    changes = [
        int((half[rows, 1:] != half[rows, :-1]).any(axis=2).sum()) for half in np.array_split(both, 2, axis=1)
    ]
    assert changes[1] > 5 * changes[0]


def test_each_record_has_the_colour_of_its_place_in_the_inputs(tmp_path: Path, sorted_file: Path):
    """The first quarter comes last, so that it is not at the left but at the right end of the curve."""
    order = np.roll(np.arange(COUNT), -COUNT // 4)
    pq.write_table(pq.read_table(sorted_file).take(order), tmp_path / "out.parquet")
    picture = read_png(recshuf.picture(tmp_path / "out.parquet", against=sorted_file))
    before, after = np.array_split(picture.astype(np.int64) @ [1 << 16, 1 << 8, 1], 2, axis=1)
    first = make_ramp().astype(np.int64)[: len(make_ramp()) // 4] @ [1 << 16, 1 << 8, 1]
    columns = [np.flatnonzero(np.isin(panel, first).sum(axis=0) > 100) for panel in (before, after)]
    assert columns[0].max() < before.shape[1] * 0.55
    assert columns[1].min() > after.shape[1] * 0.45


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


def test_the_only_column_of_the_record_is_drawn(sorted_file: Path):
    expected = recshuf.picture(sorted_file, column="label", title="x")
    assert recshuf.picture(sorted_file, columns="label", title="x") == expected


def test_the_output_beside_its_inputs_is_read_in_its_own_format(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "in.jsonl").write_text("".join(f'{{"a":{number}}}\n' for number in range(100)))
    recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out", to="csv", seed=1)
    given = {"against": tmp_path / "in.jsonl", "column": "a"}
    assert recshuf.picture(tmp_path / "out", to="csv", **given).startswith(b"\x89PNG")
