"""Inputs of the golden outputs: small, rich in types, and the same on every machine.

All values follow from the row number by integer arithmetic. Files are written with the formats' plain libraries.
"""

import base64
import datetime
import gzip
import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

WORDS = ("zebra", "", "äöü", "雪だるま", "a, b", 'quo"te', "back\\slash", "🐈", "long " * 9)
EPOCH = datetime.datetime(2001, 2, 3, 4, 5, 6)


def make_inputs(folder: Path, name: str) -> None:
    """Write the inputs of that name to a folder of that name, unless it exists; a function of this module does so."""
    if not (folder / name).exists():
        part = folder / f"{name}.part"
        part.mkdir(parents=True, exist_ok=True)
        globals()[f"write_{name.replace(' ', '_')}"](part)
        part.rename(folder / name)


def mix(row: int, salt: int = 0) -> int:
    """Return a number of 32 bits that looks random."""
    state = (row * 2654435761 + salt * 40503 + 12345) % 2**32
    return ((state ^ state >> 15) * 2246822519) % 2**32


def word(row: int, salt: int = 0) -> str:
    return WORDS[mix(row, salt) % len(WORDS)]


# Text


def write_text(folder: Path) -> None:
    """Lines of any bytes: CR, NUL, invalid UTF-8, none at all, and a last one without newline."""
    lines = [b"%d \xff\x00%s\r" % (row, word(row).encode()) for row in range(300)]
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    (folder / "b.txt").write_bytes(b"\n\n" + b"\n".join(lines[::-3]) + b"\n")
    (folder / "c.txt").write_bytes(b"")


def utf8_lines(first: int, count: int) -> list[str]:
    return [f"{row} {word(row)} {mix(row)}\n" for row in range(first, first + count)]


def write_utf8(folder: Path) -> None:
    for index in range(3):
        lines = utf8_lines(1000 * index, 90 + index)
        (folder / f"{index}.txt").write_bytes("".join(lines).encode())


def write_invalid(folder: Path) -> None:
    for index, bad in enumerate((b"\xff\xfe", b"\xc3(")):
        lines = [line.encode() for line in utf8_lines(50 * index, 50)]
        (folder / f"{index}.txt").write_bytes(b"".join([*lines[:20], bad + b"\n", *lines[20:]]))


def write_gzip(folder: Path) -> None:
    (folder / "a.txt.gz").write_bytes(gzip.compress("".join(utf8_lines(0, 200)).encode(), mtime=0))
    members = [gzip.compress(line.encode(), mtime=0) for line in utf8_lines(200, 9)]
    (folder / "b.txt.gz").write_bytes(b"".join(members))


def write_zstd(folder: Path) -> None:
    encoder = zstandard.ZstdCompressor(level=1)
    (folder / "a.txt.zst").write_bytes(encoder.compress("".join(utf8_lines(0, 200)).encode()))
    frames = [encoder.compress(line.encode()) for line in utf8_lines(200, 9)]
    (folder / "b.txt.zst").write_bytes(b"".join(frames))


def write_header(folder: Path) -> None:
    for index in range(2):
        rows = [f"{row};{mix(row, index)}\n" for row in range(100 + index)]
        (folder / f"{index}.csv").write_text("id;value\nint;int\n" + "".join(rows))


def write_quoted(folder: Path) -> None:
    """CSV with newlines, delimiters and doubled quotes in fields, and a byte order mark."""
    for index in range(2):
        texts = [f'{word(row)}, "{row}"\n{word(row + 1)}'.replace('"', '""') for row in range(120 + index)]
        rows = [f'{row},"{text}",{row / 4}\r\n' for row, text in enumerate(texts)]
        (folder / f"{index}.csv").write_bytes(("\ufeffid,text,value\r\n" + "".join(rows)).encode())


def write_separated(folder: Path, separator: bytes = b"||") -> None:
    """Records of several lines between separators."""
    records = [f"{row}\n{word(row)}".encode() for row in range(150)]
    (folder / "records.txt").write_bytes(separator.join(records) + separator)


def write_zero(folder: Path) -> None:
    write_separated(folder, b"\0")


# JSONL


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.write_bytes("".join(map(to_line, enumerate(records))).encode())


def to_line(numbered: tuple[int, dict[str, Any]]) -> str:
    """Return a record as a line, in one of several spellings."""
    row, record = numbered
    spaces = (None, (",", ":"), (" , ", ":  "))[row % 3]
    return json.dumps(record, ensure_ascii=row % 2 == 0, separators=spaces) + "\n"


