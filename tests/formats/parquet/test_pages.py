"""Pages and footers of other writers are read with every value; what is damaged in them is found, and moves no other row."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recshuf.errors import InputError
from tests.support.effort import flipped
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
    edit_footer,
    encode_struct,
    footer,
    group,
    leaf,
    row_group,
    wrap,
)
from tests.support.formats.parquet_tools import open_source, page_places, read_alone, read_joined, store

ROWS = 60
ENCODINGS, VALUES, SIZE, STORED, DATA_PLACE, DICTIONARY_PLACE, STATISTICS = 2, 5, 6, 7, 9, 11, 12
"""Fields of `ColumnMetaData`."""


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
    """Make sure that a file has the same rows alone and together with others."""
    source = open_source(path, path, path)
    assert read_alone(source, 1).equals(expected)
    joined = read_joined(source)
    assert joined is not None
    assert pa.Table.from_batches([joined.batch]).equals(pa.concat_tables([expected] * 3))


def without_nulls(chunk: hostile.Struct) -> None:
    nulls = chunk[STATISTICS][1].get(3, (I64, 0))[1]
    chunk[VALUES] = (I64, chunk[VALUES][1] - nulls)


def with_more_values(chunk: hostile.Struct) -> None:
    if len(chunk[3][1][1]) == 1:
        chunk[VALUES] = (I64, chunk[VALUES][1] + 7)


def starting_at_the_dictionary(chunk: hostile.Struct) -> None:
    chunk[DATA_PLACE] = chunk.pop(DICTIONARY_PLACE, chunk[DATA_PLACE])


def with_data_anywhere(chunk: hostile.Struct) -> None:
    if DICTIONARY_PLACE in chunk:
        chunk[DATA_PLACE] = (I64, chunk[DICTIONARY_PLACE][1] + 3)


ODD_CHUNKS: dict[str, Callable[[hostile.Struct], None]] = {
    "no encodings": lambda chunk: chunk.update({ENCODINGS: (LIST, (I32, []))}),
    "values without nulls": without_nulls,
    "more values than there are": with_more_values,
    "no place of dictionaries": starting_at_the_dictionary,
    "dictionaries at 0": lambda chunk: (
        starting_at_the_dictionary(chunk) or chunk.update({DICTIONARY_PLACE: (I64, 0)})
    ),
    "data pages at a wrong place": with_data_anywhere,
    "room behind the last page": lambda chunk: chunk.update({STORED: (I64, chunk[STORED][1] + 40)}),
    "no size before compression": lambda chunk: chunk.update({SIZE: (I64, 0)}),
}


@pytest.mark.parametrize(("version", "group_rows"), [("1.0", 10), ("2.0", ROWS)])
def test_footers_that_other_writers_leave_wrong_lose_no_value(
    tmp_path: Path, group_rows: int, version: str
) -> None:
    path = tmp_path / "in.parquet"
    for change in ODD_CHUNKS.values():
        store(path, make_table(), row_group_size=group_rows, data_page_version=version)
        edit_chunks(path, change)
        check_every_value_is_kept(path, make_table())


def test_rows_are_counted_by_row_groups(tmp_path: Path) -> None:
    """The count of the whole file is wrong in some."""
    path = store(tmp_path / "in.parquet", make_table(), row_group_size=7)
    edit_footer(path, lambda metadata: metadata.update({3: (I64, 7)}))
    source = open_source(path)
    assert source.inputs[0].record_count == ROWS
    assert read_alone(source).equals(make_table())


def page(body: bytes, kind: int, field: int, header: hostile.Struct) -> bytes:
    """Return a page of any kind, `field` of whose header is `header`; sizes are those of the body."""
    sizes: hostile.Struct = {1: (I32, kind), 2: (I32, len(body)), 3: (I32, len(body))}
    return encode_struct(sizes | {field: (STRUCT, header)}) + body


def numbers(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def data_page_of(*values: int) -> bytes:
    return data_page(numbers(*values), values=len(values), size=8 * len(values))


def second_version(levels: bytes, *values: int) -> bytes:
    """Return a page of version 2 with repetition levels, which a column without lists has no need of."""
    count = (I32, len(values))
    header = {1: count, 2: (I32, 0), 3: count, 4: (I32, PLAIN), 5: (I32, 0), 6: (I32, len(levels))}
    return page(levels + numbers(*values), 3, 8, header | {7: (hostile.FALSE, None)})


UNKNOWN = {
    1: (I32, 2),
    2: (I32, PLAIN),
    3: (I32, RLE),
    4: (I32, RLE),
    9: (hostile.TRUE, None),
    20: (hostile.DOUBLE, bytes(8)),
    21: (hostile.MAP, b"\x02\x35\x07\x02\x08\x04"),
    22: (hostile.BYTE, 0x15),
    60: (LIST, (hostile.BINARY, [b"x" * 200] * 20)),
}
ODD_PAGES = {
    "an index page": [data_page_of(1, 2), page(b"index", 1, 6, {}), data_page_of(3)],
    "a page of an unknown kind": [page(b"xy", 77, 30, {1: (I32, 5)}), data_page_of(1, 2, 3)],
    "an empty page": [data_page_of(1), data_page_of(), data_page_of(2, 3)],
    "levels that nobody needs": [second_version(b"\x06\x00", 1, 2, 3)],
    "fields that nobody knows": [page(numbers(1, 2), 0, 5, UNKNOWN), data_page_of(3)],
    "garbage behind the last page": [data_page_of(1, 2, 3), b"\xff" * 30],
}


def test_pages_that_pyarrow_skips_or_reads_lose_no_value(tmp_path: Path) -> None:
    expected = pa.table([pa.array([1, 2, 3])], pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    for odd in ODD_PAGES.values():
        pages = b"".join(odd)
        held = chunk(["a"], values=3, size=24, stored=len(pages), offset=4 + 10)
        ends = footer([group("schema", 1), leaf("a")], [row_group([held], rows=3, size=24)], rows=3)
        (tmp_path / "in.parquet").write_bytes(wrap(b"\0" * 10 + pages + b"between chunks", ends))
        check_every_value_is_kept(tmp_path / "in.parquet", expected)


# Damage


def required(name: str, column: pa.Array) -> pa.Table:
    return pa.Table.from_arrays([column], schema=pa.schema([pa.field(name, column.type, nullable=False)]))


@pytest.mark.parametrize(("claimed", "group_rows"), [(9, 1000), (9, 10), (11, 10)])
def test_pages_that_claim_another_number_of_values_move_no_row(
    tmp_path: Path, claimed: int, group_rows: int
) -> None:
    """Of too few values the end lacks; of a dictionary's indices, padding is read as one more, of which there is no row."""
    options = {"compression": "none", "data_page_size": 1, "write_batch_size": 10}
    table = required("a", pa.array([f"{row % 3}" for row in range(1000)]))
    path = store(tmp_path / "in.parquet", table, row_group_size=group_rows, **options)
    content = path.read_bytes()
    headers = [
        encode_struct({1: (I32, values), 2: (I32, 8), 3: (I32, RLE), 4: (I32, RLE)})[:-1]
        for values in (10, claimed)
    ]
    assert content.count(headers[0]) >= 100
    path.write_bytes(content.replace(*headers, 1))
    if claimed > 10:
        assert read_alone(open_source(path)).equals(table)
    else:
        with pytest.raises(InputError, match=r"in\.parquet: row group 0"):
            read_alone(open_source(path))


