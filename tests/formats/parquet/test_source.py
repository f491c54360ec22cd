"""Fragments follow blocks and row groups, long and damaged records are named, and files that cannot be read are refused."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import InputError, MemoryLimitError, UsageError
from recshuf.formats.parquet.file import OpenFile
from tests.support.formats.parquet_tools import BLOCK, LONGEST, open_source, read_all, store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_batches_of_expanding_dictionaries_stay_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []

    def watched(*args: Any) -> Iterator[pa.RecordBatch]:
        for batch in read_batches(*args):
            decoded.append(batch.nbytes)
            yield batch

    read_batches = OpenFile.batches
    words = pa.array(["x" * 50_000, "y" * 10])
    indices = pa.array([0, 1, 1, 0] * 500, pa.int32())
    store(tmp_path / "in.parquet", {"w": words.take(indices)}, compression="zstd")
    assert (tmp_path / "in.parquet").stat().st_size < 20_000
    source = open_source(tmp_path / "in.parquet")
    monkeypatch.setattr(OpenFile, "batches", watched)
    sizes = [b.nbytes for f in source.fragments(0, BLOCK, LONGEST) for b in f.batches()]
    assert max(sizes) <= BLOCK
    assert max(decoded) <= 2 * BLOCK
    assert source.inputs[0].native_bytes == pytest.approx(sum(sizes), rel=0.1)
    assert read_all(source)["w"].to_pylist() == words.take(indices).to_pylist()


def test_small_row_groups_are_read_together(tmp_path: Path) -> None:
    text = pa.array([f"{k:0100}" for k in range(60_000)])
    path = store(tmp_path / "in.parquet", {"t": text}, row_group_size=100, use_dictionary=False)
    source = open_source(path)
    fragments = list(source.fragments(0, 1 << 18, LONGEST))
    sizes = [sum(batch.nbytes for batch in fragment.batches()) for fragment in fragments]
    assert all((1 << 17) < size <= (1 << 18) for size in sizes[:-1])
    assert len(list(source.fragments(0, 1 << 30, LONGEST))) >= 16, "enough for many threads"
    assert len(list(source.fragments(0, 1000, LONGEST))) == 600
    assert [fragment.record_count for fragment in fragments] == [
        sum(batch.num_rows for batch in fragment.batches()) for fragment in fragments
    ]
    assert read_all(source)["t"].to_pylist() == text.to_pylist()


def test_a_record_that_is_too_long_is_named_where_small_row_groups_are_read_together(tmp_path: Path) -> None:
    text = pa.array(["x" * (1200 if row == 25 else 10) for row in range(4000)])
    path = store(tmp_path / "in.parquet", {"t": text}, row_group_size=10)
    with pytest.raises(InputError, match="row group 2, row 25"):
        read_all(open_source(path), longest=1000)


@pytest.mark.parametrize("group", [0, 7, 199])
def test_of_small_row_groups_the_damaged_one_is_named(tmp_path: Path, group: int) -> None:
    columns = {"a": np.arange(2000, dtype=np.int64), "b": np.arange(2000) % 7}
    options = {"row_group_size": 10, "compression": "none", "use_dictionary": False}
    path = store(tmp_path / "in.parquet", columns, write_page_checksum=True, **options)
    content = bytearray(path.read_bytes())
    content[content.index((10 * group + 3).to_bytes(8, "little"))] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(
        InputError, match=rf"in\.parquet: row group {group}: a page does not match its checksum"
    ):
        read_all(open_source(path))


def test_fixed_and_plain_columns_are_counted_exactly(tmp_path: Path) -> None:
    text = [str(number) * 3 for number in range(5000)]
    store(tmp_path / "in.parquet", {"a": list(range(5000)), "t": text}, use_dictionary=False)
    source = open_source(tmp_path / "in.parquet")
    assert source.inputs[0].native_bytes == pytest.approx(read_all(source).nbytes, rel=0.03)


def test_a_long_record_is_named_with_its_row(tmp_path: Path) -> None:
    store(tmp_path / "in.parquet", {"t": ["a", "b", "c" * 5000, "d"]}, row_group_size=2)
    with pytest.raises(InputError, match=r"in\.parquet: row group 1, row 2: .* 1000 bytes"):
        read_all(open_source(tmp_path / "in.parquet"), longest=1000)


def test_columns_are_kept_in_the_order_given(tmp_path: Path) -> None:
    path = store(tmp_path / "in.parquet", {"a": [1], "a.b": [2], "c": [3]})
    assert read_all(open_source(path, columns=("c", "a"))).to_pylist() == [{"c": 3, "a": 1}]
    with pytest.raises(UsageError, match=r"'a\.c'.*'a\.b'"):
        open_source(path, columns=("a.c",))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"hello, world, this is text", "not a Parquet file"),
        (b"PAR1 and then nothing more", "cut off"),
        (b"PAR1 some bytes and then \x04\x00\x00\x00PARE", "encrypted"),
        (b"PAR1garbage!\x08\x00\x00\x00PAR1", "cannot be read as Parquet"),
        (b"PAR1\xff\xff\xff\x7fPAR1", "cannot be read as Parquet"),
    ],
)
def test_files_that_are_not_parquet_say_what_is_wrong(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "bad.parquet").write_bytes(content)
    with pytest.raises(InputError, match=f"bad.parquet: .*{problem}"):
        open_source(tmp_path / "bad.parquet")


def test_missing_files_and_folders_say_so(tmp_path: Path) -> None:
    for path, problem in ((tmp_path / "none", "No such file"), (tmp_path, "directory")):
        with pytest.raises(InputError, match=problem):
            open_source(path)


def test_a_file_that_changes_between_the_passes_is_an_error(tmp_path: Path) -> None:
    path = store(tmp_path / "in.parquet", {"a": [1, 2]})
    source = open_source(path)
    store(path, {"a": [1, 2, 3]})
    with pytest.raises(InputError, match="changed"):
        read_all(source)


def test_a_summary_of_other_files_is_refused(tmp_path: Path) -> None:
    collected: list[pq.FileMetaData] = []
    pq.write_table(pa.table({"a": [1]}), tmp_path / "part.parquet", metadata_collector=collected)
    collected[0].set_file_path("part.parquet")
    collected[0].write_metadata_file(tmp_path / "_metadata")
    with pytest.raises(InputError, match="holds only the metadata"):
        open_source(tmp_path / "_metadata")
    pq.write_metadata(pa.schema([("a", pa.int64())]), tmp_path / "_common_metadata")
    assert open_source(tmp_path / "_common_metadata").inputs[0].record_count == 0


def test_damaged_bytes_never_give_other_records(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(300)), "t": [str(number % 9) for number in range(300)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=100, write_page_checksum=True)
    content = (tmp_path / "in.parquet").read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    draw = random.Random(3)
    errors = 0
    for _ in range(100):
        damaged = bytearray(content)
        damaged[draw.randrange(4, footer)] ^= 1 << draw.randrange(8)
        (tmp_path / "bad.parquet").write_bytes(damaged)
        try:
            assert read_all(open_source(tmp_path / "bad.parquet")).equals(table)
        except InputError as error:
            assert "bad.parquet" in str(error)
            errors += 1
    assert errors > 80


def test_memory_grows_with_the_columns(tmp_path: Path) -> None:
    """Each further column adds the same to the plan, at least what was measured."""
    needs = []
    for count in (100, 200, 400):
        store(tmp_path / f"{count}.parquet", {f"c{column:03}": [1.5, 2.5] for column in range(count)})
        needs.append(open_source(tmp_path / f"{count}.parquet").reading_bytes(BLOCK))
    first, second = needs[1] - needs[0], needs[2] - needs[1]
    assert first >= 100 * 20_000
    assert second == pytest.approx(2 * first, rel=0.02)


@pytest.mark.parametrize("way", ["shuffle", "verify"])
def test_more_columns_than_memory_allows_are_refused_before_any_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    store(tmp_path / "in.parquet", {f"c{column}": [1] for column in range(3_000)})
    monkeypatch.setattr(OpenFile, "batches", lambda *_: pytest.fail("a column was read"))
    call = recshuf.shuffle if way == "shuffle" else recshuf.verify
    with pytest.raises(
        MemoryLimitError, match=r"in\.parquet: .* 3,000 columns needs at least .*; raise memory"
    ):
        call(tmp_path / "in.parquet", tmp_path / "out.parquet", memory="64MB")
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]