def nested_record(row: int) -> dict[str, Any]:
    """Return a record with nested values and nulls; from row 200 on, ``score`` is a fraction."""
    record = {
        "id": row,
        "name": None if row % 11 == 0 else word(row),
        "score": row if row < 200 else row + 0.25,
        "huge": 2**62 + mix(row),
        "flag": row % 3 == 0,
        "tags": [word(row, salt) for salt in range(row % 4)],
        "inner": {"x": mix(row) / 2**20, "deep": {"matrix": [[row], [], [row, -row]]}},
        "items": [{"key": word(row), "value": None}, {"key": "é\n\t", "value": row}][: row % 3],
    }
    if row % 7 == 0:
        del record["flag"]
    return dict(reversed(record.items())) if row % 13 == 5 else record


def write_nested(folder: Path) -> None:
    write_lines(folder / "0.jsonl", map(nested_record, range(150)))
    write_lines(folder / "1.jsonl", map(nested_record, range(150, 280)))


def write_packed(folder: Path) -> None:
    """The same records as gzip and zstd."""
    lines = [to_line((row, nested_record(row))).encode() for row in range(280)]
    (folder / "0.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:150]), mtime=0))
    (folder / "1.jsonl.zst").write_bytes(zstandard.ZstdCompressor(level=1).compress(b"".join(lines[150:])))


def plain_record(row: int) -> dict[str, Any]:
    """Return a record without nulls, as HDF5 needs them."""
    vector = [mix(row, salt) / 2**16 for salt in range(row % 5)]
    return {
        "id": row,
        "name": word(row),
        "on": row % 2 == 0,
        "at": {"x": row / 8, "y": -row},
        "vector": vector,
    }


def write_plain(folder: Path) -> None:
    write_lines(folder / "0.jsonl", map(plain_record, range(120)))
    write_lines(folder / "1.jsonl", map(plain_record, range(120, 200)))


def write_documents(folder: Path) -> None:
    write_lines(folder / "0.jsonl", ({"text": f"{row} {word(row)}"} for row in range(150)))


def typed_record(row: int) -> dict[str, Any]:
    return {
        "id": mix(row),
        "time": (EPOCH + datetime.timedelta(microseconds=mix(row))).isoformat() + "Z",
        "price": mix(row) % 10**6 / 100,
        "vector": [row / 4, -row / 2],
        "blob": base64.b64encode(b"\xff%d" % row).decode(),
        "words": [word(row)],
    }


def write_typed(folder: Path) -> None:
    write_lines(folder / "0.jsonl", map(typed_record, range(150)))
    schema = {
        "id": "uint64",
        "time": "timestamp[us, tz=UTC]",
        "price": "decimal128(10, 2)",
        "vector": "fixed_size_list<float32>[2]",
        "blob": "binary",
        "words": ["large_string"],
    }
    (folder / "schema").write_text(json.dumps(schema))


def write_bad(folder: Path) -> None:
    """Good lines, and lines that are bad in every way."""
    bad = [b"{", b"", b"\xff", b"[1]", b'{"id":1,"id":2}', b'{"id":NaN}', b'{"id":1} x', b"[" * 200]
    for index in range(2):
        lines = [json.dumps(plain_record(row)).encode() for row in range(40 * index, 40 * index + 40)]
        for place, line in enumerate(bad[index::2]):
            lines.insert(7 * place, line)
        (folder / f"{index}.jsonl").write_bytes(b"\n".join(lines) + b"\n")


# Parquet

RICH = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("small", pa.int8(), metadata={"unit": "m"}),
        pa.field("unsigned", pa.uint64()),
        pa.field("single", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("flag", pa.bool_()),
        pa.field("name", pa.string()),
        pa.field("blob", pa.binary()),
        pa.field("code", pa.binary(3)),
        pa.field("category", pa.dictionary(pa.int8(), pa.string())),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("moment", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("ns")),
        pa.field("day", pa.date32()),
        pa.field("clock", pa.time64("us")),
        pa.field("span", pa.duration("ms")),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("matrix", pa.large_list(pa.list_(pa.int16()))),
        pa.field("vector", pa.list_(pa.float32(), 4)),
        pa.field("point", pa.struct([("x", pa.float64()), ("label", pa.string())])),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("parts", pa.list_(pa.struct([("at", pa.date32()), ("size", pa.int32())]))),
    ],
    metadata={"made for": "golden outputs"},
)


