"""Arrays of NumPy and binary records as people have them: types, headers, damage, conversions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, InputError, RecshufWarning, UsageError
from recshuf.formats.arrays import NPY
from recshuf.interfaces import InputFile, ReadOptions
from tests.support.formats.file_suite import refused
from tests.support.formats.format_tools import read_input

ROWS = 500
RECORD = np.dtype([("id", "<i4"), ("weight", ">f8"), ("name", "S5"), ("box", "u1", (2,))], align=True)


def make_records() -> np.ndarray[Any, Any]:
    records = np.zeros(ROWS, RECORD)
    records["id"], records["weight"] = np.arange(ROWS), np.arange(ROWS) / 4
    records["name"] = [b"n%d" % row for row in range(ROWS)]
    records["box"] = np.arange(2 * ROWS).reshape(ROWS, 2) % 251
    return records


ARRAYS = {
    "order": np.arange(ROWS),
    "float16": np.arange(ROWS, dtype="f2"),
    "bool": np.arange(ROWS) % 3 == 0,
    "big-endian": np.arange(ROWS * 4, dtype=">i8").reshape(ROWS, 4),
    "fortran": np.asfortranarray(np.arange(ROWS * 12, dtype="f4").reshape(ROWS, 3, 4)),
    "complex": np.arange(ROWS) * 1j,
    "times": np.arange(ROWS).astype("M8[D]"),
    "text": np.array([f"é{row}" for row in range(ROWS)]),
    "structured": make_records(),
    "é": np.zeros(ROWS, [("é", "i4")]),
    "long names": np.zeros(ROWS, [(f"{place}" * 2500, "i1") for place in range(10, 30)]),
}
VERSIONS = {"bool": (2, 0), "é": (3, 0), "long names": (2, 0)}
"""Versions of headers; others have the first one."""


def test_type_shape_and_every_bit_are_kept(tmp_path: Path) -> None:
    order = ARRAYS["order"]
    for name, array in ARRAYS.items():
        with (tmp_path / "in.npy").open("wb") as file:
            np.lib.format.write_array(file, array, VERSIONS.get(name, (1, 0)))
        recshuf.shuffle(tmp_path / "in.npy", tmp_path / "out.npy", seed=3, verify=True, overwrite=True)
        found = np.load(tmp_path / "out.npy", max_header_size=1 << 20)
        order = found if name == "order" else order
        assert (name, found.dtype, found.shape) == (name, array.dtype, array.shape)
        assert str(found.tolist()) == str(array[order].tolist())
    assert (np.sort(order) == ARRAYS["order"]).all()
    # Python 2 wrote its long numbers so.
    np.save(tmp_path / "in.npy", ARRAYS["order"])
    head = (tmp_path / "in.npy").read_bytes().replace(b"(500,), }  ", b"(500L,), } ")
    assert b"500L" in head
    (tmp_path / "in.npy").write_bytes(head)
    recshuf.shuffle(tmp_path / "in.npy", tmp_path / "out.npy", seed=3, overwrite=True)
    assert (np.load(tmp_path / "out.npy") == order).all()


def test_members_and_lists_become_columns_and_lists_come_back(tmp_path: Path) -> None:
    records = make_records()
    for name in ("structured", "big-endian", "complex"):
        np.save(tmp_path / f"{name}.npy", ARRAYS[name])
    recshuf.shuffle(tmp_path / "structured.npy", tmp_path / "out.parquet", verify=True)
    table = pq.read_table(tmp_path / "out.parquet").sort_by("id")
    for name in ("weight", "name", "box"):
        assert table[name].to_pylist() == records[name].tolist()
    recshuf.shuffle(tmp_path / "big-endian.npy", tmp_path / "lists.parquet", seed=1)
    recshuf.shuffle(tmp_path / "lists.parquet", tmp_path / "back.npy", seed=2)
    back = np.load(tmp_path / "back.npy")
    assert back.dtype == np.int64
    assert sorted(back.tolist()) == ARRAYS["big-endian"].tolist()
    said = "items of type complex128 have no table form; keep the format"
    refused(ConversionError, said, tmp_path / "complex.npy", tmp_path / "none.parquet")
    np.savez(tmp_path / "empty.npz", a=np.arange(3), b=np.empty((3, 0)))
    said = "field 'b': rows of no items have no table form; keep the format"
    refused(ConversionError, said, tmp_path / "empty.npz", tmp_path / "none.parquet")


def test_what_an_array_cannot_hold_is_named(tmp_path: Path) -> None:
    for columns, name, said in (
        ({"a": [1, None], "b": [2, 3]}, "out.npy", "an array holds one column, and there are 2"),
        ({"a": [1, None]}, "out.npy", "'a': an array holds no nulls"),
        ({"a": pa.array([[1], None], pa.list_(pa.int8(), 1))}, "out.npy", "'a': an array holds no nulls"),
        ({"a": pa.array([b"1234", None], pa.binary(4))}, "out.bin", "'a': an array holds no nulls"),
    ):
        to = "binary" if name == "out.bin" else "npy"
        refused(ConversionError, said, pa.table(columns), tmp_path / name, to=to)
    assert not [*tmp_path.iterdir()]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"", "is empty"),
    "truncated": (lambda content: content[:-1], "bytes behind its header, and its values take"),
    "longer": (lambda content: content + b"x", "bytes behind its header, and its values take"),
    "version 0.0": (lambda content: content[:6] + b"\0" + content[7:], "header that is damaged"),
    "version 1.16": (lambda content: content[:7] + b"\x10" + content[8:], "header that is damaged"),
    "shape": (lambda content: content.replace(b"(500,)", b"(-50,)"), "header that is damaged"),
    "key": (lambda content: content.replace(b"'descr'", b"'dexcr'"), "header that is damaged"),
    "objects": (lambda content: content.replace(b"'<i8'", b"'|O' "), "holds Python objects"),
    "numbers": (lambda content: content[128:], "has no header of NumPy; .*format='binary' and dtype=TYPE or"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, kind: str) -> None:
    change, said = DAMAGE[kind]
    np.save(tmp_path / "in.npy", np.arange(ROWS))
    (tmp_path / "in.npy").write_bytes(change((tmp_path / "in.npy").read_bytes()))
    refused(InputError, rf"in\.npy: .*{said}", tmp_path / "in.npy", tmp_path / "out.npy")


def test_a_file_that_is_cut_off_meanwhile_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in.npy"
    np.save(path, np.arange(ROWS))
    source = NPY.open_source([InputFile("in.npy", path)], ReadOptions())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"in\.npy: changed while it was read; run again"):
        read_input(source, 0, 1 << 20)


def test_arrays_that_differ_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "0.npy", tmp_path / "1.npy"]
    np.save(paths[0], np.zeros((3, 2)))
    for other, said in (
        (np.zeros((3, 3)), r"float64\[3\]"),
        (np.zeros((3, 1, 2)), r"float64\[1\]\[2\]"),
        (np.zeros((3, 2), int), r"int64\[2\]"),
    ):
        np.save(paths[1], other)
        said = rf"1\.npy: holds records of {said}, and .*0\.npy of float64\[2\]"
        refused(InputError, said, paths, tmp_path / "out.npy")


def test_binary_records_keep_every_byte_behind_their_header(tmp_path: Path) -> None:
    headers = b"Header" * 12_000, b"HEADER" * 12_000
    size = len(headers[0])
    records, options = [b"%04d" % row for row in range(1000)], {"record_bytes": 4, "header_bytes": size}
    for name, header in zip(("in", "other"), headers, strict=True):
        (tmp_path / f"{name}.bin").write_bytes(header + b"".join(records))
    recshuf.shuffle(tmp_path / "in.bin", f"{tmp_path}/out/", shards=2, verify=True, **options)
    shards = [path.read_bytes() for path in sorted((tmp_path / "out").iterdir())]
    assert [shard[:size] for shard in shards] == [headers[0]] * 2
    found = [shard[place : place + 4] for shard in shards for place in range(size, len(shard), 4)]
    assert found != records
    assert sorted(found) == records
    report = recshuf.verify(tmp_path / "in.bin", tmp_path / "other.bin", **options)
    assert "header" in report.differences[0]
    said, both = r"other\.bin: its header differs from that of .*in\.bin", [tmp_path / "in.bin", tmp_path / "other.bin"]  # fmt: skip
    refused(InputError, said, both, tmp_path / "both.bin", **options)


@pytest.mark.parametrize(
    "options",
    [{"dtype": "u2[8]"}, {"dtype": "u2", "record_shape": 8}, {"dtype": "u2", "record_shape": "2,4"}],
)
def test_the_options_of_records_say_that_a_file_of_any_name_is_binary(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    values, path = np.arange(800, dtype="u2").reshape(100, 8), tmp_path / "tokens.dat"
    path.write_bytes(values.tobytes())
    recshuf.shuffle(path, tmp_path / "out.dat", seed=1, verify=True, **options)
    found = np.fromfile(tmp_path / "out.dat", "u2").reshape(100, 8)
    assert sorted(found.tolist()) == values.tolist()
    assert recshuf.verify(path, tmp_path / "out.dat", record_bytes=16)
    recshuf.shuffle(path, tmp_path / "out.parquet", seed=1, **options)
    table = np.array(pq.read_table(tmp_path / "out.parquet")["value"].to_pylist())
    assert table.reshape(100, 8).tolist() == found.tolist()
    recshuf.shuffle(path, tmp_path / "out.json", seed=1, **options)
    assert recshuf.verify(path, tmp_path / "out.json", **options)


def test_tokens_of_megatron_are_no_records_of_one_length(tmp_path: Path) -> None:
    path, index, options = tmp_path / "text.bin", tmp_path / "text.idx", {"dtype": "uint16"}
    path.write_bytes(bytes(400))
    index.write_bytes(b"MMIDIDX\0\0" + bytes(25))
    said = r"text\.bin: holds records of several lengths, which .*text\.idx tells apart; leave out"
    refused(InputError, said, path, tmp_path / "out.bin", format="binary", **options)
    index.write_bytes(b"another index")
    recshuf.shuffle(path, tmp_path / "out.bin", **options)


def test_a_header_that_counts_is_said(tmp_path: Path) -> None:
    header = np.zeros(64, np.int32)
    header[2] = 4000
    (tmp_path / "in.bin").write_bytes(header.tobytes() + bytes(8000))
    with pytest.warns(RecshufWarning, match=r"in\.bin: its header seems to count the records \(byte 8\)"):
        recshuf.shuffle(tmp_path / "in.bin", tmp_path / "out.bin", record_bytes=4, header_bytes=256)
    # A few records are no sign, unless another header counts its own.
    header[2] = 20
    (tmp_path / "few.bin").write_bytes(header.tobytes() + bytes(40))
    given = [tmp_path / "few.bin", tmp_path / "in.bin"]
    with pytest.warns(RecshufWarning, match=r"/in\.bin: its header seems to count the records \(byte 8\)"):
        recshuf.shuffle(given, tmp_path / "both.bin", record_bytes=4, header_bytes=256)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"in\.bin: nothing tells the bytes of a record; give record_bytes=BYTES, or their type with dtype"),
        ({"record_bytes": 7}, "100 bytes are no whole number of records of 7; check record_bytes"),
        ({"record_bytes": np.int64(7)}, "100 bytes are no whole number of records of 7; check record_bytes"),
        ({"record_bytes": 0}, "record_bytes 0 is not possible: it must be from 1 to"),
        ({"record_bytes": 10, "header_bytes": 200}, "behind a header of 200"),
        ({"record_bytes": 10, "dtype": "u2[4]"}, "a record takes 8 bytes, and record_bytes says 10"),
        ({"record_bytes": 4, "dtype": "u2[4]"}, "a record takes 8 bytes, and record_bytes says 4"),
        ({"dtype": "text[4]"}, r"dtype text\[4\]: is no type of numbers; give one such as uint16"),
        ({"dtype": "complex64"}, "dtype complex64: is no type of numbers"),
        ({"record_shape": 8}, "record_shape.8: give the type of the numbers alone, as dtype uint16"),
        ({"record_shape": "8,x", "dtype": "u2"}, "record_shape '8,x' is not possible: give whole numbers"),
        ({"record_shape": 8, "dtype": "u2[4]"}, "record_shape.8: give the type of the numbers alone"),
    ],
)  # fmt: skip
def test_records_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    (tmp_path / "in.bin").write_bytes(bytes(100))
    kind = InputError if "whole number of" in said or "behind" in said else UsageError
    refused(kind, said, tmp_path / "in.bin", tmp_path / "out.bin", **options)
