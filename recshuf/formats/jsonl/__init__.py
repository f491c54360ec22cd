"""JSON Lines: one JSON object on each line, plain or compressed. From JSONL to JSONL no line is parsed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from recshuf.errors import UsageError
from recshuf.formats.compression import COMPRESSIONS
from recshuf.formats.lines.sink import LineTarget
from recshuf.formats.lines.source import LineLayout, LineSource
from recshuf.interfaces import Format, FormatNames

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.formats.lines.sink import Encode
    from recshuf.interfaces import Decoder, FieldAdder, InputFile, ReadOptions, WriteOptions

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonlSource(LineSource):
    """Inputs in JSON Lines."""

    def decoder(self) -> Decoder:
        """See `Source`."""
        from recshuf.formats.jsonl.decoding.decoder import JsonDecoder

        return JsonDecoder(
            [one.name for one in self.inputs],
            self.options.schema,
            self.options.header_lines,
            field=self.options.field,
            sets_bad_aside=self.options.sets_bad_aside,
        )

    def field_adder(self, names: Sequence[str]) -> FieldAdder:
        """See `SupportsFields`."""
        from recshuf.formats.jsonl.splicing import JsonFieldAdder

        return JsonFieldAdder([one.name for one in self.inputs], names)


class JsonlTarget(LineTarget):
    """Shards in JSON Lines.

    Parameters
    ----------
    is_native
        Whether batches hold lines already, and no table.
    nan_as_null
        Write NaN and infinities as null instead of refusing them.
    """

    def __init__(
        self,
        compression: str,
        level: int | None,
        header: bytes,
        *,
        is_native: bool,
        nan_as_null: bool,
        drop_page_cache: bool,
    ) -> None:
        self._is_native = is_native
        self._nan_as_null = nan_as_null
        super().__init__(
            FORMAT.names.suffixes[0], compression, level, header, drop_page_cache=drop_page_cache
        )

    def encoder(self) -> Encode | None:
        """See `LineTarget`."""
        if self._is_native:
            return None
        from recshuf.formats.jsonl.encoding import encode_lines

        return lambda batch: encode_lines(batch, self._nan_as_null)


class JsonlFormat(Format):
    """JSON Lines."""

    names = FormatNames("jsonl", (".jsonl", ".ndjson", ".jsonlines"), COMPRESSIONS)

    def recognises(self, head: bytes) -> bool:
        """See `Format`: the first line that is not blank holds an object."""
        line, newline, _ = head.removeprefix(_BYTE_ORDER_MARK).lstrip(b" \t\r\n").partition(b"\n")
        if not line.startswith(b"{") or not newline:
            return line.startswith(b"{")
        try:
            return isinstance(json.loads(line.decode()), dict)
        except RecursionError:
            return True  # nested too deep to be checked, but nothing else begins like this
        except ValueError:
            return False

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> JsonlSource:
        """See `Format`."""
        if options.separator != b"\n":
            raise UsageError(
                "--separator and --zero-terminated are for text; JSONL records end with a newline"
            )
        if options.header_lines:
            raise UsageError("--header is for text; JSONL has no header lines")
        return JsonlSource(inputs, options, (*self.names.suffixes, ".json"))

    def open_target(self, schema: pa.Schema, layout: object | None, options: WriteOptions) -> JsonlTarget:
        """See `Format`."""
        lines = layout if isinstance(layout, LineLayout) else None
        if lines is None:
            from recshuf.formats.jsonl.encoding import check_schema

            check_schema(schema)
        return JsonlTarget(
            options.compression or (lines.compression if lines else "none"),
            options.compression_level,
            lines.header if lines else b"",
            is_native=lines is not None,
            nan_as_null=options.nan_as_null,
            drop_page_cache=options.drop_page_cache,
        )


FORMAT = JsonlFormat()
