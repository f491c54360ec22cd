"""Shards of lines, encoded in pieces of a fixed size that does not depend on the calls of `write`."""

from __future__ import annotations

import errno
import os
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError
from recshuf.formats.compression import OUTPUT_SUFFIXES, open_encoder
from recshuf.formats.files import CHOOSE_ONE, MOST_LISTED, FileSink, shorten, write_all
from recshuf.formats.lines.cutting import view_records
from recshuf.interfaces import Target
from recshuf.system.files import BehindFile
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from recshuf.formats.compression.encoders import PieceEncoder
    from recshuf.formats.lines.source import LineLayout
    from recshuf.interfaces import WriteOptions

    Encode = Callable[[pa.RecordBatch], pa.LargeBinaryArray]

TYPES = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())
_GATHERED_BYTES = 1 << 18
_ENCODED_BYTES = 4 << 20
_ENCODED_PART = 6  # memory of encoding a table, in sizes of the table


def check_values(schema: pa.Schema, owner: str) -> None:
    """Raise `ConversionError` unless a table form is one column that `take_values` takes, for a format of this name."""
    kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
    if len(kinds) != 1 or kinds[0] not in TYPES:
        given = shorten([f"{one.name!r} of {one.type}" for one in schema], most=MOST_LISTED) or "none"
        problem = f"{owner} holds one column of strings or bytes, not {given}"
        remedy = f"{CHOOSE_ONE}, or write Parquet or JSONL"
        raise ConversionError(schema.names[0] if schema.names else "", problem, remedy=remedy)


def take_values(batch: pa.RecordBatch, owner: str) -> pa.LargeBinaryArray:
    """Return the values of a table of one column of strings or bytes; a format of this name has no nulls."""
    column = batch.column(0)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        problem = f"{owner} cannot hold nulls"
        raise ConversionError(batch.schema.names[0], problem, remedy="write JSONL or Parquet")
    return column.cast(pa.large_binary())


class Output:
    """What bytes are appended to: a new file, or a stream of the caller, which stays open and whose other end nobody can check.

    Small writes are joined.
    """

    def __init__(self, stream: BinaryIO | BehindFile, path: Path | None) -> None:
        self._stream, self.path, self._byte_count = stream, path, 0
        self._gathered = bytearray()

    def write(self, view: memoryview) -> None:
        self._byte_count += len(view)
        if len(view) >= _GATHERED_BYTES:
            self._flush()
            write_all(self._stream, view)
            return
        self._gathered += view
        if len(self._gathered) >= _GATHERED_BYTES:
            self._flush()

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, bytearray()
        write_all(self._stream, gathered)

    def finish(self) -> None:
        """Write what is gathered, and check that a file has as many bytes as were written: no other process wrote to it."""
        self._flush()
        if self.path is None:
            return
        size = os.fstat(self._stream.fileno()).st_size
        if size != self._byte_count:
            problem = f"holds {size} bytes after {self._byte_count} were written"
            raise OSError(errno.EIO, problem, str(self.path))

    def stop(self) -> None:
        """Do nothing: there are no threads."""

    def close(self) -> None:
        if self.path is None:
            self._stream.flush()
        else:
            self._stream.close()


