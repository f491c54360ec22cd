"""How the bytes of an input become records: its header, and where records end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.formats.lines.cutting import find_ends, find_last_end
from recshuf.formats.lines.header import take_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.formats.compression.streams import ByteReader
    from recshuf.formats.lines.cutting import Bytes, Positions
    from recshuf.formats.lines.header import Header
    from recshuf.interfaces import ReadOptions


class Cutter:
    """Cuts records at every separator."""

    long_record_hint = ""
    """What may be wrong with a record that is too long, as the end of a remedy."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.separator = options.separator

    @property
    def has_header(self) -> bool:
        """Whether an input must be opened to find its first record."""
        return self.options.header_lines > 0

    def take_header(self, name: str, reader: ByteReader, *, is_compressed: bool) -> Header:
        """Read the header from the start of an input, and at least one byte more if there is one.

        Raises
        ------
        InputError
            When the input ends within its header, or a line of it is too long.
        """
        return take_header(name, reader, self.options, is_compressed=is_compressed)

    def find_ends(self, data: Bytes, begin: int) -> Iterator[Positions]:
        """Yield the ends of all records at or after `begin`, the start of a record: ascending, in pieces."""
        return find_ends(data, begin, self.separator)

    def find_last_end(self, data: Bytes) -> int:
        """Return the end of the last complete record, 0 if there is none. `data` begins with a record."""
        return find_last_end(data, self.separator)