def rich_row(row: int) -> dict[str, Any]:
    """Return a row of all types, without nulls."""
    number, text = mix(row), word(row)
    moment = EPOCH + datetime.timedelta(seconds=number)
    return {
        "id": row,
        "small": number % 256 - 128,
        "unsigned": 2**63 + number,
        "single": number / 2**10,
        "double": (float("nan"), float("-inf"), -0.0, number / 7)[row % 4],
        "flag": row % 2 == 0,
        "name": text,
        "blob": b"\x00\xff" * (row % 3),
        "code": b"%03d" % (row % 1000),
        "category": text,
        "price": Decimal(number).scaleb(-2),
        "moment": moment,
        "local": moment,
        "day": moment.date(),
        "clock": moment.time(),
        "span": datetime.timedelta(milliseconds=number),
        "tags": [word(row, salt) for salt in range(row % 4)],
        "matrix": [[row % 100, -1], [], [row % 7]][: row % 4],
        "vector": [row / 2, row, -row, 0],
        "point": {"x": row / 8, "label": text},
        "counts": [(f"{key}", row) for key in range(row % 3)],
        "parts": [{"at": moment.date(), "size": size} for size in range(row % 3)],
    }


def null_some(row: int) -> dict[str, Any]:
    """Return a row of all types in which other fields are null in other rows.

    Never null are the first, and the vector: pyarrow 20 cannot write null lists of fixed size.
    """
    values = rich_row(row)
    nulls = {name for field, name in enumerate(values) if field and mix(row, field) % 6 == 0}
    return values | dict.fromkeys(nulls - {"vector"})


def write_rich(folder: Path) -> None:
    """Several files of several row groups, with codecs and dictionaries by column."""
    codecs = {name: ("snappy", "gzip", "zstd", "none")[index % 4] for index, name in enumerate(RICH.names)}
    for index, (start, end) in enumerate([(0, 250), (250, 251), (251, 400)]):
        table = pa.Table.from_pylist([null_some(row) for row in range(start, end)], RICH)
        flat = ["id", "small", "name", "category"]
        leaves = {one: codecs[one.split(".")[0]] for one in list_leaves(table)}
        pq.write_table(table, folder / f"{index}.parquet", 100, compression=leaves, use_dictionary=flat)


def list_leaves(table: pa.Table) -> list[str]:
    """Return the paths of the columns that a Parquet file of this table has."""
    sink = pa.BufferOutputStream()
    pq.write_table(table.slice(0, 1), sink)
    schema = pq.ParquetFile(sink.getvalue()).schema
    return [schema.column(index).path for index in range(len(schema))]


def write_flat(folder: Path) -> None:
    """Rows of the types that HDF5 has too, without nulls."""
    names = "id small unsigned single flag name blob code category moment day clock span vector"
    fields = [RICH.field(name) for name in names.split()]
    point = pa.struct([("x", pa.float64()), ("label", pa.string())])
    schema = pa.schema([*fields, ("point", point), ("ragged", pa.list_(pa.int32()))])
    for index in range(2):
        rows = [
            rich_row(row) | {"ragged": [row] * (row % 4)} for row in range(100 * index, 150 * index + 100)
        ]
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / f"{index}.parquet", 40)


def write_strings(folder: Path) -> None:
    lines = [f"{row} {word(row)}" for row in range(150)]
    pq.write_table(pa.table({"line": lines}), folder / "0.parquet", 60, compression="gzip")


def write_union(folder: Path) -> None:
    """Files whose schemas differ: widened, with a column more or less, in folders that are columns."""
    for index, kind in enumerate([pa.int16(), pa.int32(), pa.float64()]):
        part = folder / f"year={2020 + index}" / f"lang={'en' if index else 'de'}"
        part.mkdir(parents=True, exist_ok=True)
        columns = {"value": pa.array(range(80), kind), f"only{index}": [word(row) for row in range(80)]}
        pq.write_table(pa.table(columns), part / "rows.parquet", 30)


# HDF5

KIND = h5py.enum_dtype({"CAT": 0, "DOG": 1, "EMU": 7}, "u1")
PAIR = np.dtype([("x", "<f4"), ("n", ">i2"), ("name", "S5")])


def write_arrays(folder: Path) -> None:
    """Datasets of many types, filters and layouts, in groups, with attributes."""
    for index, count in enumerate((120, 91)):
        with h5py.File(folder / f"{index}.h5", "w") as file:
            fill_numbers(file, count, index)
            fill_objects(file.create_group("objects"), count, index)
            file.attrs.update(title="golden", version=index, weights=np.arange(3.0))
            file["objects"].attrs["note"] = "äöü"
            file["ids"].attrs["unit"] = np.bytes_(b"rows")
            file["scalar"] = 42 + index
            file["link"] = h5py.SoftLink("/objects/kind")


