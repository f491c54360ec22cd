"""JSON lines to Arrow arrays by `pyarrow.json`, the meaning of its errors, and schemas as text that messages can show."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from recshuf.formats.jsonl.casts import (
    cast_column,
    check_nulls,
    list_rewrites,
    read_fields,
    rewrite,
    walk_types,
)
from recshuf.formats.jsonl.line_checks import BadRecord, Path, check_lines, shorten
from recshuf.formats.jsonl.numbers import explain_too_large
from recshuf.records.arrays import check_path, split_path, unknown_column, view_bytes
from recshuf.records.provenance import FILE_COLUMN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from recshuf.formats.jsonl.inference import Shape


LITERAL = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false"
"""A number or boolean as it is written."""
_CHANGED = re.compile(r"Column\((?P<path>.*)\) changed from (?P<kind>\w+) to (?P<other>\w+)", re.DOTALL)
_TWICE = re.compile(r"Column\((?P<path>.*)\) was specified twice", re.DOTALL)
_PARSE_ERROR = "JSON parse error: "
_TOO_LARGE = f"{_PARSE_ERROR}Number too big"
_NO_FIELDS = pa.schema([pa.field("\0", pa.null())])  # a name that no record has
_ROW = re.compile(r" in row (\d+)$")
_NOISE = re.compile(rf"^{_PARSE_ERROR}|\.? in row \d+$")
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


def infer_schema(lines: pa.Array) -> pa.Schema:
    """Return the types pyarrow finds in lines that `check_lines` accepts, fields in order of appearance.

    Raises `BadRecord` if a line is not one JSON object, or types do not agree. Only the types are correct: pyarrow loses
    elements of lists that begin with nulls.
    """
    return _read_table(lines, pj.ParseOptions()).schema


class Parser:
    """Reads lines by a fixed schema. `others`, which the schema lacks, are ``error`` or ``ignore``.

    If `lenient`, it accepts numbers and booleans, as they are written, for fields that are text in the schema.
    """

    def __init__(self, schema: pa.Schema, *, lenient: bool = False, others: str = "error") -> None:
        self.schema = schema
        self._lenient = lenient
        self.is_strict = others == "error"
        """Whether fields that the schema lacks are errors."""
        paths = [path for path, _ in walk_types(schema)]
        self.field_count = len(paths)
        """Number of columns, at all levels."""
        self.listed_count = sum(None in path for path in paths)
        """Number of those within lists, which may have more values than there are lines."""
        self._options = pj.ParseOptions(
            explicit_schema=pa.schema(read_fields(schema)), unexpected_field_behavior=others
        )
        self._text_names = _text_only_names(schema) if lenient else []
        self._rewrites = list_rewrites(schema)

    def check_grammar(self, lines: pa.Array) -> None:
        """Raise `BadRecord` if lines are not JSON, where the schema has values that are rewritten before they are parsed."""
        if self._rewrites:
            check_json(lines)

    def narrow(self, path: str) -> Parser:
        check_path(path, self.schema)
        column, _ = split_path(path, self.schema.names)
        return Parser(pa.schema([self.schema.field(column)]), lenient=self._lenient, others="ignore")

    def pick(self, names: Sequence[str]) -> Parser:
        return Parser(pick_columns(self.schema, names), lenient=self._lenient, others="ignore")

    def parse(self, lines: pa.Array) -> list[pa.Array]:
        """Return a column for each field of the schema.

        Raises `BadRecord` if a line is not one JSON object or does not fit the schema.
        """
        try:
            return self._parse(lines)
        except BadRecord:
            if not self._text_names:
                raise
        quoted = _quote_literals(lines, self._text_names)
        check_lines(quoted)
        return self._parse(quoted)

    def _parse(self, lines: pa.Array) -> list[pa.Array]:
        if self._rewrites:
            lines = rewrite(lines, self._rewrites)
        table = _read_table(lines, self._options)
        columns = []
        for field, column in zip(self.schema, table.columns, strict=True):
            read = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            columns.append(cast_column(read, field.type, len(lines), (field.name,)))
            check_nulls(columns[-1], field, None, (field.name,))
        return columns


def _text_only_names(schema: pa.Schema) -> list[str]:
    """Return the names of fields that are text wherever they occur, outside of maps."""
    names: dict[str, bool] = {}
    for (*_, name), kind in walk_types(schema, into_maps=False):
        if name is not None:
            names[name] = names.get(name, True) and (pt.is_string(kind) or pt.is_large_string(kind))
    return [name for name, is_text in names.items() if is_text]


def _quote_literals(lines: pa.Array, names: list[str]) -> pa.Array:
    r"""Return lines with the numbers and booleans of the named fields quoted, digits unchanged.

    In valid JSON, a name in unescaped quotes followed by a colon is a key.

    >>> line = pa.array(['{"id": 1.50, "n": 2}'], pa.large_string())
    >>> _quote_literals(line, ["id"]).to_pylist()
    ['{"id": "1.50", "n": 2}']
    """
    keys = "|".join(re.escape(json.dumps(name, ensure_ascii=False)[1:-1]) for name in names)
    pattern = rf'([^\\])"({keys})"(\s*:\s*)({LITERAL})'
    return pc.replace_substring_regex(lines, pattern, r'\1"\2"\3"\4"')


def check_json(lines: pa.Array) -> None:
    _read_table(lines, pj.ParseOptions(explicit_schema=_NO_FIELDS, unexpected_field_behavior="ignore"))


def pick_columns(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    known = {*schema.names}
    for name in names:
        if name not in known:
            raise unknown_column(name, schema.names)
    return pa.schema([schema.field(name) for name in names])


def explain_misfit(line: pa.Array, parser: Parser, error: BadRecord) -> BadRecord:
    """Return the error of a single line that a parser refuses, naming the field if possible."""
    if error.path is not None:
        return error
    try:
        inferred = infer_schema(line)
    except BadRecord as own_error:
        return own_error
    surplus = _find_surplus(inferred, parser.schema)
    if surplus is not None and parser.is_strict:
        remedy = "add it to the schema (recshuf verify takes that of the inputs)"
        if surplus == (FILE_COLUMN,):
            remedy = "if a run added it, give --provenance to recshuf verify; else add it to the schema"
        return BadRecord("is not in the schema", remedy=remedy, path=surplus)
    for path, field in _single_fields(list(parser.schema), ()):
        try:
            Parser(pa.schema([field]), lenient=True, others="ignore").parse(line)
        except BadRecord as own_error:
            return BadRecord(
                f"does not fit the type {_leaf_type(field.type)} of the schema ({own_error.problem})",
                path=path,
            )
    return error


def _find_surplus(inferred: pa.Schema, schema: pa.Schema) -> Path | None:
    """Return the path of the first field that an object of the schema lacks; None if there is none."""
    known = {(): pa.struct([]), **dict(walk_types(schema, into_maps=False))}
    surplus = (
        path
        for path, _ in walk_types(inferred)
        if path not in known and path[-1] is not None and pt.is_struct(known.get(path[:-1], pa.null()))
    )
    return next(surplus, None)


def _single_fields(fields: list[pa.Field], path: Path) -> Iterator[tuple[Path, pa.Field]]:
    """Yield, for each field without structs inside, its path and a top-level field that holds it alone."""
    for field in fields:
        if not pt.is_struct(field.type) or not field.type.num_fields:
            yield (*path, field.name), field
            continue
        for nested, child in _single_fields(list(field.type), (*path, field.name)):
            yield nested, pa.field(field.name, pa.struct([child]), field.nullable)


def _leaf_type(kind: pa.DataType) -> pa.DataType:
    while pt.is_struct(kind) and kind.num_fields:
        kind = kind.field(0).type
    return kind


def _read_table(lines: pa.Array, options: pj.ParseOptions) -> pa.Table:
    text = view_bytes(lines)
    read_options = pj.ReadOptions(use_threads=False, block_size=text.size + 1)
    try:
        table = pj.read_json(
            pa.BufferReader(pa.py_buffer(text)), read_options=read_options, parse_options=options
        )
    except pa.ArrowInvalid as error:
        if _TOO_LARGE in str(error) and len(lines) == 1:
            raise explain_too_large(lines[0].as_py()) from error
        raise _translate(str(error), options.explicit_schema is not None) from error
    if table.num_rows != len(lines):
        raise BadRecord("holds more than one JSON value", remedy="every line must be one object")
    return table


def _translate(message: str, by_schema: bool) -> BadRecord:
    # The row counts values, not lines, and fields of an earlier line may be to blame: only a suspect.
    named = _ROW.search(message)
    suspect = int(named[1]) if named else None
    if match := _CHANGED.search(message):
        kind, other, path = match["kind"], match["other"], _parse_path(match["path"])
        problem = f"holds both {kind} and {other} values within one record"
        if by_schema:
            problem = f"holds a value of type {other} where {kind} is due"
        return BadRecord(problem, path=path, suspect=suspect)
    if match := _TWICE.search(message):
        return BadRecord("occurs twice in one object", path=_parse_path(match["path"]), suspect=suspect)
    if by_schema and not message.startswith(_PARSE_ERROR):
        return BadRecord(shorten(message))
    return BadRecord(f"is not valid JSON ({shorten(_NOISE.sub('', message))})", suspect=suspect)


def _parse_path(text: str) -> Path:
    return tuple(None if part == "[]" else part for part in text.split("/")[1:])


def describe_remedy(schema: pa.Schema, others: Mapping[Path, str], sense: str) -> str:
    """Return the remedy that gives some fields other types, by their paths, with a schema file that can be pasted if it is short.

    The `sense` of the types is a relative clause.

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
    paths = [path for path, kind in walk_types(schema) if pt.is_struct(kind) and not kind.num_fields]
    return (paths[0], describe_remedy(schema, dict.fromkeys(paths, "json"), _TEXT_SENSE)) if paths else None


