"""Where the types of JSON records come from: a schema given, or all the records. Both safe to use from many threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from recshuf.formats._json_columns import walk_columns
from recshuf.formats._json_numbers import check_floats, find_inexact_integer
from recshuf.formats._json_parse import Parser, explain_misfit, infer_schema
from recshuf.formats._json_records import BadRecord, check_lines
from recshuf.formats._json_types import Conflict, Shape, Spot, merge_shapes, shape_of

if TYPE_CHECKING:
    from recshuf.formats._json_columns import Column
    from recshuf.formats._json_records import Path

MAX_FIELDS = 16_384
"""How many fields are inferred at most: every one takes memory for every record."""


class GivenTypes:
    """Types from a schema: records are only checked against it.

    Raises
    ------
    ConversionError
        When the schema has a type that cannot be read from JSON.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.parser = Parser(schema, lenient=True)

    def learn(self, lines: pa.Array, spot: Spot) -> None:  # noqa: ARG002 - the same for both
        """Make sure that lines fit.

        Raises
        ------
        BadRecord
            Otherwise, naming the field if there is a single line.
        """
        check_lines(lines)
        try:
            columns = self.parser.parse(lines)
        except BadRecord as error:
            if len(lines) > 1 or error.row is not None:
                raise
            raise explain_misfit(lines, self.parser.schema, error) from error
        for column in walk_columns(columns, self.parser.schema.names):
            if pt.is_floating(column.values.type):
                check_floats(column, lines)


class InferredTypes:
    """Types that hold all records seen so far.

    Once some lines are known, others are parsed by the types so far, which finds what is new by failing. Only
    lines before the first appearance of a field are always inferred: they may put it earlier.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._root: Shape | None = None
        self._parser = Parser(pa.schema([]))
        self._last_appearance: Spot | None = None

    @property
    def parser(self) -> Parser:
        """Parser by the types so far."""
        with self._lock:
            return self._parser

    def learn(self, lines: pa.Array, spot: Spot) -> None:
        """Widen the types to hold lines, the first of them at `spot`.

        Raises
        ------
        BadRecord
            When a line is not a JSON object, or a number cannot be held.
        Conflict
            When the types do not fit those seen before.
        """
        check_lines(lines)
        columns = self._parse_as_known(lines, spot)
        if columns is None:
            columns = self._infer(lines, spot)
        for column in columns:
            if pt.is_floating(column.values.type):
                check_floats(column, lines)
            elif pt.is_integer(column.values.type):
                row = find_inexact_integer(column)
                if row is not None:
                    self._note_inexact(column.path, spot.after(row))

    def _parse_as_known(self, lines: pa.Array, spot: Spot) -> list[Column] | None:
        with self._lock:
            parser, last = self._parser, self._last_appearance
        if last is None or spot < last:
            return None
        try:
            return list(walk_columns(parser.parse(lines), parser.schema.names))
        except BadRecord:  # a new field, another type, or an error that inference will tell
            return None

    def _infer(self, lines: pa.Array, spot: Spot) -> list[Column]:
        shape = shape_of(infer_schema(lines), spot)
        schema = pa.schema(shape.to_fields())
        columns = list(walk_columns(Parser(schema).parse(lines), schema.names))
        for column in columns:
            part, row = shape.find(column.path), column.first_row()
            if part is not None and row is not None:
                part.seen = spot.after(row)
        self._add(shape)
        return columns

    def _add(self, shape: Shape) -> None:
        with self._lock:
            if self._root is None:
                self._root = shape
            else:
                merge_shapes(self._root, shape)
            if self._root.count_fields() > MAX_FIELDS:
                raise BadRecord(
                    f"brings the number of different fields above {MAX_FIELDS}: names seem to hold data",
                    remedy="declare the fields with --schema",
                )
            self._parser = Parser(pa.schema(self._root.to_fields()))
            self._last_appearance = self._root.last_appearance()

    def _note_inexact(self, path: Path, spot: Spot) -> None:
        with self._lock:
            shape = self._root.find(path) if self._root else None
            if shape is None:
                return
            if shape.kind == "float":  # widened by another thread meanwhile
                raise Conflict(path, shape, Shape("integer", shape.first, spot, inexact=spot))
            shape.inexact = shape.inexact or spot
