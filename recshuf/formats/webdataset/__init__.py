"""WebDataset: tar archives in which the members of one key, one after the other, are a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recshuf.formats.compression import COMPRESSIONS
from recshuf.interfaces import Format, FormatOption, Traits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.interfaces import Decoder, InputFile, ReadOptions, Source, StoredInputs, Target, WriteOptions


_MAGICS, _MAGIC_AT = (b"ustar\0", b"ustar  \0"), 257
_COMPARED = "compare records without keys. Default: with keys."
RENAME_KEYS = FormatOption(
    "rename_keys",
    "WebDataset to WebDataset: give each record a key of its own, by its shard and place, so that keys of the inputs may "
    "be the same. Default: a key that occurs twice is an error.",
    side="both", group="Output",
    elsewhere=(("verify check picture", f"WebDataset: the data was written with --rename-keys; {_COMPARED}"),),
)  # fmt: skip


class TarFormat(Format):
    """Tar archives of WebDataset."""

    layouts = ("recshuf.formats.webdataset.source:TarLayout",)
    traits = Traits(
        "webdataset",
        (".tar",),
        COMPRESSIONS,
        options=(RENAME_KEYS,),
        libraries=("zstandard",),
        is_wrapped=True,
        has_columns=False,
        adds_columns=False,
        content_rank=4,
    )

    def recognises(self, head: bytes) -> bool:
        return head[_MAGIC_AT:].startswith(_MAGICS)

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> Source:
        from recshuf.formats.webdataset.source import TarSource

        return TarSource(inputs, options)

    def open_target(self, schema: pa.Schema, layout: Any, options: WriteOptions) -> Target:
        from recshuf.formats.webdataset.sink import TarTarget

        return TarTarget(schema, layout, options)

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        from recshuf.formats.webdataset.sink import TarDecoder

        return TarDecoder(stored.names, stored.options.schema)


FORMAT = TarFormat()
