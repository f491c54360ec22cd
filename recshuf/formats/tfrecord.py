"""TFRecord: a record is the payload of a frame. Frames are kept byte for byte, and their checksums are checked when they are read.

A frame::

    |length, 8 bytes|CRC of these, 4|payload ......... |CRC of the payload, 4|

A CRC is CRC32C, rotated and raised ("masked"). Where a frame ends stands in its length alone, so that one thread walks from
frame to frame; any thread checks payloads.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recshuf.errors import InputError, UsageError
from recshuf.formats.compression import COMPRESSIONS, recognise_compression
from recshuf.formats.lines.cutting import SCHEMA, view_records
from recshuf.formats.lines.files import BlockReader, CutFragment, FramedCutter
from recshuf.formats.lines.sink import LineTarget, check_values, take_values
from recshuf.formats.lines.source import LineLayout, LineSource
from recshuf.interfaces import BadRecords, Decoder, Format, TableDecoder, Traits
from recshuf.records.arrays import wrap_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.formats.lines.cutting import Bytes, Positions
    from recshuf.interfaces import Fragment, InputFile, ReadOptions, StoredInputs, WriteOptions


_HEAD = np.dtype([("length", "<u8"), ("checksum", "<u4")])
HEAD_BYTES, TAIL_BYTES = _HEAD.itemsize, 4
FRAME_BYTES = HEAD_BYTES + TAIL_BYTES
_LENGTH = struct.Struct("<Q")
_MASK = 0xA282EAD8
_POLYNOMIAL = np.uint32(0x82F63B78)
COLUMN = "record"
_TABLE = pa.schema([pa.field(COLUMN, pa.large_binary(), nullable=False)])
_ZLIB = "zlib"
_AGAIN = "copy or write the file again"


def _make_table() -> NDArray[np.uint32]:
    """Return what each byte adds to a CRC."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * _POLYNOMIAL
    return table


_CRCS = _make_table()


