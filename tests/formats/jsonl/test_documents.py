"""Files that others wrote: decoded as `json` reads them, or refused, as other forms of JSON than lines are."""

import gzip
import json
from pathlib import Path

import pytest

import recshuf
from recshuf.errors import InputError
from tests.support.formats.json_oracle import as_typed, is_sound, type_of
from tests.support.formats.json_records import decode, failure

RECORDS = [{"a": number, "b": [number, {"c": "x"}]} for number in range(50)]
LONG = [{"a": "x" * 100_000}, {"a": 1}]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
DOCUMENTS = {
    "array in one line": json.dumps(RECORDS),
    "array in one line, and blank ones": "\n" + json.dumps(RECORDS) + "\n \n",
    "array in one long line": json.dumps(LONG) + "\n",
    "array over lines": json.dumps(RECORDS, indent=2),
    "array with a record in each line": "[" + ",\n".join(map(json.dumps, RECORDS)) + "]\n",
    "array with brackets in lines": "[\n" + ",\n".join(map(json.dumps, RECORDS)) + "\n]\n",
    "objects over lines": "\n".join(json.dumps(record, indent=1) for record in RECORDS),
}
SOUND = {
    "objects": LINES,
    "one object": '{"a": 1}\n',
    "arrays of objects": "".join(json.dumps([record, record]) + "\n" for record in RECORDS),
    "long array, then another": json.dumps(LONG) + "\n" + json.dumps(LONG) + "\n",
    "tuples": "[1, 2]\n",
    "nothing": "",
}


@pytest.mark.parametrize("packed", [False, True])
def test_other_forms_of_json_are_refused(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("in.jsonl.gz" if packed else "in.jsonl")
    for number, (name, text) in enumerate(DOCUMENTS.items()):
        if packed and name == "array in one long line":
            continue  # only the first 64 KiB of a compressed file are looked at
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        with pytest.raises(
            InputError, match=r"in\.jsonl.* one record in each line; (give format='json'|convert it with jq)"
        ):
            recshuf.shuffle(path, tmp_path / ("out.jsonl", "out.parquet")[number % 2], overwrite=True)
        report = recshuf.shuffle(path, tmp_path / "out.jsonl", format="jsonl", overwrite=True)
        assert report.records > 0, name


def test_lines_of_any_value_are_records(tmp_path: Path) -> None:
    for name, text in SOUND.items():
        (tmp_path / "in.jsonl").write_text(text)
        report = recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.jsonl", overwrite=True)
        assert report.records == text.count("\n"), name


@pytest.mark.parametrize("form", [b'{"value":%s}', b"%s"], ids=["as a value", "as a line"])
def test_the_json_test_suite(corpora: Path, form: bytes) -> None:
    files = sorted((corpora / "json/JSONTestSuite/test_parsing").glob("*.json"))
    assert files
    for path in files:
        line = form % path.read_bytes().replace(b"\n", b"\r")
        if is_sound(line):
            assert not path.name.startswith("n_"), path.name
            value = json.loads(line)
            assert repr(decode([line]).to_pylist()) == repr([as_typed(value, type_of(value))]), path.name
        else:
            place = failure([line]).place
            assert place is not None, path.name
            assert place.partition(",")[0] == "line 1", path.name
