"""Small files and small row groups that are read at once hold what each holds by itself, and damage to one stays in it."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recshuf.errors import InputError
from recshuf.interfaces import Joined, Source
from tests.support.effort import TRIES_ALL, examples, flipped, mostly_slow
from tests.support.formats.parquet_tools import (
    BLOCK,
    READS_NULL_VECTORS,
    open_source,
    page_places,
    read_alone,
    read_joined,
    shuffled,
    watched_memory,
)
from tests.support.formats.parquet_tools import store as store_one

LISTS = pa.list_(pa.list_(pa.int16()))


def make_table(rows: Sequence[int]) -> pa.Table:
    labels = pa.array([str(row % 4) for row in rows], pa.string())
    lists = [None if row % 7 == 0 else [[row % 9] * (row % 3), None] for row in rows]
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "text": pa.array([None if row % 3 == 0 else "x" * (row % 5) for row in rows], pa.string()),
            "label": labels.cast(pa.dictionary(pa.int8(), pa.string())),
            "lists": pa.array(lists, LISTS),
        }
    )


def store(folder: Path, *tables: pa.Table, **options: Any) -> list[Path]:
    folder.mkdir(exist_ok=True)
    return [store_one(folder / f"{index:02}.parquet", table, **options) for index, table in enumerate(tables)]


def check_joined(source: Source, joined: Joined | None, count: int, first: int = 0) -> None:
    """Make sure that so many inputs were read at once, and hold what each of them does."""
    compare(source, joined, [read_alone(source, first + index) for index in range(count)])


def compare(source: Source, joined: Joined | None, alone: list[pa.Table]) -> None:
    assert joined is not None
    assert joined.rows == [table.num_rows for table in alone]
    assert joined.batch.schema.equals(source.schema, check_metadata=True)
    joined.batch.validate()
    assert pa.Table.from_batches([joined.batch]).equals(pa.concat_tables(alone))


# Files


@settings(
    max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    group_rows=st.integers(1, 60),
    columns=st.none() | st.permutations(["lists", "label", "id"]).map(tuple),
)
def test_files_read_at_once_hold_what_each_does(
    tmp_path: Path, counts: list[int], group_rows: int, columns: tuple[str, ...] | None
) -> None:
    tables = [make_table(range(100 * index, 100 * index + count)) for index, count in enumerate(counts)]
    source = open_source(*store(tmp_path, *tables, row_group_size=group_rows), columns=columns)
    joined = read_joined(source)
    if any(counts):
        check_joined(source, joined, len(counts))
    else:
        assert joined is None


def test_files_of_other_partitions_or_schemas_are_read_apart(tmp_path: Path) -> None:
    tables = [make_table(range(start, start + 20)) for start in (0, 20, 40, 60)]
    paths = store(tmp_path, *tables)
    source = open_source(*paths, partitions=[(("part", value),) for value in "aabb"])
    check_joined(source, read_joined(source), 2)
    check_joined(source, read_joined(source, first=1), 1, first=1)
    check_joined(source, read_joined(source, first=2), 2, first=2)
    tables[1] = tables[1].set_column(0, "id", tables[1]["id"].cast(pa.int32()))
    source = open_source(*store(tmp_path, *tables))
    check_joined(source, read_joined(source), 1)
    check_joined(source, read_joined(source, first=1), 1, first=1)


def test_files_of_other_ranges_of_pandas_are_read_apart(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    count, begins = 2500, (5, 5, 10, 20)  # several batches
    frames = [
        pandas.DataFrame({"lists": [[0]] * count}, pandas.RangeIndex(begin, begin + count, name="at"))
        for begin in begins
    ]
    source = open_source(*store(tmp_path, *map(pa.Table.from_pandas, frames), row_group_size=2000))
    for index, begin in enumerate(begins):
        assert read_alone(source, index)["at"].to_pylist() == [*range(begin, begin + count)]
    check_joined(source, read_joined(source), 2)
    check_joined(source, read_joined(source, first=2), 1, first=2)


def test_a_dictionary_that_expands_is_not_read_in_one_go(tmp_path: Path) -> None:
    tables = [pa.table({"text": [text] * 10_000}) for text in ("x", "y" * 10_000)]
    source = open_source(*store(tmp_path, *tables))
    check_joined(source, read_joined(source), 1)
    with watched_memory() as memory:
        assert read_joined(source, first=1) is None
    assert memory.max_memory() < 8 * BLOCK, "100 MB are in it"


def test_files_before_a_damaged_one_are_read_at_once_and_the_damaged_one_is_named(tmp_path: Path) -> None:
    tables = [make_table(range(start, start + 9)) for start in range(0, 360, 9)]
    paths = store(tmp_path / "in", *tables)
    source = open_source(*paths[:22])
    content = bytearray(paths[20].read_bytes())
    content[4:40] = bytes(36)
    paths[20].write_bytes(content)
    check_joined(source, read_joined(source), 20)
    check_joined(source, read_joined(source, first=21), 1, first=21)
    with pytest.raises(InputError, match=r"20\.parquet: row group 0"):
        shuffled(*paths)
    assert not (tmp_path / "in" / "out.parquet").exists()


# Row groups


def test_of_row_groups_read_at_once_the_damaged_one_is_named(tmp_path: Path) -> None:
    table = make_table(range(1000)).select(["id"])
    options = {
        "row_group_size": 10,
        "compression": "none",
        "write_page_checksum": True,
        "use_dictionary": False,
    }
    path = store_one(tmp_path / "in.parquet", table, **options)
    column, content = pq.read_metadata(path).row_group(33).column(0), bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"in\.parquet: row group 33: a page does not match"):
        shuffled(path)


PAIR = pa.struct([("x", pa.int8()), ("y", pa.list_(pa.int8()))])
KINDS = {
    "number": pa.int16(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "label": pa.dictionary(pa.int8(), pa.string()),
    "document": pa.json_(pa.string()),
    "list": pa.list_(pa.int16()),
    "list without nulls": pa.list_(pa.field("item", pa.int16(), nullable=False)),
    "list of lists": pa.large_list(pa.list_(pa.binary())),
    "struct": PAIR,
    "list of structs": pa.list_(PAIR),
    "map": pa.map_(pa.int32(), pa.list_(pa.int8())),
    "vector": pa.list_(pa.int16(), 3),
    "list of vectors": pa.list_(pa.list_(pa.int16(), 2)),
    "list of labels": pa.list_(pa.dictionary(pa.int8(), pa.string())),
    "struct of a label": pa.struct([("l", pa.dictionary(pa.int8(), pa.string()))]),
    "vector of lists": pa.list_(pa.list_(pa.int8()), 2),
    "struct of a vector of lists": pa.struct([("v", pa.list_(pa.list_(pa.int8()), 2))]),
}
GROUP_ROWS = 10


def draw_value(rng: np.random.Generator, kind: pa.DataType) -> Any:
    """Return a value of a type, one of few, with nulls at every level below that may have them."""
    types = pa.types
    if types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType) or types.is_string(kind):
        return ["1", "22"][rng.integers(2)]
    if types.is_binary(kind):
        return bytes(rng.integers(3))
    if types.is_map(kind):
        return [(key, draw_member(rng, kind.item_field)) for key in range(rng.integers(4))]
    if types.is_struct(kind):
        return {field.name: draw_member(rng, field) for field in kind}
    if types.is_nested(kind):
        size = kind.list_size if types.is_fixed_size_list(kind) else rng.integers(4)
        return [draw_member(rng, kind.value_field) for _ in range(size)]
    return int(rng.integers(4))


def draw_member(rng: np.random.Generator, field: pa.Field) -> Any:
    nullable = field.nullable and (READS_NULL_VECTORS or not pa.types.is_fixed_size_list(field.type))
    return None if nullable and rng.integers(4) == 0 else draw_value(rng, field.type)


def draw_column(rng: np.random.Generator, kind: pa.DataType, groups: int) -> pa.Array:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    drawn = pa.array([draw_member(rng, pa.field("a", kind)) for _ in range(200)], storage)
    column = drawn.take(pa.array(rng.integers(200, size=groups * GROUP_ROWS)))
    return kind.wrap_array(column) if isinstance(kind, pa.BaseExtensionType) else column


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 6))])
def test_row_groups_that_are_read_together_hold_the_same(tmp_path: Path, seed: int) -> None:
    """Those without lists; of others, each by itself into one batch."""
    rng = np.random.default_rng(seed)
    for number, (name, kind) in enumerate(KINDS.items()):
        if number % 2 != seed % 2:
            continue
        column = draw_column(rng, kind, 150)
        [path] = store(
            tmp_path,
            pa.table({"a": column}),
            row_group_size=GROUP_ROWS,
            use_dictionary=(number + seed) % 4 > 1,
        )
        source = open_source(path)
        assert next(source.fragments(0, BLOCK, BLOCK)).record_count > GROUP_ROWS, name
        assert read_alone(source)["a"].to_pylist() == column.to_pylist(), name
        assert read_alone(source, block_bytes=400)["a"].to_pylist() == column.to_pylist(), name


def test_null_lists_of_a_fixed_size_are_read_or_need_a_newer_library(tmp_path: Path) -> None:
    column = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int16(), 2))
    [path] = store(tmp_path, pa.table({"a": column}))
    if READS_NULL_VECTORS:
        assert read_alone(open_source(path))["a"].to_pylist() == column.to_pylist()
    else:
        with pytest.raises(InputError, match="need pyarrow 26"):
            open_source(path)


@pytest.mark.parametrize(
    ("name", "version"),
    mostly_slow(
        [
            ("text", "1.0"),
            ("list", "2.0"),
            ("list of lists", "1.0"),
            ("vector", "2.0"),
            ("list of structs", "1.0"),
            ("map", "2.0"),
            ("bytes", "1.0"),
        ],
        *(("text", "1.0"), ("list", "2.0"), ("list of lists", "1.0"), ("vector", "2.0")),
    ),
)
def test_damage_in_one_row_group_moves_no_rows_of_others(tmp_path: Path, name: str, version: str) -> None:
    """Nor of other files. Without checksums, a flipped level makes a row more or less, and a flipped header a value of any type."""
    rng = np.random.default_rng(5)
    tables = [pa.table({"a": draw_column(rng, KINDS[name], groups)}) for groups in (1, 70, 1)]
    options = {"compression": "none", "use_dictionary": False, "data_page_version": version}
    paths = store(tmp_path, *tables, row_group_size=GROUP_ROWS, **options)
    source, found = open_source(*paths), Counter[str]()
    assert next(source.fragments(1, BLOCK, BLOCK)).record_count > GROUP_ROWS
    expected = pa.concat_tables([read_alone(source, index) for index in range(3)])
    begin, end = 2 * GROUP_ROWS, 3 * GROUP_ROWS

    def check(batches: list[pa.RecordBatch], first: int) -> None:
        rows = pa.Table.from_batches(batches)
        assert rows[: begin - first].equals(expected[first:begin])
        assert rows[end - first :].equals(expected[end : first + len(rows)])

    for damaged in flipped(paths[1].read_bytes(), page_places(paths[1], group=1)):
        paths[1].write_bytes(damaged)
        joined = read_joined(source)
        try:
            check([*next(source.fragments(1, BLOCK, BLOCK)).batches()], GROUP_ROWS)
            found["read"] += 1
        except InputError as error:
            found["refused"] += 1
            assert "row group 1" in str(error)
            assert joined is None or len(joined.rows) == 1
        if joined is not None and len(joined.rows) > 1:
            assert joined.rows == [table.num_rows for table in tables]
            check([joined.batch], 0)
    assert min(found["refused"], found["read"]) > (20 if TRIES_ALL else 5)
