"""HDF5 and table form: what a decoder makes of datasets, and which datasets a table becomes."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from h5py import h5d, h5s, h5t

from recshuf.errors import ConversionError, InputError
from recshuf.formats.hdf5 import FORMAT
from recshuf.interfaces import WriteOptions
from tests.conftest import Run
from tests.support.effort import mostly_slow
from tests.support.formats.format_tools import cut_batch
from tests.support.formats.hdf5_tools import create_raw, open_source, read_all, store, write_table


def decode_file(path: Path, block_bytes: int = 1 << 20) -> pa.Table:
    """Return the table form of a whole file, decoded in slices."""
    source = open_source(path)
    decoder = source.decoder()
    batches = [part for batch in read_all(source, block_bytes) for part in cut_batch(batch, 3, 0)]
    for batch in batches:
        decoder.observe(batch, 0, 0)
    schema = decoder.finish()
    assert decoder.schema == schema
    table = pa.Table.from_batches([decoder.decode(batch) for batch in batches], schema=schema)
    table.validate(full=True)
    return table


# Decoding


CODES = [
    f"{order}{code}"
    for code in ("i1", "i2", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
    for order in "<>"
]


def split_complex(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return complex numbers as pairs, as tables have them."""
    if dtype.kind != "c":
        return dtype
    part = np.dtype(f"{dtype.byteorder}f{dtype.itemsize // 2}")
    return np.dtype([("real", part), ("imag", part)])


def table_type(dtype: np.dtype[Any]) -> pa.DataType:
    if dtype.names:
        return pa.struct({name: table_type(dtype[name]) for name in dtype.names})
    return pa.from_numpy_dtype(dtype.newbyteorder("="))


@pytest.mark.parametrize("block_bytes", mostly_slow([100, 1 << 20], 1 << 20))
def test_numbers_keep_their_bits(tmp_path: Path, block_bytes: int) -> None:
    """In rows, as members of compounds, and in lists; of either byte order."""
    with h5py.File(tmp_path / "in.h5", "w") as file:
        stored = {}
        for code in CODES:
            pair = np.dtype([("one", "u1"), ("two", code)])
            stored[code] = create_raw(
                file, f"{code} rows", h5t.py_create(np.dtype(code)), (40, 2), chunk_rows=7
            )
            stored[f"{code} members"] = create_raw(file, f"{code} members", h5t.py_create(pair), (40,))
            lists = file.create_dataset(f"{code} lists", (40,), h5py.vlen_dtype(np.dtype(code)))
            lists[7], lists[30] = np.split(np.frombuffer(stored[code], code)[:7], [5])
    table = decode_file(tmp_path / "in.h5", block_bytes).combine_chunks()
    for code in CODES:
        dtype = split_complex(np.dtype(code))
        values = np.frombuffer(stored[code], dtype).astype(dtype.newbyteorder("="), copy=False)
        members = np.frombuffer(stored[f"{code} members"], [("one", "u1"), ("two", dtype)])["two"]
        rows = table[f"{code} rows"].chunk(0)
        assert rows.type == pa.list_(table_type(dtype), 2)
        check_bits(rows.flatten(), values)
        check_bits(table[f"{code} members"].chunk(0).field("two"), members)
        check_bits(table[f"{code} lists"].chunk(0).flatten(), values[:7])


def check_bits(found: pa.Array, expected: np.ndarray) -> None:
    if expected.dtype.names:
        for name in expected.dtype.names:
            check_bits(found.field(name), expected[name])
    else:
        native = expected.copy() if expected.dtype.isnative else expected.byteswap()
        assert found.type == pa.from_numpy_dtype(native.dtype.newbyteorder("="))
        assert found.to_numpy(zero_copy_only=False).tobytes() == native.tobytes()


