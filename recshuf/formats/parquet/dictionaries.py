"""How many values the dictionaries of a column hold over all inputs, and index types with room for them.

Readers give all values of a column one dictionary, with the index type that the file declares. They fail if it is too
narrow for the union of the dictionaries of all row groups that came into a shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import xxhash

from recshuf.formats.parquet.file import explained
from recshuf.formats.parquet.pages import (
    DICTIONARY_PAGE,
    PAGE_ENCODINGS,
    STORED_BYTES,
    UNPACKED_BYTES,
    PageHeaders,
    list_chunks,
)
from recshuf.formats.parquet.types import child_fields, is_narrow, with_children

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.parquet as pq

    from recshuf.formats.parquet.file import OpenFile
    from recshuf.formats.parquet.footer import Footer

    Path = tuple[str, ...]
    """Names of a column and of the fields below it that lead to a Parquet column."""


_MOST_BYTES = 4 << 20
"""Most bytes of a dictionary that is looked into. Writers give up a dictionary at 1 MiB."""
_MOST_VALUES = 1 << 16
"""Values of the widest narrow index."""
_PLAIN, _DICTIONARIES = 0, (2, 8)
"""Encodings: of values themselves, and by a dictionary; older files say the latter of its page, too."""
_CODECS = {"LZ4": "lz4_raw"}


def fit_index(kind: pa.DictionaryType, count: int | None) -> pa.DictionaryType:
    """Return the type, with a wider index if it has no room for so many values; for None, for an unknown number.

    >>> str(fit_index(pa.dictionary(pa.uint8(), pa.string()), 256).index_type)
    'uint8'
    >>> str(fit_index(pa.dictionary(pa.int8(), pa.string()), 129).index_type)
    'int32'
    """
    room = 1 << (kind.index_type.bit_width - pa.types.is_signed_integer(kind.index_type))
    if not is_narrow(kind) or (count is not None and count <= room):
        return kind
    return pa.dictionary(pa.int32(), kind.value_type, ordered=kind.ordered)


def fit_indices(field: pa.Field, counts: dict[Path, int | None]) -> pa.Field:
    """Return the field with index types, at any depth, that have room for these numbers of values."""
    return _fit_field(field, (field.name,), counts)


def widen_indices(schema: pa.Schema) -> pa.Schema:
    """Return the schema with index types, at any depth, that have room for any number of values."""
    return pa.schema([fit_indices(field, {}) for field in schema], schema.metadata)


def _fit_field(field: pa.Field, path: Path, counts: dict[Path, int | None]) -> pa.Field:
    kind = field.type
    if is_narrow(kind):
        return field.with_type(fit_index(kind, counts.get(path)))
    if not (children := child_fields(kind)):
        return field
    pairs = zip(children, _steps(kind, children), strict=True)
    return field.with_type(
        with_children(kind, [_fit_field(child, (*path, step), counts) for child, step in pairs])
    )


def list_paths(field: pa.Field) -> Iterator[tuple[Path, pa.DataType]]:
    """Yield the path and type of each Parquet column of a column, in the file's order."""
    yield from _walk(field.type, (field.name,))


def _walk(kind: pa.DataType, path: Path) -> Iterator[tuple[Path, pa.DataType]]:
    children = child_fields(kind)
    if not children:
        yield path, kind
    for child, step in zip(children, _steps(kind, children), strict=True):
        yield from _walk(child.type, (*path, step))


def _steps(kind: pa.DataType, children: list[pa.Field]) -> list[str]:
    """Return the part of a path for each child; files name the values of lists as they like."""
    is_struct = pa.types.is_struct(getattr(kind, "storage_type", kind))
    return [child.name for child in children] if is_struct else [str(place) for place in range(len(children))]


class DictionarySizes:
    """The numbers of values of all narrow dictionaries of the files added so far."""

    def __init__(self) -> None:
        self._columns: dict[Path, _Values] = {}

    @property
    def counts(self) -> dict[Path, int | None]:
        """The number of values of each; None if it is not known."""
        return {path: values.count for path, values in self._columns.items()}

    def add(self, file: OpenFile, footer: Footer, column: int) -> None:
        leaves = footer.leaves([column])
        narrow = {
            leaf: self._columns.setdefault(path, _Values())
            for leaf, (path, kind) in zip(leaves, list_paths(footer.schema.field(column)), strict=True)
            if is_narrow(kind)
        }
        for group, rows in enumerate(footer.group_rows):
            wanted = [leaf for leaf, values in narrow.items() if rows and not values.is_full]
            with explained(footer.name, f"row group {group}"):
                for leaf, chunk in zip(
                    wanted, list_chunks(file, group, wanted) if wanted else (), strict=True
                ):
                    narrow[leaf].add(file, chunk)


class _Values:
    """The values of one dictionary over column chunks, by their hashes."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()
        self._pages: set[bytes] = set()
        self._chunks = 0
        self._is_known = True

    @property
    def is_full(self) -> bool:
        return self._chunks > 1 and (not self._is_known or len(self._hashes) > _MOST_VALUES)

    @property
    def count(self) -> int | None:
        """Number of values; None if it is not known, and 0 for a single chunk, which had room for its own."""
        if self._chunks <= 1:
            return 0
        return len(self._hashes) if self._is_known else None

    def add(self, file: OpenFile, chunk: pq.ColumnChunkMetaData) -> None:
        self._chunks += 1
        page = _find_dictionary(file, chunk)
        # The row groups of one writer mostly have the same dictionary.
        if page is None or (mark := xxhash.xxh3_128_digest(page.stored)) not in self._pages:
            values = page and page.unpack(chunk.compression)
            if values is None:
                self._is_known = False
            else:
                self._pages.add(mark)
                self._hashes.update(map(xxhash.xxh3_64_intdigest, _split(values)))


class _Page(NamedTuple):
    stored: bytes
    unpacked_bytes: int
    """Its size before compression, as its header claims."""

    def unpack(self, compression: str) -> bytes | None:
        if compression == "UNCOMPRESSED":
            return self.stored
        try:
            codec = pa.Codec(_CODECS.get(compression, compression.lower()))
            return bytes(codec.decompress(self.stored, self.unpacked_bytes, asbytes=True))
        except (pa.ArrowException, OSError, ValueError):
            return None


def _find_dictionary(file: OpenFile, chunk: pq.ColumnChunkMetaData) -> _Page | None:
    """Return the dictionary of a column chunk of text or bytes; None if it may not hold all values, or is too large."""
    if chunk.physical_type != "BYTE_ARRAY":
        return None
    page = None
    headers = PageHeaders(file)
    for header, place in headers.walk(chunk):
        for kind, content in header.structs.items():
            if kind not in PAGE_ENCODINGS:
                continue
            encoding = content.numbers.get(PAGE_ENCODINGS[kind])
            if kind == DICTIONARY_PAGE and encoding in (_PLAIN, *_DICTIONARIES):
                stored, unpacked = (header.numbers.get(size, -1) for size in (STORED_BYTES, UNPACKED_BYTES))
                if max(stored, unpacked) > _MOST_BYTES or min(stored, unpacked) < 0:
                    return None
                page = _Page(headers.read_bytes(place, stored), unpacked)
            elif encoding not in _DICTIONARIES:
                return None
    return page


def _split(page: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(page):
        start = place + 4
        place = start + int.from_bytes(page[place:start], "little")
        yield page[start:place]
