"""Facts about inputs of lines before they are read: header, compression, estimated number of records."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import InputError
from recshuf.formats.compression import (
    HEAD_BYTES,
    check_suffix,
    open_reader,
    recognise_compression,
)
from recshuf.formats.lines.files import (
    FileSource,
    LineFile,
    PrefixedReader,
    StreamSource,
    fill,
    read_stream,
)
from recshuf.formats.lines.foreign import FOREIGN_HEAD_BYTES, check_head, check_kind
from recshuf.formats.lines.sample import Rate, Sampler
from recshuf.interfaces import InputSummary
from recshuf.storage.reading.local import open_input, read_head
from recshuf.storage.reading.objects import look_ahead
from recshuf.storage.reading.read_ahead import UNIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from recshuf.formats.compression.streams import ByteReader
    from recshuf.formats.lines.cutter import Cutter
    from recshuf.interfaces import InputFile

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
        """Return the facts of each input; of thousands, some are sampled and the others estimated from these.

        Raises
        ------
        InputError
            As `look_at` does.
        """
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

        Raises
        ------
        InputError
            When it is missing, unreadable, damaged, no lines, or shorter than its header.
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
