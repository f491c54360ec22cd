"""What is known of an input of lines before it is read: its header, its compression, and about how many records."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recshuf.errors import InputError
from recshuf.formats.compression import (
    HEAD_BYTES,
    find_suffix,
    open_reader,
    recognise_compression,
    split_compression,
)
from recshuf.formats.lines.cutting import OFFSET_BYTES, find_ends
from recshuf.formats.lines.files import (
    FileSource,
    LineFile,
    PrefixedReader,
    StreamSource,
    close_read,
    fill,
    open_descriptor,
    read_error,
    read_stream,
)
from recshuf.formats.lines.limit import RecordLimit
from recshuf.interfaces import InputSummary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from recshuf.formats.compression.streams import ByteReader
    from recshuf.formats.lines.cutting import Bytes
    from recshuf.interfaces import InputFile, ReadOptions

_HEADER_PIECE_BYTES = 1 << 12
_MOST_SAMPLES = 256  # files looked into, of any number
_COMPRESSED_SAMPLE_PART = 4  # decompressed bytes looked at, in plain samples
_LARGEST_SAMPLE_PART = 64
_MIN_COMPRESSED_BYTES = 1 << 18  # the reader takes compressed bytes in advance: fewer would spoil the ratio


class LineInput(NamedTuple):
    """One input, looked at."""

    name: str
    compression: str
    header: bytes | None
    """The lines that are no records, each with its separator; None for an empty input."""
    data_begin: int
    """Where the first record starts in the (decompressed) input."""
    window_bytes: int
    """Memory that decompression needs beside the blocks."""
    summary: InputSummary
    file: LineFile | None
    """None for a stream."""
    stream: ByteReader | None
    """A stream at its first record; None for a file."""

    def open(self) -> ByteReader:
        """Return a reader that stands at the start of a file, or at the first record of a stream."""
        if self.file is None:
            assert self.stream is not None  # noqa: S101 # one of the two is always given
            return self.stream
        return open_reader(self.name, FileSource(self.file), self.compression)


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
class Census:
    """How inputs are looked at."""

    options: ReadOptions
    suffixes: tuple[str, ...]
    """File name suffixes that tell a file which is not compressed."""
    sample_bytes: int
    """How much of each input is read to estimate its records."""

    def look_at_all(self, given: Sequence[InputFile]) -> list[LineInput]:
        """Return what is known of each input; of thousands, a part tells the sizes of the others.

        Raises
        ------
        InputError
            As `look_at` does.
        """
        step = max(1, -(-len(given) // _MOST_SAMPLES))
        found = {index: self.look_at(given[index]) for index in range(0, len(given), step)}
        alike: dict[str, list[InputSummary]] = {}
        for one in found.values():
            if one.file is not None:
                alike.setdefault(one.compression, []).append(one.summary)
        rates = {name: rate for name, files in alike.items() if (rate := Rate.of(files)) is not None}
        return [
            found[index] if index in found else self.look_at(file, rates) for index, file in enumerate(given)
        ]

    def look_at(self, given: InputFile, rates: Mapping[str, Rate] = MappingProxyType({})) -> LineInput:
        """Return what is known of an input.

        Parameters
        ----------
        rates
            What files of a compression are taken to hold, which are not looked into.

        Raises
        ------
        InputError
            When it is missing, unreadable, damaged, or shorter than its header.
        """
        if given.path is None:
            if given.stream is None:
                raise InputError(given.name, "is neither a file nor a stream")
            return self._look_at_stream(given.name, given.stream, owned=False)
        plain_rate = None if self.options.header_lines else rates.get("none")
        if plain_rate and (judged := self._judge_by_size(given, plain_rate)):
            return judged
        descriptor, status = open_descriptor(given.name, given.path)
        if not stat.S_ISREG(status.st_mode):
            return self._look_at_stream(given.name, os.fdopen(descriptor, "rb"), owned=True)
        try:
            head = os.pread(descriptor, HEAD_BYTES, 0)
        except OSError as error:
            raise read_error(given.name, error) from error
        finally:
            close_read(descriptor)
        compression = self._choose_compression(given.path, head)
        file = LineFile(given.name, given.path, status.st_size, status.st_mtime_ns)
        return self._look_at_file(file, compression, rates.get(compression))

    def _judge_by_size(self, given: InputFile, rate: Rate) -> LineInput | None:
        """Return what is known of a file without a header whose name says that it is plain, if it can be read."""
        name, path, stamp = given.name, given.path, given.stamp
        if path is None or stamp is None or find_suffix(name) not in self.suffixes:
            return None
        if not os.access(path, os.R_OK):
            return None
        file = LineFile(name, path, stamp.size, stamp.modified_ns)
        header = b"" if file.size else None
        return LineInput(name, "none", header, 0, 0, rate.estimate(file), file, None)

    def _choose_compression(self, path: Path, head: bytes) -> str:
        stem, compression = split_compression(str(path))
        if compression:
            return compression
        return "none" if find_suffix(stem) in self.suffixes else recognise_compression(head)

    def _look_at_stream(self, name: str, stream: BinaryIO, *, owned: bool) -> LineInput:
        head = b""
        while len(head) < HEAD_BYTES and (more := read_stream(name, stream, HEAD_BYTES - len(head))):
            head += more
        compression = recognise_compression(head)
        reader = open_reader(name, StreamSource(name, stream, head, owned=owned), compression)
        header, rest, data_begin = self._take_header(name, reader, compression)
        return LineInput(
            name=name,
            compression=compression,
            header=header,
            data_begin=data_begin,
            window_bytes=reader.window_bytes,
            summary=InputSummary(name, None, None, record_count_is_exact=False, native_bytes=None),
            file=None,
            stream=PrefixedReader(rest, reader),
        )

    def _look_at_file(self, file: LineFile, compression: str, rate: Rate | None) -> LineInput:
        source = FileSource(file)
        reader = open_reader(file.name, source, compression)
        try:
            header, rest, data_begin = self._take_header(file.name, reader, compression)
            if rate is None:
                sample = self._read_sample(PrefixedReader(rest, reader), source, compression)
                summary = self._estimate(file, compression, data_begin, sample, source.bytes_read)
            else:
                summary = rate.estimate(file)
        finally:
            reader.close()
        return LineInput(
            name=file.name,
            compression=compression,
            header=header,
            data_begin=data_begin,
            window_bytes=reader.window_bytes,
            summary=summary,
            file=file,
            stream=None,
        )

    def _estimate(
        self, file: LineFile, compression: str, data_begin: int, sample: _Sample, bytes_read: int
    ) -> InputSummary:
        """Return what a file holds, of which `bytes_read` were read for a sample of its records."""
        if sample.record_count is not None:
            return _summarise(file, sample.size, sample.record_count, is_exact=True)
        if compression == "none":
            return _scale(file, file.size - data_begin, sample.join(self._sample_middle(file)))
        ratio = (data_begin + sample.size) / bytes_read
        return _scale(file, int(file.size * ratio) - data_begin, sample)

    def _take_header(
        self, name: str, reader: ByteReader, compression: str
    ) -> tuple[bytes | None, bytes, int]:
        """Return the header, what was read behind it, and where that starts."""
        count, separator = self.options.header_lines, self.options.separator
        limit = RecordLimit(name, self.options.max_record_bytes, "--max-record-bytes", compression != "none")
        data = bytearray()
        view = memoryview(bytearray(_HEADER_PIECE_BYTES))
        end = found = 0
        while found < count or not data:
            at = data.find(separator, end) if found < count else -1
            if at >= 0:
                end = at + len(separator)
                found += 1
                continue
            if len(data) - end > limit.max_bytes:
                raise limit.exceeded(end)
            read = reader.readinto(view)
            if not read:
                return self._end_header(name, data, end, count - found)
            data += view[:read]
        return bytes(data[:end]), bytes(data[end:]), end

    def _end_header(
        self, name: str, data: bytearray, end: int, missing: int
    ) -> tuple[bytes | None, bytes, int]:
        """Return what `_take_header` does for an input that ends within its header."""
        if not data:
            return None, b"", 0
        if missing > 1 or len(data) == end:
            raise InputError(
                name, f"has fewer lines than its header, {self.options.header_lines}", remedy="check --header"
            )
        return bytes(data) + self.options.separator, b"", len(data)

    def _read_sample(self, reader: ByteReader, source: FileSource, compression: str) -> _Sample:
        """Look at the beginning of the records, holding a part of it at a time."""
        is_plain = compression == "none"
        buffer = np.empty(self.sample_bytes * (1 if is_plain else _COMPRESSED_SAMPLE_PART), np.uint8)
        sample, is_whole = self._read_part(reader, buffer)
        while not (is_plain or is_whole) and (
            source.bytes_read < _MIN_COMPRESSED_BYTES
            and sample.size < _LARGEST_SAMPLE_PART * self.sample_bytes
        ):
            more, is_whole = self._read_part(reader, buffer)
            sample = sample.join(more)
        return sample

    def _read_part(self, reader: ByteReader, buffer: Bytes) -> tuple[_Sample, bool]:
        """Return the next part, and whether it is the last; the records are counted if it is all there is."""
        filled = fill(reader, buffer.data)
        is_whole = filled < buffer.size
        return self._count(buffer[:filled], is_whole=is_whole), is_whole

    def _count(self, data: Bytes, *, is_whole: bool) -> _Sample:
        separator_count = end = 0
        for ends in find_ends(data, 0, self.options.separator):
            separator_count += ends.size
            end = int(ends[-1]) if ends.size else end
        record_count = separator_count + (end < data.size)
        return _Sample(data.size, separator_count, record_count if is_whole else None)

    def _sample_middle(self, file: LineFile) -> _Sample:
        middle = np.empty(min(self.sample_bytes, file.size // 2), np.uint8)
        descriptor = file.open()
        try:
            file.read_at(descriptor, middle.data, file.size // 2)
        finally:
            close_read(descriptor)
        return self._count(middle, is_whole=False)


@dataclass(frozen=True, slots=True)
class _Sample:
    size: int
    separator_count: int
    record_count: int | None
    """Given where the sample is all of an input."""

    def join(self, other: _Sample) -> _Sample:
        return _Sample(self.size + other.size, self.separator_count + other.separator_count, None)


def _scale(file: LineFile, data_bytes: int, sample: _Sample) -> InputSummary:
    count = max(1, round(data_bytes * sample.separator_count / sample.size))
    return _summarise(file, data_bytes, count, is_exact=False)


def _summarise(file: LineFile, data_bytes: int, record_count: int, *, is_exact: bool) -> InputSummary:
    native_bytes = data_bytes + OFFSET_BYTES * record_count
    return InputSummary(file.name, file.size, record_count, is_exact, native_bytes)
