"""Row groups encoded separately, by any number of threads, and assembled into one file.

Each is encoded as a file: ``PAR1 | column chunks | footer | size of the footer (4) | PAR1``. Column chunks do not depend
on their offset in the file; in the footer, only offsets do. The assembled file has the same bytes as if one writer had
written all row groups.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, cast

from recshuf.dataclass import dataclass
from recshuf.formats.parquet import MAGIC
from recshuf.formats.parquet.annotations import put_marks
from recshuf.formats.parquet.thrift import LIST, STRUCT, ThriftReader, encode_list, encode_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import BinaryIO

    import pyarrow as pa
    import pyarrow.parquet as pq
    from _typeshed import ReadableBuffer

    from recshuf.formats.parquet.annotations import Marks

    Fields = dict[int, "Fields | None"]
    """Fields of a struct by their numbers: None for a number, their own fields for structs."""

_TAIL_BYTES = 8
# Field numbers in parquet.thrift.
_ROWS, _GROUPS = 3, 4
_PLACES: Fields = {1: {3: {9: None, 11: None}}, 5: None}
"""The offsets in a row group that pyarrow writes: of data and dictionary of each column chunk, and of the group."""


@dataclass(frozen=True, slots=True)
class EncodedGroup:
    """A row group in bytes."""

    chunks: list[bytes]
    """The column chunks, cut anywhere."""
    footer: bytes
    """Footer of a file of this row group only, which begins with `MAGIC`."""
    rows: int
    """Its rows, by the footer."""


class _Parts(io.RawIOBase):
    """Keeps written pieces in a list: one growing buffer would be copied again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        part = bytes(data)
        self.parts.append(part)
        return len(part)


def encode_group(open_writer: Callable[[BinaryIO], pq.ParquetWriter], table: pa.Table) -> EncodedGroup:
    """Encode a table as one row group, by a writer without page index and Bloom filters, which would follow the chunks."""
    stream = _Parts()
    with open_writer(cast("BinaryIO", stream)) as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        chunks, stream.parts = stream.parts, []
    if chunks[0] != MAGIC:
        raise RuntimeError("a Parquet writer does not begin with the magic bytes alone")
    return EncodedGroup(chunks[1:], b"".join(stream.parts)[:-_TAIL_BYTES], writer.writer.metadata.num_rows)


class Assembly:
    """A Parquet file of row groups, one appended after the other. The caller closes the stream."""

    def __init__(self, stream: BinaryIO, annotations: Mapping[int, Marks]) -> None:
        self._stream = stream
        self._annotations = annotations
        self._place = stream.write(MAGIC)
        self._count = 0
        self._alone: bytes | None = None
        """The footer of the only row group so far: it is taken apart, which takes long, only if another one follows."""
        self._groups: list[bytes] = []
        self._around = (b"", b"", b"")
        self.record_count = 0
        """Number of records, by the footers."""

    def __len__(self) -> int:
        return self._count

    def append(self, group: EncodedGroup) -> None:
        """Write a row group; all have the same schema and metadata. Of one without rows only these count."""
        self._take_apart(self._alone, 0)
        self._alone = None
        if group.rows and not self._count:
            self._alone = group.footer
        else:
            self._take_apart(group.footer, self._place - len(MAGIC))
        if not group.rows:
            return  # some readers fail on a row group without rows
        self._count += 1
        self.record_count += group.rows
        for part in group.chunks:
            self._stream.write(part)
            self._place += len(part)

    def finish(self) -> None:
        """Write the footer, after at least one call of `append`."""
        if self._alone is None or self._annotations:
            self._take_apart(self._alone, 0)
            before, between, behind = self._around
            rows, groups = encode_number(self.record_count), encode_list(self._count, STRUCT)
            before = put_marks(before, self._annotations)
            footer = b"".join((before, rows, between, groups, *self._groups, behind))
        else:
            footer = self._alone
        self._stream.write(footer + len(footer).to_bytes(4, "little") + MAGIC)

    def _take_apart(self, footer: bytes | None, shift: int) -> None:
        if footer is not None:
            copy = _FooterCopy(footer, shift)
            self._around = copy.around
            self._groups += [copy.group] * bool(copy.rows)


class _FooterCopy:
    """The footer of a single row group, parsed.

    `shift` is the offset of the row group in the assembled file, less that in its own file.
    """

    def __init__(self, footer: bytes, shift: int) -> None:
        self._footer = footer
        self._shift = shift
        self._reader = ThriftReader(footer)
        self._pieces: list[bytes] = []
        self._copied = 0
        self.rows = 0
        self.group = b""
        """The row group as in the footer of the assembled file."""
        self.around = (b"", b"", b"")
        """Bytes before the number of rows, between it and the list of row groups, and after the list."""
        self._take_apart()

    def _take_apart(self) -> None:
        reader, field = self._reader, 0
        before = between = behind = slice(0)
        while True:
            field, kind = reader.read_field(field)
            start = reader.place
            if field == _ROWS:
                before = slice(start)
                self.rows = reader.read_number()
                between = slice(reader.place, reader.place + 1)
            elif field == _GROUPS:
                reader.read_list()
                self._copied = reader.place
                self._shift_places(_PLACES)
                self._copy_to(reader.place)
                behind = slice(reader.place, None)
            elif kind:
                reader.skip(kind)
            else:
                break
        self.group = b"".join(self._pieces)
        self.around = (self._footer[before], self._footer[between], self._footer[behind])

    def _shift_places(self, places: Fields) -> None:
        reader, field = self._reader, 0
        while True:
            field, kind = reader.read_field(field)
            if not kind:
                return
            inner = places.get(field)
            if inner is not None:
                for _ in range(reader.read_list()[0] if kind == LIST else 1):
                    self._shift_places(inner)
            elif field in places:
                self._copy_to(reader.place)
                # The offset is 0 if there is nothing, as in a row group without rows.
                place = reader.read_number()
                self._pieces.append(encode_number(place + self._shift if place else 0))
                self._copied = reader.place
            else:
                reader.skip(kind)

    def _copy_to(self, place: int) -> None:
        self._pieces.append(self._footer[self._copied : place])
