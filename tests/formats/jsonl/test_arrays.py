"""JSON arrays: their elements are the records, one line each, and are written as lines or as an array again."""

import gzip
import io
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import InputError, RecshufWarning
from recshuf.formats.jsonl import ARRAY as FORMAT
from recshuf.formats.jsonl import elements
from tests.conftest import Run
from tests.support.effort import examples
from tests.support.formats.file_suite import LineSuite
from tests.support.formats.format_tools import OneWayReader, decompress_file, read_input
from tests.support.formats.json_records import ANYTHING
from tests.support.formats.line_tools import give, records_in

TEXT = 'a "q" \\ [1, {2}]\n, }\u00e9'
RECORDS = [
    {"id": number, "t": TEXT * (number % 3), "n": [{"a": {"b": 1}}] * (number % 4)} for number in range(200)
]


class TestArrays(LineSuite):
    format = FORMAT
    bulk_rows = 10_000
    indent: int | None = None

    def make_content(self, index: int, count: int) -> bytes:
        rows = [{"at": f"{index}:{row}", "t": TEXT * (row % 3), "n": [[row], {}]} for row in range(count)]
        return json.dumps([{**row, "n": [[1]]} for row in rows], indent=self.indent).encode()

    def read_back(self, path: Path) -> list[Any]:
        content = decompress_file(path)
        if not content.startswith(b"["):  # shards are JSONL by default
            return list(map(json.loads, content.splitlines()))
        return list(json.loads(content))

    def records_of(self, batch: pa.RecordBatch) -> list[Any]:
        lines = batch.column("record").to_pylist()
        assert all(line.count(b"\n") == 1 for line in lines)
        return list(map(json.loads, lines))


@pytest.mark.slow
class TestPrettyArrays(TestArrays):
    indent = 3


@settings(max_examples=examples(120))
@given(
    rows=st.lists(ANYTHING, max_size=12),
    indent=st.sampled_from([None, 0, 2, "\t"]),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,  ", " : ")]),
    around=st.sampled_from(["", "\n", " \r\n "]),
    piece_bytes=st.integers(1, 9),
    block_bytes=st.sampled_from([1, 7, 64, 1 << 20]),
)
def test_elements_are_those_of_the_oracle_wherever_blocks_end(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], indent: Any, separators: tuple[str, str], around: str,
    piece_bytes: int, block_bytes: int,
) -> None:  # fmt: skip
    text = around + json.dumps(rows, indent=indent, separators=separators) + around
    file = give(tmp_path_factory.getbasetemp() / "in.json", text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements, "PIECE_BYTES", piece_bytes)
        source = FORMAT.open_source([file], recshuf.interfaces.ReadOptions())
        (summary,) = source.inputs
        lines = records_in(read_input(source, 0, block_bytes))
    assert [json.loads(line) for line in lines] == rows
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert summary.record_count == len(rows)
    if indent is None:  # nothing but what stands around elements is left out
        assert [line[:-1].decode() for line in lines] == [
            json.dumps(row, separators=separators) for row in rows
        ]


WORDS = ("1", "-", "2.", ".5", "e3", "tru", "e", '"s"', ",", "[]")


def test_what_is_no_json_does_not_become_some(tmp_path: Path) -> None:
    texts = [f"[{'{}'.join(words)}]".format(gap) for words in product(WORDS, repeat=2) for gap in ("\n", " \r\n\t")]  # fmt: skip
    file = give(tmp_path / "in.json", f"[{','.join(texts)}]".encode())
    lines = records_in(read_input(FORMAT.open_source([file], recshuf.interfaces.ReadOptions()), 0, 1 << 20))
    for text, line in zip(texts, lines, strict=True):
        assert parse(line) == parse(text), text


def parse(text: str | bytes) -> Any:
    """Return the value of a JSON text; itself where there is none."""
    try:
        return json.loads(text)
    except ValueError:
        return "no JSON"