def test_every_type_has_its_table_form(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["bool"] = [True, False, True]
        file.create_dataset("enum", data=[-3, 9, -3], dtype=h5py.enum_dtype({"high": 9, "low": -3}, ">i2"))
        file["fixed"] = np.array([b"a", b"", b"abc"])
        file["complex"] = np.array([1 + 2j, 3, 4j], "c8")
        file["compound"] = np.array([(1, [2, 3])] * 3, np.dtype([("a", "i1"), ("b", ">f4", 2)], align=True))
        file["opaque"] = np.array([b"\0\1\2"] * 3, "V3")
        file["string"] = ["one", "", "\u00fc"]
        ragged = [np.arange(2), np.arange(0), np.arange(1)]
        file.create_dataset("ragged", data=np.array(ragged, object), dtype=h5py.vlen_dtype("<i4"))
        file["deep/er/x"] = np.arange(12).reshape(3, 2, 2)
        file["deep/y"] = [1.5, 2.5, np.inf]
        file["none"], file["inner none"] = np.zeros((3, 0)), np.zeros((3, 2, 0, 3))
    table = decode_file(tmp_path / "in.h5")
    structs = pa.struct({"real": pa.float32(), "imag": pa.float32()})
    assert {field.name: field.type for field in table.schema} == {
        "bool": pa.bool_(),
        "complex": structs,
        "compound": pa.struct({"a": pa.int8(), "b": pa.list_(pa.float32(), 2)}),
        "deep": pa.struct({"er": pa.struct({"x": pa.list_(pa.list_(pa.int64(), 2), 2)}), "y": pa.float64()}),
        "enum": pa.large_string(),
        "fixed": pa.large_string(),
        # Parquet readers cannot take fixed-size lists of no items.
        "none": pa.list_(pa.float64()),
        "inner none": pa.list_(pa.list_(pa.list_(pa.float64(), 3)), 2),
        "opaque": pa.binary(3),
        "ragged": pa.large_list(pa.int32()),
        "string": pa.large_string(),
    }
    assert table.to_pydict() == {
        "bool": [True, False, True],
        "complex": [{"real": 1, "imag": 2}, {"real": 3, "imag": 0}, {"real": 0, "imag": 4}],
        "compound": [{"a": 1, "b": [2, 3]}] * 3,
        "deep": [
            {"er": {"x": [[4 * k, 4 * k + 1], [4 * k + 2, 4 * k + 3]]}, "y": y}
            for k, y in enumerate([1.5, 2.5, np.inf])
        ],
        "enum": ["low", "high", "low"],
        "fixed": ["a", "", "abc"],
        "none": [[]] * 3,
        "inner none": [[[], []]] * 3,
        "opaque": [b"\0\1\2"] * 3,
        "ragged": [[0, 1], [], [0]],
        "string": ["one", "", "\u00fc"],
    }


@pytest.mark.parametrize(
    ("padding", "raw", "expected"),
    [
        (h5t.STR_NULLPAD, b"ab\0\0a\0b\0\0\0\0\0abcd", ["ab", "a\0b", "", "abcd"]),
        (h5t.STR_NULLTERM, b"ab\0xa\0b\0\0xxxabcd", ["ab", "a", "", "abcd"]),
        (h5t.STR_SPACEPAD, b"ab   a  " + b"    abcd", ["ab", " a", "", "abcd"]),
    ],
)
def test_padding_of_fixed_strings_is_stripped(
    tmp_path: Path, padding: int, raw: bytes, expected: list[str]
) -> None:
    tid = h5t.C_S1.copy()
    tid.set_size(4)
    tid.set_strpad(padding)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        dataset = h5d.create(file.id, b"x", tid, h5s.create_simple((4,)))
        dataset.write(h5s.ALL, h5s.ALL, np.frombuffer(raw, np.uint8), tid)
        if padding != h5t.STR_NULLPAD:
            assert [each.decode() for each in file["x"][:]] == expected, "as h5py sees it"
    assert decode_file(tmp_path / "in.h5")["x"].to_pylist() == expected


def test_numbers_of_fewer_bits_are_widened(tmp_path: Path) -> None:
    tid = h5t.STD_I32BE.copy()
    tid.set_precision(20)
    tid.set_offset(3)
    values = [5, -7, 2**19 - 1, -(2**19)]
    with h5py.File(tmp_path / "in.h5", "w") as file:
        dataset = h5d.create(file.id, b"x", tid, h5s.create_simple((4,)))
        dataset.write(h5s.ALL, h5s.ALL, np.array(values, np.int32))
    assert decode_file(tmp_path / "in.h5")["x"].to_pylist() == values


def make_bad_values() -> dict[str, tuple[np.ndarray, str]]:
    """Return datasets of 200 rows, and why row 150 has no table form."""
    text, enum = h5py.string_dtype(), h5py.enum_dtype({"a": 0, "b": 1}, "u1")
    flags, codes, lists = np.zeros(200, bool), np.zeros(200, enum), np.empty(200, h5py.vlen_dtype(enum))
    for row in range(200):
        lists[row] = np.zeros(row % 3, enum)
    fixed, texts = np.array([b"x"] * 200), np.array([b"x"] * 200, text)
    grid, pairs = np.array([[b"x", b"y"]] * 200), np.array([("x", 1)] * 200, [("name", text), ("v", "f8")])
    flags.view("u1")[150], codes[150], lists[150] = 2, 7, np.array([0, 9, 1], enum)
    fixed[150] = texts[150] = grid[150, 1] = pairs["name"][150] = b"\xff"
    return {
        "bool": (flags, "2 is neither FALSE nor TRUE"),
        "enum": (codes, "7 is no value of the enum"),
        "lists": (lists, "9 is no value of the enum"),
        "fixed": (fixed, "the string is not UTF-8"),
        "texts": (texts, "the string is not UTF-8"),
        "grid": (grid, "the string is not UTF-8"),
        "pairs": (pairs, "the string is not UTF-8"),
    }


def test_values_without_table_form_are_named_by_row(tmp_path: Path) -> None:
    bad = make_bad_values()
    paths = [
        store(tmp_path / name, {name: values for name, (values, _) in bad.items()})
        for name in ("in.h5", "again.h5")
    ]
    for name, (_, problem) in bad.items():
        source = open_source(*paths, datasets=(name,))
        decoder = source.decoder()
        [batch] = pa.Table.from_batches(read_all(source)).slice(0, 200).combine_chunks().to_batches()
        decoder.observe(batch.slice(0, 150), 0, 0)
        said = rf"again\.h5: row 150 of dataset '{name}': {problem}; shuffle to HDF5, or name other datasets"
        with pytest.raises(InputError, match=said):
            decoder.observe(batch.slice(100), 1, 100)


def make_float(base: h5t.TypeFloatID, fields: tuple[int, ...], bias: int) -> h5t.TypeFloatID:
    tid = base.copy()
    tid.set_fields(*fields)
    tid.set_ebias(bias)
    return tid


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: h5t.STD_B8LE.copy(), "bitfield8"),
        (lambda: h5t.UNIX_D32LE.copy(), "time32"),
        (lambda: h5t.py_create(np.dtype("g")), str(np.dtype("g"))),
        (lambda: make_float(h5t.IEEE_F16LE, (15, 7, 8, 0, 7), 127), "bfloat16"),
        (
            lambda: make_float(h5t.IEEE_F64LE, (63, 52, 11, 0, 52), 1000),
            "a float of 64 bits with an exponent of 11 bits and bias 1000",
        ),
    ],
    ids=["bits", "time", "long", "bfloat16", "bias"],
)
def test_types_without_table_form_are_refused_by_name(tmp_path: Path, make: Any, name: str) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_group("group")
        create_raw(file, "group/x", make(), (3,))
    source = open_source(tmp_path / "in.h5")
    with pytest.raises(ConversionError, match=rf"field 'group\.x': {name} has no table form; .*--datasets"):
        source.decoder()


