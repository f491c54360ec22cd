r"""Data sets of Megatron as a source: the index is read in parts, each of which says which documents are read together.

The index, little-endian, of S sequences in N documents::

    |MMIDIDX\0\0|version, 8 bytes|type, 1|S, 8|N + 1, 8|lengths, 4 S|pointers, 8 S|document ends, 8 (N + 1)|modes, S or none|

A length counts tokens, a pointer bytes of the `.bin`. Document k has the sequences from end k up to end k + 1; end 0 is 0.
"""

from __future__ import annotations

import struct
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats.files import fill
from recshuf.formats.lines.cutting import view_records
from recshuf.formats.megatron import CODES, MAGIC
from recshuf.interfaces import InputSummary, RowFragment, Source, TableDecoder, open_input

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.interfaces import BatchLimits, Decoder, Fragment, Handle, InputFile, ReadOptions


_DOCUMENTS, _SEQUENCES = 1 << 14, 1 << 16
"""So many are looked at together, or the sequences of one document."""
_INDEX_BYTES = 8 << 20
_OFFSET_BYTES = 8
HEAD = struct.Struct("<9sQBQQ")
LENGTH, END, MODE = np.dtype("<i4"), np.dtype("<i8"), np.dtype("i1")
_LENGTHS, _POINTERS, _ENDS, _MODES = range(4)
_KINDS = (LENGTH, END, END, MODE)
"""Types of the entries of each part of an index, in their order."""
_DAMAGED = "copy or write both files again"


class MegatronSource(Source):
    """All inputs of a run."""

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        self._options = options
        self._pairs = [open_pair(file) for file in inputs]
        first = next((pair for pair in self._pairs if pair.sequences), self._pairs[0])
        for pair in self._pairs:
            _check_same(first, pair)
        is_plain = all(pair.sequences == pair.documents for pair in self._pairs)
        self.layout: MegatronLayout = MegatronLayout(first.code, first.has_modes, is_plain)
        self.schema = self.layout.schema
        self._offsets_bytes = _OFFSET_BYTES * len(self.schema)
        self.inputs = tuple(map(self._summarise, self._pairs))
        self.notes = tuple(
            f"{pair.file.name}: {pair.byte_count - pair.last_end:,} bytes behind the last sequence of its index are left out"
            for pair in self._pairs
            if pair.last_end < pair.byte_count
        )

    def _summarise(self, pair: Pair) -> InputSummary:
        """Return the counts of an input, with the bytes of native records if no sequence lies in another one or is left out."""
        beside = self.layout.sequence_bytes * pair.sequences + self._offsets_bytes * pair.documents
        return InputSummary(pair.file.name, pair.byte_count, pair.documents, True, pair.byte_count + beside)

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        pair, limits = self._pairs[input_index], self._options.limit(block_bytes, max_record_bytes)
        with closing(open_input(pair.beside)) as handle:
            for first in range(0, pair.documents, _DOCUMENTS):
                ends = pair.read(handle, _ENDS, first, min(_DOCUMENTS, pair.documents - first) + 1)
                wrong = np.flatnonzero((np.diff(ends) < 0) | (ends[1:] > pair.sequences) | (ends[:-1] < 0))
                if wrong.size:
                    row = int(wrong[0])
                    problem = f"has sequences {int(ends[row]):,} to {int(ends[row + 1]):,} in a document"
                    raise pair.refuse(problem, f"row {first + row}")
                for begin, stop in _cut(ends, _SEQUENCES):
                    yield from self._cut(pair, handle, first + begin, ends[begin : stop + 1], limits)

    def _cut(
        self, pair: Pair, handle: Handle, first: int, ends: NDArray[Any], limits: BatchLimits
    ) -> Iterator[Fragment]:
        start, edges = int(ends[0]), ends - ends[0]
        sizes = self.layout.sequence_bytes * np.diff(edges)
        _check_sizes(pair, first, sizes, limits)  # before so many lengths are read
        count = int(edges[-1])
        lengths, pointers, modes = (
            pair.read(handle, part, start, count if part != _MODES or pair.has_modes else 0)
            for part in (_LENGTHS, _POINTERS, _MODES)
        )
        widths = lengths.astype(np.int64) * self.layout.dtype.itemsize
        wrong = np.flatnonzero((lengths < 0) | (pointers < 0) | (pointers > pair.byte_count - widths))
        if wrong.size:
            at = int(wrong[0])
            problem = f"has a sequence of {int(lengths[at]):,} tokens at byte {int(pointers[at]):,} of {pair.byte_count:,}"
            raise pair.refuse(problem, f"row {first + int(np.searchsorted(edges, at, 'right')) - 1}")
        sizes += np.diff(np.append(0, np.cumsum(widths))[edges]) + self._offsets_bytes
        _check_sizes(pair, first, sizes, limits)
        for begin, stop in _cut(np.append(0, np.cumsum(sizes)), limits.block_bytes):
            part = slice(int(edges[begin]), int(edges[stop]))
            parts = tuple(values[part] for values in (lengths, pointers, modes))
            read = partial(self._read, pair, first + begin, edges[begin : stop + 1] - edges[begin], parts)
            yield RowFragment(pair.file.name, first + begin, stop - begin, read, limits)

    def _read(
        self, pair: Pair, row: int, edges: NDArray[Any], parts: tuple[NDArray[Any], ...]
    ) -> pa.RecordBatch:
        """Return documents; `edges` says which each has of the sequences, whose lengths, pointers and modes are the parts."""
        lengths, pointers, modes = parts
        places = np.append(0, np.cumsum(lengths, dtype=np.int64)) * self.layout.dtype.itemsize
        data = np.empty(places[-1], np.uint8)
        # Sequences that lie one behind the other are read at once.
        gaps = np.flatnonzero(np.diff(pointers) != np.diff(places[:-1])) + 1
        with closing(open_input(pair.file)) as handle:
            for begin, stop in pairwise([0, *gaps.tolist(), lengths.size] if lengths.size else []):
                if fill(handle, int(pointers[begin]), data[places[begin] : places[stop]]):
                    raise InputError(pair.file.name, "is shorter than when it was opened", place=f"row {row}")
        columns = [(data, places[edges]), (lengths.astype(LENGTH), edges), (modes, edges)]
        return wrap_documents(columns, self.schema)

    def skips_fragments(self, input_index: int) -> bool:  # noqa: ARG002 - the index of each says where its documents are
        return True

    def reading_bytes(self, block_bytes: int) -> int:
        return 2 * block_bytes + _INDEX_BYTES

    def decoder(self) -> Decoder:
        return MegatronDecoder(self.layout, [one.name for one in self.inputs])


