"""Schema files as text that a message can show, made from types that were found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from recshuf.formats.jsonl.inference import Shape
    from recshuf.formats.jsonl.line_checks import Path


_MOST_CHARACTERS = 2000
_TEXT_SENSE = "which is the text of any JSON"
_MAP_SENSE = "which takes any names"
_ITEMS = {
    frozenset(["boolean"]): "bool",
    frozenset(["integer"]): "int64",
    frozenset(["float"]): "float64",
    frozenset(["integer", "float"]): "float64",
    frozenset(["string"]): "string",
}
"""Types of the values of a map, by the kinds that they have."""
_NAMES = {pa.float32(): "float32", pa.float64(): "float64", pa.null(): "json"}


def describe_remedy(schema: pa.Schema, others: Mapping[Path, str], sense: str) -> str:
    """Return the remedy that gives some fields other types, with a schema file that can be pasted if it is short.

    Parameters
    ----------
    others
        The types of these fields by their paths.
    sense
        What the types mean, in a relative clause.

    >>> schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.struct([("a", pa.struct([]))])))])
    >>> describe_remedy(schema, {("tags", None, "a"): "json"}, "which is the text of any JSON")
    'give --schema FILE with {"id":"int64","tags":[{"a":"json"}]}, which is the text of any JSON'
    """
    declared = {field.name: _describe(field.type, (field.name,), others) for field in schema}
    text = json.dumps(declared, ensure_ascii=False, separators=(",", ":"))
    if len(text) <= _MOST_CHARACTERS:
        return f"give --schema FILE with {text}, {sense}"
    *_, (path, kind) = others.items()
    name = next(part for part in reversed(path) if part is not None)
    return (
        f"give --schema FILE with all fields, and {json.dumps(name)}:{json.dumps(kind)} among them, {sense}"
    )


def propose_texts(schema: pa.Schema) -> tuple[Path, str] | None:
    """Return the path of a field whose objects are all empty, and the remedy; None if there is no such field."""
    paths = [path for path, kind in _walk_types(schema, ()) if pt.is_struct(kind) and not kind.num_fields]
    return (paths[0], describe_remedy(schema, dict.fromkeys(paths, "json"), _TEXT_SENSE)) if paths else None


def _walk_types(fields: pa.Schema | pa.DataType, path: Path) -> Iterator[tuple[Path, pa.DataType]]:
    for field in fields:
        kind, inner = field.type, (*path, field.name)
        yield inner, kind
        while pt.is_list(kind):
            kind, inner = kind.value_type, (*inner, None)
            yield inner, kind
        if pt.is_struct(kind):
            yield from _walk_types(kind, inner)


def propose_map(root: Shape) -> tuple[Path, int, str] | None:
    """Return the field whose objects have the most names, their number, and the remedy that makes it a map.

    None if these are the names of the records themselves.
    """
    path, shape = max(_walk_objects(root, ()), key=lambda item: len(item[1].fields))
    if not path:
        return None
    kinds = frozenset(inner.kind for inner in shape.fields.values()) - {"null"}
    kind, sense = f"map<string, {_ITEMS.get(kinds, 'json')}>", _MAP_SENSE
    remedy = describe_remedy(pa.schema(root.to_fields()), {path: kind}, sense)
    return path, len(shape.fields), remedy


def _walk_objects(shape: Shape, path: Path) -> Iterator[tuple[Path, Shape]]:
    if shape.kind == "object":
        yield path, shape
    for name, inner in shape.fields.items():
        yield from _walk_objects(inner, (*path, name))
    if shape.element is not None:
        yield from _walk_objects(shape.element, (*path, None))


def _describe(kind: pa.DataType, path: Path, others: Mapping[Path, str]) -> Any:
    if path in others:
        return others[path]
    if pt.is_struct(kind):
        return {field.name: _describe(field.type, (*path, field.name), others) for field in kind} or "json"
    if pt.is_list(kind):
        return [_describe(kind.value_type, (*path, None), others)]
    return _NAMES.get(kind, str(kind))
