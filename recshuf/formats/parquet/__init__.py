"""Parquet: typed and nested columns in row groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from recshuf.formats.files import LazyFormat
from recshuf.interfaces import FormatOption, Traits

if TYPE_CHECKING:
    from recshuf.formats.parquet.plan import ParquetLayout


MAGIC = b"PAR1"
MAGIC_ENCRYPTED = b"PARE"
PAGE_CHECKSUMS = FormatOption(
    "page_checksums",
    "Parquet: write a checksum for each page, or none. Default: as the first Parquet input with rows; none for other inputs.",
    side="output",
    group="Output",
    has_opposite=True,
)


class ParquetFormat(LazyFormat):
    """The Parquet format."""

    source = "recshuf.formats.parquet.source:ParquetSource"
    target = "recshuf.formats.parquet.sink:ParquetTarget"
    decoder = "recshuf.formats.parquet.source:ParquetDecoder"
    layouts = ("recshuf.formats.parquet.plan:ParquetLayout", "recshuf.formats.parquet.plan:LeafStorage")
    traits = Traits(
        "parquet",
        (".parquet", ".parq", ".pq"),
        ("none", "zstd", "gzip", "snappy", "lz4"),
        read_options=frozenset({"columns", "first_metadata", "widens"}),
        options=(PAGE_CHECKSUMS,),
        libraries=("pyarrow",),
        reads_partitions=True,
        native_is_table=True,
        takes_tables=True,
        keeps_dictionaries=True,
        content_rank=0,
    )

    def recognises(self, head: bytes) -> bool:
        # Behind PARE stands the length of a module, below 16 MiB; a word of text may begin so, too.
        return head[:4] == MAGIC or (head[:4] == MAGIC_ENCRYPTED and head[7:8] == b"\0")

    def grow_layout(self, layout: ParquetLayout) -> ParquetLayout:
        """Return the layout with indices that have room for the values of further inputs."""
        from recshuf.formats.parquet.types import widen_indices

        return replace(layout, schema=widen_indices(layout.schema))


FORMAT = ParquetFormat()
