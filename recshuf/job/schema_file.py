"""The ``--schema`` file: types of the fields of JSON records, in JSON.

A file is one object of names and types, in the order of the fields::

    {
      "id": "uint64",
      "time": "timestamp[us, tz=UTC]",
      "price": "decimal128(10, 2)",
      "embedding": "fixed_size_list<float32>[768]",
      "tags": ["string"],
      "author": {"name": "string", "born": "date32"}
    }

A type is one of

- a name: ``null``, ``bool``, ``int8`` to ``int64``, ``uint8`` to ``uint64``, ``float16`` to ``float64`` (or
  ``halffloat``, ``float``, ``double``, as in messages), ``string``, ``large_string``, ``binary`` and
  ``large_binary`` (base64 text in JSON), ``date32``, ``date64``;
- a name with parameters: ``timestamp[UNIT]`` and ``timestamp[UNIT, tz=ZONE]``, ``time32[s|ms]``,
  ``time64[us|ns]``, ``duration[UNIT]`` (UNIT is s, ms, us or ns), ``decimal128(PRECISION, SCALE)``,
  ``decimal256(PRECISION, SCALE)``;
- ``json``: the text of any JSON, as it is written;
- a map, from objects with keys of their own: ``map<string, TYPE>``;
- a list of a type: ``list<TYPE>``, ``large_list<TYPE>``, ``fixed_size_list<TYPE>[LENGTH]``;
- an array of one type, ``[TYPE]``: the same as ``list<TYPE>``, and the only form for a list of objects;
- an object of names and types: a struct.

Every field may be null or missing in a record.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from recshuf.errors import InputError
from recshuf.records.arrays import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


_NAMES = [
    "null",
    "bool",
    *NUMBERS,
    "string",
    "large_string",
    "binary",
    "large_binary",
    "date32",
    "date64",
]
_NAMED = {name: pa.type_for_alias(name) for name in _NAMES} | {"json": pa.json_(pa.string())}
_FLOATS = {name: pa.type_for_alias(name) for name in ("halffloat", "float", "double")}
"""Arrow's own names, which messages show."""
_WITH_PARAMETERS: tuple[tuple[str, str, Callable[..., pa.DataType]], ...] = (
    ("timestamp[us]", r"timestamp\[(s|ms|us|ns)\]", pa.timestamp),
    ("timestamp[us, tz=UTC]", r"timestamp\[(s|ms|us|ns), *tz=([^\]]+)\]", pa.timestamp),
    ("time32[ms]", r"time32\[(s|ms)\]", pa.time32),
    ("time64[us]", r"time64\[(us|ns)\]", pa.time64),
    ("duration[us]", r"duration\[(s|ms|us|ns)\]", pa.duration),
    (
        "decimal128(10, 2)",
        r"decimal128\(([0-9]{1,2}), *([0-9]{1,2})\)",
        lambda p, s: pa.decimal128(int(p), int(s)),
    ),
    (
        "decimal256(50, 2)",
        r"decimal256\(([0-9]{1,2}), *([0-9]{1,2})\)",
        lambda p, s: pa.decimal256(int(p), int(s)),
    ),
)
_LISTS: tuple[tuple[str, str, Callable[..., pa.DataType]], ...] = (
    ("list<TYPE>", r"list<(.+)>", pa.list_),
    ("large_list<TYPE>", r"large_list<(.+)>", pa.large_list),
    ("map<string, TYPE>", r"map<string, *(.+)>", lambda v: pa.map_(pa.string(), v)),
    (
        "fixed_size_list<TYPE>[LENGTH]",
        r"fixed_size_list<(.+)>\[([0-9]{1,9})\]",
        lambda v, n: pa.list_(v, int(n)),
    ),
)
_KNOWN = ", ".join(
    [*_NAMED, *(example for example, _, _ in _WITH_PARAMETERS + _LISTS), "[TYPE]", "{NAME: TYPE}"]
)
_REMEDY = f"known types are {_KNOWN}"
_MAX_DEPTH = 64
_MAX_BYTES = 1 << 24


def read_schema(path: Path) -> pa.Schema:
    return parse_schema(_read_object(path), str(path))


def parse_schema(declared: Mapping[str, object], source: str) -> pa.Schema:
    """Return the schema of the content of a ``--schema`` file; `source` names it in messages."""
    return pa.schema([pa.field(name, _to_type(kind, name, source, 1)) for name, kind in declared.items()])


def _read_object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError.of_system(
            error, str(path), f"cannot be read as the file of --schema ({error.strerror})"
        ) from error
    if len(text) > _MAX_BYTES:
        raise InputError(str(path), f"is longer than {_MAX_BYTES} bytes, so it is no schema file")
    try:
        declared = json.loads(text, object_pairs_hook=_to_unique_dict)
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), f"is not valid JSON ({error})") from error
    if not isinstance(declared, dict):
        raise InputError(str(path), "is not a JSON object", remedy='write {"FIELD": "TYPE", ...}')
    return declared


def _to_unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    declared: dict[str, Any] = {}
    for name, kind in pairs:
        if name in declared:
            raise ValueError(f"field {name!r} occurs twice")
        declared[name] = kind
    return declared


def _to_type(kind: Any, field: str, source: str, depth: int) -> pa.DataType:
    if depth > _MAX_DEPTH:
        raise InputError(source, f"nests types more than {_MAX_DEPTH} deep", place=_describe_field(field))
    if isinstance(kind, dict):
        children = [
            (name, _to_type(child, f"{field}.{name}", source, depth + 1)) for name, child in kind.items()
        ]
        return pa.struct([pa.field(name, child) for name, child in children])
    if isinstance(kind, list) and len(kind) == 1:
        return pa.list_(_to_type(kind[0], f"{field}[]", source, depth + 1))
    if isinstance(kind, pa.DataType):  # in a dict of a Python program
        return kind
    if isinstance(kind, str):
        return _parse_type(kind.strip(), field, source, depth)
    raise InputError(
        source,
        f"{json.dumps(kind, default=repr)} is not a type",
        place=_describe_field(field),
        remedy=_REMEDY,
    )


def _parse_type(text: str, field: str, source: str, depth: int) -> pa.DataType:
    if named := _NAMED.get(text) or _FLOATS.get(text):
        return named
    try:
        for _, pattern, make in _WITH_PARAMETERS:
            if match := re.fullmatch(pattern, text):
                return make(*match.groups())
        for _, pattern, make in _LISTS:
            if match := re.fullmatch(pattern, text):
                value, *length = match.groups()
                return make(_to_type(value, f"{field}[]", source, depth + 1), *length)
    except (pa.ArrowException, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(source, f"{text!r} is not a type ({error})", place=_describe_field(field)) from error
    raise InputError(source, f"{text!r} is not a type", place=_describe_field(field), remedy=_REMEDY)


def _describe_field(field: str) -> str:
    return f"field {field!r}"
