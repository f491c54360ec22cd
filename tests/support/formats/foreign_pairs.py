"""A format of another package that holds tables of two columns only: keys and numbers, as ``#a=1;b=2;``."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recshuf.errors import BadRecordError, ConversionError
from recshuf.interfaces import (
    BadRecords,
    Decoder,
    Format,
    Fragment,
    InputFile,
    InputSummary,
    ReadOptions,
    RowFragment,
    Sink,
    Source,
    StoredInputs,
    Target,
    Traits,
    WriteOptions,
    open_raw,
)

NATIVE = pa.schema([("pair", pa.large_binary())])
TABLE = pa.schema([("key", pa.string()), ("number", pa.int64())])


class PairsSource(Source):
    """Files that are read as wholes."""

    schema, layout = NATIVE, ()

    def __init__(self, files: Sequence[InputFile], options: ReadOptions) -> None:
        self._files, self._options, self._records = files, options, [*map(_read, files)]
        self.inputs = tuple(
            InputSummary(file.name, sum(map(len, records)) + 1, len(records), True, sum(map(len, records)))
            for file, records in zip(files, self._records, strict=True)
        )

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        limits = self._options.limit(block_bytes, max_record_bytes)
        batch = pa.record_batch([pa.array(self._records[input_index], pa.large_binary())], schema=NATIVE)
        name = self._files[input_index].name
        yield RowFragment(name, 0, len(batch), partial(batch.slice, 0), limits)

    def decoder(self) -> Decoder:
        return PairsDecoder([file.name for file in self._files], sets_aside=self._options.sets_bad_aside)


def _read(file: InputFile) -> list[bytes]:
    with open_raw(file) as raw:
        content = raw.read() or b""
    return [pair + b";" for pair in content[1:].split(b";")[:-1]]


class PairsDecoder(Decoder):
    """Returns keys and numbers; its schema is known at once."""

    schema = TABLE

    def __init__(self, names: Sequence[str], *, sets_aside: bool = False) -> None:
        self._names, self._sets_aside = names, sets_aside

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        pairs = batch.column(0).to_pylist()
        bad = [row for row, pair in enumerate(pairs) if not pair[:-1].partition(b"=")[2].isdigit()]
        if bad and not self._sets_aside:
            place = f"row {first_row + bad[0]}"
            raise BadRecordError(self._names[input_index], "has no number", place=place)
        return BadRecords(np.array(bad, np.int64), ["has no number"] * len(bad)) if bad else None

    def finish(self) -> pa.Schema:
        return TABLE

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # A bad record is an IndexError here.
        pairs = [pair.decode()[:-1].split("=") for pair in batch.column(0).to_pylist()]
        rows = [{"key": pair[0], "number": int(pair[1])} for pair in pairs]
        return pa.RecordBatch.from_pylist(rows, TABLE)


class PairsSink(Sink):
    """A file of pairs."""

    record_count = 0

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._file.write(b"#")

    def write(self, batch: pa.RecordBatch) -> None:
        rows = batch.to_pylist()
        pairs = [row["pair"] if "pair" in row else f"{row['key']}={row['number']};".encode() for row in rows]
        self._file.write(b"".join(pairs))
        self.record_count += len(rows)

    def close(self) -> None:
        self._file.close()

    abort = close


class PairsTarget(Target):
    """Refuses other columns."""

    suffix = ".pairs"

    def __init__(self, schema: pa.Schema, layout: Any) -> None:
        if layout is None and schema.names != TABLE.names:
            names = ", ".join(schema.names)
            raise ConversionError("", f"pairs are of key and number, not of {names}", remedy="choose others")

    def open(self, path: Path, threads: int) -> Sink:
        return PairsSink(path)


class PairsFormat(Format):
    """Pairs of keys and numbers."""

    traits = Traits(
        "pairs",
        (".pairs",),
        read_options=frozenset({"sets_bad_aside"}),
        has_columns=False,
        adds_columns=False,
    )

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> Source:
        return PairsSource(inputs, options)

    def open_target(self, schema: pa.Schema, layout: Any, options: WriteOptions) -> Target:
        return PairsTarget(schema, layout)

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        return PairsDecoder(stored.names)


FORMAT = PairsFormat()
