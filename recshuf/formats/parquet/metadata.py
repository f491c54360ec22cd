"""What a Parquet file says beside its records, in the metadata of its schema and of its fields, and how shards get it.

Keys of other tools are kept without what a shuffle or another schema makes untrue. All others are the user's, and are kept as
they are.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.dataclass import dataclass
from recshuf.formats.meaning import SCHEMA_COPIES, Weight, describe, find_inside, flatten, is_counted, weigh
from recshuf.formats.parquet.annotations import GROUP, OWN
from recshuf.formats.parquet.types import is_extension, name_children, walk, with_children
from recshuf.interfaces import MetadataKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    _Said = tuple[tuple[str, ...], str, Any]


_COLUMNS = {"huggingface": ("info", "features"), "geo": ("columns",)}
"""Keys of the footer that say something of each column, and where; their names begin those of what they say."""
_OF_TYPES = ("_type", "dtype", "id", "length", "shape", "decode", "num_classes")
"""What features of Hugging Face say of the types of columns, or derive from the rest."""
_EXTENSION = "ARROW:extension:name"
"""What says of a field that it has an extension type, unless Arrow knows the type."""
_OF_GEOMETRIES = ("geometry_types", "bbox", "covering")
"""What the metadata of a geometry claims of the records of its file."""
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
_MOST_LEVELS = 64


def read_metadata(schema: pa.Schema, kept: Collection[str] | None = None) -> dict[MetadataKey, str]:
    """Return what a schema says; of columns, only of those that are kept, unless all are."""
    columns = {name for name in schema.names if kept is None or name in kept}
    values: dict[MetadataKey, str] = {}
    for field in schema:
        if field.name in columns:
            for path, inner in walk(field, (field.name,)):
                if is_extension(inner.type):
                    values[MetadataKey("field", path, _EXTENSION)] = _describe_extension(inner.type)
                for key, value in (inner.metadata or {}).items():
                    if key not in (OWN, GROUP) and is_counted(_decode(key)):
                        values[MetadataKey("field", path, _decode(key))] = describe(_parse(value))
    for key, value in (schema.metadata or {}).items():
        content = _parse(value)
        values |= _read_footer(key, content)
        if key == HUGGING_FACE:
            values |= _read_columns(content, "huggingface", columns, _walk_feature)
        elif key == GEO:
            values |= _read_columns(content, "geo", columns, _walk_geometry)
    return values


def _describe_extension(kind: pa.BaseExtensionType) -> str:
    serialize = getattr(kind, "__arrow_ext_serialize__", bytes)
    return describe(f"{kind} {_parse(serialize()) or ''}")


def _read_footer(key: bytes, content: Any) -> Iterator[tuple[MetadataKey, str]]:
    if key == GEO:
        return
    if key == PANDAS:  # else it describes columns, as the schema does
        content = {"attributes": find_inside(content, ("attributes",))}
    if key == HUGGING_FACE and isinstance(info := find_inside(content, ("info",)), dict):
        content = {**content, "info": {name: value for name, value in info.items() if name != "features"}}
    is_copy = key in SCHEMA_COPIES
    walk_content, least = (_walk_copy, Weight.LABELS) if is_copy else (flatten, Weight.LITTLE)
    for path, value in walk_content(content, (_decode(key),)):
        if value is not None and weigh(path[-1]) >= least:
            yield MetadataKey("footer", path[:-1], path[-1]), describe(value)


def _walk_copy(content: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what Spark says of columns in a copy of the schema; names and types of columns follow the schema."""
    if isinstance(content, list) and len(path) < _MOST_LEVELS:
        for column in content:
            if isinstance(column, dict) and "name" in column:
                yield from _walk_copy(column, (*path, str(column["name"])))
    elif isinstance(content, dict) and len(path) < _MOST_LEVELS:
        for key, part in content.items():
            yield from (flatten if key == "metadata" else _walk_copy)(part, (*path, key))


