"""Fragments follow blocks and row groups, long and damaged records are named, and files that cannot be read are refused."""

from __future__ import annotations

import gc
import os
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, MemoryLimitError
from recshuf.formats.parquet import FORMAT
from tests.support.formats.parquet_tools import (
    BLOCK,
    LONGEST,
    chunk_of,
    open_source,
    read_all,
    read_alone,
    store,
    watched_memory,
    write_all,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_batches_of_expanding_dictionaries_stay_small(tmp_path: Path) -> None:
    words = pa.array(["x" * 50_000, "y" * 10])
    indices = pa.array([0, 1, 1, 0] * 500, pa.int32())
    path = store(tmp_path / "in.parquet", {"w": words.take(indices)}, compression="zstd")
    assert path.stat().st_size < 20_000
    source = open_source(path)
    with watched_memory() as memory:
        sizes = [b.nbytes for f in source.fragments(0, BLOCK, LONGEST) for b in f.batches()]
    assert max(sizes) <= BLOCK
    assert memory.max_memory() <= source.reading_bytes(BLOCK)
    assert source.inputs[0].native_bytes == pytest.approx(sum(sizes), rel=0.1)
    assert read_all(source)["w"].to_pylist() == words.take(indices).to_pylist()


def test_row_groups_without_rows_are_passed_over(tmp_path: Path) -> None:
    """Codecs and sizes are those of the first one that has any; rows are counted on."""
    table = pa.table({"n": range(9), "t": ["x" * 4000] * 9})
    path = tmp_path / "in.parquet"
    with pq.ParquetWriter(path, table.schema, compression="gzip") as writer:
        for start, stop in ((0, 0), (0, 4), (4, 4), (4, 9), (9, 9)):
            writer.write_table(table.slice(start, stop - start))
    source = open_source(path)
    assert read_all(source).equals(table)
    assert source.inputs[0].record_count == 9
    assert chunk_of(write_all(source, tmp_path / "out.parquet")).compression == "GZIP"
    with pytest.raises(InputError, match="row group 1, row 0"):
        read_all(source, longest=1000)


@pytest.mark.parametrize(("row", "group_rows", "count"), [(25, 10, 4000), (3, 2, 5), (0, 9, 9)])
def test_a_record_that_is_too_long_is_named_with_its_row(
    tmp_path: Path, row: int, group_rows: int, count: int
) -> None:
    text = ["x" * (5000 if index == row else 10) for index in range(count)]
    source = open_source(store(tmp_path / "in.parquet", {"t": text}, row_group_size=group_rows))
    with pytest.raises(
        InputError, match=rf"in\.parquet: row group {row // group_rows}, row {row}: .* 1,000 bytes"
    ) as caught:
        read_all(source, longest=1000)
    size = int(re.findall(r"a record of ([\d,]+) bytes", str(caught.value))[0].replace(",", ""))
    assert read_all(source, longest=size)["t"].to_pylist() == text
    with pytest.raises(InputError, match=f"row {row}: .* {size - 1:,} bytes"):
        read_all(source, longest=size - 1)


def test_fixed_and_plain_columns_are_counted_exactly(tmp_path: Path) -> None:
    text = [str(number) * 3 for number in range(5000)]
    path = store(tmp_path / "in.parquet", {"a": list(range(5000)), "t": text}, use_dictionary=False)
    source = open_source(path)
    assert source.inputs[0].native_bytes == pytest.approx(read_all(source).nbytes, rel=0.03)


def test_files_that_are_not_parquet_say_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    for content, problem in (
        (b"", "empty"),
        (b"hello, world, this is text", "not a Parquet file"),
        (b"PAR1 and then nothing more", "cut off"),
        (b"PAR1 some bytes and then \x04\x00\x00\x00PARE", "encrypted"),
        (b"PAR1garbage!\x08\x00\x00\x00PAR1", "cannot be read as Parquet"),
        (b"PAR1\xff\xff\xff\x7fPAR1", "cannot be read as Parquet"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"bad.parquet: .*{problem}"):
            open_source(path)
    heads = [b"PAR1", b"PARE\x10\x20\0\0", b"PARENT, a word", b"PAR", b""]
    assert [FORMAT.recognises(head) for head in heads] == [True, True, False, False, False]
    os.mkfifo(tmp_path / "pipe")
    for odd, problem in (
        ("none", "No such file"),
        (".", "directory"),
        ("pipe", "pipe: is not a regular file"),
    ):
        with pytest.raises(InputError, match=problem):
            open_source(tmp_path / odd)


@pytest.mark.parametrize("joined", [False, True])
def test_a_file_that_changes_between_the_passes_is_an_error(tmp_path: Path, joined: bool) -> None:
    for other in ({"a": [1, 2, 3]}, {"b": [1, 2]}, {"a": ["1", "2"]}, {"a": [1, 2], "b": [3, 4]}):
        path = store(tmp_path / "in.parquet", {"a": [1, 2]})
        source = open_source(path, path) if joined else open_source(path)
        store(path, other)
        with pytest.raises(InputError, match=r"^in\.parquet: was changed while it was being read"):
            read_all(source)


@pytest.mark.parametrize(
    ("moment", "kept"), [("before", 0.3), ("before", 0), ("before", None), ("batches", 0.3), ("fragments", 0)]
)
def test_a_file_that_goes_away_is_named(tmp_path: Path, moment: str, kept: float | None) -> None:
    """Shrunk files are read through the system, so that what is gone is an error and no signal."""
    columns = {"a": range(50_000), "b": ["x"] * 50_000}
    path = store(tmp_path / "in.parquet", columns, row_group_size=5000, use_dictionary=False)
    fragments = list(open_source(path).fragments(0, 4096, LONGEST))

    def change() -> None:
        path.unlink() if kept is None else os.truncate(path, int(path.stat().st_size * kept))

    def read() -> None:
        for number, fragment in enumerate(fragments):
            for place, _ in enumerate(fragment.batches()):
                if (moment, number, place) == ("batches", 0, 0):
                    change()
            if (moment, number) == ("fragments", 0):
                change()

    if moment == "before":
        change()
    with pytest.raises(InputError, match=r"^in\.parquet: "):
        read()


def test_a_summary_of_other_files_is_refused(tmp_path: Path) -> None:
    collected: list[pq.FileMetaData] = []
    pq.write_table(pa.table({"a": [1]}), tmp_path / "part.parquet", metadata_collector=collected)
    collected[0].set_file_path("part.parquet")
    collected[0].write_metadata_file(tmp_path / "_metadata")
    with pytest.raises(InputError, match="holds only the metadata"):
        open_source(tmp_path / "_metadata")
    pq.write_metadata(pa.schema([("a", pa.int64())]), tmp_path / "_common_metadata")
    assert open_source(tmp_path / "_common_metadata").inputs[0].record_count == 0


# Memory


def test_memory_grows_with_the_columns(tmp_path: Path) -> None:
    """Each further column adds the same to the plan, at least what was measured."""
    needs = []
    for count in (100, 200, 400):
        store(tmp_path / f"{count}.parquet", {f"c{column:03}": [1.5, 2.5] for column in range(count)})
        needs.append(open_source(tmp_path / f"{count}.parquet").reading_bytes(BLOCK))
    first, second = needs[1] - needs[0], needs[2] - needs[1]
    assert first >= 100 * 20_000
    assert second == pytest.approx(2 * first, rel=0.02)


def test_more_columns_than_memory_allows_are_refused_before_any_is_read(tmp_path: Path) -> None:
    path = store(tmp_path / "in.parquet", {f"c{column}": [1] for column in range(3_000)})
    content = bytearray(path.read_bytes())
    pages = slice(4, len(content) - 8 - int.from_bytes(content[-8:-4], "little"))
    content[pages] = bytes(pages.stop - pages.start)  # what was read would be damaged
    path.write_bytes(content)
    for call in (recshuf.shuffle, recshuf.verify):
        with pytest.raises(
            MemoryLimitError, match=r"in\.parquet: .* 3,000 columns needs at least .*; raise memory"
        ):
            call(path, tmp_path / "out.parquet", memory="64MB")
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_footers_that_were_read_do_not_add_up(tmp_path: Path) -> None:
    columns = {"a": [f"{row:04000}" for row in range(80)], "b": np.arange(80).astype("datetime64[us]")}
    path = store(tmp_path / "in.parquet", columns, row_group_size=1)
    footer_bytes = pq.read_metadata(path).serialized_size
    gc.collect()
    gc.disable()
    try:
        for _ in range(3 + (4 << 20) // footer_bytes):
            read_alone(open_source(path))
        alive = sum(type(one) is pq.FileMetaData for one in gc.get_objects())
    finally:
        gc.enable()
    assert alive * footer_bytes < 4 << 20
