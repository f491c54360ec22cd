"""Small Parquet files that are read at once, compared with each read by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import InputError
from recshuf.formats.parquet import FORMAT
from recshuf.formats.parquet.file import OpenFile
from recshuf.interfaces import InputFile, Joined, ReadOptions, SupportsJoining
from tests.support.effort import TRIES_ALL, flipped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from recshuf.interfaces import Source

BLOCK = 1 << 20
LABELS = pa.dictionary(pa.int8(), pa.string())
LISTS = pa.list_(pa.list_(pa.int16()))


def make_table(rows: Sequence[int]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "text": pa.array([None if row % 3 == 0 else "x" * (row % 5) for row in rows], pa.string()),
            "label": pa.array([str(row % 4) for row in rows], pa.string()).cast(LABELS),
            "lists": pa.array(
                [None if row % 7 == 0 else [[row % 9] * (row % 3), None] for row in rows], LISTS
            ),
        }
    )


def store(folder: Path, *tables: pa.Table, **options: Any) -> list[Path]:
    paths = [folder / f"{index:02}.parquet" for index in range(len(tables))]
    for path, table in zip(paths, tables, strict=True):
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path, **options)
    return paths


def open_source(paths: list[Path], *partitions: str, columns: tuple[str, ...] | None = None) -> Source:
    files = [InputFile(path.name, path) for path in paths]
    if partitions:
        files = [
            InputFile(file.name, file.path, partitions=(("part", value),))
            for file, value in zip(files, partitions, strict=True)
        ]
    return FORMAT.open_source(files, ReadOptions(columns=columns))


def read_joined(source: Source, first: int = 0, block_bytes: int = BLOCK) -> Joined | None:
    assert isinstance(source, SupportsJoining)
    return source.read_joined(range(first, len(source.inputs)), block_bytes, BLOCK)


def read_alone(source: Source, index: int) -> pa.Table:
    fragments = source.fragments(index, BLOCK, BLOCK)
    batches = [batch for fragment in fragments for batch in fragment.batches()]
    return pa.Table.from_batches(batches, source.schema)


def check_joined(source: Source, joined: Joined | None, count: int, first: int = 0) -> None:
    """Make sure that so many inputs were read at once, and hold what each of them does."""
    compare(source, joined, [read_alone(source, first + index) for index in range(count)])


def compare(source: Source, joined: Joined | None, alone: list[pa.Table]) -> None:
    assert joined is not None
    assert joined.rows == [table.num_rows for table in alone]
    assert joined.batch.schema.equals(source.schema, check_metadata=True)
    joined.batch.validate()
    assert pa.Table.from_batches([joined.batch]).equals(pa.concat_tables(alone))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    group_rows=st.integers(1, 60),
    columns=st.none() | st.permutations(["lists", "label", "id"]).map(tuple),
)
def test_files_read_at_once_hold_what_each_does(
    tmp_path: Path, counts: list[int], group_rows: int, columns: tuple[str, ...] | None
) -> None:
    tables = [make_table(range(100 * index, 100 * index + count)) for index, count in enumerate(counts)]
    source = open_source(store(tmp_path, *tables, row_group_size=group_rows), columns=columns)
    joined = read_joined(source)
    if any(counts):
        check_joined(source, joined, len(counts))
    else:
        assert joined is None


def test_plain_columns_without_an_own_schema_are_read_at_once(tmp_path: Path) -> None:
    tables = [make_table(range(start, start + 20)).drop_columns(["label"]) for start in (0, 20, 40)]
    source = open_source(store(tmp_path, *tables))
    check_joined(source, read_joined(source), 3)


def test_files_of_other_partitions_or_schemas_are_read_apart(tmp_path: Path) -> None:
    tables = [make_table(range(start, start + 20)) for start in (0, 20, 40, 60)]
    source = open_source(store(tmp_path, *tables), "a", "a", "b", "b")
    check_joined(source, read_joined(source), 2)
    check_joined(source, read_joined(source, first=1), 1, first=1)
    check_joined(source, read_joined(source, first=2), 2, first=2)
    tables[1] = tables[1].set_column(0, "id", tables[1]["id"].cast(pa.int32()))
    source = open_source(store(tmp_path, *tables))
    check_joined(source, read_joined(source), 1)
    check_joined(source, read_joined(source, first=1), 1, first=1)


def test_what_does_not_fit_a_block_is_left_out(tmp_path: Path) -> None:
    tables = [pa.table({"text": ["x" * 1000] * rows}) for rows in (20, 20, 20, 200)]
    source = open_source(store(tmp_path, *tables, use_dictionary=False))
    check_joined(source, read_joined(source, block_bytes=50_000), 2)
    check_joined(source, read_joined(source, first=2, block_bytes=50_000), 1, first=2)
    assert read_joined(source, first=3, block_bytes=50_000) is None
    assert isinstance(source, SupportsJoining)
    check_joined(source, source.read_joined(range(4), BLOCK, 50_000), 2)


@pytest.fixture
def batch_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each batch that is read, as it happens."""
    found: list[int] = []

    def batches(file: OpenFile, *args: Any) -> Iterator[pa.RecordBatch]:
        for batch in given_batches(file, *args):
            found.append(batch.num_rows)
            yield batch

    given_batches = OpenFile.batches
    monkeypatch.setattr(OpenFile, "batches", batches)
    return found


