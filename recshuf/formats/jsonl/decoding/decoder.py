"""JSON lines to table form, with types inferred from the records or given by a schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError, InputError, SchemaMismatch
from recshuf.formats.jsonl.decoding.columns import walk_columns
from recshuf.formats.jsonl.decoding.inference import GivenTypes, InferredTypes
from recshuf.formats.jsonl.decoding.line_checks import BadRecord, as_lines, cut_kept_pieces, name_path
from recshuf.formats.jsonl.decoding.messages import LineMessages
from recshuf.formats.jsonl.decoding.numbers import check_floats
from recshuf.formats.jsonl.decoding.observers import (
    BadLineFilter,
    LineObserver,
    PrefixObserver,
    StrictObserver,
)
from recshuf.formats.jsonl.decoding.shapes import Conflict, RecordPosition, Rows, Shape
from recshuf.interfaces import BadRecords, Decoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.jsonl.decoding.parser import Parser

_MAX_BATCH_BYTES = (1 << 31) - 1  # limit of the offsets of a string column


class JsonDecoder(Decoder):
    """Decodes batches of one large_binary column, each value a line with one JSON object.

    Parameters
    ----------
    names
        Names of the inputs for messages, by input index.
    schema
        Schema of the table form; other fields are errors. Default: inferred from the records.
    header_lines
        Lines of each input before its row 0.
    field
        Path of the only field to decode: once its type is known, no other column is parsed.
    sets_bad_aside
        Whether `observe` returns bad lines instead of raising.

    Raises
    ------
    ConversionError
        When the schema has a type that cannot be read from JSON.
    UsageError
        When the schema has no such field.
    """

    def __init__(
        self,
        names: Sequence[str],
        schema: pa.Schema | None,
        header_lines: int,
        *,
        field: str | None = None,
        sets_bad_aside: bool = False,
    ) -> None:
        self._field = field
        others = "error" if field is None else "ignore"
        self._types = InferredTypes(field) if schema is None else GivenTypes(schema, others=others)
        self._final_parser = None if schema is None else self._narrow(self._types.parser)
        self._messages = LineMessages(names, header_lines)
        self._observer: LineObserver = (BadLineFilter if sets_bad_aside else StrictObserver)(
            self._types, self._messages
        )
        self._parse = _parse_observed

    def infer_from_prefix(self, input_index: int) -> None:
        """See `SupportsPrefixInference`."""
        self._observer = PrefixObserver(self._types, self._messages, RecordPosition(input_index, 0))
        self._parse = _parse_by_prefix

    @property
    def schema(self) -> pa.Schema | None:
        """The schema given; without one, None until `finish`."""
        return self._final_parser.schema if self._final_parser else None

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        """Learn the types of records, and check that they can be decoded.

        Raises
        ------
        InputError
            Naming input, line and field, when a line is not a JSON object, when its types do not fit those of
            other lines or the schema, or when a number would be altered. If bad lines are set aside: only when
            good lines have conflicting types.
        """
        records = as_lines(batch.column(0))
        rows = Rows(input_index, np.arange(first_row, first_row + len(records)))
        errors = self._observer.observe(records, rows)
        if not errors:
            return None
        found = sorted(errors)
        return BadRecords(np.array(found) - first_row, [errors[row].reason for row in found])

    def state(self) -> Any:
        """See `Decoder`."""
        return self._types.state()

    def merge(self, state: Any) -> None:
        """See `Decoder`."""
        try:
            self._types.merge(state)
        except Conflict as conflict:
            raise self._messages.conflict_error(conflict) from conflict
        except BadRecord as error:
            last = Shape.unpack(state).last_appearance()
            raise self._messages.record_error(error, last) from error

    def finish(self) -> pa.Schema:
        """Return the schema: fields in the order of their first appearance, of type null if never filled.

        Raises
        ------
        UsageError
            When the field to decode is none of them.
        """
        return self._finish_parser().schema

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records in table form.

        Raises
        ------
        ConversionError
            When the batch holds 2 GiB of text or more.
        SchemaMismatch
            When a record does not fit the schema inferred from the first ones.
        InputError
            When a record does not fit because it was not observed.
        """
        parser, lines = self._finish_parser(), as_lines(batch.column(0))
        if batch.nbytes > _MAX_BATCH_BYTES:
            raise ConversionError("record", f"{batch.nbytes} bytes of JSON are too much to convert at once")
        cut = cut_kept_pieces(lines, parser.field_count, parser.listed_count)
        pieces = [self._parse(parser, piece) for piece in cut]
        if not pieces:
            pieces = [[pa.nulls(0, field.type) for field in parser.schema]]
        return _join_pieces(pieces, parser.schema, len(lines))

    def _finish_parser(self) -> Parser:
        if self._final_parser is None:
            self._final_parser = self._narrow(self._types.parser)
        return self._final_parser

    def _narrow(self, parser: Parser) -> Parser:
        """Return a parser of the field to decode only."""
        return parser if self._field is None else parser.narrow(self._field)


def _parse_by_prefix(parser: Parser, lines: pa.Array) -> list[pa.Array]:
    try:
        columns = parser.parse(lines)
        check_floats(list(walk_columns(columns, parser.schema.names)), lines, as_given=False)
    except BadRecord as error:
        raise SchemaMismatch from error
    return columns


def _parse_observed(parser: Parser, lines: pa.Array) -> list[pa.Array]:
    try:
        return parser.parse(lines)
    except BadRecord as error:
        place = f"field {name_path(error.path)!r}" if error.path else None
        raise InputError("a record", error.problem, place=place, remedy=error.remedy) from error


def _join_pieces(pieces: list[list[pa.Array]], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    if not len(schema):  # a batch gets its length from its columns
        return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))
    columns = (
        pieces[0] if len(pieces) == 1 else [pa.concat_arrays(parts) for parts in zip(*pieces, strict=True)]
    )
    return pa.RecordBatch.from_arrays(columns, schema=schema)
