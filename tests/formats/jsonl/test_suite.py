"""The JSONL adapter keeps the promises of every format, of compressed and plain inputs side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from recshuf.formats.jsonl import FORMAT
from recshuf.interfaces import InputFile
from tests.support.formats.format_suite import FormatSuite
from tests.support.formats.format_tools import decompress_file
from tests.support.formats.packed_inputs import FRAMES_FIRST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa


def make_record(index: int, row: int) -> dict[str, Any]:
    return {
        "id": [index, row],
        "text": "naïve \u2028 \n" + "pad " * (row % 40),
        "score": None if row % 7 == 0 else row / 4,
        "nested": {"flag": row % 2 == 0, "words": ["a"] * (row % 3)},
    }


class TestJsonl(FormatSuite):
    format = FORMAT
    reads_streams = True

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        inputs = []
        for index, (count, (suffix, pack)) in enumerate(zip(row_counts, FRAMES_FIRST, strict=False)):
            path = folder / f"input {index}.jsonl{suffix}"
            lines = [
                json.dumps(make_record(index, row), ensure_ascii=row % 2 == 0) + "\n" for row in range(count)
            ]
            path.write_bytes(pack("".join(lines).encode()))
            inputs.append(InputFile(name=str(path), path=path))
        return inputs

    def read_back(self, path: Path) -> list[bytes]:
        lines = decompress_file(path).split(b"\n")
        return lines if lines[-1] else lines[:-1]

    def records_of(self, batch: pa.RecordBatch) -> list[bytes]:
        return [record.removesuffix(b"\n") for record in batch.column("record").to_pylist()]

    def meaning_of(self, record: bytes) -> Any:
        return json.loads(record)
