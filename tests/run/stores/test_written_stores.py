"""Stores that a program has written: empty ones have columns, and types that Parquet changes keep their values."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import CheckError, ConversionError
from recshuf.formats.parquet.sink import ParquetSink

EXTENSIONS = [".parquet", ".jsonl", ".csv", ".h5"]


def write_store(path: Path, array: pa.Array) -> Path:
    with recshuf.PileWriter(path, "a", schema=pa.schema([("x", array.type)])) as writer:
        writer.write(pa.table({"x": array}))
    return path


def read_columns(path: Path) -> set[str]:
    if path.suffix == ".parquet":
        return {*pq.read_schema(path).names}
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            return {*file}
    return {name.strip('"') for name in path.read_text().strip().split(",")}


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_provenance_of_no_records_is_empty_columns(tmp_path: Path, extension: str) -> None:
    recshuf.PileWriter(tmp_path / "store", "start", schema=pa.schema({"x": pa.int64()})).close()
    output = (tmp_path / "out").with_suffix(extension)
    report = recshuf.gather(tmp_path / "store", output, provenance=True, verify=True)
    assert report.records == 0
    names = {""} if extension == ".jsonl" else {"x", "source_file", "source_row"}
    assert read_columns(output) == names


DAY, DATE = datetime.time(23, 59, 59), datetime.date(1999, 12, 31)
LEAVES = [
    pa.array([DATE, None, DATE.replace(year=1)], pa.date64()),
    pa.array([DAY, None, datetime.time()], pa.time32("s")),
    *(pa.array([0, None, -(2**33)], pa.timestamp("s", zone)) for zone in (None, "UTC", "Europe/Berlin")),
]
NESTINGS: list[Callable[[pa.DataType], pa.DataType]] = [
    lambda kind: kind,
    lambda kind: pa.dictionary(pa.int8(), kind),
    pa.list_,
    pa.large_list,
    lambda kind: pa.list_(kind, 1),
    lambda kind: pa.struct([("a", kind)]),
    lambda kind: pa.map_(pa.string(), kind),
    lambda kind: pa.list_(pa.struct([("a", pa.list_(kind))])),
]


def nest(leaf: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values of a leaf, each alone in a value of a type around its own."""

    def wrap(value: Any, kind: pa.DataType) -> Any:
        if pa.types.is_struct(kind):
            return {field.name: wrap(value, field.type) for field in kind}
        if pa.types.is_map(kind):
            return [("k", value)]
        return [wrap(value, kind.value_type)] if pa.types.is_nested(kind) else value

    if pa.types.is_dictionary(kind):
        return leaf.dictionary_encode().cast(kind)
    return pa.array([wrap(value, kind) for value in leaf.to_pylist()], kind)


@pytest.mark.parametrize(
    "leaf",
    [pytest.param(leaf, marks=() if number == 4 else pytest.mark.slow) for number, leaf in enumerate(LEAVES)],
    ids=lambda leaf: str(leaf.type),
)
def test_types_that_parquet_lacks_keep_their_values(
    tmp_path: Path, leaf: pa.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [nest(leaf, make(leaf.type)) for make in NESTINGS]
    stores = [write_store(tmp_path / f"store {index}", array) for index, array in enumerate(arrays)]
    for store, array in zip(stores, arrays, strict=True):
        output = tmp_path / f"{store.name}.parquet"
        recshuf.gather(store, output, verify=True)
        assert sorted(map(str, pq.read_table(output)["x"].to_pylist())) == sorted(map(str, array.to_pylist()))
    # Without a wrong output nothing tells that values of such types are compared at all.
    whole = ParquetSink.write
    monkeypatch.setattr(ParquetSink, "write", lambda sink, batch: whole(sink, batch.take([0] * len(batch))))
    for store in stores:
        with pytest.raises(CheckError, match=r"verify: [12] records missing, [12] extra; such as"):
            recshuf.gather(store, tmp_path / "wrong.parquet", verify=True)


def lost(ticks: int, kind: pa.DataType) -> pa.Array:
    return pa.array([0, ticks], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


@pytest.mark.parametrize(
    ("ticks", "kind"),
    [
        (2**60, pa.timestamp("s")),
        (-(2**60), pa.timestamp("s", "UTC")),
        (1, pa.date64()),
        (2**62 // 86_400_000 * 86_400_000, pa.date64()),
        (2**31 - 1, pa.time32("s")),
    ],
    ids=str,
)
def test_values_that_parquet_would_change_are_refused_by_name(
    tmp_path: Path, ticks: int, kind: pa.DataType
) -> None:
    array = lost(ticks, kind)
    for index, nested in enumerate([array, pa.ListArray.from_arrays([0, 1, 2], array)]):
        store = write_store(tmp_path / f"store {index}", nested)
        with pytest.raises(ConversionError, match=r"^field 'x': .*; cast the column to another type first$"):
            recshuf.gather(store, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()
