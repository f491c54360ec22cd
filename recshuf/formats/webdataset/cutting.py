"""Members of tar archives in memory, and the keys that make neighbours one record.

::

    member:  { header of pax or of a long name (512) | its data, padded to 512 }* | header (512) | data, padded to 512
    archive: member* | zero blocks

Keys that occur twice are found in bounded memory: hashes of 128 bits are sorted in runs, and runs merged range by range. So many
of them are in memory as a run holds; more go to an unnamed file, from which a 256th part of all is loaded at a time.
"""

from __future__ import annotations

import re
import tarfile
import tempfile
import threading
from io import BytesIO
from itertools import pairwise
from typing import IO, TYPE_CHECKING, NamedTuple
from zlib import adler32

import numpy as np
import xxhash

from recshuf.errors import InputError, OutputError
from recshuf.formats.lines.cutting import view_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray


BLOCK_BYTES = 512
_KEY, _META = re.compile(rb"^((?:.*/|)[^.]+)[.]([^/]*)$"), re.compile(rb"__[^/]*__($|/)")
"""Names of records, and those of others that readers leave out, as they have them."""
_ZEROS = bytes(BLOCK_BYTES)
_SIZE, _TYPE, _CHECKSUM, _MAGIC, _PREFIX = slice(124, 136), 156, slice(148, 156), slice(257, 263), 345
_REGULAR, _FOLDER, _BEFORE = b"0\x007", b"5", b"xXLK"
_REFUSED = {
    b"g": ("a global header of pax, which is about all members behind it", "--format=gnu"),
    b"1": ("a hard link", "--hard-dereference"),
    b"2": ("a symbolic link", "--dereference"),
    b"S": ("a sparse file", "without --sparse"),
}
_MOST_NAME_BYTES, _SIZE_TEXT = 1 << 20, re.compile(rb"[0-9]{1,19}\n")
RUN_KEYS = 1 << 17
HASH_BYTES = 16
KEYS_BYTES = 6 * RUN_KEYS * HASH_BYTES
"""Memory of a run, and of sorting it."""
_HASH = np.dtype(f"S{HASH_BYTES}")
_EDGES = np.array([bytes([first]) for first in range(1, 256)], _HASH)


class ArchiveError(Exception):
    """What is wrong at a byte of the memory that was walked, and what to do."""

    def __init__(self, at: int, problem: str, remedy: str = "fetch or write the archive again") -> None:
        super().__init__(at, problem, remedy)
        self.at, self.problem, self.remedy = at, problem, remedy

    def of_input(self, name: str, place: str) -> InputError:
        """Return the error for an input, of which that byte is at a place."""
        return InputError(name, self.problem, place=place, remedy=self.remedy)


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
            if size > _MOST_NAME_BYTES:
                raise ArchiveError(start, f"has a header of a name of {size:,} bytes")
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
            what, how = _REFUSED.get(kind, (f"of type {kind!r}, which is no file", "without it"))
            raise ArchiveError(
                start, f"the member {show(name)} is {what}", f"write it again with GNU tar {how}"
            )
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
    size, text = _parse_number(header[_SIZE]), header[_CHECKSUM]
    whole = _parse_number(text) - 8 * 32 + sum(text)
    # The low half is 1 more than the sum, and found ten times as fast. Some old programs sum signed bytes.
    is_right = adler32(header) & 0xFFFF == (whole + 1) % 65521
    if size < 0 or not (is_right or whole == sum(header) - 256 * sum(byte > 127 for byte in header)):
        raise ArchiveError(at, "is no header of a tar archive, or a damaged one")
    return size


def _parse_number(field: bytes) -> int:
    """Return a number in octal digits or in base 256; -1 if it is none or negative."""
    if field[0] & 0x80:
        return -1 if field[0] == 0xFF else int.from_bytes(field, "big") - (0x80 << 8 * (len(field) - 1))
    try:
        return int(field.split(b"\0", 1)[0].strip() or b"0", 8)
    except ValueError:
        return -1


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


