"""Estimates the records of a file of lines from a sample of it or from other files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recshuf.formats.lines.cutting import OFFSET_BYTES
from recshuf.formats.lines.files import FileSource, LineFile, fill
from recshuf.interfaces import InputSummary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.compression.streams import ByteReader
    from recshuf.formats.lines.cutter import Cutter
    from recshuf.formats.lines.cutting import Bytes

_COMPRESSED_PART = 4  # decompressed bytes per sample, in samples of uncompressed files
_LARGEST_PART = 64
_MIN_COMPRESSED_BYTES = 1 << 18  # the reader buffers compressed bytes: fewer would distort the ratio


@dataclass(frozen=True, slots=True)
class Rate:
    """Average contents of files, per byte of file."""

    records: float
    native_bytes: float

    @classmethod
    def of(cls, files: Sequence[InputSummary]) -> Rate | None:
        """Return the rate of sampled files; None if all are empty."""
        size = sum(file.file_bytes or 0 for file in files)
        if not size:
            return None
        records = sum(file.record_count or 0 for file in files)
        return cls(records / size, sum(file.native_bytes or 0 for file in files) / size)

    def estimate(self, file: LineFile) -> InputSummary:
        """Return the estimated contents of a file."""
        count = max(1, round(file.size * self.records)) if file.size else 0
        return InputSummary(file.name, file.size, count, not file.size, int(file.size * self.native_bytes))


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts of a part of an input."""

    size: int
    separator_count: int
    record_count: int | None
    """None unless the sample is the whole input."""

    def join(self, other: Sample) -> Sample:
        """Return the counts of both samples together."""
        return Sample(self.size + other.size, self.separator_count + other.separator_count, None)


@dataclass(frozen=True, slots=True)
class Sampler:
    """Estimates files of lines from a sample of the beginning and, for uncompressed files, of the middle."""

    cutter: Cutter
    sample_bytes: int
    """Bytes read at each of these."""

    def estimate(
        self, source: FileSource, reader: ByteReader, data_begin: int, *, is_compressed: bool
    ) -> InputSummary:
        """Return the estimated contents of a file; `reader` stands at its first record, byte `data_begin` of the data."""
        file = source.file
        sample = self._read(reader, source, is_compressed=is_compressed)
        if sample.record_count is not None:
            return _summarise(file, sample.size, sample.record_count, is_exact=True)
        if not is_compressed:
            return _scale(file, file.size - data_begin, sample.join(self._read_middle(file)))
        ratio = (data_begin + sample.size) / source.bytes_read
        return _scale(file, int(file.size * ratio) - data_begin, sample)

    def _read(self, reader: ByteReader, source: FileSource, *, is_compressed: bool) -> Sample:
        """Return the counts of the beginning of the records, read part by part."""
        buffer = np.empty(self.sample_bytes * (_COMPRESSED_PART if is_compressed else 1), np.uint8)
        sample, is_whole = self._read_part(reader, buffer)
        while (
            is_compressed
            and not is_whole
            and source.bytes_read < _MIN_COMPRESSED_BYTES
            and sample.size < _LARGEST_PART * self.sample_bytes
        ):
            more, is_whole = self._read_part(reader, buffer)
            sample = sample.join(more)
        return sample

    def _read_part(self, reader: ByteReader, buffer: Bytes) -> tuple[Sample, bool]:
        """Return the counts of the next part, and whether it is the last one."""
        filled = fill(reader, buffer.data)
        is_whole = filled < buffer.size
        return self._count(buffer[:filled], is_whole=is_whole), is_whole

    def _count(self, data: Bytes, *, is_whole: bool) -> Sample:
        separator_count = end = 0
        for ends in self.cutter.find_ends(data, 0):
            separator_count += ends.size
            end = int(ends[-1]) if ends.size else end
        record_count = separator_count + (end < data.size)
        return Sample(data.size, separator_count, record_count if is_whole else None)

    def _read_middle(self, file: LineFile) -> Sample:
        middle = np.empty(min(self.sample_bytes, file.size // 2), np.uint8)
        handle = file.open()
        try:
            file.read_at(handle, middle.data, file.size // 2)
        finally:
            handle.close()
        return self._count(middle, is_whole=False)


def _scale(file: LineFile, data_bytes: int, sample: Sample) -> InputSummary:
    count = max(1, round(data_bytes * sample.separator_count / sample.size))
    return _summarise(file, data_bytes, count, is_exact=False)


def _summarise(file: LineFile, data_bytes: int, record_count: int, *, is_exact: bool) -> InputSummary:
    native_bytes = data_bytes + OFFSET_BYTES * record_count
    return InputSummary(file.name, file.size, record_count, is_exact, native_bytes)