def mask(crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return CRCs as files hold them."""
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(_MASK)


def checksum_lengths(lengths: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return the masked CRCs of lengths.

    >>> hex(checksum_lengths(np.array([5], np.uint64))[0])
    '0x3e04b2ea'
    """
    crcs = np.full(lengths.size, 0xFFFFFFFF, np.uint32)
    for part in np.array(lengths, "<u8")[:, None].view(np.uint8).T:
        crcs = _CRCS[(crcs ^ part) & 0xFF] ^ (crcs >> 8)
    return mask(~crcs)


def find_checksum() -> Callable[[bytes], int]:
    """Return the function for the CRC of a payload."""
    try:
        from google_crc32c import value
    except ImportError as error:
        problem = "TFRecord needs the package google-crc32c"
        raise UsageError(f"{problem}; install it with pip install 'recshuf[tfrecord]'") from error
    checksum: Callable[[bytes], int] = value
    return checksum


def checksum_payloads(data: bytes, begins: Positions, ends: Positions) -> NDArray[np.uint32]:
    """Return the masked CRCs of payloads; one call for each is the cheapest way there is."""
    checksum = find_checksum()
    bounds = zip(begins.tolist(), ends.tolist(), strict=True)
    crcs = (checksum(data[begin:end]) for begin, end in bounds)
    return mask(np.fromiter(crcs, np.uint32, begins.size))


def _take(data: Bytes, begins: Positions, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values of a type at some places."""
    parts = np.lib.stride_tricks.sliding_window_view(data, dtype.itemsize)[begins]
    return np.ascontiguousarray(parts).view(dtype)[:, 0]


def find_bad_payloads(data: Bytes, offsets: Positions) -> Positions:
    """Return the ascending positions, among frames, of those with another payload than was written."""
    ends = offsets[1:] - TAIL_BYTES
    found = checksum_payloads(data.tobytes(), offsets[:-1] + HEAD_BYTES, ends)
    return np.flatnonzero(_take(data, ends, found.dtype.newbyteorder("<")) != found)


def walk(data: Bytes) -> tuple[Positions, int]:
    """Return the ends of whole frames, and the first byte of the frame whose length is damaged, -1 if none is.

    The lengths of frames that are not whole are looked at, too.
    """
    found, end, view, unpack = list[int](), 0, data.data, _LENGTH.unpack_from
    add, last = found.append, data.size - HEAD_BYTES
    while end <= last:
        add(end)
        end += unpack(view, end)[0] + FRAME_BYTES
    begins = np.array(found, np.int64)
    if not begins.size:
        return begins, -1
    ends = np.append(begins[1:], min(end, data.size + 1))
    heads = _take(data, begins, _HEAD)
    damaged = begins[heads["checksum"] != checksum_lengths(heads["length"])]
    return ends[ends <= data.size], int(damaged[0]) if damaged.size else -1


class FrameFragment(CutFragment):
    """Frames, whose payloads it compares with their checksums."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        offsets = np.append(0, self._ends)
        bad = find_bad_payloads(self._data, offsets)
        if bad.size:
            problem = "the payload of the record that starts here is damaged: its checksum differs"
            remedy = "--on-bad-record quarantine:FILE sets such records aside"
            raise self._limit.refuse(self._position + int(offsets[bad[0]]), problem, remedy)
        yield from super().batches()


class FrameReader(BlockReader):
    """Cuts bytes into blocks of whole frames."""

    _ends: Positions
    """Those of the frames of a block."""

    def _find_stop(self, data: Bytes) -> int:
        self._ends, damaged = walk(data)
        if damaged >= 0:
            problem = "the length of the record that starts here is damaged: its checksum differs"
            remedy = f"{_AGAIN}, as nothing tells where the next record begins"
            raise self._limit.refuse(self._position + damaged, problem, remedy)
        return int(self._ends[-1]) if self._ends.size else 0

    def _end(self, data: Bytes, stop: int, filled: int) -> tuple[int, int]:  # noqa: ARG002 - as of any bytes
        if stop < filled:
            problem = "the record that starts here is cut off: the file is truncated"
            raise self._limit.refuse(self._position + stop, problem, _AGAIN)
        return stop, filled

    def _make_fragment(self, *block: Any) -> Iterator[Fragment]:
        # Where bad records are set aside, the decoder checks them.
        yield (CutFragment if self._cutter.options.sets_bad_aside else FrameFragment)(self._ends, *block)


def _begins_frame(head: bytes) -> bool:
    heads = np.frombuffer(head[:HEAD_BYTES], _HEAD) if len(head) >= HEAD_BYTES else np.empty(0, _HEAD)
    return bool((heads["checksum"] == checksum_lengths(heads["length"])).any())


class FrameCutter(FramedCutter):
    """Finds the frames of an input, and estimates their number."""

    def recognise_compression(self, head: bytes) -> str:
        # A zlib stream begins with a number that is a multiple of 31; its first byte may be that of a length.
        if head[:1] == b"\x78" and not int.from_bytes(head[:2], "big") % 31 and not _begins_frame(head):
            return _ZLIB
        return recognise_compression(head)

    def check_head(self, name: str, head: bytes) -> None:
        if head and not _begins_frame(head):
            problem = "is no TFRecord: the length of its first record has another checksum"
            raise InputError(name, problem, place="byte 0", remedy=f"check --format, or {_AGAIN}")

    def find_ends(self, data: Bytes, begin: int) -> Iterator[Positions]:
        yield walk(data[begin:])[0] + begin


class FrameSource(LineSource):
    """Inputs of TFRecord."""

    spans_lines = True
    reader_type = FrameReader

    def __init__(self, files: Sequence[InputFile], options: ReadOptions) -> None:
        find_checksum()
        super().__init__(files, options, FrameCutter(options))
        if self.compression == _ZLIB:
            self.compression = "gzip"
            self.layout = replace(self.layout, compression="gzip")
            self.notes += (f"{self.inputs[0].name} is compressed with zlib; shards are compressed with gzip",)

    def reading_bytes(self, block_bytes: int) -> int:
        return super().reading_bytes(block_bytes) + 4 * block_bytes  # a copy, and the places of short records

    def decoder(self) -> Decoder:
        return FrameDecoder(self.options)

    def checker(self) -> Decoder:
        return FrameDecoder(self.options, SCHEMA)


class FrameDecoder(TableDecoder):
    """Turns frames into a column of their payloads; given the schema of frames, it only tells those whose payload is damaged."""

    def __init__(self, options: ReadOptions, schema: pa.Schema = _TABLE) -> None:
        super().__init__(schema)
        self._sets_bad_aside = options.sets_bad_aside

    def table_bytes(self, record_count: int, native_bytes: int) -> int:
        return native_bytes + record_count

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:  # noqa: ARG002
        if not self._sets_bad_aside or not batch.num_rows:
            return None
        bad = find_bad_payloads(*view_records(batch.column(0)))
        return BadRecords(bad, ["its checksum differs"] * bad.size) if bad.size else None

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.schema is SCHEMA:
            return batch
        payloads = pc.binary_slice(batch.column(0), HEAD_BYTES, -TAIL_BYTES)
        return pa.RecordBatch.from_arrays([payloads], schema=_TABLE)


def _encode(batch: pa.RecordBatch) -> pa.LargeBinaryArray:
    kind, values = pa.large_binary(), take_values(batch, "TFRecord")
    data, offsets = view_records(values)
    heads = np.empty(len(values), _HEAD)
    heads["length"] = np.diff(offsets)
    heads["checksum"] = checksum_lengths(heads["length"])
    tails = checksum_payloads(data.tobytes(), offsets[:-1], offsets[1:]).astype("<u4")
    before, behind = (
        wrap_values(part, pa.binary(size)).cast(kind)
        for part, size in ((heads, HEAD_BYTES), (tails, TAIL_BYTES))
    )
    return pc.binary_join_element_wise(before, values, behind, pa.scalar(b"", kind))


class TFRecordFormat(Format):
    """TFRecord."""

    traits = Traits(
        "tfrecord",
        (".tfrecord", ".tfrecords", ".tfrec"),
        COMPRESSIONS,
        libraries=("zstandard",),
        is_lines=True,
        has_columns=False,
        adds_columns=False,
        is_framed=True,
        checks_records=True,
        content_rank=1,
    )
    layout_types = (LineLayout,)

    def recognises(self, head: bytes) -> bool:
        return _begins_frame(head)

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> FrameSource:
        return FrameSource(inputs, options)

    def open_target(self, schema: pa.Schema, layout: Any, options: WriteOptions) -> LineTarget:
        suffix = self.traits.suffixes[0]
        if layout is not None:
            return LineTarget(suffix, layout, options, None)
        check_values(schema, "TFRecord")
        find_checksum()
        return LineTarget(suffix, None, options, _encode)

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        return FrameDecoder(stored.options)


FORMAT = TFRecordFormat()
