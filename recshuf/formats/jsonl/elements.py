"""JSON arrays: a record is an element of the array that a file is, and its native form one line, as that of JSONL.

One thread reads blocks of whole elements in order and finds their ends; any thread makes lines of them. No value is parsed:
only strings, brackets and commas are looked at::

    block     {"a": [1, 2]},⏎  {"b":⏎ "},"},⏎
    strings     ---             --   ---            outside of these count
    depth     1     2     10        1        0      commas at depth 0, which end elements
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recshuf.formats.jsonl import refuse_other
from recshuf.formats.jsonl.line_checks import MarkState, as_lines, find_marks
from recshuf.formats.jsonl.source import JsonlSource
from recshuf.formats.lines.cutting import MARK, PIECE_BYTES, Cutter, Header, view_records
from recshuf.formats.lines.files import BlockReader, CutFragment
from recshuf.formats.lines.sink import LineSink, LineTarget
from recshuf.records.arrays import view_bytes, wrap_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.errors import InputError
    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.lines.cutting import Bytes, Positions, RecordLimit
    from recshuf.interfaces import Fragment


BLANK = b" \t\r\n"
_NEWLINE, _COMMA = b"\n,"
_IS_BLANK = np.zeros(256, np.bool_)
_IS_BLANK[[*BLANK]] = True
_HEAD_BYTES = 1 << 12
_MOST_BLANKS = 1 << 20
OPEN, _BETWEEN, _CLOSE = b"[\n", b",\n", b"]\n"


class Found(NamedTuple):
    """What is found among bytes that begin with an element."""

    ends: Positions
    close: int
    """Position of the bracket that ends the array; -1 if it is not there."""
    newline: int
    """Position of a newline within a string, which JSON does not allow; -1 if there is none."""


def find_elements(data: Bytes) -> Found:
    """Return where elements end, in bytes that begin with one."""
    found: list[Positions] = []
    state = MarkState()
    for at in range(0, data.size, PIECE_BYTES):
        (places, signs, is_inside, depths), state = find_marks(data[at : at + PIECE_BYTES], b",\n", state)
        broken = np.flatnonzero(is_inside & (signs == _NEWLINE))
        if broken.size:
            return Found(_join(found), -1, at + int(places[broken[0]]))
        ends = (signs == _COMMA) & (depths == 0) & ~is_inside
        below = np.flatnonzero(depths < 0)
        if below.size:
            ends[below[0] :] = False
        found.append(places[ends] + (at + 1))
        if below.size:
            return Found(_join(found), at + int(places[below[0]]), -1)
    return Found(_join(found), -1, -1)


def _join(found: list[Positions]) -> Positions:
    return np.concatenate(found) if found else np.empty(0, np.int64)


def make_lines(data: Bytes, ends: Positions) -> pa.LargeBinaryArray:
    r"""Return elements, each with the byte behind it, as lines.

    Left out are blanks around elements, and blanks within them that hold a newline.

    >>> make_lines(np.frombuffer(b' {"a": \r\n  1},2 ]', np.uint8), np.array([14, 17])).to_pylist()
    [b'{"a":1}\n', b'2\n']
    """
    elements = as_lines(pc.binary_slice(wrap_bytes(data, np.append(0, ends)), 0, -1))
    trimmed = pc.ascii_trim(elements, BLANK.decode()).cast(pa.large_binary())
    if (view_bytes(trimmed) == _NEWLINE).any():
        # Two numbers without a comma between them must not become one.
        trimmed = pc.replace_substring_regex(trimmed, r"([\w.+-])[ \t\r]*\n[ \t\r\n]*([\w.+-])", r"\1 \2")
        trimmed = pc.replace_substring_regex(trimmed, r"[ \t\r]*\n[ \t\r\n]*", "")
    end, nothing = (pa.scalar(part, pa.large_binary()) for part in (b"\n", b""))
    return pc.binary_join_element_wise(trimmed, nothing, end)


class ElementFragment(CutFragment):
    """Elements, of which it makes lines."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        begin = 0
        for ends in self._split(self._ends):
            begins, begin = np.append(begin, ends), int(ends[-1])
            data, offsets = view_records(make_lines(self._data[begins[0] : begin], ends - begins[0]))
            sizes = np.diff(offsets)
            wrong = np.flatnonzero((sizes == 1) | (sizes > self._limit.max_bytes))
            if wrong.size:
                place = self._position + int(begins[wrong[0]])
                if sizes[wrong[0]] > 1:
                    raise self._limit.exceeded(place, int(sizes[wrong[0]]))
                raise refuse(self._limit, place, "a comma follows no element")
            yield from self._cut(data, iter([offsets[1:]]))


def refuse(limit: RecordLimit, position: int, problem: str) -> InputError:
    remedy = "mend the array, or give --format jsonl to take each line as a record"
    return limit.refuse(position, problem, remedy)


class ElementReader(BlockReader):
    """Cuts bytes, which begin behind the bracket that opens an array, into blocks of whole elements."""

    _ends: Positions
    """Those of the elements of a block."""
    _is_first, _is_closed = True, False

    def _find_stop(self, data: Bytes) -> int:
        found = find_elements(data)
        if found.newline >= 0:
            raise refuse(self._limit, self._position + found.newline, "a newline stands within a string")
        self._ends = found.ends
        if found.close >= 0:
            self._ends = self._close(data, found)
            self._is_ended = self._is_closed = True
        return int(self._ends[-1]) if self._ends.size else 0

    def _end(self, data: Bytes, stop: int, filled: int) -> tuple[int, int]:  # noqa: ARG002 - as of any bytes
        if self._header is not None and not self._is_closed:
            problem = "the array is not closed: the file is cut off"
            raise refuse(self._limit, self._position + filled, problem)
        return stop, stop

    def _make_fragment(self, *block: Any) -> Iterator[Fragment]:
        self._is_first = False
        yield ElementFragment(self._ends, *block)

    def _close(self, data: Bytes, found: Found) -> Positions:
        """Return the ends of the last elements of an array; refuse what follows it."""
        close, last = found.close, int(found.ends[-1]) if found.ends.size else 0
        if data[close] != ord("]"):
            raise refuse(self._limit, self._position + close, "the array is closed by a brace")
        behind, place = data[close + 1 :], self._position + close + 1
        view = np.empty(1 << 16, np.uint8)
        while behind.size:
            if not _IS_BLANK[behind].all():
                raise refuse(self._limit, place + int(_IS_BLANK[behind].argmin()), "more follows the array")
            place += behind.size
            behind = view[: self._reader.readinto(view.data)]
        if not _IS_BLANK[data[last:close]].all():
            return np.append(found.ends, close + 1)
        if found.ends.size or not self._is_first:
            raise refuse(self._limit, self._position + close, "a comma stands before the end of the array")
        return found.ends


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
    reader_type = ElementReader
    unit = "element"
    spans_lines = True

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
        self._count += len(lines)

    def _complete(self) -> None:
        self._writer.write(memoryview(_CLOSE if self._is_empty else b"\n" + _CLOSE))
        super()._complete()


class ArrayTarget(LineTarget):
    """Shards that are arrays."""

    sink_type = ArraySink
