"""The text adapter keeps the promises of every format, plain and compressed."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, ClassVar

import zstandard

from recshuf.formats.text import FORMAT
from recshuf.interfaces import InputFile
from tests.support.formats.format_suite import FormatSuite
from tests.support.formats.format_tools import decompress_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa


def compress_frames(content: bytes) -> bytes:
    """Return three frames, so that a reader that stops after the first is found out."""
    third = len(content) // 3
    parts = (content[:third], content[third : 2 * third], content[2 * third :])
    return b"".join(zstandard.ZstdCompressor(write_checksum=True).compress(part) for part in parts)


class TestText(FormatSuite):
    format = FORMAT
    reads_streams = True
    bulk_rows = 150_000  # more than two of the pieces that are compressed at once
    suffix = ".txt"
    pack: ClassVar[Callable[[bytes], bytes]] = bytes

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        inputs = []
        for index, count in enumerate(row_counts):
            path = folder / f"input {index}{self.suffix}"
            lines = [b"%d:%d\t\xc3\xa9%s\n" % (index, row, b"pad\r " * (row % 40)) for row in range(count)]
            path.write_bytes(type(self).pack(b"".join(lines)))
            inputs.append(InputFile(name=str(path), path=path))
        return inputs

    def read_back(self, path: Path) -> list[bytes]:
        lines = decompress_file(path).split(b"\n")
        return lines if lines[-1] else lines[:-1]

    def records_of(self, batch: pa.RecordBatch) -> list[bytes]:
        return [record.removesuffix(b"\n") for record in batch.column("record").to_pylist()]


class TestTextZstd(TestText):
    suffix = ".txt.zst"
    pack = staticmethod(compress_frames)


class TestTextGzip(TestText):
    suffix = ".txt.gz"
    pack = staticmethod(gzip.compress)
