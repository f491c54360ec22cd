"""JSON Lines: one JSON object per line, compressed or not. From JSONL to JSONL no line is parsed."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from recshuf.errors import UsageError
from recshuf.formats.compression import COMPRESSIONS
from recshuf.formats.lines.cutting import MARK, Cutter
from recshuf.formats.lines.sink import LineTarget
from recshuf.formats.lines.source import LineLayout, LineSource
from recshuf.interfaces import Format, Traits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.interfaces import Decoder, FieldAdder, InputFile, ReadOptions, StoredInputs, WriteOptions


_BLANK = b" \t\r\n"
CONVERT = (
    "convert it, for example with jq -c '.[]' (an array) or jq -c . (objects), or give --format jsonl to take each "
    "line as a record"
)
"""What to do with other JSON."""


class JsonlCutter(Cutter):
    """Cuts lines; blank ones at the end of an input are no records."""

    drops_blank_end = True


class JsonlSource(LineSource):
    """Inputs in JSON Lines."""

    def __init__(self, files: Sequence[InputFile], options: ReadOptions) -> None:
        super().__init__(files, options, JsonlCutter(options))

    def decoder(self) -> Decoder:
        return _make_decoder([summary.name for summary in self.inputs], self.options)

    def field_adder(self, names: Sequence[str]) -> FieldAdder:
        from recshuf.formats.jsonl.splicing import JsonFieldAdder

        return JsonFieldAdder([summary.name for summary in self.inputs], names)


def _make_decoder(names: Sequence[str], options: ReadOptions) -> Decoder:
    from recshuf.formats.jsonl.decoder import JsonDecoder

    return JsonDecoder(
        names,
        options.schema,
        options.header_lines,
        field=options.field,
        columns=options.columns,
        sets_bad_aside=options.sets_bad_aside,
    )


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
        document = _describe_document(head, is_whole=is_whole)
        return document and f"is {document}, and JSONL has one record in each line; {CONVERT}"

    def layout_header(self, layout: object) -> bytes:
        return layout.header if isinstance(layout, LineLayout) else b""

    def reading_schema(self, table: pa.Schema) -> pa.Schema:
        from recshuf.formats.jsonl.encoding import reading_schema

        return reading_schema(table)

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> JsonlSource:
        if options.separator != b"\n":
            raise UsageError(
                "--separator and --zero-terminated are for text; JSONL records end with a newline"
            )
        if options.header_lines:
            raise UsageError("--header is for text; JSONL has no header lines")
        return JsonlSource(inputs, options)

    def open_target(self, schema: pa.Schema, layout: object | None, options: WriteOptions) -> LineTarget:
        suffix = self.traits.suffixes[0]
        if isinstance(layout, LineLayout):
            return LineTarget(suffix, layout, options, None)
        from recshuf.formats.jsonl.encoding import check_schema, encode_lines

        check_schema(schema)
        return LineTarget(suffix, None, options, partial(encode_lines, nan_as_null=options.nan_as_null))

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        return _make_decoder(stored.names, stored.options)

    def restore_field_adder(self, stored: StoredInputs, names: Sequence[str]) -> FieldAdder:
        from recshuf.formats.jsonl.splicing import JsonFieldAdder

        return JsonFieldAdder(stored.names, names, checks_late=True)


def _describe_document(head: bytes, *, is_whole: bool) -> str | None:
    """Return what a file that is named JSON Lines holds in place of them; None if nothing speaks against them.

    Judged by its beginning, the `head`, which may be the whole file.
    """
    line, _, rest = head.removeprefix(MARK).lstrip(_BLANK).partition(b"\n")
    line, following = line.rstrip(_BLANK), rest.partition(b"\n")[0]
    if line == b"{" and following.lstrip(_BLANK).startswith(b'"'):
        return "JSON objects over many lines"
    if not line.startswith(b"["):
        return None
    if line in (b"[", b"[{") or line.endswith(b","):  # no JSON value ends so
        return "a JSON array over many lines"
    # An array of other values is one record of those who write tuples in lines.
    if is_whole and line[1:].lstrip(_BLANK).startswith(b"{") and not rest.strip(_BLANK):
        return "one JSON array"
    return None


FORMAT = JsonlFormat()
