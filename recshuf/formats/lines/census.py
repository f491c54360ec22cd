"""Facts about inputs of lines before they are read: header, compression, and the number of records.

That number is estimated from a sample of the file, or, where there are very many, from samples of other files.
"""

from __future__ import annotations

from contextlib import closing
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recshuf.dataclass import dataclass
from recshuf.formats.compression import check_suffix, open_reader, recognise_compression
from recshuf.formats.compression.readers import HEAD_BYTES
from recshuf.formats.files import POINTER_BYTES, refuse_pointer
from recshuf.formats.lines import FOREIGN_HEAD_BYTES, check_head, check_kind
from recshuf.formats.lines.cutting import MARK, OFFSET_BYTES, find_content_end
from recshuf.formats.lines.files import FileSource, LineFile, StreamSource, fill
from recshuf.interfaces import InputSummary
from recshuf.storage.reading.local import open_input, read_head
from recshuf.storage.reading.objects import look_ahead
from recshuf.storage.reading.read_ahead import UNIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from recshuf.formats.compression.readers import ByteReader, Readable
    from recshuf.formats.lines.cutting import Bytes, Cutter, Header
    from recshuf.interfaces import InputFile


_COMPRESSED_PART = 4  # decompressed bytes per sample, in samples of uncompressed files
_LARGEST_PART = 64
_MOST_SAMPLES = 256  # files sampled, however many there are
_MIN_COMPRESSED_BYTES = 1 << 18  # the reader buffers compressed bytes: fewer would distort the ratio


class LineInput(NamedTuple):
    """One input, as the census found it."""

    name: str
    compression: str
    header: bytes | None
    """Header lines, each with its separator; None for an empty input, and for a part that is to have none."""
    data_begin: int
    """Byte of the (decompressed) input at which the first record starts."""
    window_bytes: int
    """Memory for decompression, without the blocks."""
    summary: InputSummary
    file: LineFile | None
    """None for a stream."""
    stream: ByteReader | None
    """A stream at its first record; None for a file."""
    line_end: bytes | None = None
    """What ends its first line; None if nothing does, or it does not matter."""

    def open(self) -> ByteReader:
        """Return a reader that stands at the start of a file, or at the first record of a stream."""
        return self.stream or open_reader(self.name, FileSource(self.require_file()), self.compression)

    def require_file(self) -> LineFile:
        assert self.file is not None  # noqa: S101 # one of the two is always there
        return self.file


