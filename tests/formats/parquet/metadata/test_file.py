"""Footers: read once for all row groups of a file, counted in the memory plan, and given up when done."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recshuf.formats.parquet import file
from tests.support.formats.parquet_tools import BLOCK, LONGEST, open_source, read_all, store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("column", [np.arange(5000), np.arange(5000).astype("datetime64[us]")])
def test_footers_that_were_read_do_not_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: np.ndarray
) -> None:
    path = store(tmp_path / "in.parquet", {"a": column}, row_group_size=10)
    monkeypatch.setattr(file, "_BIN_BYTES", 3 * pq.read_metadata(path).serialized_size)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            read_all(open_source(path))
        alive = sum(type(one) is pq.FileMetaData for one in gc.get_objects())
    finally:
        gc.enable()
    assert alive <= 6


def test_a_footer_is_read_once_for_all_row_groups_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A footer may be larger than a row group by far."""
    path = store(
        tmp_path / "in.parquet", {"t": ["x" * 1000] * 9000}, row_group_size=1000, use_dictionary=False
    )
    source = open_source(path)
    given: list[bool] = []
    parquet_file = pq.ParquetFile

    def watched(*args: Any, metadata: pq.FileMetaData | None, **options: Any) -> pq.ParquetFile:
        given.append(metadata is not None)
        return parquet_file(*args, metadata=metadata, **options)

    monkeypatch.setattr(pq, "ParquetFile", watched)
    fragments = list(source.fragments(0, BLOCK, LONGEST))
    assert not given
    assert sum(batch.num_rows for fragment in fragments for batch in fragment.batches()) == 9000
    assert given == [False] + [True] * (len(fragments) - 1)
    assert len(fragments) > 1


def test_rows_are_read_without_the_schema_that_keeps_a_footer_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels in pages of version 2 are no reason to ask for it either."""
    path = store(
        tmp_path / "in.parquet",
        {"t": [["x" * 1000]] * 9000},
        row_group_size=1000,
        use_dictionary=False,
        data_page_version="2.0",
    )
    thrown: list[int] = []
    monkeypatch.setattr(file.BIN, "add", thrown.append)
    source = open_source(path)
    assert thrown == [pq.read_metadata(path).serialized_size]
    fragments = list(source.fragments(0, BLOCK, LONGEST))
    assert len(fragments) > 1
    assert sum(batch.num_rows for fragment in fragments for batch in fragment.batches()) == 9000
    assert len(thrown) == 1


def test_the_memory_of_a_large_footer_is_planned_for(tmp_path: Path) -> None:
    few = store(tmp_path / "few.parquet", {"a": np.arange(20_000)})
    many = store(tmp_path / "many.parquet", {"a": np.arange(20_000)}, row_group_size=2)
    more_bytes = pq.read_metadata(many).serialized_size - pq.read_metadata(few).serialized_size
    without, found = (open_source(*paths).reading_bytes(BLOCK) for paths in ([few], [few, many]))
    assert found >= without + 5 * more_bytes


def test_what_arrow_lacks_is_told_with_a_remedy() -> None:
    """Such as the integers of 128 bits that polars writes."""
    told = str(file.explain(pa.ArrowNotImplementedError("Integers with more than 64 bits"), "in.parquet"))
    assert told.startswith("in.parquet: cannot be read as Parquet: Integers with more than 64 bits; ")
    assert ";" not in str(file.explain(pa.ArrowInvalid("damaged"), "in.parquet"))
