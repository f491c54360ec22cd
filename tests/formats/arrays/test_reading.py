"""Arrays of NumPy and binary records as people have them: types, headers, damage, conversions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, InputError, RecshufWarning, UsageError

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 500
RECORD = np.dtype([("id", "<i4"), ("weight", ">f8"), ("name", "S5"), ("box", "u1", (2,))], align=True)


def make_records() -> np.ndarray[Any, Any]:
    records = np.zeros(ROWS, RECORD)
    records["id"], records["weight"] = np.arange(ROWS), np.arange(ROWS) / 4
    records["name"] = [b"n%d" % row for row in range(ROWS)]
    records["box"] = np.arange(2 * ROWS).reshape(ROWS, 2) % 251
    return records


ARRAYS = {
    "float16": np.arange(ROWS, dtype="f2"),
    "bool": np.arange(ROWS) % 3 == 0,
    "big-endian": np.arange(ROWS * 4, dtype=">i8").reshape(ROWS, 4),
    "fortran": np.asfortranarray(np.arange(ROWS * 12, dtype="f4").reshape(ROWS, 3, 4)),
    "complex": np.arange(ROWS) * 1j,
    "times": np.arange(ROWS).astype("M8[D]"),
    "text": np.array([f"é{row}" for row in range(ROWS)]),
    "structured": make_records(),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_type_shape_and_every_bit_are_kept(tmp_path: Path, name: str) -> None:
    array = ARRAYS[name]
    np.save(tmp_path / "in.npy", array)
    recshuf.shuffle(tmp_path / "in.npy", tmp_path / "out.npy", seed=3, verify=True)
    found = np.load(tmp_path / "out.npy", mmap_mode="r")
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.save(tmp_path / "rows.npy", np.arange(ROWS))
    recshuf.shuffle(tmp_path / "rows.npy", tmp_path / "order.npy", seed=3)
    assert str(found.tolist()) == str(array[np.load(tmp_path / "order.npy")].tolist())


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions_of_the_header_are_read(tmp_path: Path, version: tuple[int, int]) -> None:
    array = np.zeros(ROWS, [("é" if version == (3, 0) else "a", "i4")])
    with (tmp_path / "in.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version=version)
    recshuf.shuffle(tmp_path / "in.npy", tmp_path / "out.npy")
    assert np.load(tmp_path / "out.npy").dtype == array.dtype


def test_members_of_a_record_become_columns(tmp_path: Path) -> None:
    records = make_records()
    np.save(tmp_path / "in.npy", records)
    recshuf.shuffle(tmp_path / "in.npy", tmp_path / "out.parquet", verify=True)
    table = pq.read_table(tmp_path / "out.parquet").sort_by("id")
    assert table["weight"].to_pylist() == records["weight"].tolist()
    assert table["name"].to_pylist() == records["name"].tolist()
    assert table["box"].to_pylist() == records["box"].tolist()


def test_arrays_become_lists_and_come_back(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", ARRAYS["big-endian"])
    recshuf.shuffle(tmp_path / "in.npy", tmp_path / "out.parquet", seed=1)
    recshuf.shuffle(tmp_path / "out.parquet", tmp_path / "back.npy", seed=2)
    back = np.load(tmp_path / "back.npy")
    assert back.dtype == np.int64
    assert sorted(back.tolist()) == ARRAYS["big-endian"].tolist()
    np.save(tmp_path / "complex.npy", ARRAYS["complex"])
    with pytest.raises(ConversionError, match="items of type complex128 have no table form; keep the format"):
        recshuf.shuffle(tmp_path / "complex.npy", tmp_path / "none.parquet")


def test_what_an_array_cannot_hold_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"a": 1, "b": 2}\n{"a": null, "b": 3}\n')
    with pytest.raises(ConversionError, match="an array holds one column, and there are 2"):
        recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.npy")
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n{"a": null}\n')
    with pytest.raises(ConversionError, match="'a': an array holds no nulls"):
        recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.npy")
    with pytest.raises(ConversionError, match="'a': an array holds no nulls"):
        recshuf.shuffle(
            pa.table({"a": pa.array([b"1234", None], pa.binary(4))}), tmp_path / "out.bin", to="binary"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: b"", "is empty"),
        (lambda content: content[:-1], "bytes behind its header, and 500 records take"),
        (lambda content: content + b"x", "bytes behind its header, and 500 records take"),
        (lambda content: content.replace(b"(500,)", b"(-50,)"), "header that is damaged"),
        (lambda content: content.replace(b"'descr'", b"'dexcr'"), "header that is damaged"),
        (lambda content: content.replace(b"'<i8'", b"'|O' "), "holds Python objects"),
        (lambda content: content[128:], "has no header of NumPy; .*format='binary' and record_bytes=BYTES"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, change: Any, said: str) -> None:
    np.save(tmp_path / "in.npy", np.arange(ROWS))
    (tmp_path / "in.npy").write_bytes(change((tmp_path / "in.npy").read_bytes()))
    with pytest.raises(InputError, match=rf"in\.npy: .*{said}"):
        recshuf.shuffle(tmp_path / "in.npy", tmp_path / "out.npy")


def test_arrays_that_differ_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.zeros((3, 2)))
    np.save(tmp_path / "1.npy", np.zeros((3, 3)))
    with pytest.raises(
        InputError, match=r"1\.npy: holds records of float64\[3\], and .*0\.npy of float64\[2\]"
    ):
        recshuf.shuffle([tmp_path / "0.npy", tmp_path / "1.npy"], tmp_path / "out.npy")


def test_binary_records_keep_every_byte_behind_their_header(tmp_path: Path) -> None:
    records = [b"%04d" % row for row in range(1000)]
    (tmp_path / "in.bin").write_bytes(b"Header" + b"".join(records))
    recshuf.shuffle(
        tmp_path / "in.bin", f"{tmp_path}/out/", record_bytes=4, header_bytes=6, shards=2, verify=True
    )
    found = []
    for path in sorted((tmp_path / "out").iterdir()):
        content = path.read_bytes()
        assert content[:6] == b"Header"
        found += [content[place : place + 4] for place in range(6, len(content), 4)]
    assert found != records
    assert sorted(found) == records
    (tmp_path / "other.bin").write_bytes(b"HEADER" + b"".join(records))
    report = recshuf.verify(tmp_path / "in.bin", tmp_path / "other.bin", record_bytes=4, header_bytes=6)
    assert "header" in report.differences[0]


@pytest.mark.parametrize(
    "options",
    [{"dtype": "u2[8]"}, {"dtype": "u2", "record_shape": 8}, {"dtype": "u2", "record_shape": "2,4"}],
)
def test_the_options_of_records_say_that_a_file_of_any_name_is_binary(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    values = np.arange(800, dtype="u2").reshape(100, 8)
    (tmp_path / "tokens.dat").write_bytes(values.tobytes())
    recshuf.shuffle(tmp_path / "tokens.dat", tmp_path / "out.dat", seed=1, verify=True, **options)
    found = np.fromfile(tmp_path / "out.dat", "u2").reshape(100, 8)
    assert sorted(found.tolist()) == values.tolist()
    assert recshuf.verify(tmp_path / "tokens.dat", tmp_path / "out.dat", record_bytes=16)
    recshuf.shuffle(tmp_path / "tokens.dat", tmp_path / "out.parquet", seed=1, **options)
    table = np.array(pq.read_table(tmp_path / "out.parquet")["value"].to_pylist())
    assert table.reshape(100, 8).tolist() == found.tolist()
    with pytest.raises(
        UsageError, match=r"record_shape.8: give the type of the numbers alone, as dtype uint16"
    ):
        recshuf.shuffle(tmp_path / "tokens.dat", tmp_path / "other.dat", record_shape=8)


def test_tokens_of_megatron_are_no_records_of_one_length(tmp_path: Path) -> None:
    (tmp_path / "text.bin").write_bytes(bytes(400))
    (tmp_path / "text.idx").write_bytes(b"MMIDIDX\0\0" + bytes(25))
    with pytest.raises(
        InputError,
        match=r"text\.bin: holds records of several lengths, which .*text\.idx tells apart; leave out",
    ):
        recshuf.shuffle(tmp_path / "text.bin", tmp_path / "out.bin", dtype="uint16", format="binary")
    (tmp_path / "text.idx").write_bytes(b"another index")
    recshuf.shuffle(tmp_path / "text.bin", tmp_path / "out.bin", dtype="uint16")


def test_a_header_that_counts_is_said(tmp_path: Path) -> None:
    header = np.zeros(64, np.int32)
    header[2] = 4000
    (tmp_path / "in.bin").write_bytes(header.tobytes() + bytes(8000))
    with pytest.warns(RecshufWarning, match=r"in\.bin: its header seems to count the records \(byte 8\)"):
        recshuf.shuffle(tmp_path / "in.bin", tmp_path / "out.bin", record_bytes=4, header_bytes=256)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {},
            r"in\.bin: nothing tells the bytes of a record; give record_bytes=BYTES, or their type with dtype",
        ),
        ({"record_bytes": 7}, "100 bytes are no whole number of records of 7; check record_bytes"),
        ({"record_bytes": 0}, "record_bytes 0 is not possible: it must be from 1 to"),
        ({"record_bytes": 10, "header_bytes": 200}, "behind a header of 200"),
        ({"record_bytes": 10, "dtype": "u2[4]"}, "a record takes 8 bytes, and record_bytes says 10"),
        ({"record_bytes": np.int64(7)}, "100 bytes are no whole number of records of 7; check record_bytes"),
        ({"dtype": "text[4]"}, r"dtype text\[4\]: is no type of numbers; give one such as uint16"),
    ],
)
def test_records_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    (tmp_path / "in.bin").write_bytes(bytes(100))
    with pytest.raises((InputError, UsageError), match=said):
        recshuf.shuffle(tmp_path / "in.bin", tmp_path / "out.bin", **options)
