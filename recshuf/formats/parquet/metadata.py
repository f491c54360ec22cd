"""What a Parquet file says beside its records, in the metadata of its schema and of its fields, and how shards get it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from recshuf.formats.meaning import Weight, describe, find_inside, flatten, is_counted, weigh
from recshuf.formats.parquet.annotations import GROUP, OWN
from recshuf.formats.parquet.claims import GEO, HUGGING_FACE, PANDAS, SCHEMA_COPIES
from recshuf.formats.parquet.types import child_fields, is_extension, with_children
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


def read_metadata(schema: pa.Schema, kept: Collection[str] | None = None) -> dict[MetadataKey, str]:
    """Return what a schema says; of columns, only of those that are kept, unless all are."""
    columns = {name for name in schema.names if kept is None or name in kept}
    values: dict[MetadataKey, str] = {}
    for field in schema:
        if field.name in columns:
            for path, inner in _walk(field, field.name):
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
        content = (
            {"attributes": content["attributes"]}
            if isinstance(content, dict) and "attributes" in content
            else {}
        )
    if key == HUGGING_FACE and isinstance(info := find_inside(content, ("info",)), dict):
        content = {**content, "info": {name: value for name, value in info.items() if name != "features"}}
    for path, value in flatten(content, (_decode(key),)):
        # Copies of the schema follow its types.
        least = Weight.LABELS if key in SCHEMA_COPIES else Weight.LITTLE
        if value is not None and weigh(path[-1]) >= least:
            yield MetadataKey("footer", path[:-1], path[-1]), describe(value)


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
    """Return a schema with some of what others say."""
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
            value = next(
                (inner.metadata or {})[encoded]
                for path, inner in _walk(origin.field(key.path[0]), key.path[0])
                if path == key.path
            )
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
    children = child_fields(field.type)
    index = _name_children(field.type).index(path[0])
    children[index] = _with_value(children[index], path[1:], key, value)
    return field.with_type(with_children(field.type, children))


def _walk(
    field: pa.Field, name: str, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], pa.Field]]:
    """Yield a field and all inside of it, each with its path; elements of lists have one name."""
    path = (*above, name)
    yield path, field
    for child, inner in zip(child_fields(field.type), _name_children(field.type), strict=True):
        yield from _walk(child, inner, path)


def _name_children(kind: pa.DataType) -> list[str]:
    if pa.types.is_map(kind):
        return ["key", "value"]
    return [field.name if pa.types.is_struct(kind) else "element" for field in child_fields(kind)]


def _encode(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _decode(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _parse(value: bytes) -> Any:
    """Return JSON as values, and anything else as text."""
    with suppress(ValueError, RecursionError):
        return json.loads(value)
    return value
