"""The text adapter keeps the promises of every format, of plain and compressed inputs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.formats.text import FORMAT
from recshuf.interfaces import InputFile
from tests.support.formats.format_suite import FormatSuite
from tests.support.formats.format_tools import decompress_file
from tests.support.formats.packed_inputs import PLAIN_FIRST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa


class TestText(FormatSuite):
    format = FORMAT
    reads_streams = True

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        inputs = []
        for index, (count, (suffix, pack)) in enumerate(zip(row_counts, PLAIN_FIRST, strict=False)):
            path = folder / f"input {index}.txt{suffix}"
            lines = [b"%d:%d\t\xc3\xa9%s\n" % (index, row, b"pad\r " * (row % 40)) for row in range(count)]
            path.write_bytes(pack(b"".join(lines)))
            inputs.append(InputFile(name=str(path), path=path))
        return inputs

    def read_back(self, path: Path) -> list[bytes]:
        lines = decompress_file(path).split(b"\n")
        return lines if lines[-1] else lines[:-1]

    def records_of(self, batch: pa.RecordBatch) -> list[bytes]:
        return [record.removesuffix(b"\n") for record in batch.column("record").to_pylist()]
