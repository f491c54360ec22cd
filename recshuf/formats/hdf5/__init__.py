"""HDF5: a record is index i of every dataset that has a first axis.

What is copied to every shard: all groups, named datatypes, scalar datasets, links inside the file, and the
attributes of all of these and of the datasets of the record, as the first input has them. Dimension scales
stay attached. Where datasets are chosen by name, other datasets with a first axis, links, and scalars and
attributes that hold references are left out; where none are chosen, whatever cannot be moved is refused.

Datasets of a shard keep type, filters, fill value and chunk shape, with these exceptions: those that were
not chunked are chunked, since they must be able to grow; chunks whose rows have more than 64 MiB are given
fewer rows; gzip takes the place of scale-offset, which would round values anew, and of filters that this
installation can only undo. The first axis is unlimited.

In table form a group is a struct and an n-d row nested fixed-size lists; see `_hdf5_forms` for the types. The
other way, an attribute `arrow_type` notes what HDF5 has no type for: times, dates, and binary values.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from recshuf.errors import UsageError
from recshuf.interfaces import Format, FormatNames

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.interfaces import InputFile, ReadOptions, Source, Target, WriteOptions

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FIRST_USER_BLOCK = 512


class Hdf5Format(Format):
    """The HDF5 adapter; the library is imported when a file is opened."""

    @cached_property
    def names(self) -> FormatNames:
        """See `Format`."""
        from recshuf.formats.hdf5.filters.names import list_compressions

        return FormatNames("hdf5", (".h5", ".hdf5", ".hdf", ".he5"), list_compressions())

    def recognises(self, head: bytes) -> bool:
        """Look for the signature where it may stand: at byte 0, 512, 1024, 2048, and so on."""
        place = 0
        while place < len(head):
            if head.startswith(_SIGNATURE, place):
                return True
            place = 2 * place or _FIRST_USER_BLOCK
        return False

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> Source:
        """Look at the datasets of every input; `options.datasets` names those of the record."""
        from recshuf.formats.hdf5.source import Hdf5Source

        if options.datasets is not None and not options.datasets:
            raise UsageError("--datasets names no dataset")
        return Hdf5Source(inputs, options.datasets, options.field)

    def open_target(self, schema: pa.Schema, layout: object | None, options: WriteOptions) -> Target:
        """Return the target; `options.compression` replaces the compression of the inputs."""
        from recshuf.formats.hdf5.filters.names import check_compression
        from recshuf.formats.hdf5.tables.layout import TableEncoder, make_layout
        from recshuf.formats.hdf5.target import Hdf5Target
        from recshuf.formats.hdf5.writing.template import Layout, recompress_image

        check_compression(options)
        if layout is None:
            encoder = TableEncoder(schema)
            return Hdf5Target(make_layout(encoder.leaves, options), encoder)
        if not isinstance(layout, Layout):
            raise TypeError(f"{type(layout).__name__} is no layout of HDF5 inputs")
        if options.compression is not None:
            layout = recompress_image(layout, options.compression, options.compression_level)
        return Hdf5Target(layout)


FORMAT = Hdf5Format()
