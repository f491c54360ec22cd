"""Members of tar archives in memory, and the keys that make neighbours one record.

::

    member:  { header of pax or of a long name (512) | its data, padded to 512 }* | header (512) | data, padded to 512
    archive: member* | zero blocks

Keys that occur twice are found in bounded memory: hashes of 128 bits are sorted in runs, and runs merged range by range. So many
of them are in memory as a run holds; more go to an unnamed file, from which a 256th part of all is loaded at a time.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from io import BytesIO
from itertools import groupby, pairwise
from operator import attrgetter
from tarfile import GNU_FORMAT, PAX_FORMAT, HeaderError, TarError, TarFile, TarInfo
from tempfile import SpooledTemporaryFile, gettempdir
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import adler32

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import xxhash

from recshuf.errors import ConversionError, InputError, OutputError
from recshuf.formats.lines.cutting import view_records
from recshuf.interfaces import Decoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.interfaces import StoredInputs


BLOCK_BYTES = 512
_KEY, _META = re.compile(rb"^((?:.*/|)[^.]+)[.]([^/]*)$"), re.compile(rb"__[^/]*__($|/)")
"""Names of records, and those of others that readers leave out, as they have them."""
_ZEROS = bytes(BLOCK_BYTES)
_SIZE, _TYPE, _CHECKSUM, _MAGIC, _PREFIX = slice(124, 136), 156, slice(148, 156), slice(257, 263), 345
_REGULAR, _FOLDER, _BEFORE = b"0\x007", b"5", b"xXLK"
_REFUSED = {
    b"g": "a global header of pax",
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"S": "a sparse file",
}
_AGAIN = "write it again with GNU tar --format=gnu --dereference --hard-dereference, without --sparse"
_SIZE_TEXT = re.compile(rb"[0-9]{1,19}\n")
KEY = "__key__"
_TYPES = {pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()}
RUN_KEYS = 1 << 17
HASH_BYTES = 16
KEYS_BYTES = 6 * RUN_KEYS * HASH_BYTES
"""Memory of a run, and of sorting it."""
_HASH = np.dtype(f"S{HASH_BYTES}")
hash_key = xxhash.xxh3_128_digest
_EDGES = np.array([bytes([first]) for first in range(1, 256)], _HASH)
_RANGES = len(_EDGES) + 1


class ArchiveError(Exception):
    """What is wrong at a byte of the memory that was walked: that byte, the problem, and what to do."""

    def __init__(self, at: int, problem: str, remedy: str = "fetch or write the archive again") -> None:
        super().__init__(at, problem, remedy)


class Member(NamedTuple):
    """A member, as positions in the memory that was walked."""

    start: int
    data: int
    size: int
    end: int
    """Behind its padding; may lie behind the memory."""
    name: bytes
    key: bytes | None
    """None if readers leave it out: it is a folder, or its name says so."""
    suffix: bytes


def walk(view: memoryview, at: int) -> Iterator[Member | int]:
    """Yield the members from byte `at` on whose headers are in memory, and where each zero block ends."""
    while at + BLOCK_BYTES <= len(view):
        header, start = bytes(view[at : at + BLOCK_BYTES]), at
        if not header[0] and header == _ZEROS:
            at += BLOCK_BYTES
            yield at
            continue
        size, said = _read_size(header, at), dict[bytes, bytes]()
        while header[_TYPE] in _BEFORE:
            data, at = at + BLOCK_BYTES, at + BLOCK_BYTES + size + -size % BLOCK_BYTES
            if at + BLOCK_BYTES > len(view):
                return
            said |= _read_before(header[_TYPE], bytes(view[data : data + size]), start)
            header = bytes(view[at : at + BLOCK_BYTES])
            size = _read_size(header, at)
        name, kind, data = header[:100].split(b"\0", 1)[0], header[_TYPE : _TYPE + 1], at + BLOCK_BYTES
        if header[_PREFIX] and header[_MAGIC] == b"ustar\0":
            name = header[_PREFIX:500].split(b"\0", 1)[0] + b"/" + name
        if said:
            name, size = said.get(b"path", name), int(said.get(b"size", size))
            kind = b"S" if any(key.startswith(b"GNU.sparse") for key in said) else kind
        if kind not in _REGULAR and kind != _FOLDER:
            what = _REFUSED.get(kind, f"of type {kind!r}, which is no file")
            remedy = _AGAIN if kind in _REFUSED else "write the archive again without it"
            raise ArchiveError(start, f"the member {show(name)} is {what}", remedy)
        is_folder = kind == _FOLDER or name.endswith(b"/")
        size, (key, suffix) = (0, (None, b"")) if is_folder else (size, parse_name(name))
        at = data + size + -size % BLOCK_BYTES
        yield Member(start, data, size, at, name, key, suffix)


def parse_name(name: bytes) -> tuple[bytes | None, bytes]:
    """Return the key and the suffix of a name; None and nothing if readers leave it out."""
    match = None if _META.match(name) else _KEY.match(name)
    return (match[1], match[2]) if match else (None, b"")


def _read_size(header: bytes, at: int) -> int:
    """Return the size in a header, whose sum of bytes, its own field taken for blanks, is right."""
    text = header[_CHECKSUM]
    try:
        size, whole = int(header[_SIZE].rstrip(b"\0 "), 8), int(text.rstrip(b"\0 "), 8)
    except ValueError:
        size, whole = -1, 0
    # The low half is 1 more than the sum, and found ten times as fast.
    if size >= 0 and adler32(header) & 0xFFFF == (whole - 8 * 32 + sum(text) + 1) % 65521:
        return size
    with suppress(HeaderError):  # numbers in base 256, and sums of signed bytes
        if (size := TarInfo.frombuf(header, "utf-8", "surrogateescape").size) >= 0:
            return size
    raise ArchiveError(at, "is no header of a tar archive, or a damaged one")


def _read_before(kind: int, content: bytes, at: int) -> dict[bytes, bytes]:
    """Return what a header before that of a member says: a long name, or records of pax, such as ``12 path=a.b`` and a newline."""
    if kind not in b"xX":
        return {b"path": content.split(b"\0", 1)[0]} if kind == ord("L") else {}
    said, place = dict[bytes, bytes](), 0
    while place < len(content) and content[place]:
        digits = content[place : place + 8].split(b" ", 1)[0]
        record = content[place : place + (int(digits) if digits.isdigit() else 0)]
        name, equals, value = record[len(digits) + 1 :].partition(b"=")
        if not equals or value[-1:] != b"\n" or (name == b"size" and not _SIZE_TEXT.fullmatch(value)):
            raise ArchiveError(at, "has a header of pax that is damaged")
        said[name], place = value[:-1], place + len(record)
    return said


def read_info(view: memoryview, start: int, data: int) -> TarInfo:
    try:
        with TarFile(fileobj=BytesIO(view[start:data])) as archive:
            info = archive.next()
    except (TarError, ValueError, ArithmeticError, LookupError) as error:
        raise ArchiveError(start, f"has a header that is damaged ({error})") from error
    assert info is not None  # noqa: S101 - `walk` has seen that it is no zero block
    return info


def show(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))


def lower(suffix: bytes) -> bytes:
    """Return a suffix in small letters, as readers know it."""
    if suffix.isascii():
        return suffix.lower()
    return suffix.decode("utf-8", "surrogateescape").lower().encode("utf-8", "surrogateescape")


def group_members(members: Iterable[Member]) -> list[list[Member]]:
    """Return the members of each record, without those that readers leave out."""
    kept = (one for one in members if one.key is not None)
    return [list(group) for _, group in groupby(kept, attrgetter("key"))]


def list_records(column: pa.LargeBinaryArray) -> list[memoryview]:
    data, offsets = view_records(column)
    view, edges = data.data, offsets.tolist()
    return [view[begin:end] for begin, end in pairwise(edges)]


def list_members(record: memoryview) -> Iterator[Member]:
    return (one for one in walk(record, 0) if isinstance(one, Member) and one.key is not None)


def find_key(record: memoryview) -> bytes:
    return next(list_members(record)).key or b""


def make_member(info: TarInfo, name: bytes, content: bytes | memoryview) -> Sequence[bytes | memoryview]:
    """Return a member of another name and content, else as `info` says."""
    info.name, info.size = name.decode("utf-8", "surrogateescape"), len(content)
    kept = {name: value for name, value in info.pax_headers.items() if name not in ("path", "size")}
    info.pax_headers = kept
    header = info.tobuf(PAX_FORMAT if kept else GNU_FORMAT, "utf-8", "surrogateescape")
    return header, content, bytes(-len(content) % BLOCK_BYTES)


def rename(record: memoryview, key: bytes) -> bytes:
    parts: list[bytes | memoryview] = []
    for member in walk(record, 0):
        assert isinstance(member, Member)  # noqa: S101 - records hold no zero blocks
        if member.key is None:
            parts.append(record[member.start : member.end])
            continue
        info = read_info(record, member.start, member.data)
        parts += make_member(
            info, key + b"." + member.suffix, record[member.data : member.data + member.size]
        )
    return b"".join(parts)


class TarDecoder(Decoder):
    """Finds the suffixes of all records, unless the finished schema is kept with them, and divides records into their members.

    Parameters
    ----------
    expected
        Columns of the table that the archives were written from, which do not show those of nulls alone.
    """

    def __init__(self, stored: StoredInputs, expected: Iterable[str] = ()) -> None:
        self._names, self._schema = stored.names, None if expected else stored.options.schema
        self._suffixes = {*expected} - {KEY}

    @property
    def schema(self) -> pa.Schema | None:
        return self._schema

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        for row, record in enumerate(list_records(batch.column(0)), first_row):
            try:
                found = {lower(one.suffix).decode() for one in list_members(record) if one.name.decode()}
            except UnicodeDecodeError as error:
                name, place = self._names[input_index], f"row {row}"
                problem = f"the name {show(error.object)} is not UTF-8, and cannot become a key and a column"
                raise InputError(name, problem, place=place, remedy="rename it") from error
            self._suffixes.update(found)  # in one call, so that threads need no lock

    def finish(self) -> pa.Schema:
        if self._schema is None:
            if KEY in self._suffixes:
                problem = "is a suffix, and the name of the column of keys"
                raise ConversionError(KEY, problem, remedy="rename those members")
            columns = [pa.field(name, pa.large_binary()) for name in sorted(self._suffixes)]
            self._schema = pa.schema([pa.field(KEY, pa.string(), nullable=False), *columns])
        return self._schema

    def state(self) -> Any:
        return sorted(self._suffixes)

    def merge(self, state: Any) -> None:
        self._suffixes.update(state)

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.finish()
        columns: dict[str, list[Any]] = {name: [None] * batch.num_rows for name in schema.names}
        for row, record in enumerate(list_records(batch.column(0))):
            for member in list_members(record):
                columns[KEY][row] = (member.key or b"").decode()
                # As bytes: Arrow keeps each view that it takes for ever.
                content = bytes(record[member.data : member.data + member.size])
                columns[lower(member.suffix).decode()][row] = content
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def check_schema(schema: pa.Schema) -> None:
    """Raise `ConversionError` unless tables of a schema can be archives."""
    if KEY not in schema.names:
        problem = f"webdataset needs a column {KEY} of text, and one of bytes or text for each member"
        raise ConversionError(problem, remedy="rename columns, or choose --to parquet")
    for field in schema:
        name, kind = field.name.encode(), field.type
        if (kind.value_type if pt.is_dictionary(kind) else kind) not in _TYPES:
            problem = f"members of webdataset hold bytes or text, not {kind}"
            raise ConversionError(field.name, problem, remedy="choose --to parquet")
        if parse_name(b"k." + name) != (b"k", lower(name)):
            problem = "is no suffix that readers see: it has a slash or capital letters"
            raise ConversionError(field.name, problem, remedy="rename it")


def encode(batch: pa.RecordBatch) -> pa.LargeBinaryArray:
    """Return the rows of a table as records: a member for each value that is not null, in the order of the columns."""
    batch = batch.cast(pa.schema([pa.field(name, pa.large_binary()) for name in batch.schema.names]))
    columns = {name.encode(): batch.column(name).to_pylist() for name in batch.schema.names}
    keys, records = columns.pop(KEY.encode()), list[bytes]()
    rows = zip(*columns.values(), strict=True) if columns else ((),) * len(keys)
    for key, row in zip(keys, rows, strict=True):
        parts = list[bytes | memoryview]()
        for suffix, value in zip(columns, row, strict=True):
            if value is None:
                continue
            name = b"%s.%s" % (key or b"", suffix)
            if b"\0" in name or parse_name(name) != (key or b"", suffix):
                problem = f"{show(key or b'')} is no key that readers see: it is empty, has a dot in its last part, or begins with __"
                raise ConversionError(KEY, problem, remedy="change it")
            parts += make_member(TarInfo(), name, value)
        if not parts:
            problem = f"the record {show(key or b'')} has no members: all its columns are null"
            raise ConversionError(KEY, problem, remedy="leave it out")
        records.append(b"".join(parts))
    return pa.array(records, pa.large_binary())


class KeySet:
    """Hashes of keys of which none may occur twice. `add` may be called from many threads."""

    folder: str | None = None
    """Where its file is, if it needs one; None for that of the system."""

    def __init__(self) -> None:
        self._lock, self._held = threading.Lock(), bytearray()
        self._runs: SpooledTemporaryFile[bytes] | None = None
        self._edges: list[NDArray[np.int64]] = []
        """Where each range of each run begins."""

    def add(self, hashes: Iterable[bytes]) -> None:
        added = b"".join(hashes)
        with self._lock:
            self._held += added
            if len(self._held) >= RUN_KEYS * HASH_BYTES:
                self._end_run()

    def finish(self) -> bytes | None:
        """Return one that occurs twice among all; None if there is none."""
        self._end_run()
        step = 1 if len(self._edges) > 1 else _RANGES
        for first in range(0, _RANGES, step):
            run = _sort(b"".join(map(self._read, (edges[[first, first + step]] for edges in self._edges))))
            twice: bytes = run[1:][run[1:] == run[:-1]][:1].tobytes()
            if twice:
                return twice
        return None

    def close(self) -> None:
        if self._runs is not None:
            self._runs.close()

    __del__ = close

    def _end_run(self) -> None:
        """Sort what is held, and keep it: the first run in memory, all together in a file."""
        run, self._held = _sort(self._held), bytearray()
        start = self._edges[-1][-1] if self._edges else 0
        edges = np.concatenate([[0], np.searchsorted(run, _EDGES), [run.size]])
        self._edges.append(start + HASH_BYTES * edges)
        try:
            if self._runs is None:
                self._runs = SpooledTemporaryFile(2 * run.nbytes, dir=self.folder)  # noqa: SIM115 - `close` does
            self._runs.write(run.tobytes())
            self._runs.flush()
        except OSError as error:
            place, said = self.folder or gettempdir(), error.strerror
            remedy = "make room there" if self.folder else "make room there, or set TMPDIR"
            problem = f"{place}: keys cannot be compared in a file: {said}; {remedy}"
            raise OutputError(problem) from error

    def _read(self, edges: NDArray[np.int64]) -> bytes:
        assert self._runs is not None  # noqa: S101 - there are runs
        self._runs.seek(edges[0])
        return self._runs.read(edges[1] - edges[0])


def _sort(hashes: bytes | bytearray) -> NDArray[np.bytes_]:
    return np.sort(np.frombuffer(hashes, _HASH))
