r"""Data sets of Megatron: files that are read, and those that are written, of documents or of tables with lists of tokens.

The index, little-endian, of S sequences in N documents::

    |MMIDIDX\0\0|version, 8 bytes|type, 1|S, 8|N + 1, 8|lengths, 4 S|pointers, 8 S|document ends, 8 (N + 1)|modes, S or none|

A length counts tokens, a pointer bytes of the `.bin`. Document k has the sequences from end k up to end k + 1; end 0 is 0. The
index is read in parts, each of which says which documents are read together; what is written of it is kept on disk.
"""

from __future__ import annotations

import shutil
import struct
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.formats.files import CHOOSE_ONE, FileSink, FileTarget, check_regular, fill, stored_of, write_all
from recshuf.formats.lines.cutting import view_records
from recshuf.formats.megatron import CODES, MAGIC, TOKEN_TYPE
from recshuf.interfaces import InputSummary, RowFragment, Source, TableDecoder, open_input
from recshuf.records.arrays import cut_ranges, is_any_list, unwrap_numbers, wrap_bytes
from recshuf.system.files import BehindFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from recshuf.interfaces import BatchLimits, Handle, InputFile, ReadOptions, StoredInputs, WriteOptions


_DOCUMENTS, _SEQUENCES = 1 << 14, 1 << 16
"""So many are looked at together, or the sequences of one document."""
_INDEX_BYTES = 8 << 20
_OFFSET_BYTES = 8
_HEAD = struct.Struct("<9sQBQQ")
LENGTH, END, MODE = np.dtype("<i4"), np.dtype("<i8"), np.dtype("i1")
_LENGTHS, _POINTERS, _ENDS, _MODES = range(4)
_KINDS = (LENGTH, END, END, MODE)
"""Types of the entries of each part of an index, in their order."""
_DAMAGED = "copy or write both files again"


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


class Pair:
    """A `.bin` with its index, once the beginning of this was read."""

    def __init__(self, file: InputFile) -> None:
        check_regular(file, "Megatron")
        self.file, path = file, file.path
        with closing(open_input(file)) as handle:
            self.byte_count = handle.stamp.size
        if file.companions:
            self.beside = file.companions[0]
        elif path is None:
            name = f"{file.name.removesuffix('.bin')}.idx"
            raise InputError(file.name, f"is given without its index {name}", remedy="give that, too")
        else:
            path = path.with_suffix(".idx")
            self.beside = file._replace(name=str(path), path=path)
        try:
            handle = open_input(self.beside)
        except InputError as error:
            problem = f"its index {self.beside.name} cannot be read: {error.problem}"
            raise InputError(file.name, problem, remedy="put it beside the file") from error
        with closing(handle):
            self._read_head(handle)

    def _read_head(self, handle: Handle) -> None:
        head, size = handle.read_at(0, _HEAD.size), handle.stamp.size
        if len(head) < _HEAD.size or not head.startswith(MAGIC):
            raise self.refuse("does not begin as those of Megatron", "byte 0")
        _, version, self.code, self.sequences, ends = _HEAD.unpack(head)
        self.documents, rest = ends - 1, size - _HEAD.size - 12 * self.sequences - 8 * ends
        self.has_modes = rest > 0
        if version != 1:
            raise self.refuse(f"has version {version}, and only version 1 is known", "byte 9")
        if self.code not in CODES:
            raise self.refuse(f"has the type {self.code}, which Megatron does not have", "byte 17")
        if not ends or rest not in (0, self.sequences):
            sizes = f"{size:,} bytes, which do not fit {self.sequences:,} sequences and {ends:,} ends"
            raise self.refuse(f"has {sizes}", "byte 18")
        first, last = (int(self.read(handle, _ENDS, at)[0]) for at in (0, self.documents))
        if (first, last) != (0, self.sequences):
            problem = f"has {self.sequences:,} sequences, and documents of {first:,} to {last:,}"
            raise self.refuse(problem, "byte 18")
        self.last_end = self._find_last_end(handle) if self.sequences else 0

    def _find_last_end(self, handle: Handle) -> int:
        """Return where the last sequence ends in the `.bin`."""
        at, kind = self.sequences - 1, CODES[self.code]
        length, pointer = (int(self.read(handle, part, at)[0]) for part in (_LENGTHS, _POINTERS))
        width = np.dtype(kind).itemsize
        end, other_width = pointer + length * width, 12 - width  # if that of a float is exchanged
        if kind.startswith("float") and end != self.byte_count == pointer + length * other_width:
            problem = f"has type {self.code}, {kind}, and tokens of {other_width} bytes: other writers exchange types 6 and 7"
            raise self.refuse(problem, "byte 17", f"set that byte to {13 - self.code}")
        if end > self.byte_count:
            problem = f"is cut off: it has {self.byte_count:,} bytes, and its last sequence ends at {end:,}"
            raise InputError(self.file.name, problem, remedy=_DAMAGED)
        return end

    def refuse(self, problem: str, place: str, remedy: str = _DAMAGED) -> InputError:
        problem = f"its index {self.beside.name} {problem}"
        return InputError(self.file.name, problem, place=place, remedy=remedy)

    def read(self, handle: Handle, part: int, first: int, count: int = 1) -> NDArray[Any]:
        """Return entries of a part of the index."""
        counts = (self.sequences, self.sequences, self.documents + 1)[:part]
        start = _HEAD.size + sum(_KINDS[one].itemsize * size for one, size in enumerate(counts))
        values = np.empty(count, _KINDS[part])
        fill(handle, start + first * values.itemsize, values.view(np.uint8), self.beside.name)
        return values


