"""Tools of the Parquet tests: short ways to read and write files, and to look into them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import recshuf
from recshuf.formats.parquet import FORMAT
from recshuf.interfaces import InputFile, Joined, ReadOptions, Source, WriteOptions

BLOCK = 1 << 20
LONGEST = 1 << 30
READS_NULL_VECTORS = int(pa.__version__.split(".")[0]) >= 26


def open_source(
    *paths: Path, partitions: Sequence[tuple[tuple[str, str], ...]] = (), **options: Any
) -> Source:
    pairs = partitions or [()] * len(paths)
    files = [InputFile(path.name, path, partitions=own) for path, own in zip(paths, pairs, strict=True)]
    return FORMAT.open_source(files, ReadOptions(**options))


def read_alone(source: Source, index: int = 0, block_bytes: int = BLOCK, longest: int = LONGEST) -> pa.Table:
    fragments = source.fragments(index, block_bytes, longest)
    batches = [batch for fragment in fragments for batch in fragment.batches()]
    return pa.Table.from_batches(batches, schema=source.schema)


def read_all(source: Source, block_bytes: int = BLOCK, longest: int = LONGEST) -> pa.Table:
    return pa.concat_tables(
        read_alone(source, index, block_bytes, longest) for index in range(len(source.inputs))
    )


def read_joined(
    source: Source, first: int = 0, block_bytes: int = BLOCK, longest: int = BLOCK
) -> Joined | None:
    return source.read_joined(range(first, len(source.inputs)), block_bytes, longest)


def write_all(
    source: Source,
    path: Path,
    *,
    options: WriteOptions | None = None,
    batches: Sequence[pa.RecordBatch] | None = None,
    threads: int = 1,
) -> Path:
    target = FORMAT.open_target(source.schema, source.layout, options or WriteOptions())
    with target.open(path, threads) as sink:
        for batch in read_all(source).to_batches() if batches is None else batches:
            sink.write(batch)
    return path


def convert(table: pa.Table, path: Path, cuts: Sequence[int] = (), threads: int = 1) -> Path:
    with FORMAT.open_target(table.schema, None, WriteOptions()).open(path, threads) as sink:
        for batch in cut(table, cuts):
            sink.write(batch)
    return path


def cut(table: pa.Table, cuts: Sequence[int]) -> list[pa.RecordBatch]:
    edges = sorted({0, table.num_rows, *(each % (table.num_rows + 1) for each in cuts)})
    return [
        batch for start, stop in pairwise(edges) for batch in table.slice(start, stop - start).to_batches()
    ]


def shuffled(*paths: Path, **options: Any) -> Path:
    """Return the output of a shuffle of these files, beside them and verified."""
    output = paths[0].parent / "out.parquet"
    recshuf.shuffle(list(paths), output, **{"seed": 1, "verify": True, "overwrite": True} | options)
    return output


def store(path: Path, columns: dict[str, Any] | pa.Table, **options: Any) -> Path:
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options)
    return path


def load(path: Path) -> pa.Table:
    file = pq.ParquetFile(path, page_checksum_verification=True)
    # Old versions of pyarrow cannot read some files without row groups, but for their schema.
    return file.read() if file.num_row_groups else file.schema_arrow.empty_table()


def label(index: pa.DataType, value: pa.DataType | None = None, *, ordered: bool = False) -> pa.DataType:
    return pa.dictionary(index, value or pa.string(), ordered=ordered)


def chunk_of(path: Path, column: int = 0, group: int = 0) -> pq.ColumnChunkMetaData:
    return pq.read_metadata(path).row_group(group).column(column)


def group_rows(path: Path) -> list[int]:
    metadata = pq.read_metadata(path)
    return [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]


def page_places(path: Path, column: int = 0, group: int = 0) -> range:
    """Return the places of the data pages of a column chunk."""
    chunk = chunk_of(path, column, group)
    return range(chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size)


@contextmanager
def watched_memory() -> Iterator[pa.MemoryPool]:
    """Count the memory that Arrow takes meanwhile."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)
