"""Types of JSON records, from a schema or inferred from all records in any order."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import UsageError
from recshuf.formats.jsonl.casts import pick_fields
from recshuf.formats.jsonl.line_checks import (
    MAX_DEPTH,
    BadRecord,
    Path,
    check_lines,
    name_path,
    too_deep_error,
)
from recshuf.formats.jsonl.numbers import (
    BrokenFloat,
    ValidCounts,
    check_floats,
    find_fraction,
    find_inexact_integer,
    walk_columns,
)
from recshuf.formats.jsonl.parser import (
    Parser,
    check_json,
    describe_remedy,
    explain_misfit,
    infer_schema,
    propose_map,
)
from recshuf.records.arrays import dotted

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from recshuf.formats.jsonl.numbers import Column


MAX_FIELDS = 16_384
"""Most fields that are inferred: each takes memory for every record."""
NAMED_DATA_FIELDS = 200
"""Names of an object within records from which on they may be data."""
_NAMED_DATA_RECORD = 1000
"""Names of the records themselves from which on they may be, where inference takes long."""
_NAMED_DATA_SECONDS = 2.0
"""CPU seconds of inference from which on that is said at once."""


class RecordPosition(NamedTuple):
    """Position of a record: input and row."""

    input_index: int
    row: int


class Rows(NamedTuple):
    """Input of some lines, and their ascending rows."""

    input_index: int
    numbers: NDArray[np.int64]

    def position(self, index: int) -> RecordPosition:
        return RecordPosition(self.input_index, int(self.numbers[index]))

    def take(self, index: slice | NDArray[np.int64]) -> Rows:
        return Rows(self.input_index, self.numbers[index])


class Appearance(NamedTuple):
    """First appearance of a field: the first record of the lines parsed together, and the field's index there.

    The minimum over all lines orders fields by first appearance, however the lines were cut: the record decides between
    cuts, the index within one.
    """

    position: RecordPosition
    field_index: int


class Conflict(Exception):  # noqa: N818 - becomes an InputError in the decoder, which knows the names of inputs
    """Two types of one field that no type can hold, or integers and floats that float64 cannot."""

    def __init__(self, path: Path, shape: Shape, other: Shape) -> None:
        self.path = path
        self.shape = shape
        self.other = other
        super().__init__(path)


@dataclass(slots=True)
class Shape:
    """The type of one field in the records so far."""

    kind: str
    """null, boolean, integer, float, string, object or array."""
    first: Appearance
    seen: RecordPosition | None = None
    inexact: RecordPosition | None = None
    """A record in which the field is an integer that float64 cannot hold exactly."""
    fractional: RecordPosition | None = None
    """A record in which the field is no whole number. A float that has none may be written ``1.0``, among integers."""
    inner: dict[str | None, Shape] = field(default_factory=dict)
    """The fields of objects by name, and by None the elements of arrays."""

    def find(self, path: Path) -> Shape | None:
        shape: Shape | None = self
        for part in path:
            shape = shape and shape.inner.get(part)
        return shape

    def to_type(self) -> pa.DataType:
        if self.kind == "object":
            return pa.struct(self.to_fields())
        if self.kind == "array":
            return pa.list_(self.inner[None].to_type())
        return _ARROW_TYPES[self.kind]

    def to_fields(self) -> list[pa.Field]:
        ordered = sorted(self.inner.items(), key=lambda item: item[1].first)
        return [pa.field(name, shape.to_type()) for name, shape in ordered]

    def pack(self) -> list[Any]:
        inner = [(name, shape.pack()) for name, shape in self.inner.items()]
        return [self.kind, self.first, self.seen, self.inexact, self.fractional, inner]

    @classmethod
    def unpack(cls, packed: list[Any]) -> Shape:
        kind, (position, index), seen, inexact, fractional, inner = packed
        return cls(
            kind,
            Appearance(RecordPosition(*position), index),
            seen and RecordPosition(*seen),
            inexact and RecordPosition(*inexact),
            fractional and RecordPosition(*fractional),
            {name: cls.unpack(shape) for name, shape in inner},
        )

    def last_appearance(self) -> RecordPosition:
        return max([self.first.position, *(shape.last_appearance() for shape in self.inner.values())])

    def count_fields(self) -> int:
        return 1 + sum(shape.count_fields() for shape in self.inner.values())


_ARROW_TYPES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
}


def shape_of(schema: pa.Schema, position: RecordPosition) -> Shape:
    """Return the shape of records that `pyarrow.json` inferred this schema for, the first of them at `position`.

    Raises `BadRecord` if the types nest too deep.
    """
    return _shape_of_type(pa.struct(list(schema)), Appearance(position, 0), 1)


def _shape_of_type(kind: pa.DataType, first: Appearance, depth: int) -> Shape:
    if depth > MAX_DEPTH and pt.is_nested(kind):
        raise too_deep_error()
    if pt.is_struct(kind):
        fields = [(item, Appearance(first.position, index)) for index, item in enumerate(kind)]
        inner = {item.name: _shape_of_type(item.type, place, depth + 1) for item, place in fields}
        return Shape("object", first, inner=inner)
    if pt.is_list(kind):
        return Shape("array", first, inner={None: _shape_of_type(kind.value_type, first, depth + 1)})
    if pt.is_timestamp(kind):  # pyarrow infers times from texts; texts stay as written
        return Shape("string", first)
    return Shape(next(name for name, arrow_type in _ARROW_TYPES.items() if arrow_type == kind), first)


def merge_shapes(into: Shape, other: Shape, path: Path = ()) -> None:
    """Widen `into` so that it holds `other` too.

    Raises `Conflict` if no type holds both, or integers would lose digits as float64.
    """
    into.first = min(into.first, other.first)
    inexact = into.inexact or other.inexact
    if into.kind == "null":
        into.kind, into.seen = other.kind, other.seen
    elif {into.kind, other.kind} == {"integer", "float"}:
        if inexact:
            raise Conflict(path, into, other)
        if into.kind == "integer":
            into.kind, into.seen = other.kind, other.seen
    elif other.kind not in ("null", into.kind):
        raise Conflict(path, into, other)
    into.inexact = inexact
    into.fractional = into.fractional or other.fractional
    for name, shape in other.inner.items():
        if name in into.inner:
            merge_shapes(into.inner[name], shape, (*path, name))
        else:
            into.inner[name] = shape


class GivenTypes:
    """Types from a schema: records are only checked against it."""

    def __init__(self, schema: pa.Schema, *, others: str = "error") -> None:
        self.parser = Parser(schema, lenient=True, others=others)
        self.valid = ValidCounts()

    def learn(self, lines: pa.Array, rows: Rows) -> None:  # noqa: ARG002 - the same for both
        """Raise `BadRecord` if lines do not fit the schema; of a single line, it names the field."""
        check_lines(lines)
        try:
            self.parser.check_grammar(lines)
            columns = list(walk_columns(self.parser.parse(lines), self.parser.schema.names))
        except BadRecord as error:
            if len(lines) > 1 or error.row is not None:
                raise
            raise explain_misfit(lines, self.parser, error) from error
        check_floats(columns, lines, as_given=True)
        self.valid.add(columns, len(lines))

    def state(self) -> None:
        """Return None: there is nothing to learn."""

    def merge(self, state: None) -> None:
        """Do nothing."""


class InferredTypes:
    """Types that hold all records seen so far.

    Later lines are parsed by the types so far, and types are inferred again when that fails. Lines before the
    latest first appearance of a field are always inferred, since fields may appear earlier in them. Once the type of the only
    `field` to decode is known, no other column is parsed. The types of others need not agree.
    """

    def __init__(self, field: str | None = None) -> None:
        self._field = field
        self._wanted = frozenset() if field is None else {field, dotted(field).split(".")[0]}
        """Names of which one is the column of the field."""
        self.on_named_data: Callable[[str], None] | None = None
        """Gets a sentence as that of `find_named_data` while types are inferred, once, if that takes long."""
        self._seconds = 0.0
        self.valid = ValidCounts()
        self._lock = threading.Lock()
        self._root: Shape | None = None
        self._parser = self._probe = Parser(pa.schema([]))
        self._last_appearance: RecordPosition | None = None

    @property
    def parser(self) -> Parser:
        with self._lock:
            return self._parser

    def learn(self, lines: pa.Array, rows: Rows) -> None:
        """Widen the types to hold lines.

        Raises `BadRecord` if a line is not a JSON object, or a number cannot be represented, and learns nothing then,
        except where there are too many fields; `Conflict` if types conflict with earlier ones.
        """
        check_lines(lines)
        known = self._parse_as_known(lines, rows.position(0))
        columns, shape = self._infer(lines, rows) if known is None else (known, None)
        if self._field is not None:
            columns = [column for column in columns if column.path[0] in self._wanted]
        try:
            check_floats(columns, lines, as_given=False)
        except BrokenFloat as error:
            error.remedy = self._propose_floats(columns, lines, rows)
            raise
        if shape is not None:
            self._add(shape)
        for column in columns:
            if pt.is_integer(column.values.type):
                row = find_inexact_integer(column)
                if row is not None:
                    self._note_inexact(column.path, rows.position(row))
        self.valid.add(columns, len(lines))

    def find_named_data(self) -> str | None:
        """Return a sentence on objects with very many different names, if there are any."""
        with self._lock:
            return None if self._root is None else _describe_named_data(self._root)

    def _tell_named_data(self, shape: Shape, begin: float) -> None:
        """Tell that names of some lines, or of those before, seem to be data, if inference takes long since `begin`."""
        with self._lock:
            self._seconds += time.thread_time() - begin
            if self._seconds < _NAMED_DATA_SECONDS or self.on_named_data is None:
                return
            root, tell = self._root or shape, self.on_named_data
            note = _describe_named_data(shape) or _describe_named_data(root)
            if note is None and len(root.inner) < _NAMED_DATA_RECORD:
                return
            self.on_named_data = None
        if note is None:
            note = (
                f"records have {len(root.inner):,} different fields, a column each; if their names are data, "
            )
            note += "write a .jsonl, which needs no columns"
        tell(f"so far, {note}")

    def state(self) -> list[Any] | None:
        """Return the types so far, as JSON values; None before the first line."""
        with self._lock:
            return self._root.pack() if self._root else None

    def merge(self, state: list[Any] | None) -> None:
        """Widen the types to hold those of a `state`; raises what `learn` does."""
        if state is not None:
            self._add(Shape.unpack(state))

    def _parse_as_known(self, lines: pa.Array, position: RecordPosition) -> list[Column] | None:
        with self._lock:
            parser, last = self._probe, self._last_appearance
        if last is None or position < last:
            return None
        try:
            return list(walk_columns(parser.parse(lines), parser.schema.names))
        except BadRecord:  # a new field, another type, or an error that inference reports
            return None

    def _infer(self, lines: pa.Array, rows: Rows) -> tuple[list[Column], Shape | None]:
        begin = time.thread_time()
        try:
            schema = infer_schema(lines)
        except BadRecord:
            if self._field is None or self._last_appearance is None:
                raise
            check_json(lines)
            lines = pick_fields(lines, self._wanted)
            schema = infer_schema(lines)
        shape = shape_of(schema, rows.position(0))
        if shape.count_fields() > MAX_FIELDS:
            raise _too_many_fields(shape)
        self._tell_named_data(shape, begin)  # before these are parsed, which takes longer yet
        begin = time.thread_time()
        schema = pa.schema(shape.to_fields())
        columns = list(walk_columns(Parser(schema).parse(lines), schema.names))
        for column in columns:
            part, row = shape.find(column.path), column.first_row()
            if part is not None and row is not None:
                part.seen = rows.position(row)
                row = find_fraction(column) if part.kind == "float" else None
                part.fractional = None if row is None else rows.position(row)
        self._tell_named_data(shape, begin)
        return columns, shape

    def _propose_floats(self, columns: list[Column], lines: pa.Array, rows: Rows) -> str:
        """Return the remedy for NaN and infinities in lines: all fields so far, with a schema that takes them."""
        shape = shape_of(infer_schema(lines), rows.position(0))
        with self._lock, suppress(Conflict):
            if self._root is not None:
                merge_shapes(shape, Shape.unpack(self._root.pack()))
        floats = {column.path: "float64" for column in columns if pt.is_floating(column.values.type)}
        sense = "which takes NaN, Infinity and -Infinity; or write them as null or as strings"
        return describe_remedy(pa.schema(shape.to_fields()), floats, sense)

    def _add(self, shape: Shape) -> None:
        with self._lock:
            if self._root is None:
                self._root = shape
            else:
                if self._field is not None:
                    others = self._root.inner.keys() - self._wanted
                    shape.inner = {name: inner for name, inner in shape.inner.items() if name not in others}
                merge_shapes(self._root, shape)
            if self._root.count_fields() > MAX_FIELDS:
                raise _too_many_fields(self._root)
            self._parser = self._probe = Parser(pa.schema(self._root.to_fields()))
            if self._field is not None:
                with suppress(UsageError):  # not seen yet
                    self._probe = self._parser.narrow(self._field)
            self._last_appearance = self._root.last_appearance()

    def _note_inexact(self, path: Path, position: RecordPosition) -> None:
        with self._lock:
            shape = self._root.find(path) if self._root else None
            if shape is None:
                return
            if shape.kind == "float":  # widened by another thread meanwhile
                raise Conflict(path, shape, Shape("integer", shape.first, position, inexact=position))
            shape.inexact = shape.inexact or position


def find_error(types: GivenTypes | InferredTypes, lines: pa.Array) -> BadRecord | None:
    """Return the error of lines by themselves, ignoring the types inferred so far; None if they are good."""
    if isinstance(types, InferredTypes):
        types = InferredTypes()
    try:
        types.learn(lines, Rows(0, np.arange(len(lines))))
    except BadRecord as error:
        return error
    return None


def _describe_named_data(shape: Shape) -> str | None:
    proposed = propose_map(shape)
    if proposed is not None and proposed[1] >= NAMED_DATA_FIELDS:
        path, count, remedy = proposed
        return f"field {name_path(path)!r} has {count:,} different names, a column each; if they are data, {remedy}"
    return None


def _too_many_fields(shape: Shape) -> BadRecord:
    proposed = propose_map(shape)
    return BadRecord(
        f"brings the number of different fields above {MAX_FIELDS}: names seem to hold data",
        remedy=proposed[2] if proposed else "declare the fields with --schema",
    )
