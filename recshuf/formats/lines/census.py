"""Facts about inputs of lines before they are read: header, compression, estimated number of records.

Estimates the records of a file of lines from a sample of it or from other files.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recshuf.errors import InputError
from recshuf.formats.compression import check_suffix, open_reader, recognise_compression
from recshuf.formats.compression.readers import HEAD_BYTES
from recshuf.formats.lines.cutting import OFFSET_BYTES
from recshuf.formats.lines.files import FileSource, LineFile, PrefixedReader, StreamSource, fill, read_stream
from recshuf.formats.lines.foreign import FOREIGN_HEAD_BYTES, check_head, check_kind
from recshuf.interfaces import InputSummary
from recshuf.storage.reading.local import open_input, read_head
from recshuf.storage.reading.objects import look_ahead
from recshuf.storage.reading.read_ahead import UNIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.lines.cutting import Bytes, Cutter
    from recshuf.interfaces import InputFile


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


_MOST_SAMPLES = 256  # files sampled, however many there are


class LineInput(NamedTuple):
    """One input, as the census found it."""

    name: str
    compression: str
    header: bytes | None
    """Header lines, each with its separator; None for an empty input."""
    data_begin: int
    """Byte of the (decompressed) input at which the first record starts."""
    window_bytes: int
    """Memory for decompression, without the blocks."""
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


class Census:
    """Reads the beginning of each input; of very many inputs, that of some.

    Parameters
    ----------
    sample_bytes
        Bytes read of each input to estimate its records.
    """

    def __init__(self, cutter: Cutter, sample_bytes: int) -> None:
        self._cutter = cutter
        self._refuses_foreign = cutter.options.refuses_foreign
        self._sampler = Sampler(cutter, sample_bytes)
        self._sample_bytes = sample_bytes

    def look_at_all(self, given: Sequence[InputFile]) -> list[LineInput]:
        """Return the facts of each input; of thousands, some are sampled and the others estimated from these."""
        step = max(1, -(-len(given) // _MOST_SAMPLES))
        sampled = self._look_ahead(given[::step])
        found = {index * step: self.look_at(file) for index, file in enumerate(sampled)}
        alike: dict[str, list[InputSummary]] = {}
        for one in found.values():
            if one.file is not None:
                alike.setdefault(one.compression, []).append(one.summary)
        rates = {name: rate for name, files in alike.items() if (rate := Rate.of(files)) is not None}
        others = look_ahead((file for index, file in enumerate(given) if index % step), head_bytes=UNIT_BYTES)
        return [
            found[index] if index in found else self.look_at(next(others), rates)
            for index in range(len(given))
        ]

    def _look_ahead(self, given: Sequence[InputFile]) -> Iterator[InputFile]:
        """Yield files while what is read of the next ones is fetched: header and sample, and the sample in the middle."""
        is_plain = not any(file.suffix.compression for file in given)
        middle_bytes = self._sample_bytes if is_plain else 0
        return look_ahead(given, head_bytes=UNIT_BYTES + self._sample_bytes, middle_bytes=middle_bytes)

    def look_at(self, given: InputFile, rates: Mapping[str, Rate] = MappingProxyType({})) -> LineInput:
        """Return the facts of one input.

        Parameters
        ----------
        rates
            Average contents by compression; files of these compressions are not sampled.
        """
        if self._refuses_foreign:
            check_kind(given.name, given.suffix.kind)
        if given.is_stream:
            if given.stream is None:
                raise InputError(given.name, "is neither a file nor a stream")
            return self._look_at_stream(given.name, given.stream, owned=False)
        plain_rate = None if self._cutter.has_header else rates.get("none")
        if plain_rate and (judged := self._judge_by_size(given, plain_rate)):
            return judged
        handle = open_input(given)
        if (stream := handle.take_stream()) is not None:
            return self._look_at_stream(given.name, stream, owned=True)
        try:
            head = handle.read_at(0, HEAD_BYTES)
        finally:
            handle.close()
        compression = self._choose_compression(given, head)
        file = LineFile(given, handle.stamp)
        return self._look_at_file(file, compression, rates.get(compression))

    def _judge_by_size(self, given: InputFile, rate: Rate) -> LineInput | None:
        """Return the facts of a readable file that has neither a header nor a compression."""
        name, stamp = given.name, given.stamp
        if stamp is None or given.suffix.compression:
            return None
        head = read_head(given, FOREIGN_HEAD_BYTES)
        if recognise_compression(head) != "none":
            return None
        if self._refuses_foreign:
            check_head(name, head, self._cutter.separator)
        file = LineFile(given, stamp)
        header = b"" if file.size else None
        return LineInput(name, "none", header, 0, 0, rate.estimate(file), file, None)

    def _choose_compression(self, given: InputFile, head: bytes) -> str:
        check_suffix(given.name, given.suffix)
        return given.suffix.compression or recognise_compression(head)

    def _look_at_stream(self, name: str, stream: BinaryIO, *, owned: bool) -> LineInput:
        head = b""
        while len(head) < HEAD_BYTES and (more := read_stream(name, stream, HEAD_BYTES - len(head))):
            head += more
        compression = recognise_compression(head)
        reader = open_reader(name, StreamSource(name, stream, head, owned=owned), compression)
        try:
            reader = self._check_head(name, reader)
            header = self._cutter.take_header(name, reader, is_compressed=compression != "none")
        except BaseException:
            reader.close()
            raise
        return LineInput(
            name=name,
            compression=compression,
            header=header.lines,
            data_begin=header.end,
            window_bytes=reader.window_bytes,
            summary=InputSummary(name, None, None, record_count_is_exact=False, native_bytes=None),
            file=None,
            stream=PrefixedReader(header.rest, reader),
        )

    def _check_head(self, name: str, reader: ByteReader) -> ByteReader:
        """Return a reader that stands where `reader` stood, at the start, if that is not foreign."""
        if not self._refuses_foreign:
            return reader
        head = memoryview(bytearray(FOREIGN_HEAD_BYTES))
        taken = bytes(head[: fill(reader, head)])
        check_head(name, taken, self._cutter.separator)
        return PrefixedReader(taken, reader)

    def _look_at_file(self, file: LineFile, compression: str, rate: Rate | None) -> LineInput:
        source, is_compressed = FileSource(file), compression != "none"
        reader = open_reader(file.name, source, compression)
        try:
            reader = self._check_head(file.name, reader)
            header = self._cutter.take_header(file.name, reader, is_compressed=is_compressed)
            if rate is None:
                records = PrefixedReader(header.rest, reader)
                summary = self._sampler.estimate(source, records, header.end, is_compressed=is_compressed)
            else:
                summary = rate.estimate(file)
        finally:
            reader.close()
        return LineInput(
            name=file.name,
            compression=compression,
            header=header.lines,
            data_begin=header.end,
            window_bytes=reader.window_bytes,
            summary=summary,
            file=file,
            stream=None,
        )