class MegatronSource(Source):
    """All inputs of a run."""

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        self._options = options
        self._pairs = [*map(Pair, inputs)]
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

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[RowFragment]:
        pair, limits = self._pairs[input_index], self._options.limit(block_bytes, max_record_bytes)
        with closing(open_input(pair.beside)) as handle:
            for first in range(0, pair.documents, _DOCUMENTS):
                ends = pair.read(handle, _ENDS, first, min(_DOCUMENTS, pair.documents - first) + 1)
                wrong = np.flatnonzero((np.diff(ends) < 0) | (ends[1:] > pair.sequences) | (ends[:-1] < 0))
                if wrong.size:
                    row = int(wrong[0])
                    problem = f"has sequences {int(ends[row]):,} to {int(ends[row + 1]):,} in a document"
                    raise pair.refuse(problem, f"row {first + row}")
                # Checked before so many lengths are read.
                _check_sizes(pair, first, self.layout.sequence_bytes * ends, limits)
                for begin, stop in cut_ranges(ends, _SEQUENCES):
                    yield from self._cut(pair, handle, first + begin, ends[begin : stop + 1], limits)

    def _cut(
        self, pair: Pair, handle: Handle, first: int, ends: NDArray[Any], limits: BatchLimits
    ) -> Iterator[RowFragment]:
        start, edges = int(ends[0]), ends - ends[0]
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
        places = np.append(0, np.cumsum(widths + self.layout.sequence_bytes))[edges]
        places += self._offsets_bytes * np.arange(places.size)
        _check_sizes(pair, first, places, limits)
        for begin, stop in cut_ranges(places, limits.block_bytes):
            part = slice(int(edges[begin]), int(edges[stop]))
            parts = tuple(values[part] for values in (lengths, pointers, modes))
            read = partial(self._read, pair, edges[begin : stop + 1] - edges[begin], parts)
            yield RowFragment(pair.file.name, first + begin, stop - begin, read, limits)

    def _read(self, pair: Pair, edges: NDArray[Any], parts: tuple[NDArray[Any], ...]) -> pa.RecordBatch:
        """Return documents; `edges` says which each has of the sequences, whose lengths, pointers and modes are the parts."""
        lengths, pointers, modes = parts
        places = np.append(0, np.cumsum(lengths, dtype=np.int64)) * self.layout.dtype.itemsize
        data = np.empty(places[-1], np.uint8)
        # Sequences that lie one behind the other are read at once.
        gaps = np.flatnonzero(np.diff(pointers) != np.diff(places[:-1])) + 1
        with closing(open_input(pair.file)) as handle:
            for begin, stop in pairwise([0, *gaps.tolist(), lengths.size] if lengths.size else []):
                fill(handle, int(pointers[begin]), data[places[begin] : places[stop]], pair.file.name)
        columns = [(data, places[edges]), (lengths.astype(LENGTH), edges), (modes, edges)]
        return wrap_documents(columns, self.schema)

    def skips_fragments(self, input_index: int) -> bool:  # noqa: ARG002 - the index of each says where its documents are
        return True

    def reading_bytes(self, block_bytes: int) -> int:
        return 2 * block_bytes + _INDEX_BYTES

    def decoder(self) -> MegatronDecoder:
        return MegatronDecoder(stored_of(self))


