"""Types of JSON records, given by a schema or inferred from all records. Thread-safe."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import UsageError
from recshuf.formats.jsonl.decoding.columns import walk_columns
from recshuf.formats.jsonl.decoding.line_checks import BadRecord, check_lines
from recshuf.formats.jsonl.decoding.numbers import check_floats, find_fraction, find_inexact_integer
from recshuf.formats.jsonl.decoding.parser import Parser, explain_misfit, infer_schema
from recshuf.formats.jsonl.decoding.shapes import (
    Conflict,
    RecordPosition,
    Rows,
    Shape,
    merge_shapes,
    shape_of,
)

if TYPE_CHECKING:
    from recshuf.formats.jsonl.decoding.columns import Column
    from recshuf.formats.jsonl.decoding.line_checks import Path

    Found = tuple[list[Column], Shape | None]

MAX_FIELDS = 16_384
"""Most fields that are inferred: each takes memory for every record."""


class GivenTypes:
    """Types from a schema: records are only checked against it.

    Raises
    ------
    ConversionError
        When the schema has a type that cannot be read from JSON.
    """

    def __init__(self, schema: pa.Schema, *, others: str = "error") -> None:
        self.parser = Parser(schema, lenient=True, others=others)

    def learn(self, lines: pa.Array, rows: Rows) -> None:  # noqa: ARG002 - the same for both
        """Check that lines fit the schema.

        Raises
        ------
        BadRecord
            When one does not; of a single line, it names the field.
        """
        check_lines(lines)
        try:
            columns = list(walk_columns(self.parser.parse(lines), self.parser.schema.names))
        except BadRecord as error:
            if len(lines) > 1 or error.row is not None:
                raise
            raise explain_misfit(lines, self.parser, error) from error
        check_floats(columns, lines, as_given=True)

    def state(self) -> None:
        """Return nothing: the schema is given."""

    def merge(self, state: Any) -> None:
        """Do nothing: the schema is given."""

    def find_error(self, lines: pa.Array) -> BadRecord | None:
        """Return the error of lines; None if they fit."""
        return _find_error(self, lines)


class InferredTypes:
    """Types that hold all records seen so far.

    Later lines are parsed by the types so far, and types are inferred again when that fails. Lines before the
    latest first appearance of a field are always inferred, since fields may appear earlier in them.

    Parameters
    ----------
    field
        Path of the only field to decode: once its type is known, no other column is parsed.
    """

    def __init__(self, field: str | None = None) -> None:
        self._field = field
        self._lock = threading.Lock()
        self._root: Shape | None = None
        self._parser = self._probe = Parser(pa.schema([]))
        self._last_appearance: RecordPosition | None = None

    @property
    def parser(self) -> Parser:
        """Parser by the types so far."""
        with self._lock:
            return self._parser

    def learn(self, lines: pa.Array, rows: Rows) -> None:
        """Widen the types to hold lines.

        Raises
        ------
        BadRecord
            When a line is not a JSON object, or a number cannot be represented. Then nothing is learned, except
            when there are too many fields.
        Conflict
            When types conflict with earlier ones.
        """
        check_lines(lines)
        columns, shape = self._read(lines, rows)
        check_floats(columns, lines, as_given=False)
        if shape is not None:
            self._add(shape)
        for column in columns:
            if pt.is_integer(column.values.type):
                row = find_inexact_integer(column)
                if row is not None:
                    self._note_inexact(column.path, rows.position(row))

    def state(self) -> list[Any] | None:
        """Return the types so far, as JSON values; None before the first line."""
        with self._lock:
            return self._root.pack() if self._root else None

    def merge(self, state: list[Any] | None) -> None:
        """Widen the types to hold those of a `state`.

        Raises
        ------
        BadRecord
            When there are too many fields.
        Conflict
            When types conflict.
        """
        if state is not None:
            self._add(Shape.unpack(state))

    def find_error(self, lines: pa.Array) -> BadRecord | None:
        """Return the error of lines by themselves, ignoring the types so far; None if they are good."""
        return _find_error(InferredTypes(), lines)

    def _read(self, lines: pa.Array, rows: Rows) -> Found:
        """Return the columns of lines, and their shape if it was inferred."""
        columns = self._parse_as_known(lines, rows.position(0))
        return self._infer(lines, rows) if columns is None else (columns, None)

    def _parse_as_known(self, lines: pa.Array, position: RecordPosition) -> list[Column] | None:
        with self._lock:
            parser, last = self._probe, self._last_appearance
        if last is None or position < last:
            return None
        try:
            return list(walk_columns(parser.parse(lines), parser.schema.names))
        except BadRecord:  # a new field, another type, or an error that inference reports
            return None

    def _infer(self, lines: pa.Array, rows: Rows) -> Found:
        shape = shape_of(infer_schema(lines), rows.position(0))
        if shape.count_fields() > MAX_FIELDS:
            raise _too_many_fields()
        schema = pa.schema(shape.to_fields())
        columns = list(walk_columns(Parser(schema).parse(lines), schema.names))
        for column in columns:
            part, row = shape.find(column.path), column.first_row()
            if part is not None and row is not None:
                part.seen = rows.position(row)
                row = find_fraction(column) if part.kind == "float" else None
                part.fractional = None if row is None else rows.position(row)
        return columns, shape

    def _add(self, shape: Shape) -> None:
        with self._lock:
            if self._root is None:
                self._root = shape
            else:
                merge_shapes(self._root, shape)
            if self._root.count_fields() > MAX_FIELDS:
                raise _too_many_fields()
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


def _find_error(types: GivenTypes | InferredTypes, lines: pa.Array) -> BadRecord | None:
    try:
        types.learn(lines, Rows(0, np.arange(len(lines))))
    except BadRecord as error:
        return error
    return None


def _too_many_fields() -> BadRecord:
    return BadRecord(
        f"brings the number of different fields above {MAX_FIELDS}: names seem to hold data",
        remedy="declare the fields with --schema",
    )
