"""Reads text, lines or records of several lines, and makes it from tables of one column.

A record of several lines has so many, or goes from a line that begins with a text to the next such line. Where it begins depends on all bytes before it, or on bytes behind a newline, so that one thread takes blocks
of whole records in order, as of compressed lines; any thread cuts them.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.formats.files import stored_of
from recshuf.formats.lines import (
    NEWLINE,
    RECORD_LINES,
    RECORD_START,
    count_header_lines,
    find_separator,
    has_several_lines,
)
from recshuf.formats.lines.cutting import (
    CRLF,
    MARK,
    MOST_END_BYTES,
    Cutter,
    end_line,
    find_ends,
    find_last_end,
    view_records,
)
from recshuf.formats.lines.sink import TYPES, LineTarget, check_values, take_values
from recshuf.formats.lines.source import LineLayout, LineSource
from recshuf.formats.texts import find_invalid
from recshuf.interfaces import BadRecords, ReadOptions, TableDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.lines.cutting import Bytes, Header, Positions
    from recshuf.interfaces import Decoder, InputFile, StoredInputs, WriteOptions


COLUMN, SUFFIX = "text", ".txt"
BYTES_SCHEMA = pa.schema([(COLUMN, pa.large_binary())])
_DELIMITERS = (",", "\t", ";", "|")
_MOST_LINES = 100
_FEWEST = 2
"""Lines under the names of a table."""
_NUMBER = re.compile(r"\s*[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf)\s*", re.IGNORECASE)
_LARGEST_STRING_BYTES = 2**31 - 1
_BLANK_LINES = (b"\n\n", b"\n\r\n")
_HEAD_BYTES = 1 << 16


class TextDecoder(TableDecoder):
    """Turns lines into the column ``text``: UTF-8 strings, or bytes if the schema says so."""

    def __init__(self, stored: StoredInputs) -> None:
        self._names, options = stored.names, stored.options
        self._separator = find_separator(options)
        self._header_lines = count_header_lines(options)
        self._has_several_lines = has_several_lines(options)
        schema = options.schema
        if schema is None:
            is_short = options.max_record_bytes <= _LARGEST_STRING_BYTES
            schema = pa.schema([pa.field(COLUMN, pa.string() if is_short else pa.large_string())])
        if schema.names != [COLUMN] or schema.field(0).type not in TYPES:
            raise UsageError(
                f"--schema: text is one column {COLUMN!r} of string, large_string, binary or large_binary, "
                f"not {', '.join(f'{field.name!r} of {field.type}' for field in schema) or 'none'}"
            )
        super().__init__(schema)
        self._takes_bytes = schema.field(0).type in (pa.binary(), pa.large_binary())
        self._sets_bad_aside = options.sets_bad_aside
        if self._sets_bad_aside and self._takes_bytes:
            raise UsageError(
                "--on-bad-record: no line is bad where --schema keeps bytes; leave one of them out"
            )

    def table_bytes(self, record_count: int, native_bytes: int) -> int:
        return native_bytes + 9 * record_count  # an offset and a validity on top

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        """Check that lines are UTF-8; others are bad."""
        if self._takes_bytes:
            return None
        texts = self._strip(batch)
        try:
            texts.cast(pa.large_string())
        except pa.ArrowInvalid:
            bad = find_invalid(texts)
        else:
            return None
        if self._sets_bad_aside:
            return BadRecords(bad, ["is not UTF-8"] * len(bad))
        row = first_row + int(bad[0])
        raise InputError(
            self._names[input_index],
            "is not UTF-8",
            place=f"record {row + 1}" if self._has_several_lines else f"line {row + self._header_lines + 1}",
            remedy='give --schema FILE with {"text":"binary"} to keep it as bytes',
        )

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = self._strip(batch)
        kind = self.schema.field(0).type
        if kind in (pa.string(), pa.binary()) and view_records(values)[0].size > _LARGEST_STRING_BYTES:
            remedy = f'give --schema FILE with {{"text":"large_{kind}"}}'
            raise ConversionError(COLUMN, f"more than 2 GiB in one batch of {kind}", remedy=remedy)
        return pa.RecordBatch.from_arrays([values.cast(kind)], schema=self.schema)

    def _strip(self, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
        return pc.binary_slice(batch.column(0), 0, -len(self._separator))


def _encode(batch: pa.RecordBatch, cutter: Cutter) -> pa.LargeBinaryArray:
    """Return the values of a table of one column as records that a cutter finds again, each with the separator at its end."""
    name, column = batch.schema.names[0], take_values(batch, "text")
    end, nothing = (pa.scalar(part, pa.large_binary()) for part in (cutter.separator, b""))
    lines = pc.binary_join_element_wise(column, nothing, end)
    data, offsets = view_records(lines)
    ends = np.concatenate([np.zeros(1, np.int64), *cutter.find_records(data, 0)])
    if not np.array_equal(ends, offsets) or not cutter.begins_record(data):
        if isinstance(cutter, SeveralCutter):
            problem = f"a value is no record, which {cutter.form}"
            raise ConversionError(name, problem, remedy="give another option, or write JSONL")
        problem = f"a value holds the separator {cutter.separator!r} and would become several records"
        raise ConversionError(name, problem, remedy="choose another with --separator, or write JSONL")
    return lines


class TextCutter(Cutter):
    """Cuts lines, and tells where the first one looks like a header that would be shuffled."""

    def take_header(self, name: str, reader: ByteReader, *, is_compressed: bool) -> Header:
        is_first = not self._has_taken
        header = super().take_header(name, reader, is_compressed=is_compressed)
        is_free = self.separator == b"\n" and header.lines in (b"", MARK)
        if is_first and is_free and (line := _find_names(header.rest)):
            self.notes.append(
                f"{name}: line 1 ({line}) taken for a record, and looks like a header; --format csv or --header 1 if it is "
                "one"
            )
        return header


def _find_names(head: bytes) -> str | None:
    r"""Return the first line of a table that has names over numbers; None if the lines are none.

    >>> _find_names(b"id;x\n1;a\n2;b\n"), _find_names(b"a, b\nc, d\n")
    ('id;x', None)
    """
    lines = [line.rstrip("\r") for line in head.removeprefix(MARK).decode("latin-1").split("\n")[:-1]]
    for delimiter in _DELIMITERS:
        rows = [line.split(delimiter) for line in lines[:_MOST_LINES]]
        widths = {len(row) for row in rows}
        if len(rows) > _FEWEST and len(widths) == 1 and widths != {1}:
            columns = zip(*rows, strict=True)
            names = [name for name, *values in columns if all(map(_NUMBER.fullmatch, values))]
            if any(name and not _NUMBER.fullmatch(name) for name in names):
                return lines[0]
    return None


class TextSource(LineSource):
    """Inputs of text."""

    def __init__(self, files: Sequence[InputFile], options: ReadOptions) -> None:
        # Lines that are named as text by --format are no question, and neither are records that an option describes.
        self.spans_lines = has_several_lines(options)
        is_open = options.refuses_foreign and not self.spans_lines
        super().__init__(files, options, TextCutter(options) if is_open else open_cutter(options))

    def decoder(self) -> Decoder:
        return TextDecoder(stored_of(self))


def open_target(schema: pa.Schema, layout: LineLayout | None, options: WriteOptions) -> LineTarget:
    if layout is not None:
        if find_separator(options) not in (NEWLINE, layout.separator):  # of a store
            raise UsageError(
                f"--separator (or -z): records keep their end, {layout.separator!r}; leave it out"
            )
        return LineTarget(SUFFIX, layout, options, None)
    check_values(schema, "text")
    cutter = open_cutter(ReadOptions(own=options.own))
    return LineTarget(SUFFIX, None, options, partial(_encode, cutter=cutter))


def open_cutter(options: ReadOptions) -> Cutter:
    """Return what cuts text into the records that options name."""
    count, start = RECORD_LINES.of(options), RECORD_START.of(options)
    named = {
        "--record-lines": count is not None,
        "--record-start": start != b"",
        "--separator (or -z)": find_separator(options) != NEWLINE,
    }
    if len(given := [flag for flag, is_given in named.items() if is_given]) > 1:
        raise UsageError(f"{given[0]} and {given[1]} contradict each other; give one of them")
    if count is not None:
        return CountCutter(options, count)
    return StartCutter(options, start) if start else Cutter(options)


class SeveralCutter(Cutter):
    """Cuts records of several lines."""

    has_places = False
    end_bytes = 2 * MOST_END_BYTES
    form = ""
    end_remedy = (
        "complete the file, or give another --record-lines, or --header N for lines above the records"
    )


class CountCutter(SeveralCutter):
    """Cuts records of so many lines. Fewer blank lines at the end of an input are no record."""

    def __init__(self, options: ReadOptions, count: int) -> None:
        super().__init__(options)
        self._count = count
        self.form = f"has {count:,} lines"

    def find_ends(self, data: Bytes, begin: int) -> Iterator[Positions]:
        seen = 0
        for ends in find_ends(data, begin, NEWLINE):
            yield ends[self._count - 1 - seen % self._count :: self._count]
            seen += ends.size

    def find_last_end(self, data: Bytes) -> int:
        return max((int(ends[-1]) for ends in self.find_ends(data, 0) if ends.size), default=0)

    def is_record(self, rest: Bytes) -> bool:
        return bool(rest.tobytes().strip(CRLF))

    def end_last(self, data: Bytes, begin: int, end: int, before: bytes) -> int | str:
        rest = data[begin:end].tobytes()
        if not self.is_record(data[begin:end]):
            return begin
        count = rest.count(NEWLINE)
        if count < self._count - 1 or rest.endswith(NEWLINE):
            lines = count + (not rest.endswith(NEWLINE))
            return f"the last record has {lines:,} of {self._count:,} lines"
        return end_line(data, end, (before + rest[: rest.rfind(NEWLINE) + 1])[-MOST_END_BYTES:], NEWLINE)


class StartCutter(SeveralCutter):
    """Cuts records before every line that begins with a text."""

    has_header = True  # what stands before the first record is looked at

    def __init__(self, options: ReadOptions, start: bytes) -> None:
        super().__init__(options)
        self._start = start
        self.form = f"begins with {_show(self._start)}, as no other line of it does"

    def take_header(self, name: str, reader: ByteReader, *, is_compressed: bool) -> Header:
        header = super().take_header(name, reader, is_compressed=is_compressed)
        rest, view = header.rest, memoryview(bytearray(_HEAD_BYTES))
        while len(rest) < _HEAD_BYTES and (count := reader.readinto(view)):
            rest += view[:count]
        header = header._replace(rest=rest)
        if header.lines is None and header.end in (0, len(MARK)) and not rest:
            return header  # of an empty input
        if rest.startswith(self._start) or not rest:
            return header
        place = rest.find(NEWLINE + self._start)
        if place < 0:
            problem = f"has no line that begins with {_show(self._start)} near its start"
            raise InputError(name, problem, remedy="check --record-start")
        lines = rest.count(NEWLINE, 0, place + 1)
        problem = f"no record begins before line {self.header_lines + lines + 1}"
        remedy = f"give --header {self.header_lines + lines} if the lines above it are a header"
        raise InputError(name, problem, place=f"line {self.header_lines + 1}", remedy=remedy)

    def find_ends(self, data: Bytes, begin: int) -> Iterator[Positions]:
        size = len(self._start)
        return (ends - size for ends in find_ends(data, begin, NEWLINE + self._start))

    def find_records(self, data: Bytes, begin: int) -> Iterator[Positions]:
        yield from self.find_ends(data, begin)
        if data.size > begin:
            yield np.array([data.size], np.int64)

    def begins_record(self, data: Bytes) -> bool:
        return not data.size or data[: len(self._start)].tobytes() == self._start

    def find_last_end(self, data: Bytes) -> int:
        return max(0, find_last_end(data, NEWLINE + self._start) - len(self._start))

    def end_last(self, data: Bytes, begin: int, end: int, before: bytes) -> int | str:
        # The end of a line that the input lacks, and a blank line if the record before ends with one.
        is_cut = data[end - 1] != ord(NEWLINE)
        place = data[begin:end].tobytes().rfind(NEWLINE) + 1
        line_before = (before + data[begin : begin + place].tobytes())[-MOST_END_BYTES:]
        stop = end_line(data, end, line_before, NEWLINE)
        if is_cut and before.endswith(_BLANK_LINES):
            added = CRLF if before.endswith(CRLF) else NEWLINE
            data[stop : stop + len(added)] = np.frombuffer(added, np.uint8)
            stop += len(added)
        return stop


def _show(start: bytes) -> str:
    return repr(start.decode(errors="backslashreplace"))
