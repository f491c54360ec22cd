"""JSON lines to table form: types from all the records, or from a schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError, InputError, SchemaMismatch
from recshuf.formats.jsonl.decoding.bad_lines import find_misshapen
from recshuf.formats.jsonl.decoding.columns import walk_columns
from recshuf.formats.jsonl.decoding.inference import GivenTypes, InferredTypes
from recshuf.formats.jsonl.decoding.line_checks import (
    BadRecord,
    Faults,
    as_lines,
    check_lines,
    cut_kept_pieces,
    cut_pieces,
    name_path,
)
from recshuf.formats.jsonl.decoding.numbers import TYPE_REMEDY, check_floats
from recshuf.formats.jsonl.decoding.shapes import Conflict, Rows, Shape, Spot
from recshuf.interfaces import BadRecords, Decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recshuf.formats.jsonl.decoding.parser import Parser

_MAX_BATCH_BYTES = (1 << 31) - 1  # what the offsets of a string column can count


class JsonDecoder(Decoder):
    """Decodes batches of one large_binary column, each value a line with one JSON object.

    Parameters
    ----------
    names
        Names of the inputs for messages, by input index.
    schema
        Table form, where the types are not to be inferred. Fields that it lacks are errors.
    header_lines
        Lines of each input that come before its row 0.
    field
        Path of the only field that is wanted: as soon as its type is known, no other column is parsed.
    sets_bad_aside
        Whether `observe` returns the lines that are no records, and does not raise.

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
        self._names = names
        self._header_lines = header_lines
        self._field = field
        others = "error" if field is None else "ignore"
        self._types = InferredTypes(field) if schema is None else GivenTypes(schema, others=others)
        self._final_parser = None if schema is None else self._narrow(self._types.parser)
        self._sets_bad_aside = sets_bad_aside
        self._prefix_end: Spot | None = None

    def infer_from_prefix(self, input_index: int) -> None:
        """See `SupportsPrefixInference`."""
        self._prefix_end = Spot(input_index, 0)

    @property
    def schema(self) -> pa.Schema | None:
        """The schema given; without one, None until `finish`."""
        return self._final_parser.schema if self._final_parser else None

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        """Learn the types of some records, and make sure that they can be decoded.

        Raises
        ------
        InputError
            Naming input, line and field, when a line is not a JSON object, when its types do not fit those of
            other lines or the schema, or when a number would be altered. If the bad are set aside: when lines
            that are records by themselves do not fit together.
        """
        records = as_lines(batch.column(0))
        numbers = np.arange(first_row, first_row + len(records))
        if self._prefix_end is not None and Spot(input_index, first_row) > self._prefix_end:
            self._observe_lines(records, Rows(input_index, numbers), _check_form)
            return None
        faults = Faults()
        for start, lines in cut_pieces(records):
            rows = Rows(input_index, numbers[start : start + len(lines)])
            faults |= self._observe_lines(lines, rows, self._types.learn)
        if not faults:
            return None
        found = sorted(faults)
        return BadRecords(np.array(found) - first_row, [faults[row].reason for row in found])

    def finish(self) -> pa.Schema:
        """Return the schema: fields in the order of their first appearance, of type null if never filled.

        Raises
        ------
        UsageError
            When the field that is wanted is none of them.
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
            When another one does not, which only happens if it was not observed.
        """
        parser, lines = self._finish_parser(), as_lines(batch.column(0))
        if batch.nbytes > _MAX_BATCH_BYTES:
            raise ConversionError("record", f"{batch.nbytes} bytes of JSON are too much to convert at once")
        parse = _parse_observed if self._prefix_end is None else _parse_by_prefix
        pieces = [parse(parser, piece) for piece in cut_kept_pieces(lines, parser.field_count)]
        if not pieces:
            pieces = [[pa.nulls(0, field.type) for field in parser.schema]]
        return _join_pieces(pieces, parser.schema, len(lines))

    def _finish_parser(self) -> Parser:
        if self._final_parser is None:
            self._final_parser = self._narrow(self._types.parser)
        return self._final_parser

    def _narrow(self, parser: Parser) -> Parser:
        """Return a parser of no more than the field that is wanted."""
        return parser if self._field is None else parser.narrow(self._field)

    def _observe_lines(
        self,
        lines: pa.Array,
        rows: Rows,
        look_at: Callable[[pa.Array, Rows], None],
        *,
        is_sifted: bool = False,
    ) -> Faults:
        """Look at lines, cutting them in half until what is wrong with them is wrong with a single one.

        Returns the faults of the lines that are set aside, by row. `is_sifted` tells that all of them are JSON objects.
        """
        if not len(lines):
            return {}
        try:
            look_at(lines, rows)
        except Conflict as conflict:
            raise self._conflict_error(conflict) from conflict
        except BadRecord as error:
            faults = self._find_faults(error, lines, is_sifted) if self._sets_bad_aside else {}
            is_found = len(lines) == 1 or (error.row is not None and not self._sets_bad_aside)
            if is_found and not faults:
                raise self._record_error(error, rows.spot(error.row or 0)) from error
        else:
            return {}
        if faults:
            left = np.delete(np.arange(len(lines)), list(faults))
            parts = [(lines.take(pa.array(left)), rows.take(left))]
        else:
            half = len(lines) // 2
            parts = [
                (lines.slice(0, half), rows.cut(0, half)),
                (lines.slice(half), rows.cut(half, len(lines))),
            ]
        found = {int(rows.numbers[at]): fault for at, fault in faults.items()}
        for part in parts:
            found |= self._observe_lines(*part, look_at, is_sifted=True)
        return found

    def _find_faults(self, error: BadRecord, lines: pa.Array, is_sifted: bool) -> Faults:
        """Return what is wrong with some lines by themselves, by index, as far as an error of them all leads to it."""
        faults = ({} if is_sifted else find_misshapen(lines)) or error.faults
        if faults:
            return faults
        at = 0 if len(lines) == 1 else error.suspect
        while at is not None and at < len(lines):
            fault = self._types.find_fault(lines.slice(at, 1))
            if fault is None:
                break
            faults[at] = fault
            behind = lines.slice(at + 1)
            next_fault = self._types.find_fault(behind) if len(behind) else None
            at = None if next_fault is None or next_fault.suspect is None else at + 1 + next_fault.suspect
        return faults

    def _record_error(self, error: BadRecord, spot: Spot) -> InputError:
        place = self._line(spot)
        if error.path:
            place += f", field {name_path(error.path)!r}"
        return InputError(self._names[spot.input_index], error.problem, place=place, remedy=error.remedy)

    def _conflict_error(self, conflict: Conflict) -> InputError:
        """Name both places, the later one first: that is where the reader looks for the mistake."""
        shapes = (conflict.one, conflict.other)
        of_digits = {shape.kind for shape in shapes} == {"integer", "float"}
        found = [(_spot_of(shape, of_digits), _describe(shape, of_digits)) for shape in shapes]
        (early, early_kind), (late, late_kind) = sorted(found)
        early_name = "" if early.input_index == late.input_index else f" of {self._names[early.input_index]}"
        return InputError(
            self._names[late.input_index],
            f"holds {late_kind}, but {early_kind} in {self._line(early)}{early_name}",
            place=f"{self._line(late)}, field {name_path(conflict.path)!r}",
            remedy=TYPE_REMEDY
            if of_digits
            else "give the field one type; numbers pass as string with --schema",
        )

    def _line(self, spot: Spot) -> str:
        return f"line {spot.row + self._header_lines + 1}"


def _spot_of(shape: Shape, of_digits: bool) -> Spot:
    return (shape.inexact if of_digits else None) or shape.seen or shape.first.spot


def _describe(shape: Shape, of_digits: bool) -> str:
    if of_digits:
        return "a float" if shape.kind == "float" else "an integer that float64 cannot hold exactly"
    return {
        "boolean": "a boolean",
        "integer": "a number",
        "float": "a number",
        "string": "a string",
        "object": "an object",
        "array": "an array",
    }[shape.kind]


def _check_form(lines: pa.Array, _: Rows) -> None:
    check_lines(lines)


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
