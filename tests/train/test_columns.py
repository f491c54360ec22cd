"""Batches: every type in the form that the table of the docs gives, in memory of their own."""

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import UsageError
from recshuf.formats.stored import ID_TYPE
from recshuf.train.blocks import Part, choose_block, iterate_rows
from recshuf.train.loader import PileLoader
from tests.support.effort import examples
from tests.support.record_batches import OTHER, values_of
from tests.support.stores.fake_piles import FakePiles
from tests.support.stores.small_stores import write

DAY, TIME = datetime.date(2001, 2, 3), datetime.time(4, 5, 6)
MOMENT = datetime.datetime(2001, 2, 3, 4, 5, 6)
SPAN = datetime.timedelta(seconds=7)

SINCE_MIDNIGHT = datetime.timedelta(hours=4, minutes=5, seconds=6)
FLOATS = [1.5, -2.0, 0.0]
TEXT = [b"ab", b"\0\0", b"cd"]

# The type, three values, and the type and the values of the array, if these differ.
ARRAYS: dict[str, tuple[pa.DataType, list[Any], str, list[Any] | None]] = {
    **{
        str(kind): (kind, [1, 2, 3], np.dtype(kind.to_pandas_dtype()).str, None)
        for kind in (pa.int8(), pa.int64(), pa.uint16(), pa.uint64())
    },
    "half": (pa.float16(), [np.float16(1.5)] * 3, "<f2", [1.5] * 3),
    "float": (pa.float32(), FLOATS, "<f4", None),
    "double": (pa.float64(), FLOATS, "<f8", None),
    "bool": (pa.bool_(), [True, False, True], "|b1", None),
    "date32": (pa.date32(), [DAY] * 3, "<M8[D]", None),
    "date64": (pa.date64(), [DAY] * 3, "<M8[ms]", [datetime.datetime(2001, 2, 3)] * 3),
    "time32": (pa.time32("s"), [TIME] * 3, "<m8[s]", [SINCE_MIDNIGHT] * 3),
    "time64": (pa.time64("us"), [TIME] * 3, "<m8[us]", [SINCE_MIDNIGHT] * 3),
    "timestamp": (pa.timestamp("us"), [MOMENT] * 3, "<M8[us]", None),
    "zone": (pa.timestamp("ms", "Europe/Paris"), [MOMENT.replace(tzinfo=datetime.UTC)] * 3, "<M8[ms]", [MOMENT] * 3),
    "duration": (pa.duration("s"), [SPAN] * 3, "<m8[s]", None),
    "vector": (pa.list_(pa.float32(), 2), [[1, 2], [3, 4], [5, 6]], "<f4", None),
    "flags": (pa.list_(pa.bool_(), 2), [[True, False]] * 3, "|b1", None),
    "matrix": (pa.list_(pa.list_(pa.uint8(), 2), 1), [[[1, 2]], [[3, 4]], [[5, 6]]], "|u1", None),
    "nothing": (pa.list_(pa.int8(), 0), [[], [], []], "|i1", None),
    "fixed": (pa.binary(2), TEXT, "|u1", [list(value) for value in TEXT]),
    "fixed vector": (pa.list_(pa.binary(1), 2), [[b"a", b"b"]] * 3, "|u1", [[[97], [98]]] * 3),
    "no bytes": (pa.binary(0), [b""] * 3, "|u1", [[], [], []]),
    "_id": (ID_TYPE, [{"source": 1, "row": 2}] * 3, "<i8", [[1, 2]] * 3),
}  # fmt: skip
LISTS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["a", "", None]),
    "large_string": (pa.large_string(), ["a", "ü", None]),
    "binary": (pa.binary(), [b"a", b"", None]),
    "large_binary": (pa.large_binary(), [b"a", b"\xff\x00", None]),
}


class Label(pa.ExtensionType):
    """A type without a hash."""

    def __init__(self) -> None:
        super().__init__(pa.int16(), "tests.label")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


