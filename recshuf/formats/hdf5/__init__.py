"""HDF5: a record is index i of every dataset that has a first axis.

Every shard begins with a copy of the first input without the rows of these datasets; see `template`. Without names of
datasets, files whose attributes say what is a row of a record are understood, see `roles`, and those that seem to be no
list of records are refused, see `signs`.
"""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from recshuf.formats.files import DATASETS, KEEP_OTHERS, OTHERS, LazyFormat
from recshuf.interfaces import Traits

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from recshuf.interfaces import Decoder, StoredInputs, Target, WriteOptions


SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FIRST_BLOCK = 512


def list_places(size: int) -> Iterator[int]:
    """Yield the byte offsets where the signature of a file of so many bytes may be: behind a user block, or at its start.

    >>> list(list_places(3000))
    [0, 512, 1024, 2048]
    """
    place = 0
    while place < size:
        yield place
        place = 2 * place or _FIRST_BLOCK


PLUGINS = "recshuf[hdf5plugin]"
_PLUGIN_COMPRESSIONS = ("zstd", "lz4")


def list_compressions() -> tuple[str, ...]:
    return ("none", "gzip", "lzf", *(_PLUGIN_COMPRESSIONS if has_plugins() else ()))


def has_plugins() -> bool:
    return find_spec("hdf5plugin") is not None


class Hdf5Format(LazyFormat):
    """The HDF5 adapter."""

    source = "recshuf.formats.hdf5.source:Hdf5Source"
    layouts = ("recshuf.formats.hdf5.template:Layout",)

    @cached_property
    def traits(self) -> Traits:
        return Traits(
            "hdf5",
            (".h5", ".hdf5", ".hdf", ".he5", ".h5ad"),
            list_compressions(),
            more_compressions=tuple((name, PLUGINS) for name in _PLUGIN_COMPRESSIONS),
            read_options=frozenset({"first_metadata", "widens"}),
            options=(DATASETS, KEEP_OTHERS, OTHERS),
            libraries=("h5py", "deflate"),
            adds_columns=False,
            content_rank=1,
        )

    def recognises(self, head: bytes) -> bool:
        return any(head.startswith(SIGNATURE, place) for place in list_places(len(head)))

    def open_target(self, schema: pa.Schema, layout: Any, options: WriteOptions) -> Target:
        from recshuf.formats.hdf5.encoder import TableEncoder, make_layout
        from recshuf.formats.hdf5.filters import check_compression
        from recshuf.formats.hdf5.sink import Hdf5Target
        from recshuf.formats.hdf5.template import recompress_image

        check_compression(options)
        if layout is None:
            encoder = TableEncoder(schema)
            return Hdf5Target(make_layout(encoder.leaves, options), encoder)
        if options.compression is not None:
            layout = recompress_image(layout, options.compression, options.compression_level)
        return Hdf5Target(layout)

    def check_appended(self, kept: Any, source: Any) -> None:
        from recshuf.errors import UsageError
        from recshuf.formats.hdf5.inventory import read_columns
        from recshuf.formats.hdf5.template import open_image

        if kept.layout.names != source.layout.names:
            return  # which the schema tells
        with open_image(kept.layout.image) as first, open_image(source.layout.image) as other:
            columns = (read_columns(image, [*kept.layout.names]) for image in (first, other))
            for ours, theirs in zip(*columns, strict=True):
                if not ours.holds_same(theirs) or theirs.is_wider_text(ours):
                    raise UsageError(
                        f"dataset {ours.name!r} is {theirs.name_rows()}, and {ours.name_rows()} in the store; "
                        "convert it, or begin a new store for it"
                    )

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        from recshuf.formats.hdf5.decoder import RowDecoder
        from recshuf.formats.hdf5.inventory import read_columns
        from recshuf.formats.hdf5.template import open_image

        with open_image(stored.layout.image) as image:
            return RowDecoder(read_columns(image, stored.schema.names), stored.names)


FORMAT = Hdf5Format()
