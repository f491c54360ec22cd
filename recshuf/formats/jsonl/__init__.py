"""JSON Lines: one JSON object per line, compressed or not. From JSONL to JSONL no line is parsed."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from recshuf.errors import UsageError
from recshuf.formats.compression import COMPRESSIONS
from recshuf.formats.jsonl.documents import describe_document
from recshuf.formats.lines.cutting import MARK, SCHEMA, Cutter
from recshuf.formats.lines.sink import LineTarget
from recshuf.formats.lines.source import LineLayout, LineSource
from recshuf.interfaces import Format, Traits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.formats.lines.sink import Encode
    from recshuf.interfaces import (
        Decoder,
        FieldAdder,
        InputFile,
        ReadOptions,
        StoredInputs,
        ValueReader,
        WriteOptions,
    )


_BLANK = b" \t\r\n"


class JsonlCutter(Cutter):
    """Cuts lines; blank ones at the end of an input are no records."""

    drops_blank_end = True


class JsonlSource(LineSource):
    """Inputs in JSON Lines."""

    cutter_type: type[Cutter] = JsonlCutter
    unit = "line"
    """What a record is in the inputs, for messages."""

    def __init__(self, files: Sequence[InputFile], options: ReadOptions) -> None:
        super().__init__(files, options, self.cutter_type(options))

    def decoder(self) -> Decoder:
        return make_decoder([summary.name for summary in self.inputs], self.options, self.unit)

    def value_reader(self, paths: Sequence[str]) -> ValueReader:
        from recshuf.formats.jsonl.values import JsonValueReader

        return JsonValueReader([summary.name for summary in self.inputs], paths, self.options, self.unit)

    def field_adder(self, names: Sequence[str]) -> FieldAdder:
        from recshuf.formats.jsonl.splicing import JsonFieldAdder

        return JsonFieldAdder([summary.name for summary in self.inputs], names)


def make_decoder(names: Sequence[str], options: ReadOptions, unit: str = "line") -> Decoder:
    """Return a decoder of lines, which messages call by the name of a unit of the inputs."""
    from recshuf.formats.jsonl.decoder import JsonDecoder

    return JsonDecoder(
        names,
        options.schema,
        options.header_lines,
        field=options.field,
        columns=options.columns,
        sets_bad_aside=options.sets_bad_aside,
        unit=unit,
    )


def check_options(options: ReadOptions, whose: str) -> None:
    """Refuse options of text."""
    if options.separator != b"\n":
        raise UsageError(f"--separator and --zero-terminated are for text; {whose} their own ends of records")
    if options.header_lines:
        raise UsageError(f"--header is for text; {whose} no header lines")


def find_encoding(schema: pa.Schema, options: WriteOptions) -> Encode | None:
    """Return what makes lines of batches of a schema; None if they are lines."""
    if schema == SCHEMA:
        return None
    from recshuf.formats.jsonl.encoding import check_schema, encode_lines

    check_schema(schema)
    return partial(encode_lines, nan_as_null=options.nan_as_null)


class JsonlFormat(Format):
    """JSON Lines."""

    traits = Traits(
        "jsonl",
        (".jsonl", ".ndjson", ".jsonlines"),
        COMPRESSIONS,
        read_options=frozenset({"schema", "columns"}),
        converted_options=frozenset({"columns"}),
        write_options=frozenset({"nan_as_null"}),
        libraries=("zstandard",),
        is_lines=True,
        checks_heads=True,
        content_rank=2,
    )
    layout_types = (LineLayout,)

    def recognises(self, head: bytes) -> bool:
        """Tell whether the first line that is not blank holds an object."""
        line, newline, _ = head.removeprefix(MARK).lstrip(_BLANK).partition(b"\n")
        if not line.startswith(b"{") or not newline:
            return line.startswith(b"{")
        try:
            return isinstance(json.loads(line.decode()), dict)
        except RecursionError:
            return True  # nested too deep to check, but no other format begins like this
        except ValueError:
            return False

    def refuse_head(self, head: bytes, *, is_whole: bool) -> str | None:
        return describe_document(head, is_whole=is_whole)

    def layout_header(self, layout: object) -> bytes:
        return layout.header if isinstance(layout, LineLayout) else b""

    def reading_schema(self, table: pa.Schema) -> pa.Schema:
        from recshuf.formats.jsonl.encoding import reading_schema

        return reading_schema(table)

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> JsonlSource:
        check_options(options, "JSONL records have")
        return JsonlSource(inputs, options)

    def open_target(self, schema: pa.Schema, layout: object | None, options: WriteOptions) -> LineTarget:
        suffix = self.traits.suffixes[0]
        if isinstance(layout, LineLayout):
            return LineTarget(suffix, layout, options, None)
        return LineTarget(suffix, None, options, find_encoding(schema, options))

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        return make_decoder(stored.names, stored.options)

    def restore_field_adder(self, stored: StoredInputs, names: Sequence[str]) -> FieldAdder:
        from recshuf.formats.jsonl.splicing import JsonFieldAdder

        return JsonFieldAdder(stored.names, names, checks_late=True)


FORMAT = JsonlFormat()
