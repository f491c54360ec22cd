"""The conformance tests of formats that write their inputs one by one, and of formats of lines; and shuffles that are refused."""

import gzip
from abc import abstractmethod
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

import recshuf
from recshuf.formats.compression import split_suffix
from recshuf.interfaces import InputFile, Stamp
from recshuf.testing import FormatSuite
from tests.support.formats.format_tools import decompress_file


class FileSuite(FormatSuite):
    """The tests of a format that writes one input after the other, around the code under test."""

    compressed = ""
    """The suffix of their compression."""

    @abstractmethod
    def write_input(self, path: Path, index: int, count: int) -> None:
        """Write input number `index` with so many records."""

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        files = []
        for index, count in enumerate(row_counts):
            path = folder / f"input {index}{self.format.traits.suffixes[0]}{self.compressed}"
            self.write_input(path, index, count)
            stamp, suffix = Stamp.of(path.stat()), split_suffix(path.name)
            files.append(InputFile(str(path), path, stamp=stamp, suffix=suffix))
        return files


def refused(kind: type[Exception], said: str, *arguments: Any, **options: Any) -> None:
    """Check that a shuffle is refused in words that match."""
    with pytest.raises(kind, match=said):
        recshuf.shuffle(*arguments, **options)


# The conformance tests of formats of lines: plain and compressed inputs side by side


def compress_frames(content: bytes) -> bytes:
    """Return three frames, so that a reader that stops after the first is found out."""
    third = len(content) // 3
    parts = (content[:third], content[third : 2 * third], content[2 * third :])
    return b"".join(zstandard.ZstdCompressor(write_checksum=True).compress(part) for part in parts)


class LineSuite(FormatSuite):
    """The tests of a format whose records are lines."""

    reads_streams = True
    packs = (("", bytes), (".gz", gzip.compress), (".zst", compress_frames))
    """How the inputs are compressed: suffix and function, one for each input."""

    @abstractmethod
    def make_content(self, index: int, count: int) -> bytes:
        """Return the content of an input of so many records."""

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        inputs = []
        for index, (count, (suffix, pack)) in enumerate(zip(row_counts, cycle(self.packs), strict=False)):
            path = folder / f"input {index}{self.format.traits.suffixes[0]}{suffix}"
            path.write_bytes(pack(self.make_content(index, count)))
            inputs.append(InputFile(name=str(path), path=path))
        return inputs

    def read_back(self, path: Path) -> list[bytes]:
        lines = decompress_file(path).split(b"\n")
        return lines if lines[-1] else lines[:-1]

    def records_of(self, batch: pa.RecordBatch) -> list[bytes]:
        return [record.removesuffix(b"\n") for record in batch.column("record").to_pylist()]
