"""Page headers have no checksum: what is damaged in them is found, and shifts no other row."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recshuf.errors import InputError
from tests.support.effort import flipped
from tests.support.formats.parquet_tools import chunk_of, open_source, read_all, store

if TYPE_CHECKING:
    from pathlib import Path


def test_a_page_that_claims_too_many_values_does_not_shift_the_next_row_groups(tmp_path: Path) -> None:
    """A page's header has no checksum, and indices of a dictionary are padded: there is something to read as one more."""
    fields = [pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.int64(), nullable=False)]
    columns = [pa.array(np.arange(2000) % 5, pa.int32()), pa.array(np.arange(2000))]
    table = pa.Table.from_arrays(columns, schema=pa.schema(fields))
    path, options = tmp_path / "in.parquet", {"compression": "none", "use_dictionary": ["a"]}
    pq.write_table(table, path, row_group_size=10, write_page_checksum=True, **options)
    content = path.read_bytes()
    start = chunk_of(path).data_page_offset
    for damaged in flipped(content, range(start, start + 30)):
        path.write_bytes(damaged)
        with suppress(InputError):
            assert read_all(open_source(path)).equals(table)


PAGED = {
    "numbers with a dictionary": (pa.array(np.arange(60) % 5, pa.int32()), {"use_dictionary": True}),
    "truth values": (pa.array(np.arange(60) % 7 < 3), {"use_dictionary": False}),
    "lists": (pa.array([[i % 3] * (i % 4) for i in range(60)]), {"use_dictionary": True}),
}


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("kind", PAGED)
def test_a_flipped_bit_in_the_header_of_a_page_is_found(tmp_path: Path, kind: str, version: str) -> None:
    """A header has no checksum; what is read as one value more moves all behind it along."""
    column, options = PAGED[kind]
    table = pa.Table.from_arrays([column], schema=pa.schema([pa.field("a", column.type, nullable=False)]))
    path, ten = tmp_path / "in.parquet", {"max_rows_per_page": 10, "write_batch_size": 10}
    options |= {"compression": "none", "write_page_checksum": True, "data_page_version": version}
    pq.write_table(table, path, **ten, **options)
    content = path.read_bytes()
    start = chunk_of(path).data_page_offset
    refused, contents = 0, list(flipped(content, range(start, start + 40)))
    for damaged in contents:
        path.write_bytes(damaged)
        try:
            assert read_all(open_source(path))["a"].to_pylist() == column.to_pylist()
        except InputError:
            refused += 1
    assert refused > len(contents) / 8


def test_headers_of_pages_may_be_long(tmp_path: Path) -> None:
    """Statistics hold whole values, two in each header."""
    text = pa.array([f"{i:04} " + "x" * size for i, size in enumerate([1, 300, 2000, 4000, 1, 4000] * 20)])
    options = {"max_rows_per_page": 6, "write_batch_size": 3, "use_dictionary": False}
    path = store(tmp_path / "in.parquet", {"t": text}, row_group_size=50, **options)
    assert read_all(open_source(path))["t"].to_pylist() == text.to_pylist()