OTHERS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "decimal": (pa.decimal128(5, 2), [Decimal("1.50")] * 3),
    "list": (pa.list_(pa.int64()), [[1], [], [2, 3]]),
    "struct": (pa.struct({"x": pa.int64()}), [{"x": 1}] * 3),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"]),
    "strings": (pa.list_(pa.string(), 1), [["a"], ["b"], ["c"]]),
    "null": (pa.null(), [None] * 3),
    "extension": (Label(), [1, 2, 3]),
    "nulls": (pa.int64(), [1, None, 3]),
    "null bytes": (pa.binary(2), [b"ab", None, b"cd"]),
    "null vector": (pa.list_(pa.int64(), 1), [[1], None, [3]]),
    "null in vector": (pa.list_(pa.int64(), 1), [[1], [None], [3]]),
}


def list_arrays() -> Iterator[tuple[pa.DataType, list[Any], np.ndarray]]:
    """Yield types, values, and their arrays."""
    for kind, values, dtype, expected in ARRAYS.values():
        yield kind, values, np.array(values if expected is None else expected, dtype)


def cut(output: str, column: pa.Array, start: int = 0, stop: int | None = None) -> Any:
    """Return the values of a batch of one column."""
    records = pa.record_batch([column], names=["a"])
    return cut_records(output, records, (start, len(column) if stop is None else stop))["a"]


def cut_records(output: str, records: pa.RecordBatch, *ranges: tuple[int, int]) -> Any:
    """Return a batch of some ranges of records, each from a block of its own."""
    blocks = [choose_block(output)(records.slice(start)) for start, _ in ranges]
    parts = [Part(block, 0, stop - start) for block, (start, stop) in zip(blocks, ranges, strict=True)]
    return blocks[0].cut(parts)


def test_numbers_and_times_are_arrays_that_can_be_written_to() -> None:
    for (kind, values, expected), offset in product(list_arrays(), (0, 1)):
        found = cut("numpy", pa.array([values[0]] * offset + values, kind).slice(offset))
        assert isinstance(found, np.ndarray)
        assert found.dtype.str == expected.dtype.str
        assert found.tolist() == expected.tolist()
        assert found.shape[:1] == (3,)
        assert found.flags.writeable
        assert found.flags.c_contiguous


def test_text_and_binary_are_lists_and_all_others_arrow_arrays() -> None:
    for kind, values in LISTS.values():
        assert cut("numpy", pa.array(values, kind)) == values
        assert cut("numpy", pa.array(values, kind), 1, 3) == values[1:]
    for kind, values in OTHERS.values():
        found = cut("numpy", pa.array(values, kind), 1, 3)
        assert isinstance(found, pa.Array)
        assert found.to_pylist() == values[1:]


def test_a_batch_without_nulls_of_a_column_with_some_is_an_array() -> None:
    column = pa.array([1, 2, None, 4], pa.int16())
    assert isinstance(cut("numpy", column, 0, 3), pa.Array)
    for start, stop, expected in ((0, 2, [1, 2]), (3, 4, [4])):
        found = cut("numpy", column, start, stop)
        assert (found.dtype, found.tolist()) == (np.int16, expected)
        assert found.flags.writeable
    joined = cut_records("numpy", pa.record_batch([column], names=["a"]), (2, 3), (3, 4))
    assert joined["a"].to_pylist() == [None, 4]


SHAPES = st.sampled_from([shape for shape in OTHER if len(OTHER[shape])])


