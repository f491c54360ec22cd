"""The CSV adapter keeps the promises of every format."""

import csv
import io
from pathlib import Path

from recshuf.formats.csv import FORMAT
from tests.support.formats.file_suite import LineSuite
from tests.support.formats.format_tools import decompress_file, reading_csv

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


class TestCsv(LineSuite):
    format = FORMAT
    read_options = reading_csv(header=None)

    def make_content(self, index: int, count: int) -> bytes:
        lines = [
            b'1%d%d,"a ""%d""\n, %s",%s\n'
            % (index, row, row, b'\n""\r\n' * (row % 9), b"" if row % 3 else b"x")
            for row in range(count)
        ]
        return b"".join([HEADER, *lines])

    def read_back(self, path: Path) -> list[bytes]:
        data = decompress_file(path)
        if HEADER.startswith(data):
            return []
        header = next(known for known in (HEADER, MADE_HEADER) if data.startswith(known))
        return split_records(data.removeprefix(header))

    def meaning_of(self, record: bytes) -> list[str]:
        return next(csv.reader(io.StringIO(record.decode(), newline="")))
