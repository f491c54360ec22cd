"""The Arrow adapter keeps the promises of every format, for files and for streams, compressed or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from recshuf.formats.arrow import FORMAT
from recshuf.interfaces import InputFile, Stamp
from recshuf.testing import FormatSuite
from tests.formats.parquet.test_suite import FIELDS, make_record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SCHEMA = pa.schema([*FIELDS, pa.field("view", pa.string_view())], metadata={"made by": "the tests"})


class TestFiles(FormatSuite):
    format = FORMAT
    compression: str | None = None
    make_writer = staticmethod(pa.ipc.new_file)

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        inputs = []
        options = pa.ipc.IpcWriteOptions(compression=self.compression, unify_dictionaries=True)
        for index, count in enumerate(row_counts):
            path = folder / f"input {index}.arrow"
            rows = [make_record(index, row) | {"view": f"{row}"} for row in range(count)]
            table = pa.Table.from_pylist(rows, schema=SCHEMA)
            with self.make_writer(path, SCHEMA, options=options) as writer:
                writer.write_table(table, max_chunksize=max(80, count // 6))
            inputs.append(InputFile(name=str(path), path=path, stamp=Stamp.of(path.stat())))
        return inputs

    def read_back(self, path: Path) -> list[str]:
        read = pa.ipc.open_file if path.read_bytes()[:6] == b"ARROW1" else pa.ipc.open_stream
        with pa.OSFile(str(path)) as file, read(file) as reader:
            table = reader.read_all()
            table.validate(full=True)
            return [repr(row) for row in table.to_pylist()]

    def records_of(self, batch: pa.RecordBatch) -> list[str]:
        return [repr(row) for row in batch.to_pylist()]


class TestStreams(TestFiles):
    compression = "zstd"
    make_writer = staticmethod(pa.ipc.new_stream)


@pytest.mark.slow
class TestCompressedFiles(TestFiles):
    compression = "lz4"