@settings(max_examples=examples(200))
@given(
    shape=SHAPES,
    output=st.sampled_from(["numpy", "arrow"]),
    cuts=st.lists(st.integers(0, 20), min_size=3, max_size=3).map(sorted),
)
def test_no_value_changes_and_parts_of_several_blocks_follow_each_other(
    shape: str, output: str, cuts: list[int]
) -> None:
    schema = OTHER[shape]
    columns = [pa.array(values_of(field.type, 20), field.type) for field in schema]
    records = pa.RecordBatch.from_arrays(columns, schema=schema)
    first, middle, last = cuts
    whole = cut_records(output, records, (first, last))
    joined = cut_records(output, records, (first, middle), (middle, last))
    for name, column in zip(schema.names, columns, strict=True):
        assert type(joined[name]) is type(whole[name])
        for values in (whole[name], joined[name]):
            found = pa.array(values, column.type) if isinstance(values, np.ndarray) else values
            expected = column.slice(first, last - first).to_pylist()
            assert (found if isinstance(found, list) else found.to_pylist()) == expected


def test_rows_of_a_batch() -> None:
    columns = {
        "text": pa.array(["a", "b", "c"]),
        "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
        "list": pa.array([[1], [], [2]]),
        "maybe": pa.array([1, None, 3]),
    }
    records = pa.record_batch(columns)
    for output in ("numpy", "arrow"):
        rows = list(iterate_rows(cut_records(output, records, (1, 3))))
        assert [row | {"pair": [*row["pair"]]} for row in rows] == records.slice(1).to_pylist()


def test_a_column_called_id_is_no_riddle() -> None:
    store = FakePiles(
        {"a": [20]}, 2, lambda source, count: pa.record_batch({"_id": np.arange(count) + source})
    )
    assert next(iter(PileLoader(store, 5)))["_id"].shape == (5,)
    with pytest.raises(UsageError, match="columns: two columns are called '_id'"):
        PileLoader(store, 5, columns=["_id"])


def test_tensors_are_the_arrays() -> None:
    torch = pytest.importorskip("torch")
    for kind, values, wanted in list_arrays():
        found = cut("torch", pa.array(values, kind))
        assert isinstance(found, torch.Tensor)
        assert found.numpy().tolist() == (wanted.view("i8") if wanted.dtype.kind in "mM" else wanted).tolist()
    for kind, values in LISTS.values():
        assert cut("torch", pa.array(values, kind)) == values
    for kind, values in OTHERS.values():
        assert isinstance(cut("torch", pa.array(values, kind)), pa.Array)


def test_arrays_of_jax_are_the_arrays_or_refused() -> None:
    jax = pytest.importorskip("jax")
    for kind, values, wanted in list_arrays():
        wanted = wanted.view("i8") if wanted.dtype.kind in "mM" else wanted
        for is_wide in (True, False):
            jax.config.update("jax_enable_x64", is_wide)
            if wanted.dtype.itemsize == 8 and not is_wide:
                with pytest.raises(
                    UsageError, match=r"column 'a' holds .*, which JAX would make .*32; call jax"
                ):
                    cut("jax", pa.array(values, kind))
                continue
            found = cut("jax", pa.array(values, kind))
            assert isinstance(found, jax.Array)
            assert (found.dtype, found.tolist()) == (wanted.dtype, wanted.tolist())
    for kind, values in LISTS.values():
        assert cut("jax", pa.array(values, kind)) == values


