"""The sample set: the same every time, sorted by label, and shown as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from recshuf.sample import LABELS, ROWS_PER_LABEL, main, make_sample

if TYPE_CHECKING:
    from pathlib import Path


def run_sample(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def read_all(paths: list[Path]) -> pa.Table:
    return pa.concat_tables([pq.ParquetFile(path).read() for path in paths])


def test_set_is_sorted_by_label_and_numbered(tmp_path: Path):
    table = read_all(make_sample(tmp_path))
    labels = table["label"].to_numpy()
    assert (labels[:-1] <= labels[1:]).all()
    assert table["id"].to_numpy().tolist() == [*range(len(LABELS) * ROWS_PER_LABEL)]
    assert len(set(table["text"].to_pylist())) == table.num_rows
    scores = table["score"].to_numpy()
    assert scores.min() >= 0
    assert scores.max() < 1
    assert len(np.unique(scores)) == len(scores)


def test_set_is_the_same_every_time_also_over_an_old_one(tmp_path: Path):
    first = [path.read_bytes() for path in make_sample(tmp_path / "a" / "b")]
    assert [path.read_bytes() for path in make_sample(tmp_path / "c")] == first
    assert [path.read_bytes() for path in make_sample(tmp_path / "c")] == first


def test_show_tells_sorted_from_mixed(tmp_path: Path):
    sorted_folder, mixed_folder = tmp_path / "sorted", tmp_path / "mixed"
    for folder, labels in ((sorted_folder, ["ape"] * 60 + ["bee"] * 60), (mixed_folder, ["ape", "bee"] * 60)):
        folder.mkdir()
        # 120 rows and 60 letters: every second row is shown, so that the second folder shows apes alone.
        pq.write_table(pa.table({"label": labels}), folder / "one.parquet")
    shown = run_sample("--show", sorted_folder, mixed_folder)
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.output.splitlines() if "one.parquet" in line]
    assert lines[0] == ["one.parquet", "a" * 30 + "b" * 30, "ape", "60", "bee", "60"]
    assert lines[1] == ["one.parquet", "a" * 60, "ape", "60", "bee", "60"]


@pytest.mark.parametrize("count", [0, 1, 7])
def test_show_takes_files_of_few_rows(tmp_path: Path, count: int):
    pq.write_table(pa.table({"label": pa.array(["ape"] * count, pa.string())}), tmp_path / "one.parquet")
    shown = run_sample("--show", tmp_path)
    assert shown.exit_code == 0
    assert "a" * count in shown.output.splitlines()[1].split("parquet")[1]


def test_show_of_a_folder_without_files_says_what_to_do(tmp_path: Path):
    shown = run_sample("--show", tmp_path)
    assert shown.exit_code == 1
    assert str(tmp_path) in shown.output
    assert "python -m recshuf.sample" in shown.output


def test_command_makes_the_set(tmp_path: Path):
    made = run_sample(tmp_path / "new")
    assert made.exit_code == 0
    assert len(list((tmp_path / "new").glob("*.parquet"))) == len(LABELS)
