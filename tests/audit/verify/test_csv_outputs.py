"""Outputs of CSV are read as their inputs are, even where they show too few records to find out how."""

from __future__ import annotations

from typing import TYPE_CHECKING

import recshuf

if TYPE_CHECKING:
    from pathlib import Path


def test_a_header_with_numbers_is_one_in_shards_without_records(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("year,2019\n1,5\n2,6\n")
    recshuf.shuffle(tmp_path / "in.csv", f"{tmp_path}/out/", shards=5, verify=True)
    assert recshuf.verify(tmp_path / "in.csv", tmp_path / "out").is_equal


def test_a_header_with_numbers_is_one_in_an_empty_sample(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("year,2019\n1,5\n2,6\n")
    recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out.csv", head_count=0, verify=True)
    assert (tmp_path / "out.csv").read_text() == "year,2019\n"


def test_the_delimiter_of_the_inputs_is_that_of_the_output(tmp_path: Path) -> None:
    records = ["1;x\n"] * 100 + [
        '1;x,y,"\n'
    ] * 2000  # alone, the last ones seem to have commas between fields
    (tmp_path / "in.csv").write_text("id;a,b,c\n" + "".join(records))
    recshuf.shuffle(tmp_path / "in.csv", tmp_path / "out.csv", seed=1, head_count=1, verify=True)
    assert (tmp_path / "out.csv").read_text() == 'id;a,b,c\n1;x,y,"\n'
