"""Types of CSV columns: the same however records are cut, and none that alters a whole number."""

import csv
import datetime
import io
import json
import math
from itertools import cycle, permutations, product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recshuf.errors import InputError, SchemaMismatch, UsageError
from recshuf.formats.csv import FORMAT
from recshuf.interfaces import InputFile
from tests.support.formats.decimal_tools import KINDS as DECIMAL_KINDS
from tests.support.formats.format_tools import decode_all, place_batches, reading_csv
from tests.support.formats.line_tools import give, same_folder
from tests.support.formats.parquet_tools import watched_memory

VALUES = ["", '""', "1", "-5", "0.5", "nan", "inf", "true", "False", "2020-01-01", "2020-01-01 10:00:00"]
VALUES += ["1000-01-01", "2020-01-01 10:00:00.5", "2020-01-01T10:00:00Z", "12:30:00", "x", "9007199254740993"]
VALUES += ["0x10", "nan(5)", "1e-400", "0", "0e-9", "-0.00"]
VALUES += ["12345678901234567890", "1e300", "1e400", " 7", "-9223372036854775808"]


def decode(
    folder: Path, values: list[str], block_bytes: int = 1 << 20, given: pa.DataType | None = None
) -> pa.Table:
    """Return the table form of a column; a second one keeps its records from being blank."""
    content = "".join(f"{value},k\n" for value in values)
    file = give(folder / "in.csv", content.encode())
    schema = None if given is None else pa.schema([("f0", given), ("f1", pa.string())])
    return decode_all(FORMAT.open_source([file], reading_csv(delimiter=b",", schema=schema)), block_bytes)


@same_folder
@given(st.lists(st.sampled_from(VALUES), min_size=1, max_size=8))
def test_types_do_not_depend_on_cuts(tmp_path: Path, values: list[str]) -> None:
    whole = decode(tmp_path, values)
    assert decode(tmp_path, values, block_bytes=1).equals(whole) or "nan" in values
    assert decode(tmp_path, values, block_bytes=1).schema == whole.schema


@same_folder
@given(
    st.lists(st.sampled_from(VALUES), max_size=4), st.lists(st.sampled_from(VALUES), min_size=1, max_size=4)
)
def test_the_types_of_the_first_records_hold_for_all_or_others_are_to_be_observed(
    tmp_path: Path, first: list[str], others: list[str]
) -> None:
    whole = decode(tmp_path, first + others)
    found = decode_by_prefix(tmp_path, first, others)
    assert found is None or found.schema == whole.schema
    assert found is None or found.equals(whole) or "nan" in first + others
    if first and {*others} <= {*first}:
        assert found is not None


def decode_by_prefix(folder: Path, *parts: list[str]) -> pa.Table | None:
    """Return the table form of a column of inputs, of which the first one tells the types; None if they do not hold for all."""
    files = [
        give(folder / f"{place}.csv", "".join(f"{value},k\n" for value in values).encode())
        for place, values in enumerate(parts)
    ]
    source = FORMAT.open_source(files, reading_csv(delimiter=b","))
    decoder = source.decoder()
    decoder.infer_from_prefix(1 - bool(parts[0]))
    placed = place_batches(source, 1 << 20)
    for one in placed:
        decoder.observe(*one)
    try:
        return pa.Table.from_batches([decoder.decode(batch) for batch, _, _ in placed], decoder.finish())
    except SchemaMismatch:
        return None


def merge_types(path: Path) -> pa.Schema:
    """Return the schema of what decoders of one record each say to another one."""
    source = FORMAT.open_source([InputFile(path.name, path)], reading_csv(delimiter=b","))
    merged = source.decoder()
    for placed in place_batches(source, 1):
        one = source.decoder()
        one.observe(*placed)
        merged.merge(json.loads(json.dumps(one.state())))
    return merged.finish()


@same_folder
@given(st.lists(st.sampled_from(VALUES) | st.text("xyz", max_size=30), min_size=1, max_size=50))
def test_a_table_takes_no_more_memory_than_is_planned(tmp_path: Path, values: list[str]) -> None:
    file = give(tmp_path / "in.csv", "".join(f"{value},1\n" for value in values).encode())
    source = FORMAT.open_source([file], reading_csv(delimiter=b","))
    ((batch, *place),) = place_batches(source, 1 << 20)
    decoder = source.decoder()
    decoder.observe(batch, *place)
    offset_of_the_end = 8
    most = decoder.table_bytes(len(values), batch.nbytes) + batch.num_columns * offset_of_the_end
    assert decoder.decode(batch).nbytes <= most


def test_records_under_many_headers_take_the_memory_of_a_table(tmp_path: Path) -> None:
    """Not that of a table for each header, most of whose columns are empty arrays."""
    files = [give(tmp_path / f"{index}.csv", f"id,c{index}\n{index},1\n".encode()) for index in range(120)]
    source = FORMAT.open_source(files, reading_csv(delimiter=b",", header=1))
    decoder = source.decoder()
    placed = place_batches(source, 1 << 20)
    for one in placed:
        decoder.observe(*one)
    decoder.finish()
    (batch,) = pa.Table.from_batches([batch for batch, _, _ in placed]).combine_chunks().to_batches()
    with watched_memory() as memory:
        assert decoder.decode(batch).num_rows == len(files)
    assert memory.max_memory() < 10 * decoder.table_bytes(len(files), batch.nbytes)