def propose_map(root: Shape) -> tuple[Path, int, str] | None:
    """Return the field whose objects have the most names, their number, and the remedy that makes it a map.

    None if these are the names of the records themselves.
    """
    path, shape = max(_walk_objects(root, ()), key=lambda item: len(item[1].inner))
    if not path:
        return None
    kinds = frozenset(inner.kind for inner in shape.inner.values()) - {"null"}
    kind, sense = f"map<string, {_ITEMS.get(kinds, 'json')}>", _MAP_SENSE
    remedy = describe_remedy(pa.schema(root.to_fields()), {path: kind}, sense)
    return path, len(shape.inner), remedy


def _walk_objects(shape: Shape, path: Path) -> Iterator[tuple[Path, Shape]]:
    if shape.kind == "object":
        yield path, shape
    for name, inner in shape.inner.items():
        yield from _walk_objects(inner, (*path, name))


def _describe(kind: pa.DataType, path: Path, others: Mapping[Path, str]) -> Any:
    if path in others:
        return others[path]
    if pt.is_struct(kind):
        return {field.name: _describe(field.type, (*path, field.name), others) for field in kind} or "json"
    if pt.is_list(kind):
        return [_describe(kind.value_type, (*path, None), others)]
    return _NAMES.get(kind, str(kind))