def wrap_documents(parts: list[tuple[NDArray[Any], NDArray[Any]]], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of columns that each hold the bytes of items between edges; there may be more parts than columns."""
    columns = [
        wrap_bytes(np.ascontiguousarray(items), edges * items.itemsize)
        for items, edges in parts[: len(schema)]
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_sizes(pair: Pair, first: int, places: NDArray[Any], limits: BatchLimits) -> None:
    """Refuse a document that is too long; given are the bytes before each from row `first` on, and of all."""
    sizes = np.diff(places)
    row = int(sizes.argmax())
    limits.check(int(sizes[row]), pair.file.name, f"row {first + row}")


def _check_same(first: Pair, pair: Pair) -> None:
    ours, theirs = CODES[first.code], CODES[pair.code]
    if ours != theirs:
        problem = f"holds tokens of type {theirs}, and {first.file.name} of type {ours}"
        raise InputError(pair.file.name, problem, remedy="shuffle them apart, or write them with one type")
    if pair.sequences and first.has_modes != pair.has_modes:
        problem = f"has {'' if pair.has_modes else 'no '}modes of sequences, unlike {first.file.name}"
        raise InputError(pair.file.name, problem, remedy="shuffle them apart")


class MegatronDecoder(TableDecoder):
    """Decodes the documents of one layout."""

    def __init__(self, stored: StoredInputs) -> None:
        layout: MegatronLayout = stored.layout
        self._names, self._is_plain = stored.names, layout.is_plain
        dtypes = {"tokens": layout.dtype}
        dtypes |= {} if layout.is_plain else {"lengths": LENGTH}
        dtypes |= {"modes": MODE} if layout.has_modes else {}
        kinds = {name: pa.large_list(pa.from_numpy_dtype(dtype)) for name, dtype in dtypes.items()}
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
        columns = (wrap_bytes(*view_records(batch.column(name))) for name in self.schema.names)
        arrays = [*map(unwrap_numbers, columns, self.schema.types)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def find_layout(schema: pa.Schema, wanted: str | None) -> MegatronLayout:
    """Return the layout for tables: of one column of lists of numbers, or of those that records make."""
    is_known = "tokens" in schema.names and {*schema.names} <= {"tokens", "lengths", "modes"}
    if not is_known and len(schema) != 1:
        problem = f"megatron holds one column of tokens, and there are {len(schema)}"
        raise ConversionError("", problem, remedy=f"{CHOOSE_ONE}, or choose --to parquet")
    field = schema.field("tokens" if is_known else 0)
    if not is_any_list(field.type):
        problem = f"megatron holds lists of numbers, not {field.type}"
        raise ConversionError(field.name, problem, remedy="choose --to parquet")
    codes = {name: code for code, name in CODES.items()}
    said = str(field.type.value_type)
    name = wanted or {"float": "float32", "double": "float64"}.get(said, said)
    if name not in codes:
        problem = f"megatron does not hold tokens of type {name}"
        raise ConversionError(
            field.name, problem, remedy="give --token-type int32 or int64, or choose --to parquet"
        )
    return MegatronLayout(codes[name], "modes" in schema.names, "lengths" not in schema.names)


def encode(batch: pa.RecordBatch, layout: MegatronLayout) -> pa.RecordBatch:
    """Return rows of a table as native documents."""
    names = batch.schema.names
    tokens, ends = _flatten(batch, names.index("tokens") if "tokens" in names else 0, layout.dtype)
    lengths, edges = np.diff(ends).astype(LENGTH), np.arange(len(ends))
    if not layout.is_plain:
        lengths, edges = _flatten(batch, names.index("lengths"), LENGTH)
        if (lengths < 0).any() or (np.append(0, np.cumsum(lengths, dtype=np.int64))[edges] != ends).any():
            raise ConversionError("lengths", "are not those of the tokens", remedy="leave the column out")
    parts = [(tokens, ends), (lengths, edges)]
    if layout.has_modes:
        parts.append(_flatten(batch, names.index("modes"), MODE))
        if (parts[-1][1] != edges).any():
            raise ConversionError("modes", "are not one for each sequence", remedy="leave the column out")
    return wrap_documents(parts, layout.schema)


def _flatten(
    batch: pa.RecordBatch, place: int, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the numbers of a column of lists, and the edges of the lists among them."""
    name = batch.schema.names[place]
    try:
        column = batch.column(place).cast(pa.large_list(pa.from_numpy_dtype(dtype.newbyteorder("="))))
    except pa.ArrowInvalid as error:
        problem = f"is not of type {dtype.name}: {error}"
        raise ConversionError(
            name, problem, remedy="give another --token-type, or choose --to parquet"
        ) from error
    values = column.flatten()
    if column.null_count or values.null_count:
        raise ConversionError(name, "megatron holds no nulls", remedy="choose --to parquet")
    edges = column.offsets.to_numpy()
    return np.ascontiguousarray(values.to_numpy()).astype(dtype, copy=False), edges - edges[0]


def open_target(schema: pa.Schema, layout: MegatronLayout | None, options: WriteOptions) -> FileTarget:
    """Return the target for shards of one layout; without one, for tables with tokens of a type that may be wanted."""
    wanted = TOKEN_TYPE.of(options)
    if layout is not None and wanted is not None:
        raise UsageError(f"--token-type {wanted}: tokens of megatron inputs keep their type; leave it out")
    known = layout or find_layout(schema, wanted)
    target = FileTarget(".bin", partial(MegatronSink, layout=known, is_table=layout is None), 8 << 20)
    if layout is None and wanted is None and known.dtype == END:
        target.notes = (
            "tokens are written as int64; --token-type int32, or uint16 if all are below 65,536, takes less space",
        )
    return target


class MegatronSink(FileSink):
    """One data set being written.

    The index gets the lengths as they come. What stands behind all of them waits in files without a name: pointers, ends of
    documents, and modes.
    """

    def __init__(self, path: Path, layout: MegatronLayout, *, is_table: bool) -> None:
        self._layout, self._is_table, self._sequences, self._place = layout, is_table, 0, 0
        with ExitStack() as files:
            self._tokens = files.enter_context(BehindFile(path, "xb"))
            self._index = files.enter_context(path.with_suffix(".idx").open("xb"))
            self._index.write(bytes(_HEAD.size))
            self._waiting = [files.enter_context(TemporaryFile(dir=path.parent)) for _ in range(3)]
            self._waiting[1].write(bytes(END.itemsize))
            super().__init__(files)

    def write(self, batch: pa.RecordBatch) -> None:
        documents = encode(batch, self._layout) if self._is_table else batch
        (tokens, _), (lengths, offsets), *modes = map(view_records, documents.columns)
        write_all(self._tokens, tokens.data)
        self._index.write(lengths.data)
        sizes = lengths.view(LENGTH) * END.type(self._layout.dtype.itemsize)
        places = self._place + np.append(0, np.cumsum(sizes, dtype=END))
        ends = self._sequences + offsets[1:] // LENGTH.itemsize
        parts: list[NDArray[Any]] = [places[:-1].astype(END), ends.astype(END), *(part for part, _ in modes)]
        for file, part in zip(self._waiting, parts, strict=False):
            file.write(part.data)
        self._count += batch.num_rows
        self._sequences += sizes.size
        self._place = int(places[-1])

    def _complete(self) -> None:
        for file in self._waiting:
            file.seek(0)
            shutil.copyfileobj(file, self._index)
        self._index.seek(0)
        self._index.write(_HEAD.pack(MAGIC, 1, self._layout.code, self._sequences, self._count + 1))
