"""Tools of the Parquet tests: short ways to read and write files, and to look into them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from recshuf.formats.parquet import FORMAT
from recshuf.interfaces import InputFile, ReadOptions, Source, WriteOptions

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 1 << 20
LONGEST = 1 << 30


def open_source(*paths: Path, columns: tuple[str, ...] | None = None) -> Source:
    return FORMAT.open_source([InputFile(path.name, path) for path in paths], ReadOptions(columns=columns))


def read_all(source: Source, block_bytes: int = BLOCK, longest: int = LONGEST) -> pa.Table:
    batches = [
        batch
        for index in range(len(source.inputs))
        for fragment in source.fragments(index, block_bytes, longest)
        for batch in fragment.batches()
    ]
    return pa.Table.from_batches(batches, schema=source.schema)


def write_all(
    source: Source, path: Path, *, options: WriteOptions | None = None, table: pa.Table | None = None
) -> Path:
    target = FORMAT.open_target(source.schema, source.layout, options or WriteOptions())
    with target.open(path, 1) as sink:
        for batch in (read_all(source) if table is None else table).to_batches():
            sink.write(batch)
    return path


def convert(table: pa.Table, path: Path, cuts: list[int] | None = None) -> Path:
    with FORMAT.open_target(table.schema, None, WriteOptions()).open(path, 1) as sink:
        for batch in cut(table, cuts or []):
            sink.write(batch)
    return path


def cut(table: pa.Table, cuts: list[int]) -> list[pa.RecordBatch]:
    edges = sorted({0, table.num_rows, *(each % (table.num_rows + 1) for each in cuts)})
    return [
        batch for start, stop in pairwise(edges) for batch in table.slice(start, stop - start).to_batches()
    ]


def store(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def load(path: Path) -> pa.Table:
    file = pq.ParquetFile(path, page_checksum_verification=True)
    # Old versions of pyarrow cannot read some files without row groups, but for their schema.
    return file.read() if file.num_row_groups else file.schema_arrow.empty_table()


def holds_the_same(left: pa.Table, right: pa.Table) -> bool:
    """Compare values; those that do not equal themselves, NaN, as text."""
    return left.num_columns == right.num_columns and all(
        one.equals(other) or repr(one.to_pylist()) == repr(other.to_pylist())
        for one, other in zip(left.columns, right.columns, strict=True)
    )


def chunk_of(path: Path, column: int = 0, group: int = 0) -> pq.ColumnChunkMetaData:
    return pq.read_metadata(path).row_group(group).column(column)
