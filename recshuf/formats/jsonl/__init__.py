"""JSON Lines: one JSON object per line, compressed or not. From JSONL to JSONL no line is parsed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recshuf.errors import InputError
from recshuf.formats.compression import COMPRESSIONS
from recshuf.formats.files import LazyFormat
from recshuf.formats.lines import MARK
from recshuf.interfaces import FormatOption, Traits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.formats.lines.sink import LineTarget
    from recshuf.interfaces import Decoder, FieldAdder, StoredInputs, WriteOptions


_LIST = re.compile(rb'"([^"\\]+)"\s*:\s*\[')
_LINES = "or --format jsonl to take each line as a record"
_BLANK = b" \t\r\n"
NAN_AS_NULL = FormatOption(
    "nan_as_null", "JSONL: write NaN and infinities as null. Default: they are an error.", side="output", group="Output",
    elsewhere=(("verify", "NaN and infinities of the inputs are null in OUTPUT, which is JSONL. Default: they are not."),),
)  # fmt: skip


def refuse_other(name: str, head: bytes) -> InputError:
    """Return the error for JSON that is neither lines nor an array."""
    text = head.removeprefix(MARK).lstrip(_BLANK)
    found = _LIST.search(text) if text.startswith(b"{") else None
    if found:
        key = found[1].decode(errors="replace")
        problem = f"is one JSON object, and its records may be the list {key!r} in it"
        remedy = f"""write that list as lines with jq -c '."{key}"[]', and shuffle these, {_LINES}"""
        return InputError(name, problem, remedy=remedy)
    if text.startswith(b"{"):
        return InputError(
            name, "is JSON objects over many lines", remedy=f"write each in one line with jq -c ., {_LINES}"
        )
    problem = "is neither JSON lines nor a JSON array"
    return InputError(name, problem, remedy="mend it, or give --format text to take any lines")


def _name_document(head: bytes, *, is_whole: bool) -> str | None:
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


class JsonlFormat(LazyFormat):
    """JSON Lines."""

    source = "recshuf.formats.jsonl.source:JsonlSource"
    unit = "line"
    """What a record is in the inputs, for messages."""
    layouts = ("recshuf.formats.lines.source:LineLayout",)
    traits = Traits(
        "jsonl",
        (".jsonl", ".ndjson", ".jsonlines"),
        COMPRESSIONS,
        read_options=frozenset({"schema", "columns"}),
        converted_options=frozenset({"columns", "nan_as_null"}),
        options=(NAN_AS_NULL,),
        libraries=("zstandard",),
        is_lines=True,
        checks_heads=True,
        drops_blank_end=True,
        content_rank=2,
    )

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
        document = _name_document(head, is_whole=is_whole)
        if document is None:
            return None
        is_array = head.removeprefix(MARK).lstrip(_BLANK).startswith(b"[")
        remedy = (
            "give --format json to take each element as a record" if is_array else "convert it with jq -c ."
        )
        return f"is {document}, and JSONL has one record in each line; {remedy}, {_LINES}"

    def reading_schema(self, table: pa.Schema) -> pa.Schema:
        from recshuf.formats.jsonl.encoding import reading_schema

        return reading_schema(table)

    def open_target(self, schema: pa.Schema, layout: Any, options: WriteOptions) -> LineTarget:
        from recshuf.formats.jsonl.source import find_encoding
        from recshuf.formats.lines.sink import LineTarget

        encode = None if layout else find_encoding(schema, options)
        return LineTarget(self.traits.suffixes[0], layout, options, encode)

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        from recshuf.formats.jsonl.source import make_decoder

        return make_decoder(stored.names, stored.options, self.unit)

    def restore_field_adder(self, stored: StoredInputs, names: Sequence[str]) -> FieldAdder:
        from recshuf.formats.jsonl.encoding import JsonFieldAdder

        return JsonFieldAdder(stored.names, names, checks_late=True)


class ArrayFormat(JsonlFormat):
    """JSON arrays."""

    source = "recshuf.formats.jsonl.elements:ArraySource"
    unit = "element"
    traits = replace(
        JsonlFormat.traits,
        name="json",
        suffixes=(".json",),
        checks_heads=False,
        content_rank=None,
        drops_blank_end=False,
        shares_suffixes=True,
        default_target="jsonl",
        native_targets=("jsonl",),
    )

    def recognises(self, head: bytes) -> bool:
        return head.removeprefix(MARK).lstrip(_BLANK).startswith(b"[")

    def refuse_head(self, head: bytes, *, is_whole: bool) -> str | None:  # noqa: ARG002 # content tells
        return None

    def open_target(self, schema: pa.Schema, layout: Any, options: WriteOptions) -> LineTarget:
        from recshuf.formats.jsonl.elements import OPEN, ArrayTarget
        from recshuf.formats.jsonl.source import find_encoding
        from recshuf.formats.lines.source import LineLayout

        encode = None if layout else find_encoding(schema, options)
        layout = LineLayout(b"\n", OPEN, layout.compression if layout else "none")
        return ArrayTarget(self.traits.suffixes[0], layout, options, encode)


FORMAT, ARRAY = JsonlFormat(), ArrayFormat()
