"""An order-free digest of records, made without recshuf: equal for two files with the same records in any order.

    python -m benchmarks.digest lines big.jsonl
    python -m benchmarks.digest table folder/

prints the number of records and the sum of their 128-bit hashes. A table is Parquet, JSONL or CSV; what differs only in type
(a string or a large one, nullable or not) counts as equal, since every library writes its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

BLOCK_BYTES = 16 << 20
BATCH_ROWS = 50_000
ARRAY_ROWS = 1024


def digest(kind: str, path: Path) -> str:
    """Return number and sum of the hashes of all records of a file or of all files in a folder."""
    count = total = 0
    for file in sorted(path.rglob(f"*{SUFFIXES[kind]}")) if path.is_dir() else [path]:
        for records in READERS[kind](file):
            hashes = list(map(xxhash.xxh3_128_intdigest, records))
            count += len(hashes)
            total += sum(hashes)
    return f"{count} records {total % (1 << 128):032x}"


def read_lines(path: Path) -> Iterator[list[bytes]]:
    """Yield the lines of a file; the last one's newline may be missing."""
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            block += stream.readline()
            yield block.removesuffix(b"\n").split(b"\n")


def read_table(path: Path) -> Iterator[list[bytes]]:
    """Yield the rows of a table, each as one text."""
    for batch in read_batches(path):
        columns = [make_text(batch.column(name)) for name in sorted(batch.schema.names)]
        rows = pc.binary_join_element_wise(*columns, pa.scalar("\x1f", pa.large_string()))
        yield rows.cast(pa.large_binary()).to_pylist()


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in batches."""
    if path.suffix == ".parquet":
        yield from pq.ParquetFile(path).iter_batches(BATCH_ROWS)
        return
    with pa.input_stream(path, compression="detect") as stream:
        if path.suffix == ".csv":
            yield from pyarrow.csv.open_csv(stream, pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES))
            return
        yield from pyarrow.json.open_json(stream, pyarrow.json.ReadOptions(block_size=BLOCK_BYTES))


def make_text(column: pa.Array) -> pa.LargeStringArray:
    """Return each value as text, floats by their bits; null and text are told apart."""
    if pa.types.is_nested(column.type):
        column = pc.binary_join(column.cast(pa.list_(pa.string())), "\x1e")
    elif pa.types.is_floating(column.type):
        column = column.cast(pa.float64()).view(pa.int64())
    return pc.fill_null(column.cast(pa.large_string()), "\x1d")


def read_arrays(path: Path) -> Iterator[list[bytes]]:
    """Yield the rows of all datasets of an HDF5 file."""
    with h5py.File(path) as file:
        names = sorted(file)
        for start in range(0, len(file[names[0]]), ARRAY_ROWS):
            parts = [view_rows(file[name][start : start + ARRAY_ROWS]) for name in names]
            yield list(map(bytes, np.concatenate(parts, axis=1)))


def view_rows(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of an array, a row for each of its rows."""
    return np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)


READERS = {"lines": read_lines, "table": read_table, "arrays": read_arrays}
SUFFIXES = {"lines": ".jsonl", "table": ".parquet", "arrays": ".h5"}
"""Of the files in a folder; what else lies there holds no records."""


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("kind", type=click.Choice(list(READERS)))
@click.argument("path", type=click.Path(path_type=Path, exists=True))
def main(kind: str, path: Path) -> None:
    """Print the digest."""
    click.echo(digest(kind, path))


if __name__ == "__main__":
    main()
