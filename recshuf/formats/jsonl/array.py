"""JSON arrays: a record is an element of the array that a file is. Their native form is that of JSONL, which so writes them as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from recshuf.formats.jsonl.documents import refuse_other
from recshuf.formats.jsonl.elements import BLANK, ElementFragment, ElementReader, find_elements
from recshuf.formats.jsonl.source import JsonlSource
from recshuf.formats.lines.cutting import MARK, Cutter, Header, view_records
from recshuf.formats.lines.sink import LineSink, LineTarget
from recshuf.formats.lines.source import count_batch_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.lines.census import LineInput
    from recshuf.formats.lines.cutting import Bytes, Positions, RecordLimit
    from recshuf.interfaces import Fragment


_HEAD_BYTES = 1 << 12
_MOST_BLANKS = 1 << 20
OPEN, _BETWEEN, _CLOSE = b"[\n", b",\n", b"]\n"


class ArrayCutter(Cutter):
    """Finds the array of an input, and estimates its elements."""

    has_header = True  # the bracket that opens the array
    has_places = False
    counts_anywhere = False

    def take_header(self, name: str, reader: ByteReader, *, is_compressed: bool) -> Header:  # noqa: ARG002
        data, view = b"", memoryview(bytearray(_HEAD_BYTES))
        while len(data) < _MOST_BLANKS and not data.removeprefix(MARK).strip(BLANK):
            count = reader.readinto(view)
            if not count:
                break
            data += view[:count]
        text = data.removeprefix(MARK).lstrip(BLANK)
        if not text and len(data) < _MOST_BLANKS:
            return Header(None, b"", len(data))
        if not text.startswith(b"["):
            raise refuse_other(name, text)
        return Header(b"", text[1:], len(data) - len(text) + 1)

    def find_ends(self, data: Bytes, begin: int) -> Iterator[Positions]:
        found = find_elements(data[begin:])
        yield found.ends + begin

    def is_record(self, rest: Bytes) -> bool:
        return rest.tobytes().strip(BLANK) not in (b"", b"]")


class ArraySource(JsonlSource):
    """Inputs that are one JSON array each."""

    cutter_type = ArrayCutter
    unit = "element"
    spans_lines = True

    def _cut_blocks(
        self, reader: ByteReader, lines: LineInput, limit: RecordLimit, block_bytes: int
    ) -> Iterator[Fragment]:
        if lines.header is None:
            return
        for block in ElementReader(reader, lines.data_begin, limit, block_bytes).read_blocks():
            yield ElementFragment(*block, limit, count_batch_records(block_bytes))

    def reading_bytes(self, block_bytes: int) -> int:
        return (
            super().reading_bytes(block_bytes) + 4 * block_bytes
        )  # lines, and which bytes are left out of them


class ArraySink(LineSink):
    """One shard that is an array, with each element in a line of its own."""

    _is_empty = True

    def _write_lines(self, lines: pa.LargeBinaryArray) -> None:
        if not len(lines):
            return
        end, nothing = (pa.scalar(part, pa.large_binary()) for part in (_BETWEEN, b""))
        elements = pc.binary_join_element_wise(pc.binary_slice(lines, 0, -1), nothing, end)
        data, _ = view_records(elements)
        if not self._is_empty:
            self._writer.write(memoryview(_BETWEEN))
        self._writer.write(data.data[: -len(_BETWEEN)])
        self._is_empty = False
        self._record_count += len(lines)

    def _end(self) -> None:
        self._writer.write(memoryview(_CLOSE if self._is_empty else b"\n" + _CLOSE))


class ArrayTarget(LineTarget):
    """Shards that are arrays."""

    sink_type = ArraySink
