"""The check that goes by the columns of provenance alone: its order of files, its sample, and what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, UsageError


def test_input_files_are_ordered_by_name_in_whatever_order_they_are_met(tmp_path: Path):
    """Names are met in another order than theirs; records by name and row stand in order."""
    names = [f"{number % 3}.txt" for number in range(3000)]
    rows = pa.table({"source_file": names, "source_row": range(3000)})
    pq.write_table(
        rows.sort_by([("source_file", "descending"), ("source_row", "descending")]), tmp_path / "in.parquet"
    )
    scores = {
        one.name: one.statistic for one in recshuf.check(tmp_path / "in.parquet", provenance=True).scores
    }
    assert scores["inversions"] == 3000 * 2999 / 2


def test_a_sample_of_provenance_does_not_depend_on_the_order_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of two outputs of the same records the same ones are looked at, in whatever order the files are met."""
    monkeypatch.setattr("recshuf.audit.order.matching.MOST_SAMPLED", 3000)
    table = pa.table({"source_file": ["b"] * 5000 + ["a"] * 5000, "source_row": range(10_000)})
    kept = []
    for name, order in (("x", np.arange(10_000)), ("y", np.arange(10_000)[::-1])):
        pq.write_table(table.take(order), tmp_path / f"{name}.parquet")
        found = recshuf.check(tmp_path / f"{name}.parquet", provenance=True)
        assert found.share == 0.25
        kept.append(found.tested)
    assert kept[0] == kept[1]
    assert 2300 < kept[0] < 2700


REFUSED: list[tuple[str, dict[str, list[Any]]]] = [
    ("no column 'source_file'; it takes an output written with provenance=True", {"n": [1]}),
    ("no column 'source_row'", {"source_file": ["a"]}),
    ("must hold file names and row numbers", {"source_file": [1], "source_row": [1]}),
    ("must hold file names and row numbers", {"source_file": ["a"], "source_row": ["1"]}),
    ("must hold file names and row numbers", {"source_file": ["a", None], "source_row": [1, 2]}),
    ("must hold file names and row numbers", {"source_file": ["a", "b"], "source_row": [1, None]}),
    ("a value that is not a row number", {"source_file": ["a"], "source_row": [-1]}),
    ("a value that is not a row number", {"source_file": ["a"], "source_row": [1 << 42]}),
    ("row 7 of a is there more than once", {"source_file": ["a", "b", "a"], "source_row": [7, 7, 7]}),
    ("2 records are too few", {"source_file": ["a", "b"], "source_row": [7, 7]}),
]


def test_what_says_nothing_is_refused(tmp_path: Path):
    for words, columns in REFUSED:
        pq.write_table(pa.table(columns), tmp_path / "in.parquet")
        with pytest.raises(InputError if "more than once" in words else UsageError, match=words):
            recshuf.check(tmp_path / "in.parquet", provenance=True)
