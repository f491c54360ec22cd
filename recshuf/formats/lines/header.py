"""The header of an input of lines: its first lines, which are not records."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import InputError
from recshuf.formats.lines.limit import RecordLimit

if TYPE_CHECKING:
    from recshuf.formats.compression.streams import ByteReader
    from recshuf.interfaces import ReadOptions

MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8. It stays at the top of a file, with the header."""
_PIECE_BYTES = 1 << 12


class Header(NamedTuple):
    """The header of an input, taken from its reader."""

    lines: bytes | None
    """The lines, each with its separator; None for an empty input."""
    rest: bytes
    """Bytes read after them."""
    end: int
    """Byte of the (decompressed) input at which the first record starts."""


def take_header(name: str, reader: ByteReader, options: ReadOptions, *, is_compressed: bool) -> Header:
    """Read the header from the start of an input, and at least one byte more if there is one.

    Raises
    ------
    InputError
        When the input ends within its header, or a line of it is too long.
    """
    limit = RecordLimit(name, options.max_record_bytes, "--max-record-bytes", is_compressed)
    data = bytearray()
    view = memoryview(bytearray(_PIECE_BYTES))
    end = found = 0
    while found < options.header_lines or not data:
        at = data.find(options.separator, end) if found < options.header_lines else -1
        if at >= 0:
            end = at + len(options.separator)
            found += 1
            continue
        if len(data) - end > limit.max_bytes:
            raise limit.exceeded(end)
        read = reader.readinto(view)
        if not read:
            return _end_header(name, data, end, found, options)
        data += view[:read]
    return Header(bytes(data[:end]), bytes(data[end:]), end)


def _end_header(name: str, data: bytearray, end: int, found: int, options: ReadOptions) -> Header:
    """Return the header of an input that ends within its header; the last line may lack its separator."""
    if not data:
        return Header(None, b"", 0)
    if options.header_lines - found > 1 or len(data) == end:
        raise InputError(
            name, f"has fewer lines than its header, {options.header_lines}", remedy="check --header"
        )
    return Header(bytes(data) + options.separator, b"", len(data))


def tell_unseen(header: bytes, other: bytes) -> str:
    r"""Return where alone two headers differ that look alike in an editor; nothing if they do not.

    >>> tell_unseen(b"a,b\r\n", b"a,b\n")
    ' in nothing but line ends (CRLF)'
    >>> tell_unseen(b"a,b\n", b"a,c\n")
    ''
    """
    places = ["the byte order mark"] if header.startswith(MARK) != other.startswith(MARK) else []
    header, other = header.removeprefix(MARK), other.removeprefix(MARK)
    if header.replace(b"\r\n", b"\n") != other.replace(b"\r\n", b"\n"):
        return ""
    if header != other:
        places.append("line ends (CRLF)")
    return f" in nothing but {' and '.join(places)}"
