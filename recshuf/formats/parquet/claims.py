"""Key-value metadata that other tools store, without what a shuffle or another schema makes untrue.

All other metadata are the user's, and are kept as they are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable


PANDAS, HUGGING_FACE, GEO = b"pandas", b"huggingface", b"geo"
# Record keys and Bloom filters of one file (Hudi), its row groups (Petastorm), how it was cut into pages.
_OF_ONE_FILE = (
    b"hoodie_",
    b"org.apache.hudi.",
    b"dataset-toolkit.num_row_groups_per_file",
    b"dataset-toolkit.rowgroups_index",
    b"content_defined_chunking",
)
_HUGGING_FACE_COUNTS = (
    "splits",
    "download_checksums",
    "download_size",
    "post_processing_size",
    "dataset_size",
    "size_in_bytes",
)
SCHEMA_COPIES = (
    b"org.apache.spark.sql.parquet.row.metadata",
    b"parquet.avro.schema",
    b"avro.schema",
    b"iceberg.schema",
    b"parquet.proto.descriptor",
    b"thrift.descriptor",
)


@dataclass(frozen=True, slots=True)
class RangeIndex:
    """The index of a pandas data frame, stored as a range in place of a column."""

    name: str
    """Name of the column that it becomes."""
    start: int
    step: int

    def values(self, first_row: int, rows: int) -> pa.Array:
        return pa.array(self.start + self.step * np.arange(first_row, first_row + rows, dtype=np.int64))


def settle(schema: pa.Schema, rows: int) -> tuple[pa.Schema, RangeIndex | None]:
    """Return the schema of a file of so many rows without claims on order, counts and extents, and the index of pandas.

    There is an index if it is a range that says more than the row number: one with a name, another start or step.
    """
    metadata = {
        key: value
        for key, value in (schema.metadata or {}).items()
        if key != b"ARROW:schema" and not key.startswith(_OF_ONE_FILE)
    }
    index = _settle_pandas(metadata, schema.names, rows)
    _edit(metadata, HUGGING_FACE, _drop_counts)
    _edit(metadata, GEO, _drop_extents)
    return schema.with_metadata(metadata or None), index


def merge(first: dict[bytes, bytes] | None, other: dict[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    """Return the metadata of the first of several files, less claims that may not hold for another one."""
    if first is None or first.get(GEO) == (other or {}).get(GEO):
        return first
    merged = dict(first)

    def drop_types(content: dict[str, Any]) -> None:
        for facts in content["columns"].values():
            facts["geometry_types"] = []  # any type may occur

    _edit(merged, GEO, drop_types)
    return merged


def settle_copies(metadata: dict[bytes, bytes] | None, first: pa.Schema, final: pa.Schema) -> pa.Schema:
    """Return the schema `final` with metadata that were stored with the schema `first`.

    If the schemas differ, copies of `first` are left out, and what pandas notes of columns that differ.
    """
    kept = dict(metadata or {})
    if not final.equals(first):
        kept = {key: value for key, value in kept.items() if key not in SCHEMA_COPIES}
        same = {field.name for field in final if field in list(first)}

        def drop_columns(pandas: dict[str, Any]) -> None:
            columns, index = pandas["columns"], pandas["index_columns"]
            pandas["columns"] = [
                column for column in columns if column.get("field_name", column["name"]) in same
            ]
            pandas["index_columns"] = [level for level in index if level in final.names]

        _edit(kept, PANDAS, drop_columns)
    return final.with_metadata(kept or None)


def _edit(metadata: dict[bytes, bytes], key: bytes, change: Callable[[dict[str, Any]], None]) -> None:
    try:
        content = json.loads(metadata[key])
        before = json.dumps(content)
        change(content)
    except (KeyError, ValueError, TypeError, AttributeError):
        return
    after = json.dumps(content)
    if after != before:
        metadata[key] = after.encode()


def _drop_counts(content: dict[str, Any]) -> None:
    content.pop("fingerprint", None)
    for key in _HUGGING_FACE_COUNTS:
        content.get("info", {}).pop(key, None)


def _drop_extents(content: dict[str, Any]) -> None:
    for column in content["columns"].values():
        column.pop("bbox", None)


def _settle_pandas(metadata: dict[bytes, bytes], names: list[str], rows: int) -> RangeIndex | None:
    """Take ranges out of the index that pandas notes, or replace one by the name of its column, and return that."""
    indices: list[RangeIndex] = []

    def replace_ranges(content: dict[str, Any]) -> None:
        levels: list[Any] = []
        for level in content["index_columns"]:
            if not isinstance(level, dict):
                levels.append(level)
            elif (index := _find_index(level, names, rows)) is not None and not indices:
                content["columns"].append(_describe(level["name"], index.name))
                levels.append(index.name)
                indices.append(index)
        content["index_columns"] = levels

    _edit(metadata, PANDAS, replace_ranges)
    return indices[0] if indices else None


def _find_index(level: dict[str, Any], names: list[str], rows: int) -> RangeIndex | None:
    """Return a range as an index; None if it is the row number, or does not fit the rows, as pandas ignores it then."""
    name, start, step = level["name"], level["start"], level["step"]
    is_row_number = name is None and (start, step) == (0, 1)
    if is_row_number or level["kind"] != "range" or len(range(start, level["stop"], step)) != rows:
        return None
    column = "__index_level_0__" if name is None or str(name) in names else str(name)
    return None if column in names else RangeIndex(column, start, step)


def _describe(name: object, column: str) -> dict[str, Any]:
    kind = "int64"
    return {"name": name, "field_name": column, "pandas_type": kind, "numpy_type": kind, "metadata": None}