def test_row_groups_of_fewer_rows_than_the_footer_says_are_refused(tmp_path: Path) -> None:
    pages = data_page_of(*range(10))
    held = chunk(["a"], values=10, size=80, stored=len(pages))
    path = tmp_path / "in.parquet"
    ends = footer([group("schema", 1), leaf("a")], [row_group([held], rows=11, size=80)], rows=11)
    path.write_bytes(wrap(pages, ends))
    problem = "10 rows can be read, and the footer says 11"
    with pytest.raises(InputError, match=rf"in\.parquet: row group 0.*: is damaged: {problem}"):
        read_alone(open_source(path))
    assert read_joined(open_source(path, path)) is None


ten: dict[str, Any] = {"max_rows_per_page": 10, "write_batch_size": 10}
PAGED = {
    "row groups with a dictionary": (pa.array(np.arange(2000) % 5, pa.int32()), True, {"row_group_size": 10}),
    "lists": (pa.array([[i % 3] * (i % 4) for i in range(60)]), True, ten),
}


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("kind", PAGED)
def test_a_flipped_bit_in_the_header_of_a_page_is_found(tmp_path: Path, kind: str, version: str) -> None:
    """A header has no checksum; what is read as one value more moves nothing in the next row group, and no list."""
    column, use_dictionary, options = PAGED[kind]
    options = options | {"compression": "none", "write_page_checksum": True, "data_page_version": version}
    path = store(tmp_path / "in.parquet", required("a", column), use_dictionary=use_dictionary, **options)
    contents = list(flipped(path.read_bytes(), page_places(path)[:40]))
    refused = 0
    for damaged in contents:
        path.write_bytes(damaged)
        try:
            source = open_source(path)
            fragments = list(source.fragments(0, 1 << 20, 1 << 20))[:2]
            found = [
                value for one in fragments for batch in one.batches() for value in batch.column(0).to_pylist()
            ]
            assert found == column.to_pylist()[: len(found)]
        except InputError:
            refused += 1
    assert refused > len(contents) / 8
