"""Row groups that are read together, and the entries by which they are kept apart, compared with what writers count."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recshuf.errors import InputError
from recshuf.formats.parquet import FORMAT
from recshuf.formats.parquet import source as source_module
from recshuf.formats.parquet.file import OpenFile
from recshuf.formats.parquet.pages import EntryCount
from recshuf.formats.parquet.types import is_countable
from recshuf.interfaces import InputFile, ReadOptions
from tests.support.effort import TRIES_ALL, flipped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = 30
GROUP_ROWS = 10
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
}
UNCOUNTED = {
    "list of labels": pa.list_(pa.dictionary(pa.int8(), pa.string())),
    "vector of lists": pa.list_(pa.list_(pa.int8()), 2),
    "struct of a vector of lists": pa.struct([("v", pa.list_(pa.list_(pa.int8()), 2))]),
}


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return values of a type, few of them distinct, with nulls at every level below that may have them."""
    types = pa.types
    if types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType) or types.is_string(kind):
        return st.sampled_from(["1", "22"])
    if types.is_binary(kind):
        return st.binary(max_size=2)
    if types.is_fixed_size_list(kind):
        return st.lists(members(kind.value_field), min_size=kind.list_size, max_size=kind.list_size)
    if types.is_map(kind):
        return st.lists(st.tuples(values(kind.key_type), members(kind.item_field)), max_size=3)
    if types.is_list(kind) or types.is_large_list(kind):
        return st.lists(members(kind.value_field), max_size=3)
    if types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return st.fixed_dictionaries({field.name: members(field) for field in fields})
    return st.integers(0, 3)


def members(field: pa.Field) -> st.SearchStrategy[Any]:
    return st.none() | values(field.type) if field.nullable else values(field.type)


def columns(name: str) -> st.SearchStrategy[pa.Array]:
    kind = (KINDS | UNCOUNTED)[name]
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    made = st.lists(members(pa.field("a", kind)), min_size=ROWS, max_size=ROWS)
    made = made.map(lambda rows: pa.array(rows, storage))
    return made.map(kind.wrap_array) if isinstance(kind, pa.BaseExtensionType) else made


def read(path: Path) -> pa.Array:
    source = FORMAT.open_source([InputFile(path.name, path)], ReadOptions())
    fragments = source.fragments(0, 1 << 20, 1 << 20)
    batches = [batch for fragment in fragments for batch in fragment.batches()]
    return pa.Table.from_batches(batches, source.schema)["a"].combine_chunks()


@pytest.fixture(autouse=True)
def large_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay all row groups into one fragment, as if the file were a part of a large one."""
    monkeypatch.setattr(source_module, "_LEAST_FRAGMENTS", 1e-6)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What is read at once, as it happens."""
    found: list[list[int]] = []

    def batches(file: OpenFile, groups: list[int], *args: Any) -> Iterator[pa.RecordBatch]:
        found.append(list(groups))
        return given_batches(file, groups, *args)

    given_batches = OpenFile.batches
    monkeypatch.setattr(OpenFile, "batches", batches)
    return found


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), cut=st.integers(1, ROWS))
def test_entries_are_those_that_the_writer_counted(
    tmp_path: Path, name: str, data: st.DataObject, cut: int
) -> None:
    column = data.draw(columns(name))
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"a": column}), path, row_group_size=GROUP_ROWS)
    metadata = pq.read_metadata(path)
    leaves = range(metadata.num_columns)
    assert is_countable(column.type)
    entries = EntryCount([GROUP_ROWS] * (ROWS // GROUP_ROWS), [column.type])
    for batch in pq.read_table(path).combine_chunks().to_batches(max_chunksize=cut):
        entries.add(batch)
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        assert entries.of(group) == [row_group.column(leaf).num_values for leaf in leaves]


@pytest.mark.parametrize("name", [*KINDS, *UNCOUNTED])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_row_groups_that_are_read_together_hold_the_same(
    tmp_path: Path, runs: list[list[int]], name: str, data: st.DataObject
) -> None:
    column = data.draw(columns(name))
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"a": column}), path, row_group_size=GROUP_ROWS)
    runs.clear()
    assert read(path).to_pylist() == column.to_pylist()
    assert ([0, 1, 2] in runs) == (name in KINDS)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("name", ["list", "list of lists", "list of structs", "map", "vector", "bytes"])
def test_damage_in_one_row_group_moves_no_rows_of_others(tmp_path: Path, name: str, version: str) -> None:
    """Without checksums, a level that is flipped makes a row more or less."""
    rng = np.random.default_rng(5)
    lists = [[int(number) for number in rng.integers(0, 4, size)] for size in rng.integers(0, 4, ROWS)]
    rows: dict[str, list[Any]] = {
        "list": lists,
        "list of lists": [[[b"a"] * number for number in row] for row in lists],
        "list of structs": [[{"x": number, "y": [number] * number} for number in row] for row in lists],
        "map": [[(place, [number]) for place, number in enumerate(row)] for row in lists],
        "vector": [[*row, 1, 2, 3][:3] if row else None for row in lists],
        "bytes": [b"x" * sum(row) if row else None for row in lists],
    }
    path = tmp_path / "in.parquet"
    column = pa.array(rows[name], KINDS[name])
    options = {"compression": "none", "use_dictionary": False, "data_page_version": version}
    pq.write_table(pa.table({"a": column}), path, row_group_size=GROUP_ROWS, **options)
    content, expected = path.read_bytes(), read(path)
    chunk = pq.read_metadata(path).row_group(1).column(0)
    found: Counter[str] = Counter()
    places = range(chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size)
    for damaged in flipped(content, places):
        path.write_bytes(damaged)
        try:
            got = read(path)
        except InputError:
            found["refused"] += 1
            continue
        for start in (0, 2 * GROUP_ROWS):
            assert got.slice(start, GROUP_ROWS).equals(expected.slice(start, GROUP_ROWS))
        found["read"] += 1
    assert min(found["refused"], found["read"]) > (20 if TRIES_ALL else 5)


def test_rows_that_are_missing_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"a": range(ROWS)}), path, row_group_size=GROUP_ROWS)

    def batches(file: OpenFile, *args: Any) -> Iterator[pa.RecordBatch]:
        for batch in given_batches(file, *args):
            yield batch.slice(1)

    given_batches = OpenFile.batches
    monkeypatch.setattr(OpenFile, "batches", batches)
    with pytest.raises(
        InputError, match="row group 0: is damaged: 9 rows can be read, and the footer says 10;"
    ):
        read(path)
