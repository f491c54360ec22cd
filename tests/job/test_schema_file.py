"""The grammar of ``--schema`` files."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from recshuf.errors import InputError
from recshuf.formats.jsonl.decoder import JsonDecoder
from recshuf.job.schema_file import read_schema


def write(folder: Path, text: str) -> Path:
    path = folder / "schema.json"
    path.write_text(text, "utf-8")
    return path


FORMS: list[tuple[object, pa.DataType]] = [
    ("null", pa.null()),
    ("bool", pa.bool_()),
    ("int8", pa.int8()),
    ("uint64", pa.uint64()),
    ("float16", pa.float16()),
    ("float64", pa.float64()),
    (" string ", pa.string()),
    ("large_string", pa.large_string()),
    ("binary", pa.binary()),
    ("date32", pa.date32()),
    ("timestamp[ns]", pa.timestamp("ns")),
    ("timestamp[us, tz=Europe/Berlin]", pa.timestamp("us", "Europe/Berlin")),
    ("time32[s]", pa.time32("s")),
    ("time64[ns]", pa.time64("ns")),
    ("duration[ms]", pa.duration("ms")),
    ("decimal128(38,0)", pa.decimal128(38, 0)),
    ("decimal256(76, 10)", pa.decimal256(76, 10)),
    ("list<float32>", pa.list_(pa.float32())),
    ("large_list<list<int8>>", pa.large_list(pa.list_(pa.int8()))),
    ("fixed_size_list<float32>[768]", pa.list_(pa.float32(), 768)),
    ("fixed_size_list<fixed_size_list<int8>[2]>[3]", pa.list_(pa.list_(pa.int8(), 2), 3)),
    (["timestamp[s]"], pa.list_(pa.timestamp("s"))),
    ({"a": "int8", "b": {}}, pa.struct([("a", pa.int8()), ("b", pa.struct([]))])),
    ([{"a": ["bool"]}], pa.list_(pa.struct([("a", pa.list_(pa.bool_()))]))),
]


def test_every_form_of_type_is_read_and_can_be_decoded(tmp_path: Path) -> None:
    for declared, expected in FORMS:
        schema = read_schema(write(tmp_path, json.dumps({"ü": declared, "x": declared}, ensure_ascii=False)))
        assert schema == pa.schema([("ü", expected), ("x", expected)])
        assert JsonDecoder(["in"], schema).schema == schema


NO_TYPES = [
    ('{"x": "integer"}', "x"),
    ('{"x": "list<int>"}', "x[]"),
    ('{"x": {"y": ["int8", "int8"]}}', "x.y"),
    ('{"x": [{"y": "timestamp[h]"}]}', "x[].y"),
    ('{"x": 5}', "x"),
    ('{"x": null}', "x"),
    ('{"x": []}', "x"),
    ('{"x": "decimal128(39, 0)"}', "x"),
    ('{"x": "list<int8"}', "x"),
    ('{"x": ""}', "x"),
    ('{"x": "' + "list<" * 500 + "int8" + ">" * 500 + '"}', "x" + "[]" * 64),
]


def test_what_is_no_type_is_an_error_that_names_the_field(tmp_path: Path) -> None:
    for text, field in NO_TYPES:
        path = write(tmp_path, text)
        with pytest.raises(InputError) as caught:
            read_schema(path)
        assert caught.value.name == str(path)
        assert caught.value.place == f"field {field!r}"
        assert "\n" not in str(caught.value)


def test_a_file_that_is_no_object_is_an_error_and_an_endless_one_is_not_read_to_its_end(
    tmp_path: Path,
) -> None:
    for content, problem in (
        (b"", "not valid JSON"),
        (b'{"x": "\xff"}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"x": "int8", "x": "int8"}', "occurs twice"),
        (b'{"x": {"y": "int8", "y": "int8"}}', "occurs twice"),
        (b'{"x": "real"}', r"known types are .*float32.*fixed_size_list"),
    ):
        path = tmp_path / "schema.json"
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"^{path}: .*{problem}"):
            read_schema(path)
    for name, problem in (
        ("absent", "cannot be read as the file of --schema"),
        ("/dev/zero", "longer than 16777216 bytes"),
    ):
        with pytest.raises(InputError, match=f"^{tmp_path / name}: .*{problem}"):
            read_schema(tmp_path / name)


@pytest.mark.parametrize("form", ["dict", "list", "text"])
def test_types_of_64_levels_are_the_deepest(tmp_path: Path, form: str) -> None:
    def nest(depth: int) -> object:
        if form == "text":
            return "list<" * depth + "int8" + ">" * depth
        kind: object = "int8"
        for _ in range(depth):
            kind = {"b": kind} if form == "dict" else [kind]
        return kind

    read_schema(write(tmp_path, json.dumps({"a": nest(63)})))
    with pytest.raises(InputError, match="nests types more than 64 deep"):
        read_schema(write(tmp_path, json.dumps({"a": nest(64)})))
