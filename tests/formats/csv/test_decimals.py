"""A number that the decimal of the schema does not hold is refused with record and column; written ones have all digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recshuf.errors import ConversionError, InputError
from recshuf.formats.csv import FORMAT
from recshuf.formats.csv.encoding import encode_records
from recshuf.interfaces import ReadOptions
from tests.support.formats.decimal_tools import KINDS, make_decimals
from tests.support.formats.format_tools import place_batches
from tests.support.formats.line_tools import give, same_folder

if TYPE_CHECKING:
    from pathlib import Path


def decode(folder: Path, values: list[str], kind: pa.DataType) -> pa.RecordBatch:
    """Return records of text and a decimal."""
    file = give(folder / "in.csv", "".join(f"k,{value}\n" for value in values).encode())
    schema = pa.schema([("f0", pa.string()), ("f1", kind)])
    source = FORMAT.open_source([file], ReadOptions(delimiter=b",", header_lines=0, schema=schema))
    decoder = source.decoder()
    ((batch, *place),) = place_batches(source, 1 << 20)
    decoder.observe(batch, *place)
    return decoder.decode(batch)


@same_folder
@given(
    st.sampled_from(KINDS),
    st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-(10**5), 10**5),
    st.booleans(),
)
def test_whole_numbers_fit_or_are_refused(
    tmp_path: Path, kind: pa.DataType, number: int, is_padded: bool
) -> None:
    values = ["0", "", f" {number}\t" if is_padded else f"{number}"]
    if abs(number) * 10**kind.scale < 10**kind.precision:
        batch = decode(tmp_path, values, kind)
        assert batch.schema.field(1).type == kind
        assert batch.column(1).to_pylist() == [0, None, number]
    else:
        with pytest.raises(InputError, match=r"record 3: column 'f1'.*without --schema"):
            decode(tmp_path, values, kind)


@pytest.mark.parametrize("kind", [pa.decimal128(3, -2), pa.decimal128(38, -20)], ids=str)
def test_decimals_of_a_negative_scale_are_written_with_all_digits(tmp_path: Path, kind: pa.DataType) -> None:
    array = make_decimals([123, -4, 0], kind)
    for given_array in (array, array.dictionary_encode()):
        records = encode_records(pa.record_batch({"a": given_array}), b",").to_pylist()
        assert decode(tmp_path, [record.decode().strip() for record in records], kind).column(1).equals(array)
        assert b"E" not in b"".join(records)


def test_decimals_of_too_many_digits_are_refused() -> None:
    with pytest.raises(ConversionError, match=r"'a'.*78 digits"):
        encode_records(pa.record_batch({"a": make_decimals([1], pa.decimal128(38, -40))}), b",")
