"""Text: records are whatever bytes stand between separators, plain or compressed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.formats.compression import COMPRESSIONS
from recshuf.formats.lines.sink import LineTarget
from recshuf.formats.lines.source import LineLayout, LineSource
from recshuf.interfaces import Format, FormatNames

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.formats.lines.sink import Encode
    from recshuf.interfaces import Decoder, InputFile, ReadOptions, WriteOptions


class TextSource(LineSource):
    """Inputs of text."""

    def decoder(self) -> Decoder:
        """See `Source`."""
        from recshuf.formats.text.tables import TextDecoder

        return TextDecoder(
            [one.name for one in self.inputs],
            self.options.schema,
            separator=self.options.separator,
            header_lines=self.options.header_lines,
            max_record_bytes=self.options.max_record_bytes,
            sets_bad_aside=self.options.sets_bad_aside,
        )


class TextTarget(LineTarget):
    """Shards of text.

    Parameters
    ----------
    table_separator
        What to put behind each value of a table; None where batches hold lines.
    """

    def __init__(
        self,
        compression: str,
        level: int | None,
        header: bytes,
        *,
        table_separator: bytes | None,
        drop_page_cache: bool,
    ) -> None:
        self._table_separator = table_separator
        super().__init__(
            FORMAT.names.suffixes[0], compression, level, header, drop_page_cache=drop_page_cache
        )

    def encoder(self) -> Encode | None:
        """See `LineTarget`."""
        separator = self._table_separator
        if separator is None:
            return None
        from recshuf.formats.text.tables import encode_text

        return lambda batch: encode_text(batch, separator)


class TextFormat(Format):
    """Text. It is the format of last resort: any bytes are text."""

    names = FormatNames("text", (".txt", ".text", ".csv", ".tsv", ".log", ".lines"), COMPRESSIONS)

    def recognises(self, head: bytes) -> bool:  # noqa: ARG002 # any bytes are text
        """See `Format`."""
        return True

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> TextSource:
        """See `Format`."""
        return TextSource(inputs, options, (*self.names.suffixes, ".json"))

    def open_target(self, schema: pa.Schema, layout: object | None, options: WriteOptions) -> TextTarget:
        """See `Format`."""
        lines = layout if isinstance(layout, LineLayout) else None
        if lines is None:
            from recshuf.formats.text.tables import check_text_schema

            check_text_schema(schema)
        return TextTarget(
            options.compression or (lines.compression if lines else "none"),
            options.compression_level,
            lines.header if lines else b"",
            table_separator=None if lines else options.separator,
            drop_page_cache=options.drop_page_cache,
        )


FORMAT = TextFormat()
