"""JSON lines that others wrote decode as `json` reads them, or are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.formats.json_decoding import decode, failure
from tests.support.formats.json_oracle import as_typed, is_sound, merged, type_of

CORPORA = Path(os.environ.get("RECSHUF_CORPORA", "../shared/data"))


@pytest.mark.skipif(not (CORPORA / "json").is_dir(), reason=f"no JSONTestSuite in {CORPORA}")
@pytest.mark.parametrize("form", [b'{"value":%s}', b"%s"], ids=["as a value", "as a line"])
def test_the_json_test_suite(form: bytes) -> None:
    files = sorted((CORPORA / "json/JSONTestSuite/test_parsing").glob("*.json"))
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


@pytest.mark.skipif(not (CORPORA / "jsonl").is_dir(), reason=f"no JSONL files in {CORPORA}")
def test_real_files() -> None:
    files = sorted((CORPORA / "jsonl").rglob("*.jsonl"))
    assert files
    for path in files:
        lines = path.read_bytes().splitlines()[:2000]
        records = [json.loads(line) for line in lines]
        kind = pa.struct([])
        for record in records:
            kind = merged(kind, type_of(record))
        assert decode(lines).to_pylist() == [as_typed(record, kind) for record in records]
