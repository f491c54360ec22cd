"""Columns, and parts of them, that hold no values in a file: their types give way to those of other files.

A writer of partitions gives some type to a column that has no values in one of them: double in pandas, null in Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.formats.parquet.annotations import with_marks_of
from recshuf.formats.parquet.file import explained
from recshuf.formats.parquet.pages import check_pages, list_chunks
from recshuf.formats.parquet.types import child_fields, is_extension, with_children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow.parquet as pq

    from recshuf.formats.parquet.file import OpenFile
    from recshuf.formats.parquet.footer import Footer


_BATCH_ROWS = 1 << 14


def known_schema(file: OpenFile, footer: Footer, memory_bytes: int | None) -> pa.Schema:
    """Return the schema of the records of a file, with type null, at any depth, for what has no values."""
    groups = [group for group, rows in enumerate(footer.group_rows) if rows]
    fields = list(footer.declared.record_schema)
    for column, field in enumerate(fields):
        if not groups:
            fields[column] = field.with_type(pa.null())
        elif column < len(footer.schema) and _may_lack_values(file, footer, groups, column):
            for group in groups:
                check_pages(file, group, footer.leaves([column]), memory_bytes)
            batches = file.batches(groups, footer.leaves([column]), _BATCH_ROWS)
            fields[column] = field.with_type(_known_type(field.type, (batch.column(0) for batch in batches)))
    return pa.schema(fields)


def _may_lack_values(file: OpenFile, footer: Footer, groups: list[int], column: int) -> bool:
    leaves = footer.leaves([column])
    lacking = set(leaves)
    for group in groups:
        with explained(footer.name, f"row group {group}"):
            chunks = list_chunks(file, group, leaves)
        lacking -= {leaf for leaf, chunk in zip(leaves, chunks, strict=True) if _has_values(chunk)}
    return bool(lacking)


def _has_values(chunk: pq.ColumnChunkMetaData) -> bool:
    statistics = chunk.statistics
    return bool(statistics and statistics.has_null_count and statistics.null_count < chunk.num_values)


def _known_type(kind: pa.DataType, arrays: Iterable[pa.Array]) -> pa.DataType:
    known: pa.DataType = pa.null()
    for array in arrays:
        known = _join(known, _known_in(array))
        if known == kind:
            break
    return known


def _known_in(array: pa.Array) -> pa.DataType:
    kind = array.type
    if array.null_count == len(array):
        return pa.null()
    if is_extension(kind) or not (children := child_fields(kind)):
        return kind
    if pa.types.is_struct(kind):
        parts = array.flatten()
    elif pa.types.is_map(kind):
        parts = [array.keys, array.items]
    else:
        parts = [array.flatten()]
    pairs = zip(children, parts, strict=True)
    return with_children(kind, [child.with_type(_known_in(part)) for child, part in pairs])


def _join(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_null(left) or left == right:
        return right
    if pa.types.is_null(right) or not (children := child_fields(left)):
        return left
    pairs = zip(children, child_fields(right), strict=True)
    return with_children(left, [one.with_type(_join(one.type, other.type)) for one, other in pairs])


def fill_types(declared: pa.Schema, known: pa.Schema, union: pa.Schema) -> pa.Schema:
    """Return the declared schema of a file with the types of all files, which `union` knows, where it has no values."""
    fields = [
        _fill(field, known.field(place).type, union.field(union.get_field_index(field.name)))
        if union.names.count(field.name) == 1
        else field
        for place, field in enumerate(declared)
    ]
    return pa.schema(fields, metadata=declared.metadata)


def _fill(field: pa.Field, known: pa.DataType, union: pa.Field) -> pa.Field:
    if pa.types.is_null(known):
        return field if pa.types.is_null(union.type) else with_marks_of(field.with_type(union.type), union)
    ours, theirs = child_fields(field.type), child_fields(union.type)
    if is_extension(field.type) or not ours or not _are_alike(field.type, union.type):
        return field
    find: Callable[[int, pa.Field], pa.Field] = lambda place, child: (  # noqa: E731 - shorter than a named closure
        next(other for other in theirs if other.name == child.name)
        if pa.types.is_struct(field.type)
        else theirs[place]
    )
    filled = [
        _fill(child, below.type, find(place, child))
        for place, (child, below) in enumerate(zip(ours, child_fields(known), strict=True))
    ]
    return field.with_type(with_children(field.type, filled))


def _are_alike(left: pa.DataType, right: pa.DataType) -> bool:
    return all(test(left) == test(right) for test in (pa.types.is_struct, pa.types.is_map))