def test_only_of_the_first_file_a_few_rows_are_looked_at_first(tmp_path: Path, batch_rows: list[int]) -> None:
    table = pa.table({"text": [f"{row:099}" for row in range(900)]})
    source = open_source(store(tmp_path, *[table] * 5))
    batch_rows.clear()
    assert read_joined(source) is not None
    assert batch_rows[0] < 50, "any of them might be as long as all"
    assert batch_rows[-4:] == [900] * 4


def test_a_dictionary_that_expands_is_not_read_in_one_go(tmp_path: Path, batch_rows: list[int]) -> None:
    tables = [pa.table({"text": [text] * 20_000}) for text in ("x", "y" * 10_000)]
    source = open_source(store(tmp_path, *tables))
    check_joined(source, read_joined(source), 1)
    batch_rows.clear()
    assert read_joined(source, first=1) is None
    assert sum(batch_rows) * 10_000 < 4 * BLOCK


def test_the_files_before_a_damaged_one_are_read_at_once(tmp_path: Path) -> None:
    table = pa.table({"text": [f"{row:099}" for row in range(900)]})
    paths = store(tmp_path, *[table] * 3, use_dictionary=False, write_page_checksum=True)
    source = open_source(paths)
    content = bytearray(paths[2].read_bytes())
    content[len(content) // 2] ^= 1
    paths[2].write_bytes(content)
    check_joined(source, read_joined(source), 2)


def test_what_cannot_be_kept_apart_is_read_file_by_file(tmp_path: Path) -> None:
    table = pa.table({"v": pa.array([[[1], [2]]] * 3, pa.list_(pa.list_(pa.int8()), 2))})
    assert read_joined(open_source(store(tmp_path, table, table))) is None


def test_a_file_of_int96_times_is_read_with_others_of_the_same_schema(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array([1, 2, 3], pa.timestamp("ns"))})
    paths = store(tmp_path, *[table] * 5)
    pq.write_table(table, paths[2], use_deprecated_int96_timestamps=True)
    source = open_source(paths)
    check_joined(source, read_joined(source), 5)


@pytest.mark.parametrize("column", ["id", "text", "lists"])
def test_damage_to_one_file_leaves_the_others_as_they_are(tmp_path: Path, column: str) -> None:
    """Without checksums a flipped bit can be a row or a value more or less, in this file alone."""
    tables = [make_table(range(start, start + 30)).select([column]) for start in (0, 30, 60)]
    paths = store(tmp_path, *tables, row_group_size=10, compression="none", use_dictionary=False)
    source = open_source(paths)
    alone = [read_alone(source, index) for index in range(3)]
    content = paths[1].read_bytes()
    chunk = pq.read_metadata(paths[1]).row_group(1).column(0)
    refused = 0
    places = range(chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size)
    for damaged in flipped(content, places):
        paths[1].write_bytes(damaged)
        joined = read_joined(source)
        try:
            alone[1] = read_alone(source, 1)
        except InputError:
            refused += 1
            assert joined is None or len(joined.rows) == 1
        if joined is not None:
            compare(source, joined, alone[: len(joined.rows)])
    assert refused > (20 if TRIES_ALL else 5)


def test_rows_that_are_missing_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(store(tmp_path, make_table(range(9)), make_table(range(9))))

    def batches(file: OpenFile, *args: Any) -> Iterator[pa.RecordBatch]:
        for batch in given_batches(file, *args):
            yield batch.slice(1)

    given_batches = OpenFile.batches
    monkeypatch.setattr(OpenFile, "batches", batches)
    assert read_joined(source) is None


def test_of_many_small_files_the_damaged_one_is_named(tmp_path: Path) -> None:
    paths = store(tmp_path / "in", *(make_table(range(start, start + 9)) for start in range(0, 900, 9)))
    content = bytearray(paths[40].read_bytes())
    content[4:40] = bytes(36)
    paths[40].write_bytes(content)
    with pytest.raises(InputError, match=r"40\.parquet: row group 0"):
        recshuf.shuffle([tmp_path / "in"], tmp_path / "out", seed=1)
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())
