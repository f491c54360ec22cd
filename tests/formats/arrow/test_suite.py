"""The Arrow adapter keeps the promises of every format, for files and for streams, compressed or not."""

from pathlib import Path

import pyarrow as pa
import pytest

from recshuf.formats.arrow import FORMAT
from tests.formats.arrow.test_reading import read, write
from tests.formats.parquet.test_suite import FIELDS, make_record
from tests.support.formats.file_suite import FileSuite

SCHEMA = pa.schema([*FIELDS, pa.field("view", pa.string_view())], metadata={"made by": "the tests"})


class TestFiles(FileSuite):
    format = FORMAT
    is_stream = False
    compression: str | None = None

    def write_input(self, path: Path, index: int, count: int) -> None:
        rows = [make_record(index, row) | {"view": f"{row}"} for row in range(count)]
        options = {"compression": self.compression, "unify_dictionaries": True}
        table, chunk = pa.Table.from_pylist(rows, schema=SCHEMA), max(80, count // 6)
        write(path, table, stream=self.is_stream, chunk=chunk, **options)

    def read_back(self, path: Path) -> list[str]:
        return [repr(row) for row in read(path).to_pylist()]

    def records_of(self, batch: pa.RecordBatch) -> list[str]:
        return [repr(row) for row in batch.to_pylist()]


class TestStreams(TestFiles):
    is_stream, compression = True, "zstd"


@pytest.mark.slow
class TestCompressedFiles(TestFiles):
    compression = "lz4"