# Encoding


OTHERS = [
    (pa.array(["a", "b", "a"]), pa.large_string()),
    (pa.array([b"a", b"\0"]), pa.large_binary()),
    (pa.array(["a", "b", "a"]).dictionary_encode(), pa.large_string()),
    (pa.array([1, 2, 1]).dictionary_encode(), pa.int64()),
    (pa.array([[1], [2, 3]], pa.list_(pa.int16())), pa.large_list(pa.int16())),
    (pa.array(["a", "b"], pa.string_view()), pa.large_string()),
    (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16] * 2, pa.binary(16))), pa.binary(16)),
    *(
        (pa.array([7, 0], kind), kind)
        for kind in (pa.date32(), pa.time32("s"), pa.timestamp("us", "Asia/Tokyo"), pa.duration("ns"))
    ),
]


def test_other_columns_come_back_as_they_were_or_in_their_large_or_plain_form(tmp_path: Path) -> None:
    for number, (given, becomes) in enumerate(OTHERS):
        plain = given.dictionary_decode() if pa.types.is_dictionary(given.type) else given
        plain = plain.storage if isinstance(plain, pa.ExtensionArray) else plain
        table, path = pa.table({"x": given}), tmp_path / f"{number}.h5"
        write_table(path, table.to_batches(), table.schema)
        for block_bytes in (50, 1 << 20):
            assert decode_file(path, block_bytes).equals(pa.table({"x": plain.cast(becomes)})), given.type


