"""Decimals with more digits than Parquet has room for are refused by name; they became other numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, UsageError
from recshuf.formats.parquet import FORMAT
from recshuf.interfaces import WriteOptions
from tests.support.formats.decimal_tools import make_decimals

if TYPE_CHECKING:
    from pathlib import Path

WRONG = make_decimals([100, 9_999_900], pa.decimal128(5, 2))
FORMS = {
    "plain": WRONG,
    "list": pa.ListArray.from_arrays([0, 0, 2], WRONG),
    "struct": pa.StructArray.from_arrays([WRONG], ["d"]),
    "ordered": pa.DictionaryArray.from_arrays(pa.array([0, 1]), WRONG, ordered=True),
}


@pytest.mark.parametrize("form", FORMS)
def test_surplus_digits_are_refused(tmp_path: Path, form: str) -> None:
    batch = pa.record_batch({"fine": ["x", "y"], "odd": FORMS[form]})
    target = FORMAT.open_target(batch.schema, None, WriteOptions())

    def write() -> None:
        with target.open(tmp_path / "out.parquet", 1) as sink:
            sink.write(batch)

    with pytest.raises(ConversionError, match=r"'odd': .*99999\.00 has more digits than decimal128.*; cast"):
        write()


def test_surplus_digits_of_an_input_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"odd": WRONG}), tmp_path / "in.parquet", store_decimal_as_integer=True)
    with pytest.raises(ConversionError, match=r"'odd'.*99999\.00"):
        recshuf.shuffle(tmp_path / "in.parquet", tmp_path / "out.parquet")
    recshuf.shuffle(tmp_path / "in.parquet", tmp_path / "out.jsonl")
    assert sorted((tmp_path / "out.jsonl").read_text().split()) == ['{"odd":1.00}', '{"odd":99999.00}']


def test_a_writer_refuses_surplus_digits(tmp_path: Path) -> None:
    with recshuf.PileWriter(tmp_path / "store", "a") as writer:
        with pytest.raises(UsageError, match=r"'odd'.*99999\.00 has more digits"):
            writer.write({"odd": WRONG})
        writer.write({"odd": WRONG[:1]})


@pytest.mark.parametrize("to", ["jsonl", "csv"])
@pytest.mark.parametrize("kind", [pa.decimal128(3, -2), pa.decimal128(30, -9)], ids=str)
def test_decimals_of_a_negative_scale_are_verified(tmp_path: Path, to: str, kind: pa.DataType) -> None:
    with recshuf.PileWriter(tmp_path / "store", "a") as writer:
        writer.write({"n": [1, 2, 3], "d": make_decimals([123, -4, 0], kind)})
    recshuf.gather(tmp_path / "store", tmp_path / f"out.{to}", to=to, verify=True)
    assert "E" not in (tmp_path / f"out.{to}").read_text()