class Census:
    """Reads the beginning of each input, `sample_bytes` of it to estimate its records; of very many, that of some."""

    def __init__(self, cutter: Cutter, sample_bytes: int) -> None:
        self._cutter = cutter
        self._refuses_foreign = cutter.options.refuses_foreign
        self._sample_bytes = sample_bytes

    def look_at_all(self, files: Sequence[InputFile]) -> list[LineInput]:
        """Return the facts of each input; of thousands, some are sampled and the others estimated from these."""
        step = max(1, -(-len(files) // _MOST_SAMPLES))
        sampled = [self.look_at(file) for file in self._look_ahead(files[::step])]
        alike: dict[str, list[InputSummary]] = {}
        for lines in sampled:
            if lines.file is not None:
                alike.setdefault(lines.compression, []).append(lines.summary)
        rates = {
            name: rate for name, alike_files in alike.items() if (rate := Rate.of(alike_files)) is not None
        }
        others = look_ahead((file for index, file in enumerate(files) if index % step), head_bytes=UNIT_BYTES)
        return [
            self.look_at(next(others), rates) if index % step else sampled[index // step]
            for index in range(len(files))
        ]

    def _look_ahead(self, files: Sequence[InputFile]) -> Iterator[InputFile]:
        """Yield files while what is read of the next ones is fetched: header and sample, and the sample in the middle."""
        is_plain = not any(file.suffix.compression for file in files)
        middle_bytes = self._sample_bytes if is_plain else 0
        return look_ahead(files, head_bytes=UNIT_BYTES + self._sample_bytes, middle_bytes=middle_bytes)

    def look_at(self, file: InputFile, rates: Mapping[str, Rate] = MappingProxyType({})) -> LineInput:
        """Return the facts of one input; files of the compressions in `rates` are not sampled."""
        if self._refuses_foreign:
            check_kind(file.name, file.suffix.kind, self._cutter.options)
        if file.stream is not None:
            return self._look_at_stream(file.name, file.stream, owned=False)
        plain_rate = None if self._cutter.has_header else rates.get("none")
        if plain_rate and (judged := self._judge_by_size(file, plain_rate)):
            return judged
        handle = open_input(file)
        if (stream := handle.take_stream()) is not None:
            return self._look_at_stream(file.name, stream, owned=True)
        with closing(handle):
            head = handle.read_at(0, POINTER_BYTES)
        if self._refuses_foreign:
            refuse_pointer(file.name, head)
        check_suffix(file.name, file.suffix)
        compression = file.suffix.compression or self._cutter.recognise_compression(head)
        return self._look_at_file(LineFile(file, handle.stamp), compression, rates.get(compression))

    def _judge_by_size(self, file: InputFile, rate: Rate) -> LineInput | None:
        """Return the facts of a readable file that has neither a header nor a compression."""
        if file.stamp is None or file.suffix.compression:
            return None
        head = read_head(file, FOREIGN_HEAD_BYTES)
        if recognise_compression(head) != "none" or head.startswith(MARK):
            return None
        if self._refuses_foreign:
            check_head(file.name, head, self._cutter.options)
        lines = LineFile(file, file.stamp)
        header = b"" if lines.size else None
        return LineInput(file.name, "none", header, 0, 0, rate.estimate(lines), lines, None)

    def _look_at_stream(self, name: str, raw: BinaryIO, *, owned: bool) -> LineInput:
        source = StreamSource(name, raw, owned=owned)
        compression = self._cutter.recognise_compression(source.peek(HEAD_BYTES))
        reader, (lines, _, begin, end) = self._open(name, source, compression)
        summary = InputSummary(name, None, None, record_count_is_exact=False, native_bytes=None)
        return LineInput(name, compression, lines, begin, reader.window_bytes, summary, None, reader, end)

    def _look_at_file(self, file: LineFile, compression: str, rate: Rate | None) -> LineInput:
        source, is_compressed = FileSource(file), compression != "none"
        reader, (lines, _, begin, end) = self._open(file.name, source, compression)
        with closing(reader):
            if rate is None:
                summary = self._estimate(source, reader, begin, is_compressed=is_compressed)
            else:
                summary = rate.estimate(file)
        return LineInput(file.name, compression, lines, begin, reader.window_bytes, summary, file, None, end)

    def _open(self, name: str, source: Readable, compression: str) -> tuple[ByteReader, Header]:
        """Return a reader that stands at the first record of an input, and the header; refuse what is foreign."""
        reader = open_reader(name, source, compression)
        try:
            if self._refuses_foreign:
                view = memoryview(bytearray(FOREIGN_HEAD_BYTES))
                head = bytes(view[: fill(reader, view)])
                check_head(name, head, self._cutter.options)
                reader.put_back(head)
            header = self._cutter.take_header(name, reader, is_compressed=compression != "none")
        except BaseException:
            reader.close()
            raise
        reader.put_back(header.rest)
        return reader, header

    def _estimate(
        self, source: FileSource, reader: ByteReader, data_begin: int, *, is_compressed: bool
    ) -> InputSummary:
        """Return what a sample of the beginning tells, and of an uncompressed file one of the middle.

        `reader` stands at the first record, byte `data_begin` of the data.
        """
        file = source.file
        buffer = np.empty(self._sample_bytes * (_COMPRESSED_PART if is_compressed else 1), np.uint8)
        size = filled = fill(reader, buffer.data)
        is_whole = filled < buffer.size
        if is_whole and self._cutter.drops_blank_end:
            size = filled = find_content_end(buffer[:filled])
        count, end = self._count(buffer[:filled])
        if is_whole:
            has_more = self._cutter.is_record(buffer[end:size])
            return _summarise(
                file, size if has_more else min(size, end), int(count) + has_more, is_exact=True
            )
        if not is_compressed and not self._cutter.counts_anywhere:
            return _scale(file, file.size - data_begin, size, count)
        if not is_compressed:
            middle = np.empty(min(self._sample_bytes, file.size // 2), np.uint8)
            file.read_into(middle, file.size // 2)
            return _scale(file, file.size - data_begin, size + middle.size, count + self._count(middle)[0])
        most = _LARGEST_PART * self._sample_bytes
        while filled == buffer.size and source.bytes_read < _MIN_COMPRESSED_BYTES and size < most:
            filled = fill(reader, buffer.data)
            size += filled
            count += self._count(buffer[:filled])[0]
        ratio = (data_begin + size) / source.bytes_read
        return _scale(file, int(file.size * ratio) - data_begin, size, count)

    def _count(self, data: Bytes) -> tuple[float, int]:
        """Return the number of records, and the end of the last one, which may lie behind the data: then a part of them counts."""
        count = end = 0
        for ends in self._cutter.find_ends(data, 0):
            count += self._cutter.count_records(data, np.concatenate([[end], ends]))
            end = int(ends[-1]) if ends.size else end
        return count * min(1.0, data.size / max(1, end)), end


@dataclass(frozen=True, slots=True)
class Rate:
    """Average contents of files, per byte of file."""

    records: float
    native_bytes: float

    @classmethod
    def of(cls, files: Sequence[InputSummary]) -> Rate | None:
        size = sum(file.file_bytes or 0 for file in files)
        if not size:
            return None
        records = sum(file.record_count or 0 for file in files)
        return cls(records / size, sum(file.native_bytes or 0 for file in files) / size)

    def estimate(self, file: LineFile) -> InputSummary:
        count = max(1, round(file.size * self.records)) if file.size else 0
        return InputSummary(file.name, file.size, count, not file.size, int(file.size * self.native_bytes))


def _scale(file: LineFile, data_bytes: int, size: int, count: float) -> InputSummary:
    """Return the contents of a file, of which a sample of this size holds so many records."""
    return _summarise(file, data_bytes, max(1, round(data_bytes * count / size)), is_exact=False)


def _summarise(file: LineFile, data_bytes: int, record_count: int, *, is_exact: bool) -> InputSummary:
    native_bytes = data_bytes + OFFSET_BYTES * record_count
    return InputSummary(file.name, file.size, record_count, is_exact, native_bytes)