def read_info(view: memoryview, start: int, data: int) -> tarfile.TarInfo:
    try:
        with tarfile.TarFile(fileobj=BytesIO(view[start:data])) as archive:
            info = archive.next()
    except (tarfile.TarError, ValueError, ArithmeticError, LookupError) as error:
        raise ArchiveError(start, f"has a header that is damaged ({error})") from error
    if info is None or info.size < 0:
        raise ArchiveError(start, "has a header that is damaged")
    return info


def show(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))


def lower(suffix: bytes) -> bytes:
    """Return a suffix in small letters, as readers know it."""
    if suffix.isascii():
        return suffix.lower()
    return suffix.decode("utf-8", "surrogateescape").lower().encode("utf-8", "surrogateescape")


def list_records(column: pa.LargeBinaryArray) -> list[memoryview]:
    data, offsets = view_records(column)
    view, edges = data.data, offsets.tolist()
    return [view[begin:end] for begin, end in pairwise(edges)]


def list_members(record: memoryview) -> Iterator[Member]:
    return (one for one in walk(record, 0) if isinstance(one, Member) and one.key is not None)


def find_key(record: memoryview) -> bytes:
    return next(list_members(record)).key or b""


def make_member(
    info: tarfile.TarInfo, name: bytes, content: bytes | memoryview
) -> Sequence[bytes | memoryview]:
    """Return a member of another name and content, else as `info` says."""
    info.name, info.size = name.decode("utf-8", "surrogateescape"), len(content)
    kept = {name: value for name, value in info.pax_headers.items() if name not in ("path", "size")}
    info.pax_headers = kept
    header = info.tobuf(tarfile.PAX_FORMAT if kept else tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
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


def hash_key(key: bytes) -> bytes:
    return xxhash.xxh3_128_digest(key)


class KeySet:
    """Hashes of keys of which none may occur twice. `add` may be called from many threads."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        """Where its file is, if it needs one; None for that of the system."""
        self._lock = threading.Lock()
        self._held: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._edges: list[NDArray[np.int64]] = []
        """Where each range of each run begins in the file, in hashes."""

    def add(self, hashes: Iterable[bytes]) -> bytes | None:
        """Add some; return one of which another is known already, if that shows at once."""
        with self._lock:
            self._held += hashes
            return self._end_run() if len(self._held) >= RUN_KEYS else None

    def finish(self) -> bytes | None:
        """Return one that occurs twice among all, and release the file; None if there is none."""
        twice = self._end_run()
        ranges = range(len(_EDGES) + 1 if len(self._edges) > 1 and twice is None else 0)
        twice = next(filter(None, map(self._merge, ranges)), twice)
        self.close()
        return twice

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self._edges = None, []

    def __del__(self) -> None:
        self.close()

    def _end_run(self) -> bytes | None:
        """Sort a run, and write it to the file, which only a second one needs."""
        run, twice = _sort(self._held)
        self._held = []
        if len(run) < RUN_KEYS and self._file is None:
            return twice
        start = self._edges[-1][-1] if self._edges else 0
        self._edges.append(start + np.concatenate([[0], np.searchsorted(run, _EDGES), [len(run)]]))
        try:
            self._file = self._file or tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - `close` does
            self._file.write(run.tobytes())
            self._file.flush()
        except OSError as error:
            place = self.folder or tempfile.gettempdir()
            remedy = "make room there" + ("" if self.folder else ", or set TMPDIR")
            problem = f"{place}: keys cannot be compared in a file: {error.strerror}; {remedy}"
            raise OutputError(problem) from error
        return twice

    def _merge(self, number: int) -> bytes | None:
        assert self._file is not None  # noqa: S101 - there are runs
        pieces = []
        for edges in self._edges:
            begin, end = (HASH_BYTES * edges[number : number + 2]).tolist()
            self._file.seek(begin)
            pieces.append(self._file.read(end - begin))
        return _sort(pieces)[1]


def _sort(parts: Iterable[bytes]) -> tuple[NDArray[np.bytes_], bytes | None]:
    """Return hashes in order, and one that occurs twice."""
    run = np.sort(np.frombuffer(b"".join(parts), _HASH))
    return run, run[1:][run[1:] == run[:-1]][:1].tobytes() or None