def _read_columns(
    content: Any, key: str, columns: Collection[str], walk: Callable[[Any, tuple[str, ...]], Iterator[_Said]]
) -> Iterator[tuple[MetadataKey, str]]:
    found = find_inside(content, _COLUMNS[key])
    for column, inner in found.items() if isinstance(found, dict) else ():
        if column in columns:
            for path, name, value in walk(inner, (column,)):
                if value is not None and is_counted(name):
                    yield MetadataKey("field", path, f"{key}/{name}"), describe(value)


def _walk_feature(feature: Any, path: tuple[str, ...]) -> Iterator[_Said]:
    """Yield path, name and value of what a feature of Hugging Face says beside its type, also within others."""
    if isinstance(feature, list):
        feature = {str(index): inner for index, inner in enumerate(feature)}
    if not isinstance(feature, dict):
        return
    is_group = not isinstance(feature.get("_type"), str)
    for name, value in feature.items():
        if is_group or name == "feature":
            yield from _walk_feature(value, (*path, name))
        elif name not in _OF_TYPES:
            yield path, name, value


def _walk_geometry(geometry: Any, path: tuple[str, ...]) -> Iterator[_Said]:
    for name, value in geometry.items() if isinstance(geometry, dict) else ():
        if name not in _OF_GEOMETRIES:
            yield path, name, value


def adopt(schema: pa.Schema, taken: Mapping[MetadataKey, pa.Schema]) -> pa.Schema:
    metadata: dict[bytes, bytes] = dict(schema.metadata or {})
    fields = list(schema)
    for key, origin in taken.items():
        given = origin.metadata or {}
        head, slash, name = key.name.partition("/")
        if key.owner == "footer":
            _adopt_inside(metadata, given, (*key.path, key.name))
        elif slash and head in _COLUMNS:
            _adopt_inside(metadata, given, (head, *_COLUMNS[head], *key.path, name))
        else:
            encoded = _encode(key.name)
            column = walk(origin.field(key.path[0]), key.path[:1])
            value = next((inner.metadata or {}).get(encoded) for path, inner in column if path == key.path)
            if value is None:
                continue  # an extension that Arrow knows is in the type
            index = schema.names.index(key.path[0])
            fields[index] = _with_value(fields[index], key.path[1:], encoded, value)
    return pa.schema(fields, metadata=metadata or None)


def _adopt_inside(metadata: dict[bytes, bytes], given: Mapping[bytes, bytes], path: tuple[str, ...]) -> None:
    """Take over a value, or the part of a JSON object at the end of a path; all around it that is missing comes along."""
    key, *inside = path
    encoded = _encode(key)
    if not inside:
        metadata[encoded] = given[encoded]
        return
    content, other = _parse(metadata.get(encoded, b"{}")), _parse(given[encoded])
    whole = content
    for part in inside[:-1]:
        if find_inside(content, (part,)) is None:
            inside = [part]
            break
        content, other = find_inside(content, (part,)), find_inside(other, (part,))
    content[inside[-1]] = find_inside(other, (inside[-1],))
    metadata[encoded] = json.dumps(whole).encode()


def _with_value(field: pa.Field, path: tuple[str, ...], key: bytes, value: bytes) -> pa.Field:
    if not path:
        return field.with_metadata({**(field.metadata or {}), key: value})
    pairs = name_children(field.type)
    changed = [
        _with_value(child, path[1:], key, value) if name == path[0] else child for name, child in pairs
    ]
    return field.with_type(with_children(field.type, changed))


def _encode(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _decode(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _parse(value: bytes) -> Any:
    """Return JSON as values, and anything else as text."""
    with suppress(ValueError, RecursionError):
        return json.loads(value)
    return value


@dataclass(frozen=True, slots=True)
class RangeIndex:
    """The index of a pandas data frame, stored as a range in place of a column."""

    name: str
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
        places = first.get_all_field_indices
        same = {field.name for field in final if field in map(first.field, places(field.name))}

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
