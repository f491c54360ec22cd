"""Tables that a caller holds, as if pyarrow had written them to a Parquet file."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.parquet as pq

from recshuf.formats.parquet.dictionaries import widen_indices
from recshuf.formats.parquet.plan import ParquetLayout
from recshuf.formats.parquet.source import ParquetSource
from recshuf.formats.parquet.types import child_fields, held_type, is_extension, is_ordered, with_children
from recshuf.interfaces import InputFile, ReadOptions
from recshuf.records.arrays import is_any_list

if TYPE_CHECKING:
    from io import RawIOBase

    from recshuf.interfaces import Handle, HeldTables


class _File:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def open(self) -> Handle:
        raise NotImplementedError("the Parquet adapter reads raw files")

    def open_raw(self) -> RawIOBase:
        return cast("RawIOBase", io.BytesIO(self._content))

    def find_stamp(self) -> None:
        """Return None: it does not change."""


def make_layout(tables: HeldTables, kept: object | None) -> ParquetLayout:
    """Return the layout of tables, and of files among them with the layout `kept`, whose storage counts."""
    fields = [field.with_type(_write_type(field.type)) for field in tables.schema]
    schema = pa.schema(fields, tables.schema.metadata)
    layout = kept if isinstance(kept, ParquetLayout) else _measure(tables)
    storage = dict(zip(layout.schema.names, layout.storage, strict=True))
    orders = {layout.schema.names[index]: values for index, values in layout.categories.items()}
    categories = {
        index: _join(orders.get(field.name), tables.dictionaries.get(index))
        for index, field in enumerate(schema)
        if is_ordered(field.type)
    }
    return replace(
        layout,
        schema=schema if kept is None else widen_indices(schema),
        storage=tuple(storage.get(name, ()) for name in schema.names),
        categories=categories,
    )


def _write_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as it is read again: in units of Parquet, and with the names that it prescribes for values of lists."""
    kind = held_type(kind)
    if not pa.types.is_nested(kind) or is_extension(kind):
        return kind
    children = [child.with_type(_write_type(child.type)) for child in child_fields(kind)]
    if is_any_list(kind):
        children = [children[0].with_name("element")]
    return with_children(kind, children)


def _join(values: pa.Array | None, more: pa.Array | None) -> pa.Array:
    known = [each for each in (values, more) if each is not None]
    return pa.chunked_array([each.cast(known[0].type) for each in known]).unique()


def _measure(tables: HeldTables) -> ParquetLayout:
    """Return the layout of a file of the first rows; without storage, if there are no rows, or Parquet has no such types."""
    layout = ParquetLayout(tables.schema, ((),) * len(tables.schema), 0, 0, {}, has_page_checksums=False)
    if not tables.head.num_rows:
        return layout
    content = io.BytesIO()
    with suppress(pa.ArrowException):
        pq.write_table(tables.head, content)
        file = InputFile("tables", None, opener=_File(content.getvalue()))
        found = cast("ParquetLayout", ParquetSource([file], ReadOptions()).layout)
        rows = max(tables.row_count, tables.head.num_rows)
        share = min(rows, found.row_group_rows) / min(tables.head.num_rows, found.row_group_rows)
        return replace(found, sink_bytes=int(found.sink_bytes * share))
    return layout
