"""An in-memory format for driving the passes: rows in, small real files out, everything else adjustable.

    source = FakeSource([[b"a", b"b"], [b"c"]], fragment_rows=2, batch_rows=1)
    target = FakeTarget(source.schema)
    ...
    assert read_shard(folder / "0.fake") == [...]

A shard is a magic number, then each record after its length. A shard without its trailer was not closed.
"""

from __future__ import annotations

import struct
import threading
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from recshuf.errors import InputError
from recshuf.interfaces import (
    Decoder,
    Format,
    Fragment,
    InputFile,
    InputSummary,
    ReadOptions,
    Sink,
    Source,
    Target,
    Traits,
    WriteOptions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

MAGIC = b"FAKE"
TRAILER = b"\xff" * 8
TABLE_SCHEMA = pa.schema([("value", pa.binary())])


@dataclass(frozen=True)
class Shape:
    """How records look as a native batch: the passes take another route for each."""

    schema: pa.Schema
    wrap: Callable[[Sequence[bytes]], list[pa.Array]]
    unwrap: Callable[[pa.RecordBatch], list[bytes]]


def _first_column(batch: pa.RecordBatch) -> list[bytes]:
    return batch.column(0).to_pylist()


def make_lines_shape() -> Shape:
    """Return the shape of one `large_binary` column, as text has it."""
    schema = pa.schema([pa.field("record", pa.large_binary(), nullable=False)])
    return Shape(schema, lambda rows: [pa.array(rows, pa.large_binary())], _first_column)


def make_fixed_shape(width: int) -> Shape:
    """Return the shape of one `fixed_size_binary` column: every row has `width` bytes."""
    kind = pa.binary(width)
    schema = pa.schema([pa.field("record", kind, nullable=False)])
    return Shape(schema, lambda rows: [pa.array(rows, kind)], _first_column)


def make_mixed_shape() -> Shape:
    """Return the shape of a fixed and a variable column; unwrapping proves that they stayed aligned."""
    check_kind = pa.binary(4)
    schema = pa.schema(
        [pa.field("check", check_kind, nullable=False), pa.field("record", pa.large_binary(), nullable=False)]
    )

    def checks(rows: Sequence[bytes]) -> list[bytes]:
        return [zlib.crc32(row).to_bytes(4, "little") for row in rows]

    def unwrap(batch: pa.RecordBatch) -> list[bytes]:
        rows = batch.column(1).to_pylist()
        assert batch.column(0).to_pylist() == checks(rows), "columns of a record came apart"
        return rows

    return Shape(
        schema, lambda rows: [pa.array(checks(rows), check_kind), pa.array(rows, pa.large_binary())], unwrap
    )


def make_nested_shape() -> Shape:
    """Return a shape that is not plain binary, so that it travels as Arrow IPC."""
    kind = pa.struct([("value", pa.binary()), ("lengths", pa.list_(pa.int32()))])
    schema = pa.schema([pa.field("record", kind)])

    def wrap(rows: Sequence[bytes]) -> list[pa.Array]:
        return [pa.array([{"value": row, "lengths": [len(row)]} for row in rows], kind)]

    def unwrap(batch: pa.RecordBatch) -> list[bytes]:
        records = batch.column(0).to_pylist()
        assert all(record["lengths"] == [len(record["value"])] for record in records)
        return [record["value"] for record in records]

    return Shape(schema, wrap, unwrap)


class FakeFragment(Fragment):
    """Some rows of one input."""

    def __init__(
        self, source: FakeSource, first_row: int, batches: Sequence[Sequence[bytes]], counted: bool
    ) -> None:
        self._source = source
        self._batches = batches
        self.first_row = first_row
        self.record_count = sum(map(len, batches)) if counted else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        shape = self._source.shape
        for rows in self._batches:
            yield pa.RecordBatch.from_arrays(shape.wrap(rows), schema=shape.schema)


class FakeDecoder(Decoder):
    """Gives table form with one `binary` column, and remembers which rows it was shown."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._lock = threading.Lock()
        self._schema: pa.Schema | None = None
        self.observed: dict[tuple[int, int], bytes] = {}

    @property
    def schema(self) -> pa.Schema | None:
        return self._schema

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        rows = self._shape.unwrap(batch)
        with self._lock:
            self.observed.update({(input_index, first_row + k): row for k, row in enumerate(rows)})

    def finish(self) -> pa.Schema:
        self._schema = TABLE_SCHEMA
        return TABLE_SCHEMA

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        assert self._schema is not None, "decode before finish"
        return pa.RecordBatch.from_arrays(
            [pa.array(self._shape.unwrap(batch), pa.binary())], schema=TABLE_SCHEMA
        )


class FakeSource(Source):
    """Inputs given as lists of rows.

    Parameters
    ----------
    rows
        The records of each input.
    fragment_rows, batch_rows
        The most records in a fragment and in a batch; `block_bytes` may make both smaller.
    counted
        Whether fragments know their numbers of records and the summaries' counts are exact.
    estimate
        What the summaries' counts and bytes are multiplied with, to be wrong on purpose. Counts are then
        inexact.
    is_stream
        Whether the summaries know nothing, as those of standard input.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[bytes]],
        *,
        shape: Shape | None = None,
        fragment_rows: int = 1000,
        batch_rows: int = 100,
        counted: bool = True,
        estimate: float = 1.0,
        is_stream: bool = False,
    ) -> None:
        self.shape = shape or make_lines_shape()
        self.schema = self.shape.schema
        self.layout = "fake layout"
        self.rows = rows
        self.decoders: list[FakeDecoder] = []
        self._fragment_rows = fragment_rows
        self._batch_rows = batch_rows
        self._counted = counted
        self._estimate = estimate
        self.inputs = tuple(self._summarise(index, is_stream) for index in range(len(rows)))

    def _summarise(self, index: int, is_stream: bool) -> InputSummary:
        rows = self.rows[index]
        if is_stream:
            return InputSummary("standard input", None, None, record_count_is_exact=False, native_bytes=None)
        return InputSummary(
            name=f"input {index}",
            file_bytes=sum(map(len, rows)),
            record_count=round(len(rows) * self._estimate),
            record_count_is_exact=self._counted and self._estimate == 1.0,
            native_bytes=round(sum(len(row) + 8 for row in rows) * self._estimate),
        )

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[FakeFragment]:
        batches = self._cut_batches(input_index, block_bytes, max_record_bytes)
        # Without a count a fragment may hold one block only: one batch.
        per_fragment = max(1, self._fragment_rows // self._batch_rows) if self._counted else 1
        first_row = 0
        for start in range(0, len(batches), per_fragment):
            part = batches[start : start + per_fragment]
            yield FakeFragment(self, first_row, part, self._counted)
            first_row += sum(map(len, part))

    def _cut_batches(self, input_index: int, block_bytes: int, max_record_bytes: int) -> list[list[bytes]]:
        batches: list[list[bytes]] = []
        filled = 0
        limit = min(self._batch_rows, self._fragment_rows)
        for index, row in enumerate(self.rows[input_index]):
            if len(row) > max_record_bytes:
                name = self.inputs[input_index].name
                raise InputError(name, f"record longer than {max_record_bytes} bytes", place=f"row {index}")
            if not batches or len(batches[-1]) == limit or filled + len(row) > block_bytes:
                batches.append([])
                filled = 0
            batches[-1].append(row)
            filled += len(row)
        return batches

    def reading_bytes(self, block_bytes: int) -> int:
        return 2 * block_bytes

    def decoder(self) -> FakeDecoder:
        self.decoders.append(FakeDecoder(self.shape))
        return self.decoders[-1]


class FakeSink(Sink):
    """A shard of length-prefixed records; complains when two threads use it at once."""

    def __init__(
        self, stream: BinaryIO, unwrap: Callable[[pa.RecordBatch], list[bytes]], *, owned: bool
    ) -> None:
        self._stream = stream
        self._unwrap = unwrap
        self._owned = owned
        self._in_use = threading.Lock()
        self._is_open = True
        self._record_count = 0
        stream.write(MAGIC)

    @property
    def record_count(self) -> int:
        return self._record_count

    def write(self, batch: pa.RecordBatch) -> None:
        assert self._in_use.acquire(blocking=False), "two threads in one sink"
        try:
            assert self._is_open, "write after close"
            rows = self._unwrap(batch)
            self._stream.write(b"".join(part for row in rows for part in (struct.pack("<Q", len(row)), row)))
            self._record_count += len(rows)
        finally:
            self._in_use.release()

    def close(self) -> None:
        if self._is_open:
            self._stream.write(TRAILER)
            self._stream.flush()
            self._release()

    def abort(self) -> None:
        if self._is_open:
            self._release()

    def _release(self) -> None:
        self._is_open = False
        if self._owned:
            self._stream.close()


class FakeTarget(Target):
    """Opens fake shards, for native batches of a shape or, without one, for table form."""

    suffix = ".fake"

    def __init__(self, shape: Shape | None = None) -> None:
        self._unwrap = shape.unwrap if shape else _first_column
        self.opened: list[tuple[Path, int]] = []

    def sink_bytes(self, threads: int) -> int:
        return 1 << 16

    def open(self, path: Path, threads: int) -> FakeSink:
        self.opened.append((path, threads))
        return FakeSink(path.open("xb"), self._unwrap, owned=True)

    def open_stream(self, stream: BinaryIO, threads: int) -> FakeSink:
        return FakeSink(stream, self._unwrap, owned=False)


class FakeFormat(Format):
    """Hands out a prepared source, whatever the inputs are; its shards are fake shards."""

    traits = Traits("fake", (".fake",))

    def __init__(self, source: FakeSource) -> None:
        self.source = source

    def recognises(self, head: bytes) -> bool:
        return head.startswith(MAGIC)

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> FakeSource:
        assert len(inputs) == len(self.source.rows)
        return self.source

    def open_target(self, schema: pa.Schema, layout: object | None, options: WriteOptions) -> FakeTarget:
        return FakeTarget(self.source.shape if layout is not None else None)


def read_shard(path: Path) -> list[bytes]:
    """Return the records of a completed shard, in order."""
    content = path.read_bytes()
    assert content.startswith(MAGIC), f"{path} is no fake shard"
    assert content.endswith(TRAILER), f"{path} was not closed"
    rows, place, end = [], len(MAGIC), len(content) - len(TRAILER)
    while place < end:
        (length,) = struct.unpack_from("<Q", content, place)
        rows.append(content[place + 8 : place + 8 + length])
        place += 8 + length
    assert place == end
    return rows