def wrap_documents(parts: list[tuple[NDArray[Any], NDArray[Any]]], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of columns that each hold the bytes of items between edges; there may be more parts than columns."""
    columns = []
    for items, edges in parts[: len(schema)]:
        buffers = (edges * items.itemsize).astype(END), np.ascontiguousarray(items)
        kept = [None, *map(pa.py_buffer, buffers)]
        columns.append(pa.Array.from_buffers(pa.large_binary(), len(edges) - 1, kept))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cut(edges: NDArray[Any], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of entries, given the edges of each, that have at most so much together, or are one entry."""
    begin = 0
    while begin < len(edges) - 1:
        stop = max(begin + 1, int(np.searchsorted(edges, edges[begin] + most, "right")) - 1)
        yield begin, stop
        begin = stop


def _check_sizes(pair: Pair, first: int, sizes: NDArray[Any], limits: BatchLimits) -> None:
    long = np.flatnonzero(sizes > limits.record_bytes)
    if long.size:
        problem = f"a document of {int(sizes[long[0]])} bytes is longer than the {limits.record_bytes} bytes allowed"
        raise InputError(pair.file.name, problem, place=f"row {first + int(long[0])}", remedy=limits.remedy)


def _check_same(first: Pair, pair: Pair) -> None:
    ours, theirs = CODES[first.code], CODES[pair.code]
    if ours != theirs:
        problem = f"holds tokens of type {theirs}, and {first.file.name} of type {ours}"
        raise InputError(pair.file.name, problem, remedy="shuffle them apart, or write them with one type")
    if pair.sequences and first.has_modes != pair.has_modes:
        problem = f"has {'' if pair.has_modes else 'no '}modes of sequences, unlike {first.file.name}"
        raise InputError(pair.file.name, problem, remedy="shuffle them apart")


@dataclass(frozen=True, slots=True)
class MegatronLayout:
    """What shards have in common with the inputs."""

    code: int
    """Number of the type of tokens."""
    has_modes: bool
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
    byte_count: int
    code: int
    sequences: int
    documents: int
    has_modes: bool
    last_end: int
    """Where the last sequence ends in the `.bin`."""

    def refuse(self, problem: str, place: str, remedy: str = _DAMAGED) -> InputError:
        problem = f"its index {self.beside.name} {problem}"
        return InputError(self.file.name, problem, place=place, remedy=remedy)

    def read(self, handle: Handle, part: int, first: int, count: int = 1) -> NDArray[Any]:
        counts = (self.sequences, self.sequences, self.documents + 1)[:part]
        start = HEAD.size + sum(_KINDS[one].itemsize * size for one, size in enumerate(counts))
        values = np.empty(count, _KINDS[part])
        if fill(handle, start + first * values.itemsize, values.view(np.uint8)):
            raise self.refuse("is shorter than when it was opened", f"byte {start}")
        return values


def open_pair(file: InputFile) -> Pair:
    """Return a data set, once the beginning of its index was read."""
    if file.is_stream:
        problem = "is a stream, and a data set of Megatron is two files"
        raise InputError(file.name, problem, remedy="give their path")
    with closing(open_input(file)) as handle:
        byte_count, path = handle.stamp.size, file.path
    if file.companions:
        index = file.companions[0]
    elif path is None:
        name = f"{file.name.removesuffix('.bin')}.idx"
        raise InputError(file.name, f"is given without its index {name}", remedy="give that, too")
    else:
        path = path.with_suffix(".idx")
        index = file._replace(name=str(path), path=path)
    try:
        handle = open_input(index)
    except InputError as error:
        problem = f"its index {index.name} cannot be read: {error.problem}"
        raise InputError(file.name, problem, remedy="put it beside the file") from error
    with closing(handle):
        return _read_head(Pair(file, index, byte_count, 0, 0, 0, False, 0), handle)


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
        problem = f"has {size:,} bytes, which do not fit {sequences:,} sequences and {ends:,} ends"
        raise pair.refuse(problem, "byte 18")
    pair = pair._replace(code=code, sequences=sequences, documents=ends - 1, has_modes=rest > 0)
    first, last = (int(pair.read(handle, _ENDS, at)[0]) for at in (0, ends - 1))
    if (first, last) != (0, sequences):
        raise pair.refuse(f"has {sequences:,} sequences, and documents of {first:,} to {last:,}", "byte 18")
    if not sequences:
        return pair
    length, pointer = (int(pair.read(handle, part, sequences - 1)[0]) for part in (_LENGTHS, _POINTERS))
    width, size = np.dtype(CODES[code]).itemsize, pair.byte_count
    end, other_width = pointer + length * width, 12 - width  # if that of a float is exchanged
    if CODES[code].startswith("float") and end != size == pointer + length * other_width:
        problem = f"has type {code}, {CODES[code]}, and tokens of {other_width} bytes: other writers exchange types 6 and 7"
        raise pair.refuse(problem, "byte 17", f"set that byte to {13 - code}")
    if end > size:
        problem = f"is cut off: it has {size:,} bytes, and its last sequence ends at {end:,}"
        raise InputError(pair.file.name, problem, remedy=_DAMAGED)
    return pair._replace(last_end=end)


class MegatronDecoder(TableDecoder):
    """Decodes the documents of one layout."""

    def __init__(self, layout: MegatronLayout, names: Sequence[str]) -> None:
        self._names, self._is_plain = names, layout.is_plain
        self._dtypes = {"tokens": layout.dtype}
        self._dtypes |= {} if layout.is_plain else {"lengths": LENGTH}
        self._dtypes |= {"modes": MODE} if layout.has_modes else {}
        kinds = {name: pa.large_list(pa.from_numpy_dtype(dtype)) for name, dtype in self._dtypes.items()}
        super().__init__(pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()]))

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        if not self._is_plain:
            return
        _, offsets = view_records(batch.column(1))
        wrong = np.flatnonzero(np.diff(offsets) != LENGTH.itemsize)
        if wrong.size:
            count = int(np.diff(offsets)[wrong[0]]) // LENGTH.itemsize
            problem = f"this document has {count} sequences, and the index as many sequences as documents, so a table has no place for that"
            name, place = self._names[input_index], f"row {first_row + int(wrong[0])}"
            raise InputError(name, problem, place=place, remedy="keep the format of the inputs")

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for name, kind in zip(self.schema.names, self.schema.types, strict=True):
            (data, offsets), dtype = view_records(batch.column(name)), self._dtypes[name]
            numbers = np.ascontiguousarray(data).view(dtype).astype(dtype.newbyteorder("="), copy=False)
            edges = pa.array(offsets // dtype.itemsize)
            arrays.append(pa.LargeListArray.from_arrays(edges, pa.array(numbers), type=kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
