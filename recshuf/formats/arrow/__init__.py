"""Arrow IPC: record batches in the stream format or the file format, also called Feather version 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recshuf.interfaces import Format, Traits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.interfaces import Decoder, InputFile, ReadOptions, Source, StoredInputs, Target, WriteOptions


MAGIC = b"ARROW1"
_PADDED_MAGIC = b"ARROW1\0\0"
MAGIC_FEATHER = b"FEA1"
_MARK = b"\xff\xff\xff\xff"
"""Begins every message, with its length behind it, so also a file in the stream format."""


class ArrowFormat(Format):
    """The Arrow format; the library is imported when a file is opened."""

    layouts = ("recshuf.formats.arrow.sink:ArrowLayout",)
    traits = Traits(
        "arrow",
        (".arrow", ".feather", ".ipc", ".arrows"),
        ("none", "zstd", "lz4"),
        read_options=frozenset({"columns", "widens", "first_metadata"}),
        libraries=("pyarrow",),
        native_is_table=True,
        takes_tables=True,
        content_rank=2,
    )

    def recognises(self, head: bytes) -> bool:
        length = int.from_bytes(head[4:8], "little")
        return head.startswith(_PADDED_MAGIC) or (
            head[:4] == _MARK and 0 < length < 1 << 31 and length % 8 == 0
        )

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> Source:
        from recshuf.formats.arrow.source import ArrowSource

        return ArrowSource(inputs, options)

    def open_target(self, schema: pa.Schema, layout: Any, options: WriteOptions) -> Target:
        from recshuf.formats.arrow.sink import ArrowTarget

        return ArrowTarget(schema, layout, options)

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        from recshuf.interfaces import TableDecoder

        return TableDecoder(stored.schema)


FORMAT = ArrowFormat()