def test_arrays_become_lines_or_an_array_again(tmp_path: Path) -> None:
    """From several files, one with a byte order mark, one compressed, one without elements; the seed alone decides the order."""
    files = [tmp_path / name for name in ("a.json", "b.json.gz", "c.json")]
    files[0].write_bytes(b"\xef\xbb\xbf" + json.dumps(RECORDS[:90], indent=2).encode())
    files[1].write_bytes(gzip.compress(json.dumps(RECORDS[90:], separators=(",", ":")).encode() + b"\n"))
    files[2].write_bytes(b" [\n ] \n")
    recshuf.shuffle(files, tmp_path / "out.jsonl", seed=3, verify=True, workers=1)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert sorted(rows, key=lambda row: row["id"]) == RECORDS
    recshuf.shuffle(files, tmp_path / "out.json", seed=3, verify=True, memory="64MB", workers=3)
    assert json.loads((tmp_path / "out.json").read_bytes()) == rows
    out, text = io.BytesIO(), json.dumps(RECORDS, indent=1).encode()
    recshuf.shuffle("-", "-", format="json", to="json", stdin=OneWayReader(text), stdout=out)
    assert sorted(json.loads(out.getvalue()), key=lambda row: row["id"]) == RECORDS
    recshuf.shuffle(files, f"{tmp_path}/shards/", seed=3, verify=True)
    assert {path.suffix for path in (tmp_path / "shards").glob("*.jsonl*")} == {".jsonl"}
    recshuf.shuffle(files, tmp_path / "arrays/", to="json", shards=3, compression="none", verify=True)
    assert recshuf.shuffle(tmp_path / "arrays", tmp_path / "again.jsonl").records == len(RECORDS)
    recshuf.shuffle(files, tmp_path / "out.parquet", seed=3, verify=True)
    assert pq.read_table(tmp_path / "out.parquet")["id"].to_pylist() == [row["id"] for row in rows]
    recshuf.shuffle(tmp_path / "out.parquet", tmp_path / "table.json", verify=True)
    assert len(json.loads((tmp_path / "table.json").read_bytes())) == len(RECORDS)
    recshuf.scatter(files, tmp_path / "store", seed=3)
    recshuf.gather(tmp_path / "store", tmp_path / "gathered.json", verify=True)
    assert json.loads((tmp_path / "gathered.json").read_bytes()) == rows
    recshuf.shuffle(files, tmp_path / "told.jsonl", provenance=True)
    told = [json.loads(line) for line in (tmp_path / "told.jsonl").read_bytes().splitlines()]
    assert all(row["id"] == row["source_row"] + 90 * row["source_file"].endswith("b.json.gz") for row in told)


def test_json_of_lines_stays_lines(tmp_path: Path) -> None:
    content = b"".join(json.dumps(row).encode() + b"\n" for row in RECORDS)
    (tmp_path / "a.json").write_bytes(content)
    recshuf.shuffle(tmp_path / "a.json", tmp_path / "b.json")
    assert sorted((tmp_path / "b.json").read_bytes().splitlines()) == sorted(content.splitlines())
    (tmp_path / "a.txt").write_text("not JSON\n")
    with pytest.warns(
        RecshufWarning, match=r"c\.json: gets lines of text as they are; to='json' writes json"
    ):
        recshuf.shuffle(tmp_path / "a.txt", tmp_path / "c.json")
    assert (tmp_path / "c.json").read_text() == "not JSON\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2, ]", "byte 7: a comma stands before the end of the array"),
        ("[,]", "byte 2: a comma stands before the end of the array"),
        ("[,1]", "byte 1: a comma follows no element"),
        ("[1,, 2]", "byte 3: a comma follows no element"),
        ("[1, 2", "byte 5: the array is not closed"),
        ('[1, "2]', "byte 7: the array is not closed"),
        ("[1, 2}", "byte 5: the array is closed by a brace"),
        ("[1]\n[2]\n", "byte 4: more follows the array"),
        ("[1]" + " " * 300_000 + "x", "byte 300003: more follows the array"),
        ('["a\nb"]', "byte 3: a newline stands within a string"),
        ('{\n "images": [{"id": 1}],\n "x": 1}', """one JSON object, .* the list 'images' in it; .* jq -c '."images".."""),
        ('{\n "a": 1\n}\n{\n "a": 2\n}\n', "JSON objects over many lines; write each in one line with jq -c .,"),
        ("nothing", "is neither JSON lines nor a JSON array; mend it"),
    ],
)  # fmt: skip
def test_what_is_no_array_is_refused(tmp_path: Path, call: Run, text: str, message: str) -> None:
    (tmp_path / "in.json").write_text(text)
    done = call(tmp_path / "in.json", "-o", tmp_path / "out.jsonl")
    assert done.returncode == 1
    assert re.search(
        f"in.json: .*{message}" if text[0] not in "[" else f"in.json: {message}", done.stderr.decode()
    )
    assert not (tmp_path / "out.jsonl").exists()


def test_the_remedy_of_an_array_that_is_named_as_lines_works(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(RECORDS, indent=1))
    with pytest.raises(InputError, match=r"a JSON array over many lines, .*; give format='json'"):
        recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "out.jsonl", format="json").records == len(
        RECORDS
    )


def test_an_element_larger_than_a_block_is_read_and_one_beyond_the_limit_named(tmp_path: Path) -> None:
    rows = [{"a": 1}, {"a": ["x", '"'] * 40_000}, {"a": "[" * 300_000}]
    (tmp_path / "in.json").write_text(json.dumps(rows))
    recshuf.shuffle(tmp_path / "in.json", tmp_path / "out.json", memory="64MB")
    written = json.loads((tmp_path / "out.json").read_bytes())
    assert np.array_equal(sorted(map(str, written)), sorted(map(str, rows)))
    with pytest.raises(InputError, match=r"in\.json: byte 10: the record .* longer than 5,000 bytes"):
        recshuf.shuffle(tmp_path / "in.json", tmp_path / "o.json", max_record_bytes=5000)
