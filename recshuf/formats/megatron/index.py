r"""The index of a data set of Megatron: what it says at once, and which parts of it are read together.

Little-endian, of S sequences in N documents::

    |MMIDIDX\0\0|version, 8 bytes|type, 1|S, 8|N + 1, 8|lengths, 4 S|pointers, 8 S|document ends, 8 (N + 1)|modes, S or none|

A length counts tokens, a pointer bytes of the `.bin`. Document k has the sequences from end k up to end k + 1; end 0 is 0.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats.megatron import CODES, MAGIC
from recshuf.interfaces import open_input

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.interfaces import Handle, InputFile


HEAD = struct.Struct("<9sQBQQ")
LENGTH, END, MODE = np.dtype("<i4"), np.dtype("<i8"), np.dtype("i1")
KINDS = (LENGTH, END, END, MODE)
"""Types of the entries of each part."""
_DAMAGED = "copy or write both files again"


class Part(IntEnum):
    """The parts of an index, in their order."""

    LENGTHS = 0
    POINTERS = 1
    ENDS = 2
    MODES = 3


@dataclass(frozen=True, slots=True)
class MegatronLayout:
    """What shards have in common with the inputs."""

    code: int
    """Number of the type of tokens."""
    has_modes: bool
    """Whether each sequence has a mode."""
    is_plain: bool
    """Whether there are as many sequences as documents, so that each has one."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(CODES[self.code]).newbyteorder("<")

    @property
    def sequence_bytes(self) -> int:
        """Bytes of a sequence in a native record, beside its tokens."""
        return LENGTH.itemsize + (MODE.itemsize if self.has_modes else 0)

    @property
    def schema(self) -> pa.Schema:
        """Native schema: the bytes of a document, and those of the lengths and modes of its sequences."""
        names = ("tokens", "lengths", "modes") if self.has_modes else ("tokens", "lengths")
        return pa.schema([pa.field(name, pa.large_binary(), nullable=False) for name in names])


class Pair(NamedTuple):
    """A `.bin` with its index, once the beginning of this was read."""

    file: InputFile
    beside: InputFile
    """The index."""
    byte_count: int
    code: int
    sequences: int
    documents: int
    has_modes: bool
    last_end: int
    """Where the last sequence ends in the `.bin`."""

    def refuse(self, problem: str, place: str, remedy: str = _DAMAGED) -> InputError:
        return InputError(
            self.file.name, f"its index {self.beside.name} {problem}", place=place, remedy=remedy
        )

    def read(self, handle: Handle, part: Part, first: int, count: int = 1) -> NDArray[Any]:
        counts = zip(Part, (self.sequences, self.sequences, self.documents + 1), strict=False)
        start = HEAD.size + sum(KINDS[one].itemsize * size for one, size in counts if one < part)
        values = np.empty(count, KINDS[part])
        if fill(handle, start + first * values.itemsize, values.view(np.uint8)):
            raise self.refuse("is shorter than when it was opened", f"byte {start}")
        return values


def fill(handle: Handle, offset: int, into: NDArray[np.uint8]) -> int:
    """Fill an array with the bytes of a file from `offset` on, and return how many are missing."""
    view = memoryview(into)  # type: ignore[arg-type] # a buffer, which NumPy does not declare
    while view and (got := handle.readinto_at(offset, view)):
        offset, view = offset + got, view[got:]
    return len(view)


def open_pair(file: InputFile) -> Pair:
    """Return a data set, once the beginning of its index was read."""
    if file.is_stream:
        raise InputError(
            file.name, "is a stream, and a data set of Megatron is two files", remedy="give their path"
        )
    handle = open_input(file)
    byte_count = handle.stamp.size
    handle.close()
    index = _find_index(file)
    try:
        handle = open_input(index)
    except InputError as error:
        problem = f"its index {index.name} cannot be read: {error.problem}"
        raise InputError(file.name, problem, remedy="put it beside the file") from error
    try:
        return _read_head(Pair(file, index, byte_count, 0, 0, 0, False, 0), handle)
    finally:
        handle.close()


def _find_index(file: InputFile) -> InputFile:
    if file.companions:
        return file.companions[0]
    if file.path is None:
        name = f"{file.name.removesuffix('.bin')}.idx"
        raise InputError(file.name, f"is given without its index {name}", remedy="give that, too")
    path = file.path.with_suffix(".idx")
    return file._replace(name=str(path), path=path)


def _read_head(pair: Pair, handle: Handle) -> Pair:
    head, size = handle.read_at(0, HEAD.size), handle.stamp.size
    if len(head) < HEAD.size or not head.startswith(MAGIC):
        raise pair.refuse("does not begin as those of Megatron", "byte 0")
    _, version, code, sequences, ends = HEAD.unpack(head)
    if version != 1:
        raise pair.refuse(f"has version {version}, and only version 1 is known", "byte 9")
    if code not in CODES:
        raise pair.refuse(f"has the type {code}, which Megatron does not have", "byte 17")
    rest = size - HEAD.size - 12 * sequences - 8 * ends
    if not ends or rest not in (0, sequences):
        raise pair.refuse(
            f"has {size:,} bytes, which do not fit {sequences:,} sequences and {ends:,} ends", "byte 18"
        )
    pair = pair._replace(code=code, sequences=sequences, documents=ends - 1, has_modes=rest > 0)
    first, last = (int(pair.read(handle, Part.ENDS, at)[0]) for at in (0, ends - 1))
    if (first, last) != (0, sequences):
        raise pair.refuse(f"has {sequences:,} sequences, and documents of {first:,} to {last:,}", "byte 18")
    if not sequences:
        return pair
    length, pointer = (
        int(pair.read(handle, part, sequences - 1)[0]) for part in (Part.LENGTHS, Part.POINTERS)
    )
    width = np.dtype(CODES[code]).itemsize
    if CODES[code].startswith("float") and pointer + length * width != pair.byte_count == pointer + length * (
        12 - width
    ):
        problem = f"has type {code}, {CODES[code]}, and tokens of {12 - width} bytes: other writers exchange types 6 and 7"
        raise pair.refuse(problem, "byte 17", f"set that byte to {13 - code}")
    if pointer + length * width > pair.byte_count:
        problem = f"is cut off: it has {pair.byte_count:,} bytes, and its last sequence ends at {pointer + length * width:,}"
        raise InputError(pair.file.name, problem, remedy=_DAMAGED)
    return pair._replace(last_end=pointer + length * width)