def fill_numbers(file: h5py.File, count: int, salt: int) -> None:
    mixed = np.array([mix(row, salt) for row in range(count * 48)], "u4")
    file.create_dataset("ids", data=np.arange(count) + 1000 * salt)
    pixels = (mixed % 251).astype("u1").reshape(count, 4, 4, 3)
    file.create_dataset("images/pixels", data=pixels, chunks=(16, 4, 4, 3), compression=7, shuffle=True)
    vectors = mixed[: count * 3].reshape(count, 3) / 2**8
    file.create_dataset("vectors", data=vectors.astype("f4"), chunks=(32, 3), compression="lzf")
    file.create_dataset("checked", data=mixed[:count].astype("i2"), chunks=(50,), fletcher32=True)
    file.create_dataset("big", data=mixed[:count].astype(">i4"), chunks=(7,), fillvalue=-1)
    half = (mixed[:count] % 1000).astype("f2")
    file.create_dataset("half", data=half, chunks=(64,), compression="gzip", fletcher32=True)
    file.create_dataset("phase", data=mixed[:count] * (1 - 0.5j), dtype="c8")


def fill_objects(group: h5py.Group, count: int, salt: int) -> None:
    words = [word(row, salt) for row in range(count)]
    rows = range(count)
    group.create_dataset("name", data=words, dtype=h5py.string_dtype())
    group.create_dataset("short", data=[b"%d" % mix(row) for row in rows], dtype="S12", chunks=(33,))
    group.create_dataset("kind", data=[(0, 1, 7)[row % 3] for row in rows], dtype=KIND, chunks=(20,))
    group.create_dataset("flag", data=[row % 3 == 0 for row in rows])
    pairs = np.array([(row / 4, row - salt, b"%d" % row) for row in rows], PAIR)
    group.create_dataset("pair", data=pairs, chunks=(40,), compression="gzip")
    ragged = group.create_dataset("ragged", (count,), h5py.vlen_dtype("<i4"))
    for row in rows:
        ragged[row] = np.arange(row % 5) * row


def write_lengths(folder: Path) -> None:
    """Datasets of different length; one has NaN and infinity."""
    with h5py.File(folder / "0.h5", "w") as file:
        file["train/x"] = [(float("nan"), float("inf"), row / 3)[row % 3] for row in range(90)]
        file["train/y"] = np.arange(180).reshape(90, 2)
        file["test/x"] = np.arange(30)


def write_string_dataset(folder: Path) -> None:
    with h5py.File(folder / "0.h5", "w") as file:
        lines = [f"{row} {word(row)}" for row in range(150)]
        file.create_dataset("line", data=lines, dtype=h5py.string_dtype())


# Inputs that do not stay in memory under the smallest limit


LARGE_ROWS, LARGE_WIDTH = 16_000, 200


def large_array() -> np.ndarray[Any, np.dtype[np.uint32]]:
    rows = np.arange(LARGE_ROWS, dtype=np.uint32)[:, None]
    return rows * np.uint32(2654435761) + np.arange(LARGE_WIDTH, dtype=np.uint32) // 8


def large_lines() -> list[bytes]:
    return [row.tobytes().hex()[:800].encode() for row in large_array()]


def write_large_text(folder: Path) -> None:
    (folder / "0.txt").write_bytes(b"".join(line + b"\n" for line in large_lines()))


def write_large_jsonl(folder: Path) -> None:
    lines = [b'{"id":%d,"data":"%s"}\n' % (row, line) for row, line in enumerate(large_lines())]
    (folder / "0.jsonl").write_bytes(b"".join(lines))


def write_large_parquet(folder: Path) -> None:
    data = pa.FixedSizeListArray.from_arrays(large_array().ravel(), LARGE_WIDTH)
    table = pa.table({"id": np.arange(LARGE_ROWS), "data": data})
    pq.write_table(table, folder / "0.parquet", 4000, compression="lz4")


def write_large_hdf5(folder: Path) -> None:
    with h5py.File(folder / "0.h5", "w") as file:
        file.create_dataset("data", data=large_array(), chunks=(100, LARGE_WIDTH), compression="lzf")
        file["id"] = np.arange(LARGE_ROWS)
