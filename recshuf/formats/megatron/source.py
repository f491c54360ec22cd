"""Data sets of Megatron as a source: the index is read in parts, each of which says which documents are read together."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats.megatron import CODES
from recshuf.formats.megatron.index import END, LENGTH, MegatronLayout, Part, fill, open_pair
from recshuf.formats.megatron.table import MegatronDecoder
from recshuf.interfaces import InputSummary, RowFragment, Source, open_input

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.formats.megatron.index import Pair
    from recshuf.interfaces import BatchLimits, Decoder, Fragment, Handle, InputFile, ReadOptions


_DOCUMENTS, _SEQUENCES = 1 << 14, 1 << 16
"""So many are looked at together, or the sequences of one document."""
_INDEX_BYTES = 8 << 20
_OFFSET_BYTES = 8


class MegatronSource(Source):
    """All inputs of a run."""

    def __init__(self, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        self._options = options
        self._pairs = [open_pair(file) for file in inputs]
        filled = [pair for pair in self._pairs if pair.sequences] or self._pairs[:1]
        for pair in self._pairs:
            _check_same(filled[0], pair)
        is_plain = all(pair.sequences == pair.documents for pair in self._pairs)
        self.layout: MegatronLayout = MegatronLayout(filled[0].code, filled[0].has_modes, is_plain)
        self.schema = self.layout.schema
        self.inputs = tuple(
            InputSummary(pair.file.name, pair.byte_count, pair.documents, True, self._estimate(pair))
            for pair in self._pairs
        )
        self.notes = tuple(
            f"{pair.file.name}: {pair.byte_count - pair.last_end:,} bytes behind the last sequence of its index are left out"
            for pair in self._pairs
            if pair.last_end < pair.byte_count
        )

    def _estimate(self, pair: Pair) -> int:
        """Return the bytes of native records, if no sequence lies in another one or is left out."""
        offsets_bytes = _OFFSET_BYTES * len(self.schema) * pair.documents
        return pair.byte_count + self.layout.sequence_bytes * pair.sequences + offsets_bytes

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        pair, limits = self._pairs[input_index], self._options.limit(block_bytes, max_record_bytes)
        handle = open_input(pair.beside)
        try:
            for first in range(0, pair.documents, _DOCUMENTS):
                ends = pair.read(handle, Part.ENDS, first, min(_DOCUMENTS, pair.documents - first) + 1)
                wrong = np.flatnonzero((np.diff(ends) < 0) | (ends[1:] > pair.sequences) | (ends[:-1] < 0))
                if wrong.size:
                    row = int(wrong[0])
                    problem = f"has sequences {int(ends[row]):,} to {int(ends[row + 1]):,} in a document"
                    raise pair.refuse(problem, f"row {first + row}")
                for begin, stop in _cut(ends, _SEQUENCES):
                    yield from self._cut(pair, handle, first + begin, ends[begin : stop + 1], limits)
        finally:
            handle.close()

    def _cut(
        self, pair: Pair, handle: Handle, first: int, ends: NDArray[Any], limits: BatchLimits
    ) -> Iterator[Fragment]:
        start, edges = int(ends[0]), ends - ends[0]
        sizes = self.layout.sequence_bytes * np.diff(edges)
        _check_sizes(pair, first, sizes, limits)  # before so many lengths are read
        count = int(edges[-1])
        lengths, pointers, modes = (
            pair.read(handle, part, start, count if part != Part.MODES or pair.has_modes else 0)
            for part in (Part.LENGTHS, Part.POINTERS, Part.MODES)
        )
        widths = lengths.astype(np.int64) * self.layout.dtype.itemsize
        wrong = np.flatnonzero((lengths < 0) | (pointers < 0) | (pointers > pair.byte_count - widths))
        if wrong.size:
            at = int(wrong[0])
            problem = f"has a sequence of {int(lengths[at]):,} tokens at byte {int(pointers[at]):,} of {pair.byte_count:,}"
            raise pair.refuse(problem, f"row {first + int(np.searchsorted(edges, at, 'right')) - 1}")
        sizes += np.diff(np.append(0, np.cumsum(widths))[edges]) + _OFFSET_BYTES * len(self.schema)
        _check_sizes(pair, first, sizes, limits)
        for begin, stop in _cut(np.append(0, np.cumsum(sizes)), limits.block_bytes):
            part = slice(int(edges[begin]), int(edges[stop]))
            arrays = (lengths[part], pointers[part], modes[part])
            read = partial(self._read, pair, first + begin, edges[begin : stop + 1] - edges[begin], *arrays)
            yield RowFragment(pair.file.name, first + begin, stop - begin, read, limits)

    def _read(
        self,
        pair: Pair,
        row: int,
        edges: NDArray[Any],
        lengths: NDArray[Any],
        pointers: NDArray[Any],
        modes: NDArray[Any],
    ) -> pa.RecordBatch:
        """Return documents; `edges` says which of the sequences each has."""
        places = np.append(0, np.cumsum(lengths, dtype=np.int64)) * self.layout.dtype.itemsize
        data = np.empty(places[-1], np.uint8)
        # Sequences that lie one behind the other are read at once.
        gaps = np.flatnonzero(np.diff(pointers) != np.diff(places[:-1])) + 1
        handle = open_input(pair.file)
        try:
            for begin, stop in pairwise([0, *gaps.tolist(), lengths.size] if lengths.size else []):
                if fill(handle, int(pointers[begin]), data[places[begin] : places[stop]]):
                    raise InputError(pair.file.name, "is shorter than when it was opened", place=f"row {row}")
        finally:
            handle.close()
        parts = [(data, places[edges]), (lengths.astype(LENGTH), edges * LENGTH.itemsize), (modes, edges)]
        columns = [
            pa.Array.from_buffers(
                pa.large_binary(),
                len(edges) - 1,
                [None, pa.py_buffer(offsets.astype(END)), pa.py_buffer(np.ascontiguousarray(values))],
            )
            for values, offsets in parts[: len(self.schema)]
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def skips_fragments(self, input_index: int) -> bool:  # noqa: ARG002 - the index of each says where its documents are
        return True

    def reading_bytes(self, block_bytes: int) -> int:
        return 2 * block_bytes + _INDEX_BYTES

    def decoder(self) -> Decoder:
        return MegatronDecoder(self.layout, [one.name for one in self.inputs])


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
