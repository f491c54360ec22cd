"""Text as a table and back, and what tells text from JSONL."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.formats import jsonl, text
from tests.conftest import Run
from tests.support.formats.format_tools import decode_all, read_input, writing
from tests.support.formats.line_tools import give, open_text


def test_text_is_a_column_without_separators(tmp_path: Path) -> None:
    file = give(tmp_path / "in.txt", "naïve\r\n\nlast €".encode())
    table = decode_all(open_text(file))
    assert table.to_pydict() == {"text": ["naïve\r", "", "last €"]}
    assert table.schema.field("text").type == pa.string()
    table = decode_all(open_text(file, separator=b"\r\n"))
    assert table.to_pydict() == {"text": ["naïve", "\nlast €"]}
    assert (
        decode_all(open_text(file, max_record_bytes=1 << 32)).schema.field("text").type == pa.large_string()
    )


def test_a_schema_chooses_the_type_of_text(tmp_path: Path) -> None:
    for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        content = b"a\n\xff\n" if "binary" in str(kind) else b"a\nb\n"
        table = decode_all(open_text(give(tmp_path / "in.txt", content), schema=pa.schema([("text", kind)])))
        assert table.column("text").type == kind
        assert table.column("text").cast(pa.large_binary()).to_pylist() == content.split()
    source = open_text(give(tmp_path / "in.txt", b"a\n"), schema=table.schema, sets_bad_aside=True)
    with pytest.raises(UsageError, match="--on-bad-record"):
        source.decoder()


def test_a_schema_that_text_cannot_have_is_a_usage_error(tmp_path: Path) -> None:
    for fields in ([("text", pa.int64())], [("other", pa.string())], []):
        source = open_text(give(tmp_path / "in.txt", b"a\n"), schema=pa.schema(fields))
        with pytest.raises(UsageError, match="--schema"):
            source.decoder()


def test_the_message_about_invalid_utf8_shows_a_schema_file_that_works(tmp_path: Path, call: Run) -> None:
    (tmp_path / "in.txt").write_bytes(b"a\n\xff\n")
    command = (tmp_path / "in.txt", "-o", tmp_path / "out.parquet")
    result = call(*command)
    assert result.returncode == 1
    found = re.search(
        r"in\.txt: line 2: is not UTF-8; give --schema FILE with (\{.*\}) to", result.stderr.decode()
    )
    assert found is not None
    (tmp_path / "schema.json").write_text(found[1])
    assert call(*command, "--schema", tmp_path / "schema.json").returncode == 0
    assert sorted(pq.read_table(tmp_path / "out.parquet")["text"].to_pylist()) == [b"a", b"\xff"]


def test_invalid_utf8_is_refused_with_its_line_or_set_aside(tmp_path: Path) -> None:
    for bad_rows in ([0], [1, 2], [500], [3, 998], [999]):
        lines = [b"header"] + [b"fine \xc3\xa9"] * 1000
        for row in bad_rows:
            lines[1 + row] = b"cut \xc3"  # with the next separator or line, it would be no better
        file = give(tmp_path / "in.txt", b"\n".join(lines))
        source = open_text(file, header=1)
        [batch] = read_input(source, 0, 1 << 20)
        place = f"line {7000 + bad_rows[0] + 2}"
        with pytest.raises(InputError, match=rf'in.txt: {place}: .*{{"text":"binary"}}'):
            source.decoder().observe(batch, 0, 7000)
        bad = open_text(file, header=1, sets_bad_aside=True).decoder().observe(batch, 0, 7000)
        assert bad is not None
        assert (bad.index.tolist(), bad.reasons) == (bad_rows, ["is not UTF-8"] * len(bad_rows))


def test_a_column_of_strings_is_written_as_text(tmp_path: Path) -> None:
    kinds = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
    for number, kind in enumerate([*kinds, pa.dictionary(pa.int8(), pa.string())]):
        values = pa.array(["skipped", "a", "", "naïve\r"]).cast(kind)[1:]
        batch = pa.record_batch([values], names=["words"])
        target = text.FORMAT.open_target(batch.schema, None, writing(separator=b"\0"))
        with target.open(tmp_path / f"{number}.txt", 1) as sink:
            sink.write(batch)
            sink.write(batch[:0])
            sink.write(batch[1:2])
        assert sink.record_count == 4
        assert (tmp_path / f"{number}.txt").read_bytes() == "a\0\0naïve\r\0\0".encode()


@pytest.mark.parametrize(
    ("values", "separator", "problem"),
    [
        (["a", None], b"\n", "null"),
        (pa.DictionaryArray.from_arrays([0, 1], ["a", None]), b"\n", "null"),
        (["a\nb"], b"\n", "separator"),
        (["a", "\n"], b"\n", "separator"),
        (["xa"], b"aa", "separator"),
        (["aab"], b"aa", "separator"),
    ],
)
def test_values_that_text_cannot_hold_are_refused(
    tmp_path: Path, values: Any, separator: bytes, problem: str
) -> None:
    batch = pa.record_batch([pa.array(values)], names=["words"])
    target = text.FORMAT.open_target(batch.schema, None, writing(separator=separator))
    with (
        pytest.raises(ConversionError, match=f"'words': .*{problem}"),
        target.open(tmp_path / "o", 1) as sink,
    ):
        sink.write(batch)


def test_jsonl_is_recognised_by_its_first_object() -> None:
    for head in (
        b'{"a": 1}\n',
        b'\xef\xbb\xbf{"a": 1}\n{"b"',
        b'\n \r\n{"a": [1, 2]}\r\nanything',
        b'{"a": "cut in the mid',
        b'{"a":' * 100_000 + b"\n",
    ):
        assert jsonl.FORMAT.recognises(head), head[:30]
    for head in (b"{not json}\n", b'{"a": "\xff"}\n', b"[1, 2]\n", b"1\n", b"text\n", b"\n\n", b""):
        assert not jsonl.FORMAT.recognises(head), head


@pytest.mark.parametrize(
    ("content", "shown"),
    [(b"id,x\n1,a\n2,b\n", "id,x"), (b"\xef\xbb\xbfw\tn\r\na\t1\r\nb\t2\r\n", "w\tn"), (b"one, two\nthree, 4\n5, six\n", ""), (b"1,2\n3,4\n5,6\n", "")],
)  # fmt: skip
def test_a_line_that_looks_like_a_header_is_told(tmp_path: Path, content: bytes, shown: str) -> None:
    file = give(tmp_path / "in", content)
    notes = open_text(file, refuses_foreign=True).notes
    assert [f"line 1 ({shown}) taken for a record" in note for note in notes] == [True] * bool(shown)
    assert open_text(file).notes == open_text(file, refuses_foreign=True, header=1).notes == ()