REFUSED_TYPES = (
    pa.null(),
    pa.decimal128(10, 2),
    pa.list_(pa.string()),
    pa.list_(pa.struct({"a": pa.int8()})),
    pa.list_(pa.list_(pa.int8())),
    pa.list_(pa.string(), 2),
    pa.map_(pa.string(), pa.int8()),
    pa.dense_union([pa.field("a", pa.int8())]),
    pa.month_day_nano_interval(),
    pa.struct([]),
    pa.binary(0),
    pa.list_view(pa.int8()),
)
REFUSED = [
    *(([("ok", pa.int8()), ("x", kind)], "field 'x'") for kind in REFUSED_TYPES),
    *(
        ([(name, pa.int8())], "is no name for an HDF5 dataset.*; rename it")
        for name in (".", "..", "a/b", "/", "a\0b")
    ),
    ([("ok", pa.int8()), ("", pa.int8())], "(column|field) 2 .*has no name, as a dataset must; name it in"),
    ([("a", pa.int8()), ("b", pa.int8()), ("a", pa.int16())], "'a': several columns"),
]


@pytest.mark.parametrize(("fields", "said"), REFUSED)
def test_what_hdf5_cannot_hold_is_refused_before_output(fields: list[tuple[str, Any]], said: str) -> None:
    for schema, path in ((fields, said), ([("inner", pa.struct(fields))], said.replace("'", r"'inner\.", 1))):
        with pytest.raises(ConversionError, match=path):
            FORMAT.open_target(pa.schema(schema), None, WriteOptions())


NULLS = {
    "x": pa.array([1, None]),
    "bool": pa.array([True, None]),
    "float": pa.array([1.5, None]),
    "text": pa.array(["a", None]),
    "binary": pa.array([b"a", None]),
    "when": pa.array([1, None], pa.timestamp("s")),
    "list": pa.array([[1], None]),
    "item": pa.array([[1], [None]]),
    "row": pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
    "cell": pa.array([[1, 2], [3, None]], pa.list_(pa.int8(), 2)),
    "dictionary": pa.array(["a", None]).dictionary_encode(),
    "value": pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None])),
    "struct": pa.array([{"a": 1}, None]),
    "member": pa.array([{"a": 1}, {"a": None}]),
}


def test_nulls_are_refused_by_name_and_slices_without_them_are_fine(tmp_path: Path) -> None:
    for name, array in NULLS.items():
        table = pa.table({"ok": [1, 2], name: array})
        path = "member.a" if name == "member" else name
        with pytest.raises(ConversionError, match=f"field '{path}'.*null.*fill or drop"):
            write_table(tmp_path / f"{name}.h5", table.to_batches(), table.schema)
        write_table(tmp_path / f"1 {name}.h5", table.slice(0, 1).to_batches(), table.schema)
        assert decode_file(tmp_path / f"1 {name}.h5").num_rows == 1


def test_nul_characters_are_not_lost_in_silence(tmp_path: Path) -> None:
    table = pa.table({"text": ["good", "bad\0string", "good"]})
    with pytest.raises(ConversionError, match=r"'text'.*NUL"):
        write_table(tmp_path / "bad.h5", table.to_batches(), table.schema)
    for start in (0, 2):
        write_table(tmp_path / f"{start}.h5", table.slice(start, 1).to_batches(), table.schema)


def test_an_attribute_that_does_not_fit_its_dataset_means_nothing(tmp_path: Path) -> None:
    values = {"i4": "timestamp[us]", "i8": "date32[day]", "u8": "duration[s]", "f8": "time64[ns]"}
    values |= {"i2": "int16", "u1": "no type"}
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for code, noted in values.items():
            file[code] = np.arange(3, dtype=code)
            file[code].attrs["arrow_type"] = noted
        file["number"] = np.arange(3)
        file["number"].attrs["arrow_type"] = 5
    table = decode_file(tmp_path / "in.h5")
    assert {field.name: field.type for field in table.schema} == {
        **{code: pa.from_numpy_dtype(np.dtype(code)) for code in values},
        "number": pa.int64(),
    }


def test_a_field_selects_its_datasets(tmp_path: Path, call: Run) -> None:
    """Of a group all, and of datasets with like names only the one."""
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name in ("id", "idle", "group/a", "group/b"):
            file[name] = np.arange(2000)
        file["short"] = np.arange(3)
    for column, code, said in (
        ("id", 3, b"statistics of the values of id"),
        ("group.a", 3, b"statistics of the values of group.a"),
        ("short", 2, b"3 records are too few"),
        ("i", 2, b"i"),
        ("group.c", 2, b"group.c"),
    ):
        found = call("check", tmp_path / "in.h5", "--column", column)
        assert (found.returncode, said in found.stdout + found.stderr) == (code, True), (column, found)