class EncodedWriter:
    """Cuts bytes into the encoder's pieces, encodes several at once, and writes them in order.

    The memory of a written piece is reused: new memory costs as much as the copy into it.
    """

    def __init__(self, output: Output, encoder: PieceEncoder, threads: int) -> None:
        self._output = output
        self._encoder = encoder
        self._threads = threads
        self._pool = Pool(threads, "encode") if threads > 1 else None
        self._encoded: deque[tuple[Future[bytes], memoryview]] = deque()
        self._spare: list[memoryview] = []
        self._piece = self._take_piece()
        self._filled = 0
        self._output.write(memoryview(encoder.begin()))

    def write(self, view: memoryview) -> None:
        while view:
            size = min(self._encoder.piece_bytes - self._filled, len(view))
            self._piece[self._filled : self._filled + size] = view[:size]
            self._filled += size
            view = view[size:]
            if self._filled == self._encoder.piece_bytes:
                self._encode_piece()

    def _take_piece(self) -> memoryview:
        return self._spare.pop() if self._spare else np.empty(self._encoder.piece_bytes, np.uint8).data

    def _encode_piece(self) -> None:
        encode = self._encoder.prepare(self._piece[: self._filled])
        self._filled = 0
        if self._pool is None:
            self._output.write(memoryview(encode()))
            return
        self._encoded.append((self._pool.submit(encode), self._piece))
        if len(self._encoded) > self._threads:
            self._write_encoded()
        self._piece = self._take_piece()

    def _write_encoded(self) -> None:
        encoded, piece = self._encoded.popleft()
        self._output.write(memoryview(encoded.result()))
        self._spare.append(piece)

    def finish(self) -> None:
        if self._filled:
            self._encode_piece()
        while self._encoded:
            self._write_encoded()
        self._output.write(memoryview(self._encoder.end()))
        self._output.finish()

    def stop(self) -> None:
        """Stop the threads and drop the pieces not written yet."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


class LineSink(FileSink):
    """One shard of lines."""

    def __init__(
        self, files: ExitStack, output: Output, writer: Output | EncodedWriter, encode: Encode | None
    ) -> None:
        super().__init__(files)
        self._output, self._writer, self._encode = output, writer, encode

    def write(self, batch: pa.RecordBatch) -> None:
        if self._encode is None:
            self._write_lines(batch.column(0))
            return
        # In parts, so that the lines of a large batch are never all in memory.
        part_count = -(-batch.nbytes // _ENCODED_BYTES) or 1
        row_count = -(-batch.num_rows // part_count) or 1
        for first in range(0, batch.num_rows, row_count):
            self._write_lines(self._encode(batch.slice(first, row_count)))

    def _write_lines(self, lines: pa.LargeBinaryArray) -> None:
        data, _ = view_records(lines)
        self._writer.write(data.data)
        self._count += len(lines)

    def _complete(self) -> None:
        self._writer.finish()


class LineTarget(Target):
    """Shards of lines.

    The layout is that of inputs of the same format; the options may name another compression. `encode` turns a batch into lines;
    None for native batches, which are lines already.
    """

    sink_type: type[LineSink] = LineSink

    def __init__(
        self, suffix: str, layout: LineLayout | None, options: WriteOptions, encode: Encode | None
    ) -> None:
        self._drop_page_cache = options.drop_page_cache
        self._compression = options.compression or (layout.compression if layout else "none")
        self._level = options.compression_level
        self._header = layout.header if layout else b""
        self._encode = encode
        self._encoder = open_encoder(self._compression, self._level)
        self.suffix = suffix + OUTPUT_SUFFIXES[self._compression]

    def sink_bytes(self, threads: int) -> int:
        lines_bytes = _ENCODED_PART * _ENCODED_BYTES if self._encode else 0
        if self._encoder is None:
            return lines_bytes + 2 * _GATHERED_BYTES
        # One piece is being filled and one waits while as many as there are threads are encoded.
        return lines_bytes + 2 * self._encoder.piece_bytes + threads * self._encoder.piece_memory

    def open(self, path: Path, threads: int) -> LineSink:
        return self._open(
            Output(BehindFile(path, "xb", drop_page_cache=self._drop_page_cache), path), threads
        )

    def open_stream(self, stream: BinaryIO, threads: int) -> LineSink:
        return self._open(Output(stream, None), threads)

    def _open(self, output: Output, threads: int) -> LineSink:
        with ExitStack() as files:
            files.callback(output.close)
            encoder = open_encoder(self._compression, self._level)
            writer = output if encoder is None else EncodedWriter(output, encoder, threads)
            files.callback(writer.stop)
            writer.write(memoryview(self._header))
            return self.sink_type(files, output, writer, self._encode)