@pytest.mark.parametrize(
    ("package", "problem"),
    [
        ("torch", r'^output="torch" needs PyTorch, .* install recshuf\[torch\]'),
        ("jax", '^output="jax" needs JAX, .* install jax$'),
    ],
)
def test_a_missing_package_is_named(package: Any, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(UsageError, match=problem):
        PileLoader(FakePiles({"a": [20]}, 2), 5, output=package)


# Fields of structs as columns of batches, by their paths

COUNT = 60
RECORDS = [
    {"n": n, "meta": {"w": n / 2, "in": {"t": f"t{n}"}, "gap": None if n % 3 else n, "tags": [n]}}
    for n in range(COUNT)
]


def make_store(folder: Path, suffix: str, records: list[Any] = RECORDS) -> Path:
    path = folder / f"in.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif suffix == "jsonl":
        path.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    else:
        with h5py.File(path, "w") as file:
            file["n"] = np.arange(COUNT)
            file["meta/w"] = np.arange(COUNT) / 2
            file["meta/in/t"] = [one["meta"]["in"]["t"] for one in records]
    recshuf.scatter(path, folder / "store", seed=3, piles=4)
    return folder / "store"


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "h5"])
def test_a_field_is_a_column_by_its_path(suffix: str, tmp_path: Path) -> None:
    store = make_store(tmp_path, suffix)
    names = ["meta.in.t", "n", "meta/w", "_id"]
    loader, tables = (
        recshuf.PileLoader(store, 7, columns=names, drop_last=False, output=output)
        for output in ("numpy", "arrow")
    )
    assert loader.schema.names == names
    count = 0
    for batch, table in zip(loader, tables, strict=True):
        assert table.schema.equals(loader.schema, check_metadata=False)
        assert list(batch) == names
        rows = batch["n"].tolist()
        assert batch["meta.in.t"] == table["meta.in.t"].to_pylist() == [f"t{n}" for n in rows]
        assert isinstance(batch["meta/w"], np.ndarray)
        assert batch["meta/w"].flags.writeable
        assert batch["meta/w"].tolist() == [n / 2 for n in rows]
        assert batch["_id"][:, 1].tolist() == rows
        count += len(rows)
    assert count == COUNT


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize("lacks", ["field", "struct"])
def test_a_field_with_nulls_has_one_form_in_all_batches(
    suffix: str, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recshuf.train.batch_reader.BUNDLE_BYTES", 0)  # some groups have no nulls
    records = [dict(one) for one in RECORDS]
    if lacks == "struct":
        records[7]["meta"] = None
    store = make_store(tmp_path, suffix, records)
    columns = ["n", "meta.gap", "meta.w"]
    for batch in recshuf.PileLoader(store, 3, columns=columns):
        assert isinstance(batch["meta.gap"], pa.Array)
        assert batch["meta.gap"].to_pylist() == [
            None if n % 3 or records[n]["meta"] is None else n for n in batch["n"].tolist()
        ]
        assert isinstance(batch["meta.w"], pa.Array if lacks == "struct" else np.ndarray)
    if find_spec("torch"):
        for batch in recshuf.PileLoader(store, 3, columns=columns, output="torch"):
            assert [isinstance(one, pa.Array) for one in batch.values()] == [False, True, lacks == "struct"]


def test_a_column_with_the_whole_name_wins(tmp_path: Path) -> None:
    write(tmp_path / "store", "one", [{"a.b": n, "a": {"b": -n}, "a/b": 100 + n} for n in range(20)], piles=2)
    loader = recshuf.PileLoader(tmp_path / "store", 20, columns=["a.b", "a/b", "a"])
    (batch,) = loader
    assert batch["a/b"].tolist() == [100 + n for n in batch["a.b"].tolist()]
    assert batch["a"].to_pylist() == [{"b": -n} for n in batch["a.b"].tolist()]


def test_a_path_of_no_field_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path, "parquet")
    for name, problem in [
        ("meta.tags.element", "'meta.tags.element': there is no field 'element' in list<"),
        ("meta.x", r"there is no field 'x' in struct<.*; name a field of a struct, or 'meta'"),
        ("n.x", "'n.x': there is no field 'x' in int64; name a field of a struct, or 'n'"),
        ("mta.w", "no column 'mta.w' in the store; it has 'n', 'meta'"),
        ("meta.", "there is no field '' in struct<"),
        (".", "no column '.' in the store"),
    ]:
        with pytest.raises(UsageError, match=problem):
            recshuf.PileLoader(store, 7, columns=["n", name])
    with pytest.raises(UsageError, match=r"'meta\.w' is named twice"):
        recshuf.PileLoader(store, 7, columns=["meta.w", "meta.w"])
