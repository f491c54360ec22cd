"""Files named JSON Lines that hold another form of JSON are refused; lines of arrays are not."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

import recshuf
from recshuf.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

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
@pytest.mark.parametrize("text", DOCUMENTS.values(), ids=DOCUMENTS)
def test_other_forms_of_json_are_refused(tmp_path: Path, text: str, packed: bool):
    if packed and text == DOCUMENTS["array in one long line"]:
        pytest.skip("only the first 64 KiB of a compressed file are looked at")
    path = tmp_path / ("in.jsonl.gz" if packed else "in.jsonl")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    for name in ("out.jsonl", "out.parquet"):
        with pytest.raises(InputError, match=r"in\.jsonl.* one record in each line; convert it.* jq"):
            recshuf.shuffle(path, tmp_path / name)
    assert recshuf.shuffle(path, tmp_path / "out.jsonl", format="jsonl").records > 0


@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND)
def test_lines_of_any_value_are_records(tmp_path: Path, text: str):
    (tmp_path / "in.jsonl").write_text(text)
    assert recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.jsonl").records == text.count("\n")
