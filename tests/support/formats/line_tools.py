"""Tools of the tests of lines: the oracle, and short ways to read and write."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

from recshuf.formats import text
from recshuf.formats.compression import recognise_compression, split_suffix
from recshuf.formats.lines import cutting
from recshuf.interfaces import InputFile, Source, Stamp
from tests.support.effort import examples
from tests.support.formats.format_tools import decompress_file, read_input, reading

SEPARATORS = [b"\n", b"\0", b"\xff", b"\r\n", b"aa", b"aba", b"\n\n", b"<|end|>", b"abaab"]
HOSTILE = b"\xff\xef\xbb\xbf\0\r\r\n\n\n\xc3\n\xe2\x80\xa8\x1a\n" + b"x" * 500 + b"\n\nx\nx\n\x00"
same_folder = settings(
    max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@st.composite
def texts(draw: st.DrawFn, separator: bytes) -> bytes:
    """Return bytes that hold the separator, and parts of it, often; none that look compressed."""
    word = st.one_of(
        st.just(separator),
        st.just(separator),
        st.integers(0, len(separator)).map(lambda size: separator[:size]),
        st.binary(max_size=5),
        st.sampled_from([b"a", b"b", b"\0", b"\xff", b"\r", b"x" * 90]),
    )
    content = b"".join(draw(st.lists(word, max_size=40)))
    assume(recognise_compression(content) == "none")
    return content


def split_records(data: bytes, separator: bytes = b"\n") -> list[bytes]:
    """Return the records of some bytes, each with its separator: the oracle."""
    *records, rest = data.split(separator)
    end = separator
    if separator == b"\n" and records and records[-1].endswith(b"\r"):
        end = b"\n" if rest.endswith(b"\r") else b"\r\n"  # as the line before
    return [record + separator for record in records] + ([rest + end] if rest else [])


def ends_ambiguously(data: bytes, separator: bytes) -> bool:
    """Tell whether a separator appended to the last record would show earlier in it."""
    rest = data.split(separator)[-1]
    return rest != b"" and (rest + separator).find(separator) != len(rest)


def give(path: Path, content: bytes) -> InputFile:
    path.write_bytes(content)
    return InputFile(path.name, path, stamp=Stamp.of(path.stat()), suffix=split_suffix(path.name))


def open_text(file: InputFile | list[InputFile], **options: Any) -> Source:
    return text.FORMAT.open_source(file if isinstance(file, list) else [file], reading(**options))


def records_in(batches: list[pa.RecordBatch]) -> list[bytes]:
    for batch in batches:
        batch.validate(full=True)
        assert batch.column(0).null_count == 0
    return [record for batch in batches for record in batch.column("record").to_pylist()]


def read(file: InputFile, block_bytes: int = 1 << 20, **options: Any) -> list[bytes]:
    return records_in(read_input(open_text(file, **options), 0, block_bytes))


def write_all(target: Any, path: Path, batches: list[pa.RecordBatch]) -> None:
    with target.open(path, 2) as sink:
        for batch in batches:
            sink.write(batch)


def write(path: Path, records: list[bytes], target: Any, threads: int = 1) -> bytes:
    with target.open(path, threads) as sink:
        sink.write(pa.record_batch([pa.array(records, pa.large_binary())], schema=cutting.SCHEMA))
    return decompress_file(path)
