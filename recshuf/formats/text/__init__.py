"""Text: records are the bytes between separators, compressed or not. As a table they are one column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recshuf.errors import UsageError
from recshuf.formats.compression import COMPRESSIONS
from recshuf.formats.files import LazyFormat
from recshuf.formats.lines import (
    HEADER,
    MARK,
    RECORD_LINES,
    RECORD_START,
    SEPARATOR,
    ZERO_TERMINATED,
    count_header_lines,
    name_lines,
)
from recshuf.interfaces import Traits

if TYPE_CHECKING:
    import pyarrow as pa


class TextFormat(LazyFormat):
    """Text, the format of last resort: any bytes are text."""

    source = "recshuf.formats.text.source:TextSource"
    target = "recshuf.formats.text.source:open_target"
    decoder = "recshuf.formats.text.source:TextDecoder"
    layouts = ("recshuf.formats.lines.source:LineLayout",)
    traits = Traits(
        "text",
        (".txt", ".text", ".log", ".lines"),
        COMPRESSIONS,
        read_options=frozenset({"schema"}),
        options=(HEADER, SEPARATOR, ZERO_TERMINATED, RECORD_LINES, RECORD_START),
        libraries=("zstandard",),
        is_lines=True,
        has_columns=False,
        adds_columns=False,
        takes_any_bytes=True,
        content_rank=3,
    )

    def recognises(self, head: bytes) -> bool:  # noqa: ARG002 # any bytes are text
        return True

    def reading_schema(self, table: pa.Schema) -> pa.Schema:  # noqa: ARG002 # a column of any name is lines
        from recshuf.formats.text.source import BYTES_SCHEMA

        return BYTES_SCHEMA

    def check_appended(self, kept: Any, source: Any) -> None:
        ours, theirs = kept.layout.separator, source.layout.separator
        if ours != theirs:
            raise UsageError(
                f"records end in {theirs!r}, and in {ours!r} in the store; give its --separator, or begin a new store"
            )
        ours, theirs = name_lines(kept.options), name_lines(source.options)
        if ours != theirs:
            remedy = f"give {ours}" if ours else f"leave out {theirs}"
            found, held = (f"those of {one}" if one else "single lines" for one in (theirs, ours))
            raise UsageError(f"records are {found}, and {held} in the store; {remedy}, or begin a new store")
        ours, theirs = (one.layout.header.removeprefix(MARK) for one in (kept, source))
        if theirs and ours != theirs:
            raise UsageError(
                f"the header is {theirs!r:.200}, and {ours!r:.200} in the store; begin a new store"
            )
        if ours and HEADER.of(source.options) is None:
            lines = count_header_lines(kept.options)
            raise UsageError(
                f"records have a header in the store; give --header {lines}, or none if these have none"
            )


FORMAT = TextFormat()
