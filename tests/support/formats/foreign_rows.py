"""A format of another package: streams of Arrow between two marks. It imports nothing of recshuf but its public interface.

Files are read as wholes, which real ones would be too large for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from recshuf.errors import InputError
from recshuf.interfaces import (
    Decoder,
    Format,
    Fragment,
    InputFile,
    InputSummary,
    ReadOptions,
    RowBuffer,
    RowFragment,
    Sink,
    Source,
    StoredInputs,
    TableDecoder,
    Target,
    Traits,
    WriteOptions,
    open_input,
)

MAGIC, END = b"ROWSFILE", b"ROWS END"
_BATCH_ROWS = 1000


@dataclass(frozen=True)
class RowsLayout:
    """What shards keep of their inputs."""

    metadata: dict[bytes, bytes]

    def header(self) -> bytes:
        """Return how a file begins; no lines that `verify` compares, as a field of bytes would be."""
        return MAGIC


class RowsSource(Source):
    """Files of one schema."""

    def __init__(self, files: Sequence[InputFile], options: ReadOptions) -> None:
        self._files = tuple(files)
        self._limit = options.limit
        summaries = []
        for number, file in enumerate(files):
            schema, batches, size = _read(file)
            if number == 0:
                self.schema = schema
            if not schema.equals(self.schema, check_metadata=True):
                raise InputError(file.name, f"has another schema than {files[0].name}")
            native_bytes = sum(batch.nbytes for batch in batches)
            rows = sum(batch.num_rows for batch in batches)
            summaries.append(InputSummary(file.name, size, rows, True, native_bytes))
        self.inputs = tuple(summaries)
        self.layout = RowsLayout(dict(self.schema.metadata or {}))

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        file, first_row = self._files[input_index], 0
        for batch in _read(file)[1]:
            yield RowFragment(
                file.name,
                first_row,
                batch.num_rows,
                partial(batch.slice, 0),
                self._limit(block_bytes, max_record_bytes),
            )
            first_row += batch.num_rows

    def reading_bytes(self, block_bytes: int) -> int:
        return block_bytes + max(summary.file_bytes or 0 for summary in self.inputs)

    def decoder(self) -> Decoder:
        return TableDecoder(self.schema)


def _read(file: InputFile) -> tuple[pa.Schema, list[pa.RecordBatch], int]:
    """Return schema and batches of a file, and its size."""
    handle = open_input(file)
    try:
        if handle.take_stream() is not None:
            raise InputError(file.name, "is a stream, and a file of rows is read from its end")
        size = handle.stamp.size
        content = handle.read_at(0, size)
        if not content.startswith(MAGIC) or not content.endswith(END):
            raise InputError(file.name, "is no file of rows, or cut off")
        with pa.ipc.open_stream(pa.py_buffer(content[len(MAGIC) :])) as reader:
            return reader.schema, list(reader), size
    except (pa.ArrowException, OSError) as error:
        raise InputError(file.name, f"is no file of rows: {error}") from error
    finally:
        handle.close()


class RowsSink(Sink):
    """A file of batches of equally many rows."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = path.open("xb")
        self._schema = schema
        self._file.write(MAGIC)
        self._writer = pa.ipc.new_stream(self._file, schema)
        self._buffer = RowBuffer(schema, _BATCH_ROWS)
        self._written = 0

    @property
    def record_count(self) -> int:
        return self._written

    def write(self, batch: pa.RecordBatch) -> None:
        for table in self._buffer.add(batch.replace_schema_metadata(self._schema.metadata)):
            self._write(table)

    def _write(self, table: pa.Table) -> None:
        # Copied, because of a slice the writer pads texts in another way.
        self._writer.write_table(table.take(pa.array(range(table.num_rows), pa.int64())))
        self._written += table.num_rows

    def close(self) -> None:
        if not self._file.closed:
            self._write(self._buffer.rest())
            self._writer.close()
            self._file.write(END)
            self._file.close()

    def abort(self) -> None:
        self._file.close()


class RowsTarget(Target):
    """Shards of one schema."""

    suffix = ".rows"

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def sink_bytes(self, threads: int) -> int:
        return 4 << 20

    def open(self, path: Path, threads: int) -> Sink:
        return RowsSink(path, self._schema)


class RowsFormat(Format):
    """A stream of Arrow between two marks."""

    traits = Traits(
        "rows",
        (".rows", ".rws"),
        libraries=("pyarrow",),
        native_is_table=True,
        content_rank=10,
    )
    layout_types = (RowsLayout,)

    def recognises(self, head: bytes) -> bool:
        return head.startswith(MAGIC)

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> Source:
        return RowsSource(inputs, options)

    def open_target(self, schema: pa.Schema, layout: object | None, options: WriteOptions) -> Target:
        return RowsTarget(schema.with_metadata(layout.metadata) if isinstance(layout, RowsLayout) else schema)

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        return TableDecoder(stored.schema)


FORMAT = RowsFormat()