ALTERED = ["9007199254740993", "12345678901234567890", "-9007199254740993", "1e400", "9007199254740993.0"]
ALTERED += ["-12345678901234567890.25", "000123456789012345678.91", "1" + 77 * "0" + ".5"]
STAYS_TEXT = [
    *(["0.5", number, "", "2"] for number in ALTERED),
    *(["7", odd, "1"] for odd in ("0x10", "0X1F", "-0X1f", "nan(5)", "1e-400", "-0.1E-999")),
    *permutations(["1000-01-01 00:00:00", "2020-01-01 10:00:00.5"]),  # nanoseconds do not hold the first
]


def test_what_would_be_altered_or_is_text_to_others_stays_text(tmp_path: Path) -> None:
    """Observed together, one by one, or by a decoder for each record."""
    for texts in STAYS_TEXT:
        for block_bytes in (1, 1 << 20):
            found = decode(tmp_path, texts, block_bytes)["f0"].to_pylist()
            assert found == [text or None for text in texts]
        assert merge_types(tmp_path / "in.csv").field("f0").type == pa.string()


def test_values_are_those_of_their_texts(tmp_path: Path) -> None:
    assert decode(tmp_path, [], given=pa.int64()).schema.field("f0").type == pa.int64()
    day, moment = datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 10)
    for texts, values in (
        (["", '""', "a", '"a ""b"""'], [None, "", "a", 'a "b"']),
        (["true", "False", "", "TRUE", "false"], [True, False, None, True, False]),
        (["true", "1"], ["true", "1"]),
        (["2020-01-01", ""], [day, None]),
        (["2020-01-01", "2020-01-01 10:00:00"], [datetime.datetime(2020, 1, 1), moment]),
        (["2020-01-01T10:00:00Z"], [moment.replace(tzinfo=datetime.UTC)]),
        (["12:30:00"], [datetime.time(12, 30)]),
        (["1", "-5", ""], [1, -5, None]),
        (["1", "0.5"], [1.0, 0.5]),
        (["1", "x"], ["1", "x"]),
        (["NULL", "NA"], ["NULL", "NA"]),
        (["", ""], [None, None]),
    ):
        found = decode(tmp_path, texts)["f0"].to_pylist()
        assert [(type(one), one) for one in found] == [(type(one), one) for one in values], texts


def test_a_code_makes_its_column_text_behind_any_delimiter(tmp_path: Path) -> None:
    """In any column and row, also among many texts that begin like one."""
    cases = product(",\t; |x", ["0480", "+4", "-07", "00.5", '"0480"', '"+4"'])
    places = cycle(product(range(4), (0, 1, 50, 98, 99)))
    for (delimiter, code), (place, row) in zip(cases, places, strict=False):
        rows = [["2", "y", f"0{number}_Oak_Street", "2"] for number in range(100)]
        rows[row][0] = ""
        rows[row][place] = code
        file = give(tmp_path / "in.csv", "".join(delimiter.join(one) + "\n" for one in rows).encode())
        source = FORMAT.open_source([file], reading_csv(delimiter=delimiter.encode(), header=0))
        for column, found in enumerate(decode_all(source).to_pydict().values()):
            texts = [one[column].strip('"') or None for one in rows]
            is_number = column in {0, 3} - {place}
            assert found == ([text and int(text) for text in texts] if is_number else texts), (
                delimiter,
                code,
            )


@same_folder
@given(st.floats(-1e75, 1e75))
def test_doubles_that_programs_have_written_are_doubles(tmp_path: Path, number: float) -> None:
    texts = [repr(number), f"{number:.16e}", f"{number:.2f}"]
    assert decode(tmp_path, texts)["f0"].to_pylist() == [float(text) for text in texts]


SPECIAL = ["inf", "-Infinity", "nan(5)", "", "16777217.0", "9007199254740993.5", " 1e38 ", "1e-400", '"+7"']


def is_altered(text: str, kind: pa.DataType) -> bool:
    """Tell of a number whether a float of this type is infinite, or another whole number."""
    width = np.float32 if kind == pa.float32() else np.float64
    with np.errstate(over="ignore"):
        held = float(width(float(text)))
    return math.isinf(held) or ("." not in text and "e" not in text and int(text) != held)


