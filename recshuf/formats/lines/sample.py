"""About how many records a file of lines holds, by a sample of it or by other files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recshuf.formats.lines.cutting import OFFSET_BYTES, find_ends
from recshuf.formats.lines.files import FileSource, LineFile, close_read, fill
from recshuf.interfaces import InputSummary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.compression.streams import ByteReader
    from recshuf.formats.lines.cutting import Bytes

_COMPRESSED_PART = 4  # decompressed bytes looked at, in plain samples
_LARGEST_PART = 64
_MIN_COMPRESSED_BYTES = 1 << 18  # the reader takes compressed bytes in advance: fewer would spoil the ratio


@dataclass(frozen=True, slots=True)
class Rate:
    """What files hold on average, for each of their bytes."""

    records: float
    native_bytes: float

    @classmethod
    def of(cls, files: Sequence[InputSummary]) -> Rate | None:
        """Return the rate of files that were looked into; None where they are empty."""
        size = sum(file.file_bytes or 0 for file in files)
        if not size:
            return None
        records = sum(file.record_count or 0 for file in files)
        return cls(records / size, sum(file.native_bytes or 0 for file in files) / size)

    def estimate(self, file: LineFile) -> InputSummary:
        """Return what a file is expected to hold."""
        count = max(1, round(file.size * self.records)) if file.size else 0
        return InputSummary(file.name, file.size, count, not file.size, int(file.size * self.native_bytes))


@dataclass(frozen=True, slots=True)
class Sample:
    """What was counted in a part of an input."""

    size: int
    separator_count: int
    record_count: int | None
    """Given where the sample is all of an input."""

    def join(self, other: Sample) -> Sample:
        """Return what was counted in both."""
        return Sample(self.size + other.size, self.separator_count + other.separator_count, None)


@dataclass(frozen=True, slots=True)
class Sampler:
    """Estimates files of lines by a sample from the beginning and, where they can be read there, from the middle."""

    separator: bytes
    sample_bytes: int
    """How much of each place is looked at."""

    def estimate(
        self, source: FileSource, reader: ByteReader, data_begin: int, *, is_compressed: bool
    ) -> InputSummary:
        """Return what a file holds, whose `reader` stands at its first record, byte `data_begin` of its data."""
        file = source.file
        sample = self._read(reader, source, is_compressed=is_compressed)
        if sample.record_count is not None:
            return _summarise(file, sample.size, sample.record_count, is_exact=True)
        if not is_compressed:
            return _scale(file, file.size - data_begin, sample.join(self._read_middle(file)))
        ratio = (data_begin + sample.size) / source.bytes_read
        return _scale(file, int(file.size * ratio) - data_begin, sample)

    def _read(self, reader: ByteReader, source: FileSource, *, is_compressed: bool) -> Sample:
        """Count in the beginning of the records, holding a part of it at a time."""
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
        """Return the next part, and whether it is the last; the records are counted if it is all there is."""
        filled = fill(reader, buffer.data)
        is_whole = filled < buffer.size
        return self._count(buffer[:filled], is_whole=is_whole), is_whole

    def _count(self, data: Bytes, *, is_whole: bool) -> Sample:
        separator_count = end = 0
        for ends in find_ends(data, 0, self.separator):
            separator_count += ends.size
            end = int(ends[-1]) if ends.size else end
        record_count = separator_count + (end < data.size)
        return Sample(data.size, separator_count, record_count if is_whole else None)

    def _read_middle(self, file: LineFile) -> Sample:
        middle = np.empty(min(self.sample_bytes, file.size // 2), np.uint8)
        descriptor = file.open()
        try:
            file.read_at(descriptor, middle.data, file.size // 2)
        finally:
            close_read(descriptor)
        return self._count(middle, is_whole=False)


def _scale(file: LineFile, data_bytes: int, sample: Sample) -> InputSummary:
    count = max(1, round(data_bytes * sample.separator_count / sample.size))
    return _summarise(file, data_bytes, count, is_exact=False)


def _summarise(file: LineFile, data_bytes: int, record_count: int, *, is_exact: bool) -> InputSummary:
    native_bytes = data_bytes + OFFSET_BYTES * record_count
    return InputSummary(file.name, file.size, record_count, is_exact, native_bytes)
