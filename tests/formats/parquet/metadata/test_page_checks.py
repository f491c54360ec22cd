"""Page headers and footers of other writers: what pyarrow reads in spite of them is read, and every value kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError
from tests.support.formats import hostile_parquet as hostile
from tests.support.formats.hostile_parquet import (
    I32,
    I64,
    LIST,
    PLAIN,
    RLE,
    STRUCT,
    chunk,
    data_page,
    edit_chunks,
    encode_struct,
    footer,
    group,
    leaf,
    row_group,
    wrap,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 60
ENCODINGS, VALUES, SIZE, STORED, DATA_PLACE, DICTIONARY_PLACE, STATISTICS, USED = 2, 5, 6, 7, 9, 11, 12, 13
"""Fields of `ColumnMetaData`."""
BIT_PACKED, DELTA = 4, 5


def make_table() -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "label": [None if row % 5 == 0 else "abc"[row % 3] for row in range(ROWS)],
            "x": [None if row % 7 == 0 else row / 3 for row in range(ROWS)],
            "lists": [None if row % 11 == 0 else [row] * (row % 4) for row in range(ROWS)],
        }
    )


def check_every_value_is_kept(path: Path, expected: pa.Table) -> None:
    """Make sure that pyarrow reads a file, and that shuffled alone and as a part of many it is the same set of rows."""
    assert pq.read_table(path).equals(expected)
    for copies in (1, 3):
        inputs = path.parent / f"{copies}"
        inputs.mkdir()
        for number in range(copies):
            (inputs / f"{number}.parquet").write_bytes(path.read_bytes())
        recshuf.shuffle(inputs, path.parent / f"out{copies}.parquet", seed=1)
        found = pq.read_table(path.parent / f"out{copies}.parquet").to_pylist()
        assert sorted(found, key=str) == sorted(expected.to_pylist() * copies, key=str)


def listing(*encodings: int) -> Callable[[hostile.Struct], None]:
    return lambda chunk: chunk.update({ENCODINGS: (LIST, (I32, list(encodings)))})


def without_nulls(chunk: hostile.Struct) -> None:
    nulls = chunk[STATISTICS][1].get(3, (I64, 0))[1]
    chunk[VALUES] = (I64, chunk[VALUES][1] - nulls)


def with_more_values(chunk: hostile.Struct) -> None:
    if len(chunk[3][1][1]) == 1:
        chunk[VALUES] = (I64, chunk[VALUES][1] + 7)


def starting_at_the_dictionary(chunk: hostile.Struct) -> None:
    chunk[DATA_PLACE] = chunk.pop(DICTIONARY_PLACE, chunk[DATA_PLACE])


def with_dictionaries_at_0(chunk: hostile.Struct) -> None:
    starting_at_the_dictionary(chunk)
    chunk[DICTIONARY_PLACE] = (I64, 0)


def with_data_anywhere(chunk: hostile.Struct) -> None:
    if DICTIONARY_PLACE in chunk:
        chunk[DATA_PLACE] = (I64, chunk[DICTIONARY_PLACE][1] + 3)


def with_room_behind(chunk: hostile.Struct) -> None:
    chunk[STORED] = (I64, chunk[STORED][1] + 40)


ODD_FOOTERS: dict[str, Callable[[hostile.Struct], None]] = {
    "no encodings": listing(),
    "encodings of levels alone": listing(RLE),
    "encodings of old levels alone": listing(BIT_PACKED),
    "no dictionary among encodings": listing(RLE, BIT_PACKED, PLAIN),
    "an encoding that no page has": listing(DELTA),
    "no statistics of encodings": lambda chunk: chunk.pop(USED, None),
    "values without nulls": without_nulls,
    "more values than there are": with_more_values,
    "no place of dictionaries": starting_at_the_dictionary,
    "dictionaries at 0": with_dictionaries_at_0,
    "data pages at a wrong place": with_data_anywhere,
    "room behind the last page": with_room_behind,
    "no size before compression": lambda chunk: chunk.update({SIZE: (I64, 0)}),
}


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("group_rows", [10, ROWS])
@pytest.mark.parametrize("odd", ODD_FOOTERS)
def test_footers_that_other_writers_leave_wrong_lose_no_value(
    tmp_path: Path, odd: str, group_rows: int, version: str
) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(make_table(), path, row_group_size=group_rows, data_page_version=version)
    edit_chunks(path, ODD_FOOTERS[odd])
    check_every_value_is_kept(path, make_table())


def page(body: bytes, kind: int, field: int, header: hostile.Struct, **more: hostile.Value) -> bytes:
    """Return a page of any kind, `field` of whose header is `header`; sizes are those of the body."""
    fields: hostile.Struct = {
        1: (I32, kind),
        2: (I32, len(body)),
        3: (I32, len(body)),
        field: (STRUCT, header),
    }
    return encode_struct(fields | {int(number[1:]): value for number, value in more.items()}) + body


def numbers(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def data_page_of(*values: int) -> bytes:
    return data_page(numbers(*values), values=len(values), size=8 * len(values))


def second_version(levels: bytes, *values: int) -> bytes:
    """Return a page of version 2 with repetition levels, which a column without lists has no need of."""
    count = (I32, len(values))
    header = {1: count, 2: (I32, 0), 3: count, 4: (I32, PLAIN), 5: (I32, 0), 6: (I32, len(levels))}
    return page(levels + numbers(*values), 3, 8, header | {7: (hostile.FALSE, None)})


INDEX_PAGE = page(b"index", 1, 6, {})
ODD_PAGES = {
    "an index page": [data_page_of(1, 2), INDEX_PAGE, data_page_of(3)],
    "a page of an unknown kind": [page(b"xy", 77, 30, {1: (I32, 5)}), data_page_of(1, 2, 3)],
    "an empty page": [data_page_of(1), data_page_of(), data_page_of(2, 3)],
    "levels that nobody needs": [second_version(b"\x06\x00", 1, 2, 3)],
    "fields that nobody knows": [
        page(
            numbers(1, 2, 3),
            0,
            5,
            {1: (I32, 3), 2: (I32, PLAIN), 3: (I32, RLE), 4: (I32, RLE), 9: (hostile.TRUE, None)},
        )
    ],
    "garbage behind the last page": [data_page_of(1, 2, 3), b"\xff" * 30],
}


@pytest.mark.parametrize("odd", ODD_PAGES)
def test_pages_that_pyarrow_skips_or_reads_lose_no_value(tmp_path: Path, odd: str) -> None:
    pages = b"".join(ODD_PAGES[odd])
    held = chunk(["a"], values=3, size=24, stored=len(pages), offset=4 + 10)
    data = b"\0" * 10 + pages + b"between chunks"
    schema = [group("schema", 1), leaf("a")]
    path = tmp_path / "in.parquet"
    path.write_bytes(wrap(data, footer(schema, [row_group([held], rows=3, size=24)], rows=3)))
    expected = pa.table([pa.array([1, 2, 3])], pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    check_every_value_is_kept(path, expected)


@pytest.mark.parametrize(
    "options", [{"write_page_index": True}, {"write_page_checksum": False}, {"write_statistics": False}]
)
def test_what_a_file_has_beside_its_pages_or_lacks_loses_no_value(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(make_table(), path, row_group_size=7, **options)
    check_every_value_is_kept(path, make_table())


@pytest.mark.parametrize("claimed", [9, 11])
@pytest.mark.parametrize("group_rows", [10, 1000])
def test_pages_that_claim_another_number_of_values_are_refused(
    tmp_path: Path, claimed: int, group_rows: int
) -> None:
    """Of a dictionary's indices, padding is read as one more, and all values behind move along."""
    path = tmp_path / "in.parquet"
    table = pa.table(
        [[f"{row % 3}" for row in range(1000)]], pa.schema([pa.field("a", pa.string(), nullable=False)])
    )
    options = {"compression": "none", "data_page_size": 1, "write_batch_size": 10}
    pq.write_table(table, path, row_group_size=group_rows, **options)
    content = path.read_bytes()
    headers = [
        encode_struct({1: (I32, values), 2: (I32, 8), 3: (I32, RLE), 4: (I32, RLE)})[:-1]
        for values in (10, claimed)
    ]
    assert content.count(headers[0]) == 100
    path.write_bytes(content.replace(*headers, 1))
    with pytest.raises(InputError, match=r"in\.parquet: row group 0"):
        recshuf.shuffle(path, tmp_path / "out.parquet")
