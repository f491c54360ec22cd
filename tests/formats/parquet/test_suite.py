"""The Parquet adapter keeps the promises of every format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recshuf.formats.parquet import FORMAT
from recshuf.interfaces import InputFile
from recshuf.testing import FormatSuite

FIELDS = [
    pa.field("input", pa.int32(), nullable=False),
    pa.field("row", pa.int64(), metadata={"unit": "rows"}),
    pa.field("label", pa.dictionary(pa.int32(), pa.string())),
    pa.field("text", pa.string()),
    pa.field("tags", pa.list_(pa.string())),
    pa.field("place", pa.struct([("x", pa.float32()), ("when", pa.timestamp("us", "Europe/Berlin"))])),
]
SCHEMA = pa.schema(FIELDS, metadata={"made by": "the tests"})


def make_record(index: int, row: int) -> dict[str, Any]:
    return {
        "input": index,
        "row": row,
        "label": f"label {row // 50}",
        "text": None if row % 11 == 0 else "pad " * (row % 40),
        "tags": ["tag"] * (row % 3),
        "place": None if row % 5 == 0 else {"x": row / 2, "when": row * 1_000_000},
    }


class TestParquet(FormatSuite):
    format = FORMAT

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        inputs = []
        for index, count in enumerate(row_counts):
            path = folder / f"input {index}.parquet"
            table = pa.Table.from_pylist([make_record(index, row) for row in range(count)], schema=SCHEMA)
            pq.write_table(table, path, row_group_size=max(80, count // 6))
            inputs.append(InputFile(name=str(path), path=path))
        return inputs

    def read_back(self, path: Path) -> list[str]:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return [repr(row) for row in file.read().to_pylist()]

    def records_of(self, batch: pa.RecordBatch) -> list[str]:
        return [repr(row) for row in batch.to_pylist()]
