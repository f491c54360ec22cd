"""WebDataset: tar archives in which the members of one key, one after the other, are a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.formats.compression import COMPRESSIONS
from recshuf.formats.files import LazyFormat
from recshuf.interfaces import FormatOption, Traits

if TYPE_CHECKING:
    import pyarrow as pa

_MAGICS, _MAGIC_AT = (b"ustar\0", b"ustar  \0"), 257
_COMPARED = "compare records without keys. Default: with keys."
RENAME_KEYS = FormatOption(
    "rename_keys",
    "WebDataset to WebDataset: give each record a key of its own, by its shard and place, so that keys of the inputs may "
    "be the same. Default: a key that occurs twice is an error.",
    side="both", group="Output",
    elsewhere=(("verify check picture", f"WebDataset: the data was written with --rename-keys; {_COMPARED}"),),
)  # fmt: skip


class TarFormat(LazyFormat):
    """Tar archives of WebDataset."""

    source = "recshuf.formats.webdataset.archives:TarSource"
    target = "recshuf.formats.webdataset.archives:TarTarget"
    decoder = "recshuf.formats.webdataset.cutting:TarDecoder"
    layouts = ("recshuf.formats.webdataset.archives:TarLayout",)
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

    def reading_schema(self, table: pa.Schema) -> pa.Schema:
        return table


FORMAT = TarFormat()
