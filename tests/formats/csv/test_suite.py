"""The CSV adapter keeps the promises of every format, of plain and compressed inputs side by side."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from recshuf.formats.csv import FORMAT
from recshuf.interfaces import InputFile, ReadOptions
from tests.support.formats.format_suite import FormatSuite
from tests.support.formats.format_tools import decompress_file
from tests.support.formats.packed_inputs import PLAIN_FIRST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

HEADER = b"\xef\xbb\xbfid,text,flag\r\n"
MADE_HEADER = b'"id","text","flag"\n'


def split_records(data: bytes) -> list[bytes]:
    """Return the records of CSV in which quotes stand around fields only, without their newlines."""
    records, begin, is_quoted = [], 0, False
    for position, byte in enumerate(data):
        is_quoted ^= byte == ord('"')
        if byte == ord("\n") and not is_quoted:
            records.append(data[begin:position])
            begin = position + 1
    assert not is_quoted
    return records + ([data[begin:]] if data[begin:] else [])


class TestCsv(FormatSuite):
    format = FORMAT
    read_options = ReadOptions(finds_header=True)
    reads_streams = True

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        inputs = []
        for index, (count, (suffix, pack)) in enumerate(zip(row_counts, PLAIN_FIRST, strict=False)):
            path = folder / f"input {index}.csv{suffix}"
            lines = [
                b'1%d%d,"a ""%d""\n, %s",%s\n'
                % (index, row, row, b'\n""\r\n' * (row % 9), b"" if row % 3 else b"x")
                for row in range(count)
            ]
            path.write_bytes(pack(b"".join([HEADER, *lines])))
            inputs.append(InputFile(name=str(path), path=path))
        return inputs

    def read_back(self, path: Path) -> list[bytes]:
        data = decompress_file(path)
        if HEADER.startswith(data):
            return []
        header = next(known for known in (HEADER, MADE_HEADER) if data.startswith(known))
        return split_records(data.removeprefix(header))

    def meaning_of(self, record: bytes) -> list[str]:
        return next(csv.reader(io.StringIO(record.decode(), newline="")))

    def records_of(self, batch: pa.RecordBatch) -> list[bytes]:
        return [record.removesuffix(b"\n") for record in batch.column("record").to_pylist()]
