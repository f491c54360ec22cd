"""Text: records are the bytes between separators, compressed or not."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from recshuf.formats.compression import COMPRESSIONS
from recshuf.formats.lines.sink import LineTarget
from recshuf.formats.lines.source import LineLayout, LineSource
from recshuf.interfaces import Format, FormatNames

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.interfaces import Decoder, InputFile, ReadOptions, StoredInputs, WriteOptions


class TextSource(LineSource):
    """Inputs of text."""

    def decoder(self) -> Decoder:
        """See `Source`."""
        return _make_decoder([one.name for one in self.inputs], self.options)


def _make_decoder(names: Sequence[str], options: ReadOptions) -> Decoder:
    from recshuf.formats.text.tables import TextDecoder

    return TextDecoder(
        names,
        options.schema,
        separator=options.separator,
        header_lines=options.header_lines,
        max_record_bytes=options.max_record_bytes,
        sets_bad_aside=options.sets_bad_aside,
    )


class TextFormat(Format):
    """Text, the format of last resort: any bytes are text."""

    names = FormatNames("text", (".txt", ".text", ".log", ".lines"), COMPRESSIONS, is_lines=True)
    layout_types = (LineLayout,)

    def recognises(self, head: bytes) -> bool:  # noqa: ARG002 # any bytes are text
        """See `Format`."""
        return True

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> TextSource:
        """See `Format`."""
        return TextSource(inputs, options)

    def open_target(self, schema: pa.Schema, layout: object | None, options: WriteOptions) -> LineTarget:
        """See `Format`."""
        suffix = self.names.suffixes[0]
        if isinstance(layout, LineLayout):
            return LineTarget(suffix, layout, options, None)
        from recshuf.formats.text.tables import check_text_schema, encode_text

        check_text_schema(schema)
        return LineTarget(suffix, None, options, partial(encode_text, separator=options.separator))

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        """See `Format`."""
        return _make_decoder(stored.names, stored.options)


FORMAT = TextFormat()