@same_folder
@given(
    st.sampled_from([pa.float32(), pa.float64()]),
    st.lists(st.integers(-(10**50), 10**50) | st.integers(0, 60).map(lambda n: 2**n + 1), max_size=3),
    st.lists(st.sampled_from(["1e39", "-1e400", "1e999999", "1e300", "0e999", "1e22"]), max_size=2),
    st.lists(st.sampled_from(SPECIAL), max_size=2),
    st.sampled_from([1, 1 << 20]),
)
def test_a_given_float_refuses_what_it_would_alter(
    tmp_path: Path, kind: pa.DataType, integers: list[int], numbers: list[str], special: list[str], block: int
) -> None:
    special = ["0.1", *special]
    texts = [*special, *map(str, integers), *numbers]
    if not any(is_altered(text, kind) for text in texts[len(special) :]):
        assert len(decode(tmp_path, texts, block, kind)) == len(texts)
        return
    with pytest.raises(InputError, match=rf"column 'f0': .* float{kind.bit_width}") as caught:
        decode(tmp_path, texts, 1 << 20, kind)
    first = next(row for row in range(len(special), len(texts)) if is_altered(texts[row], kind))
    assert caught.value.place == f"record {first + 1}"


def test_a_type_that_cannot_be_read_is_refused_at_once(tmp_path: Path) -> None:
    for kind, instead in (
        (pa.float16(), "float32"),
        (pa.decimal256(40, 2), "decimal128"),
        (pa.list_(pa.int8()), "string"),
        (pa.struct([("a", pa.int8())]), "string"),
    ):
        problem = rf"^--schema: column 'f0': .* cannot be read from CSV; use {instead}$"
        with pytest.raises(UsageError, match=problem):
            decode(tmp_path, ["1"], given=kind)


@same_folder
@given(
    st.sampled_from(DECIMAL_KINDS),
    st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-(10**5), 10**5),
    st.booleans(),
)
def test_whole_numbers_fit_decimals_or_are_refused(
    tmp_path: Path, kind: pa.DataType, number: int, is_padded: bool
) -> None:
    values = ["0", "", f" {number}\t" if is_padded else f"{number}"]
    if abs(number) * 10**kind.scale < 10**kind.precision:
        assert decode(tmp_path, values, given=kind)["f0"].to_pylist() == [0, None, number]
    else:
        with pytest.raises(InputError, match=r"record 3: column 'f0'.*; .*, without --schema$"):
            decode(tmp_path, values, given=kind)


@same_folder
@given(
    st.lists(st.sampled_from(["b", '"c\r"', '"d\n"', "e\r", "f\r\r"]), min_size=1, max_size=3),
    st.lists(st.sampled_from(["1", "2", "x\ry", '"\r"']), max_size=3),
    st.sampled_from(["\n", "\r\n", "\r", "\r\r\n"]),
    st.booleans(),
)
def test_a_record_that_python_reads_is_read_or_the_input_refused(
    tmp_path: Path, names: list[str], values: list[str], end: str, ends: bool
) -> None:
    lines = ["a," + ",".join(names), *(",".join(["k", value, *names[1:]]) for value in values)]
    content = end.join(lines) + end * ends
    file = give(tmp_path / "in.csv", content.encode())
    wanted = [row for row in csv.reader(io.StringIO(content, newline="")) if row]
    try:
        source = FORMAT.open_source([file], reading_csv(header=None))
        decoder = source.decoder()
        found = [source.layout.header]  # type: ignore[attr-defined]
        for batch, index, row in place_batches(source, 1 << 20):
            decoder.observe(batch, index, row)
            found += batch["record"].to_pylist()
    except InputError as error:
        assert "carriage return" in str(error) or "columns are named" in str(error)
    else:
        assert len(found) == len(wanted)


def test_bad_records_are_set_aside_wherever_they_are_and_the_others_decoded(tmp_path: Path) -> None:
    rows = [b"%d,%s\n" % (row, b"x" * 90) for row in range(60_000)]  # several pieces of a batch
    problems = {3: b"1\n", 4: b"a\rb,c\n", 30_001: b"1,2,3\n", 30_002: b"1\r\n", 59_999: b"1,\r2\n"}
    for row, record in problems.items():
        rows[row] = record
    file = give(tmp_path / "in.csv", b"".join(rows))
    source = FORMAT.open_source([file], reading_csv(delimiter=b",", sets_bad_aside=True))
    decoder = source.decoder()
    [(batch, index, _)] = place_batches(source, 1 << 30)
    bad = decoder.observe(batch, index, 1000)
    assert bad is not None
    counts = {3: "1 field", 30_001: "3 fields", 30_002: "1 field"}
    expected = [
        f"has {counts[row]}, and the first record has 2"
        if row in counts
        else "holds a carriage return outside of quotes"
        for row in problems
    ]
    assert (bad.index.tolist(), bad.reasons) == ([*problems], expected)
    good = [row for row in range(60_000) if row not in problems]
    assert decoder.decode(batch.take(pa.array(good)))["f0"].to_pylist() == good
    strict = FORMAT.open_source([file], reading_csv(delimiter=b",")).decoder()
    late = pa.concat_batches([batch.slice(5, 25_000), batch.slice(3, 1)])
    for read in (strict.observe, source.value_reader(["f0"]).read):
        with pytest.raises(InputError, match="record 26001: has 1 field"):
            read(late, index, 1000)
