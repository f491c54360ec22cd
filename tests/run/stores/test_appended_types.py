"""What is appended to a store has the types of its records, also where as many bytes could be of others."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import RecshufError, UsageError
from tests.support.stores.small_stores import append, expire, write

ROWS = 20
NUMBERS = np.arange(6 * ROWS)


def write_npy(path: Path, dtype: str, *shape: int) -> None:
    np.save(path, NUMBERS.astype(dtype).reshape(-1, *shape)[:ROWS])


def write_npz(path: Path, first: str, second: str) -> None:
    np.savez(path, a=NUMBERS.astype(first), b=NUMBERS.astype(second))


def write_h5(path: Path, dtype: Any, *shape: int) -> None:
    with h5py.File(path, "w") as file:
        rows = np.zeros((ROWS, *shape), dtype) if np.dtype(dtype).names else NUMBERS % 2
        file.create_dataset("x", data=np.resize(rows, (ROWS, *shape)).astype(dtype), dtype=dtype)


def write_tar(path: Path, *suffixes: str) -> None:
    with tarfile.open(path, "w") as archive:
        for row in range(ROWS):
            for suffix in suffixes:
                member = tarfile.TarInfo(f"{path.stem} {row}.{suffix}")
                member.size = 2
                archive.addfile(member, io.BytesIO(b"%02d" % row))


def enum(*names: str) -> np.dtype[Any]:
    return h5py.enum_dtype({name: value for value, name in enumerate(names)}, "i1")


PAIR = [("a", "<i4"), ("b", "<i4")]
CASES: dict[str, tuple[Callable[..., None], str, list[Any], list[Any]]] = {
    "npy type": (write_npy, "npy", ["i4"], ["f4"]),
    "npy byte order": (write_npy, "npy", ["<i4"], [">i4"]),
    "npy axes": (write_npy, "npy", ["i4", 2, 3], ["i4", 3, 2]),
    "npz": (write_npz, "npz", ["i4", "f4"], ["f4", "i4"]),
    "hdf5 type": (write_h5, "h5", ["i4"], ["f4"]),
    "hdf5 byte order": (write_h5, "h5", ["<i4"], [">i4"]),
    "hdf5 axes": (write_h5, "h5", ["i4", 2, 3], ["i4", 3, 2]),
    "hdf5 enum": (write_h5, "h5", [enum("yes", "no")], [enum("no", "yes")]),
    "hdf5 members": (write_h5, "h5", [PAIR], [PAIR[::-1]]),
    "members of records": (write_tar, "tar", ["jpg"], ["jpg", "cls"]),
}


@pytest.mark.parametrize("name", CASES)
def test_records_of_another_type_are_refused_and_the_store_stays(tmp_path: Path, name: str) -> None:
    write, suffix, given, other = CASES[name]
    paths = {key: tmp_path / f"{key}.{suffix}" for key in ("given", "same", "other")}
    for path, values in zip(paths.values(), (given, given, other), strict=True):
        write(path, *values)
    store = tmp_path / "store"
    recshuf.scatter(paths["given"], store, seed=1)

    def load() -> list[str]:
        loader = recshuf.PileLoader(store, ROWS, output="arrow", drop_last=False)
        return sorted(str(row) for batch in loader for row in pa.table(batch).to_pylist())

    before = load()
    with pytest.raises(RecshufError, match=r"the store.*(new store|convert)") as raised:
        recshuf.window(store, append=paths["other"])
    assert suffix == "tar" or f"other.{suffix}: " in str(raised.value)
    assert load() == before
    recshuf.window(store, append=paths["same"])
    assert len(load()) == 2 * len(before)


def write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path)


def write_arrow(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as sink:
        sink.write_table(table)


NARROWER = [
    (pa.large_string(), pa.array(["a", "é"], pa.string())),
    (pa.string(), pa.array(["a", "é"], pa.string()).dictionary_encode()),
    (pa.large_binary(), pa.array([b"", b"b"], pa.binary())),
    (pa.int64(), pa.array([1, None], pa.int32())),
    (pa.float64(), pa.array([-1, 2**31 - 1], pa.int32())),
    (pa.list_(pa.large_string()), pa.array([["a"], []], pa.list_(pa.string()))),
]
TOO_WIDE = [
    (pa.string(), pa.array(["a"], pa.large_string())),
    (pa.int32(), pa.array([1], pa.int64())),
    (pa.float64(), pa.array([1], pa.int64())),
]


@pytest.mark.parametrize("write", [write_parquet, write_arrow])
def test_columns_get_the_types_of_the_store_where_these_hold_their_values(tmp_path: Path, write: Any) -> None:
    given, other, store = (tmp_path / name for name in ("a.x", "b.x", "store"))
    wide = pa.table([pa.nulls(2, kind) for kind, _ in NARROWER], [f"c{i}" for i in range(len(NARROWER))])
    narrow = pa.table([values for _, values in NARROWER], wide.schema.names)
    write(wide, given)
    write(narrow, other)
    recshuf.scatter(given, store, seed=1)
    recshuf.window(store, append=other)
    recshuf.gather(store, tmp_path / "out.parquet")
    out = pq.read_table(tmp_path / "out.parquet")
    assert out.schema.types == wide.schema.types
    found = sorted(map(str, out.to_pylist()))
    assert found == sorted(map(str, wide.to_pylist() + narrow.cast(wide.schema).to_pylist()))


@pytest.mark.parametrize("write", [write_parquet, write_arrow])
@pytest.mark.parametrize(("held", "values"), TOO_WIDE, ids=str)
def test_a_column_that_does_not_fit_is_refused_with_its_file(
    tmp_path: Path, write: Any, held: pa.DataType, values: pa.Array
) -> None:
    given, other, store = (tmp_path / name for name in ("a.x", "b.x", "store"))
    write(pa.table({"c": pa.nulls(2, held)}), given)
    write(pa.table({"c": values}), other)
    recshuf.scatter(given, store, seed=1)
    with pytest.raises(
        UsageError, match=rf"b\.x: column 'c' is {values.type}, and {held} in the store; cast it$"
    ):
        recshuf.window(store, append=other)


@pytest.mark.parametrize("options", [{"dtype": "float32[2]"}, {"record_bytes": 8}], ids=str)
def test_bytes_that_are_called_something_else_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "in.bin").write_bytes(NUMBERS.astype("<i4").tobytes())
    recshuf.scatter(tmp_path / "in.bin", tmp_path / "store", seed=1, dtype="int32[2]")
    with pytest.raises(RecshufError, match=r"and that of the store of int32\[2\]"):
        recshuf.window(tmp_path / "store", append=tmp_path / "in.bin", **options)
    recshuf.window(tmp_path / "store", append=tmp_path / "in.bin", dtype="int32[2]")


@pytest.mark.parametrize("suffix", ["h5", "npz"])
def test_copies_beside_the_records_are_those_of_the_store(tmp_path: Path, suffix: str) -> None:
    """What the columns of a matrix are stands beside it."""
    paths = [tmp_path / f"{number}.{suffix}" for number in range(3)]
    for path, first in zip(paths, (0, 0, 1), strict=True):
        arrays = {"x": NUMBERS, "axis": np.arange(first, first + 3)}
        if suffix == "npz":
            np.savez(path, **arrays)
        else:
            with h5py.File(path, "w") as file:
                for name, values in arrays.items():
                    file[name] = values
    recshuf.scatter(paths[0], tmp_path / "store", seed=1, keep_others=True)
    with pytest.raises(RecshufError, match=r"2\.\w+: (array|dataset) 'axis': differs from that in .*store"):
        recshuf.window(tmp_path / "store", append=paths[2], keep_others=True)
    recshuf.window(tmp_path / "store", append=paths[1], keep_others=True)
    if suffix == "h5":
        recshuf.window(tmp_path / "store", append=paths[2], keep_others=True, first_metadata=True)


def test_lines_with_another_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\nb\n")
    (tmp_path / "b.txt").write_bytes(b"c\0d\0")
    recshuf.scatter(tmp_path / "a.txt", tmp_path / "store", seed=1)
    with pytest.raises(RecshufError, match=r"end in b'\\x00', and in b'\\n' in the store"):
        recshuf.window(tmp_path / "store", append=tmp_path / "b.txt", zero_terminated=True)
    recshuf.gather(tmp_path / "store", tmp_path / "out.txt")
    assert sorted((tmp_path / "out.txt").read_bytes().splitlines()) == [b"a", b"b"]


def test_headers_are_those_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("top\na\n")
    (tmp_path / "b.txt").write_text("other\nb\n")
    (tmp_path / "c.txt").write_text("c\n")
    store = tmp_path / "store"
    recshuf.scatter(tmp_path / "a.txt", store, seed=1, header=1)
    with pytest.raises(UsageError, match=r"b\.txt: the header is b'other\\n', and b'top\\n' in the store"):
        recshuf.window(store, append=tmp_path / "b.txt", header=1)
    with pytest.raises(UsageError, match=r"b\.txt: .*give header=1, or none"):
        recshuf.window(store, append=tmp_path / "b.txt")
    recshuf.window(store, append=tmp_path / "a.txt", header=1)
    recshuf.window(store, append=tmp_path / "c.txt", header="none")
    recshuf.gather(store, tmp_path / "out.txt")
    top, *lines = (tmp_path / "out.txt").read_text().split()
    assert (top, sorted(lines)) == ("top", ["a", "a", "c"])


def test_headers_of_bytes_are_those_of_the_store(tmp_path: Path) -> None:
    for name in ("top.bin", "end.bin"):
        (tmp_path / name).write_bytes(name.encode()[:3] + b"1234")
    options: dict[str, Any] = {"format": "binary", "record_bytes": 4}
    store = tmp_path / "store"
    recshuf.scatter(tmp_path / "top.bin", store, seed=1, header_bytes=3, **options)
    with pytest.raises(RecshufError, match=r"end\.bin: its header differs from that of the store"):
        recshuf.window(store, append=tmp_path / "end.bin", header_bytes=3, **options)
    recshuf.window(store, append=tmp_path / "top.bin", header_bytes=3, **options)


@pytest.mark.filterwarnings("ignore:.*its header seems to count the records")
@pytest.mark.parametrize("counts", [(1000, 3), (3, 1000), (1000, 2000)])
def test_headers_that_count_differ_also_where_a_file_is_too_small_to_show_it(
    tmp_path: Path, counts: tuple[int, int]
) -> None:
    paths, numbers = [tmp_path / "0.bin", tmp_path / "1.bin"], range(sum(counts))
    for path, count, first in zip(paths, counts, (0, counts[0]), strict=True):
        records = np.arange(first, first + count, dtype="<i4")
        path.write_bytes(b"MAGI" + count.to_bytes(4, "little") + records.tobytes())
    options: dict[str, Any] = {"format": "binary", "record_bytes": 4, "header_bytes": 8}
    recshuf.scatter(paths[0], tmp_path / "store", seed=1, **options)
    recshuf.window(tmp_path / "store", append=paths[1], **options)
    recshuf.gather(tmp_path / "store", tmp_path / "out.bin")
    top, records = (content := (tmp_path / "out.bin").read_bytes())[:8], np.frombuffer(content[8:], "<i4")
    assert (top, sorted(records.tolist())) == (paths[0].read_bytes()[:8], [*numbers])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("b,a\n1,2\n", "columns 'b', 'a', and those of the store are 'a', 'b'"),
        ("a,c\n1,2\n", "columns 'a', 'c', and"),
        ("a;b\n1;2\n", "the inputs have another delimiter"),
    ],
)
def test_columns_of_csv_are_those_of_the_store(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text(text)
    recshuf.scatter(tmp_path / "a.csv", tmp_path / "store", seed=1)
    with pytest.raises(UsageError, match=rf"b\.csv: {problem}"):
        recshuf.window(tmp_path / "store", append=tmp_path / "b.csv")


@pytest.mark.parametrize(
    ("kept", "given", "remedy"),
    [
        ({"record_lines": 2}, {}, r"give record_lines=2, or begin a new store"),
        ({"record_start": "@"}, {}, r"give record_start='@', or begin"),
        ({"record_lines": 2}, {"record_lines": 4}, r"of record_lines=4, and those of record_lines=2 in"),
        ({"record_start": "@"}, {"record_start": "@a"}, r"give record_start='@', or"),
        ({}, {"record_lines": 2}, r"and single lines in the store; leave out record_lines"),
    ],
    ids=str,
)
def test_records_of_other_lines_are_refused(
    tmp_path: Path, kept: dict[str, Any], given: dict[str, Any], remedy: str
) -> None:
    (tmp_path / "a.txt").write_bytes(b"@a\nA\n@ab\nB\n")
    recshuf.scatter(tmp_path / "a.txt", tmp_path / "store", seed=1, **kept)
    with pytest.raises(UsageError, match=remedy):
        recshuf.window(tmp_path / "store", append=tmp_path / "a.txt", **given)
    recshuf.window(tmp_path / "store", append=tmp_path / "a.txt", **kept)
    assert len(recshuf.PileStore(tmp_path / "store")) == (4 if kept else 8)


def test_records_that_lack_a_member_are_appended(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", "jpg", "cls")
    write_tar(tmp_path / "b.tar", "jpg")
    recshuf.scatter(tmp_path / "a.tar", tmp_path / "store", seed=1)
    recshuf.window(tmp_path / "store", append=tmp_path / "b.tar")
    loader = recshuf.PileLoader(tmp_path / "store", 1000, output="arrow", drop_last=False)
    assert sum(batch.column("cls").null_count for batch in loader) == ROWS


# A column of numbers has one type in all batches of a store: that of arrays, or of Arrow if any record lacks a value

COUNT = 400
KINDS = ("parquet", "jsonl", "csv", "schema", "writer")
HOLES = (None, 0, COUNT - 1)
NAMES = ("whole", "n", "pair", "inner", "text")
HELD = {"csv": NAMES[:2], "jsonl": ("whole", "n", "text")}
"""Columns of kinds that cannot hold all of them."""


def make_table(hole: int | None) -> pa.Table:
    """Return records of which one, or none, lacks values."""
    numbers: list[Any] = list(range(COUNT))
    pairs: list[Any] = [[number % 9, 1] for number in numbers]
    inner = [*pairs]
    if hole is not None:
        numbers[hole], pairs[hole], inner[hole] = None, None, [None, 1]
    sized = pa.list_(pa.int16(), 2)
    columns = {"whole": np.arange(COUNT), "n": numbers, "pair": pa.array(pairs, sized)}
    texts = [None if one is None else str(one) for one in numbers]
    return pa.table(columns | {"inner": pa.array(inner, sized), "text": texts})


def check_types(store: Path, hole: int | None, names: tuple[str, ...] = NAMES, *others: Path) -> None:
    """Check the type of each column in all batches of two epochs, and of a mix in which others come first."""
    lacking = np.ndarray if hole is None else pa.Array
    expected = {name: {np.ndarray if name == "whole" else lacking} for name in names if name != "text"}
    if "text" in names:
        expected["text"] = {list}
    loaders = [recshuf.PileLoader(store, 16, epoch=epoch, drop_last=False) for epoch in (0, 1)]
    for loader in (*loaders, recshuf.MixLoader(dict.fromkeys([*others, store], 1), 16, columns=[*names])):
        found: dict[str, set[type]] = {}
        for batch in loader:
            for name, column in batch.items():
                kinds = (kind for kind in (np.ndarray, pa.Array, list) if isinstance(column, kind))
                found.setdefault(name, set()).add(next(kinds))
        assert found == expected


@pytest.mark.parametrize(
    ("kind", "hole"),
    [*zip(KINDS, cycle(HOLES), strict=False), ("writer", 0)],
)
def test_a_column_has_one_type(tmp_path: Path, kind: str, hole: int | None) -> None:
    names, store = HELD.get(kind, NAMES), tmp_path / "store"
    table = make_table(hole).select(names)
    path = tmp_path / f"a.{'jsonl' if kind == 'schema' else kind}"
    if kind == "writer":
        write(store, "a", *table.to_batches(max_chunksize=70), piles=5)
    elif kind == "parquet":
        pq.write_table(table, path, row_group_size=50)
    elif kind == "csv":
        pa.csv.write_csv(table, path)
    else:  # what is null is missing in one half of the records
        rows = (
            {name: value for name, value in row.items() if value is not None or row["whole"] % 2}
            for row in table.to_pylist()
        )
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if kind != "writer":
        options = {"schema": table.schema} if kind == "schema" else {}
        recshuf.scatter(path, store, seed=3, piles=5, **options)
    check_types(store, hole, names)


@pytest.mark.parametrize("hole", HOLES[:2])
def test_a_field_has_one_type_where_its_struct_may_be_missing(tmp_path: Path, hole: int | None) -> None:
    numbers = np.arange(COUNT)
    pairs = pa.StructArray.from_arrays([pa.array(numbers)], ["x"], mask=pa.array(numbers == hole))
    write(tmp_path / "store", "a", pa.table({"pair": pairs}), piles=5)
    loader = recshuf.PileLoader(tmp_path / "store", 16, columns=["pair.x"], drop_last=False)
    kind = np.ndarray if hole is None else pa.Array
    assert {isinstance(batch["pair.x"], kind) for batch in loader} == {True}


def test_slices_and_compactions_keep_what_is_known(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write(store, "a", make_table(None), piles=3)
    check_types(store, None)
    whole = shutil.copytree(store, tmp_path / "whole")
    append(store, make_table(7), time=5)
    check_types(store, 7, NAMES, whole)
    recshuf.compact(store, sets=1)
    check_types(store, 7)
    append(store, make_table(None), time=9)
    expire(store, before=9)
    check_types(store, None)


def test_values_that_no_dictionary_of_the_store_has_are_gathered(tmp_path: Path) -> None:
    def write_arrow(name: str, values: list[str | None]) -> Path:
        column = pa.array(values).dictionary_encode()
        with pa.ipc.new_file(tmp_path / name, pa.schema([("c", column.type)])) as file:
            file.write_table(pa.table({"c": column}))
        return tmp_path / name

    def gather() -> pa.ChunkedArray:
        recshuf.gather(store, tmp_path / "out.arrow", verify=True, overwrite=True)
        return pa.ipc.open_file(tmp_path / "out.arrow").read_all()["c"]

    store = tmp_path / "store"
    recshuf.scatter(write_arrow("first.arrow", ["a", "b", None]), store)
    assert pa.types.is_dictionary(gather().type)
    recshuf.window(store, append=[write_arrow("more.arrow", ["c", "a"])], time=1)
    with recshuf.PileWriter(store, "program") as writer:
        writer.write({"c": ["d"]})
    for _ in range(2):
        assert sorted(map(str, gather().to_pylist())) == ["None", "a", "a", "b", "c", "d"]
        recshuf.compact(store, sets=1)
