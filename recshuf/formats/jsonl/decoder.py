"""JSON lines to table form, with types inferred from the records or from a schema.

Lines are observed in one of three ways: stop at the first bad line, filter bad lines out, or learn from a prefix only.
Lines that do not parse together are cut in half, or the bad ones left out, until the error is that of a single line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import BadRecordError, ConversionError, InputError, SchemaMismatch
from recshuf.formats.jsonl.inference import (
    Conflict,
    GivenTypes,
    InferredTypes,
    RecordPosition,
    Rows,
    Shape,
    find_error,
)
from recshuf.formats.jsonl.line_checks import (
    BadRecord,
    LineErrors,
    as_lines,
    check_lines,
    cut_kept_pieces,
    cut_pieces,
    find_malformed,
    name_path,
)
from recshuf.formats.jsonl.numbers import TYPE_REMEDY, check_floats, walk_columns
from recshuf.formats.jsonl.parser import check_json, pick_columns, propose_texts
from recshuf.interfaces import BadRecords, Decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recshuf.formats.jsonl.parser import Parser


_FEW_LINES = 8
_MAX_BATCH_BYTES = (1 << 31) - 1  # limit of the offsets of a string column
_NOUNS = {
    "boolean": "a boolean",
    "integer": "a number",
    "float": "a number",
    "string": "a string",
    "object": "an object",
    "array": "an array",
}
_DIGITS = {"integer": "an integer that float64 cannot hold exactly", "float": "a float"}


class LineMessages:
    """Makes an `InputError` of what is wrong at a position, naming input, line and field."""

    def __init__(self, names: Sequence[str], unit: str) -> None:
        self._names = names
        self._unit = unit

    def record_error(self, error: BadRecord, position: RecordPosition) -> InputError:
        place = self._line(position)
        if error.path:
            place += f", field {name_path(error.path)!r}"
        return BadRecordError(
            self._names[position.input_index], error.problem, place=place, remedy=error.remedy
        )

    def conflict_error(self, conflict: Conflict) -> InputError:
        """Return the error for two records whose types conflict: the later one, where users look for the mistake, first."""
        shapes = (conflict.shape, conflict.other)
        kinds = {shape.kind for shape in shapes}
        if kinds == {"integer", "float"}:
            sides = [(shape.inexact or shape.fractional, _DIGITS[shape.kind]) for shape in shapes]
            remedy = TYPE_REMEDY
        else:
            sides = [(shape.seen or shape.first.position, _NOUNS[shape.kind]) for shape in shapes]
            other = (
                "numbers pass as string" if kinds.isdisjoint(("object", "array")) else "json takes any value"
            )
            remedy = f"give the field one type; {other} with --schema"
        *earlier, (late, late_kind) = sorted((position, kind) for position, kind in sides if position)
        return InputError(
            self._names[late.input_index],
            f"holds {late_kind}, but {self._describe(earlier, late)}",
            place=f"{self._line(late)}, field {name_path(conflict.path)!r}",
            remedy=remedy,
        )

    def _describe(self, earlier: list[tuple[RecordPosition, str]], late: RecordPosition) -> str:
        """Return what the earlier record holds, and its place; that of a float like ``1.0`` is not known."""
        if not earlier:
            return f"{_DIGITS['float']} in another {self._unit}"
        ((early, kind),) = earlier
        name = "" if early.input_index == late.input_index else f" of {self._names[early.input_index]}"
        return f"{kind} in {self._line(early)}{name}"

    def _line(self, position: RecordPosition) -> str:
        return f"{self._unit} {position.row + 1}"


def check_all(
    check: Callable[[pa.Array, Rows], None], lines: pa.Array, rows: Rows, messages: LineMessages
) -> None:
    """Check lines, cutting them in half until an error concerns a single one, which it then names."""
    if not len(lines):
        return
    try:
        check(lines, rows)
    except Conflict as conflict:
        raise messages.conflict_error(conflict) from conflict
    except BadRecord as error:
        if len(lines) == 1 or error.row is not None:
            raise messages.record_error(error, rows.position(error.row or 0)) from error
    else:
        return
    for part in _halve(lines, rows):
        check_all(check, *part, messages)


def _find_bad(
    types: GivenTypes | InferredTypes,
    lines: pa.Array,
    rows: Rows,
    messages: LineMessages,
    *,
    are_well_formed: bool = False,
) -> LineErrors:
    """Learn from the good lines, and return the errors of those that are bad by themselves, by row.

    Bad lines are left out; where an error leads to none, lines are cut in half. Conflicts between good lines are raised.
    """
    bad = LineErrors()
    while len(lines):
        try:
            types.learn(lines, rows)
        except Conflict as conflict:
            raise messages.conflict_error(conflict) from conflict
        except BadRecord as error:
            malformed = {} if are_well_formed else find_malformed(lines)
            errors = malformed or error.line_errors or _follow_suspects(types, error, lines)
            if len(lines) == 1 and not errors:
                raise messages.record_error(error, rows.position(0)) from error
        else:
            break
        if not errors:
            for part in _halve(lines, rows):
                bad |= _find_bad(types, *part, messages, are_well_formed=True)
            break
        bad |= {int(rows.numbers[at]): error for at, error in errors.items()}
        good = np.delete(np.arange(len(lines)), list(errors))
        lines, rows, are_well_formed = lines.take(pa.array(good)), rows.take(good), True
    return bad


def _follow_suspects(types: GivenTypes | InferredTypes, error: BadRecord, lines: pa.Array) -> LineErrors:
    """Return errors of lines that are bad by themselves, by index, as far as an error of all lines leads to them."""
    errors = LineErrors()
    at = 0 if len(lines) == 1 else error.suspect
    while at is not None and at < len(lines):
        own_error = find_error(types, lines.slice(at, 1))
        if own_error is None:
            break
        errors[at] = own_error
        at = _find_suspect(types, lines, at + 1)
    return errors


def _find_suspect(types: GivenTypes | InferredTypes, lines: pa.Array, start: int) -> int | None:
    """Return the index of the next suspect; first few lines are parsed, as bad ones are often close together."""
    count = _FEW_LINES
    while start < len(lines):
        error = find_error(types, lines.slice(start, count))
        if error is not None and error.suspect is not None:
            return start + error.suspect
        start, count = start + count, 2 * count
    return None


def _halve(lines: pa.Array, rows: Rows) -> list[tuple[pa.Array, Rows]]:
    half = len(lines) // 2
    return [(lines[:half], rows.take(slice(half))), (lines[half:], rows.take(slice(half, None)))]


class JsonDecoder(Decoder):
    """Decodes batches of one large_binary column, each value a line with one JSON object.

    Without a schema, one is inferred from the records; with one, other fields are errors. A `field` is a path, `columns` are names
    in order. Messages call a record by `unit`.
    """

    def __init__(
        self,
        names: Sequence[str],
        schema: pa.Schema | None,
        *,
        field: str | None = None,
        columns: tuple[str, ...] | None = None,
        sets_bad_aside: bool = False,
        unit: str = "line",
    ) -> None:
        self._field = field
        self._columns = columns
        if schema is not None and columns is not None:
            schema = pick_columns(schema, columns)
        others = "error" if field is None and columns is None else "ignore"
        self._types = InferredTypes(field) if schema is None else GivenTypes(schema, others=others)
        self._final_parser = None if schema is None else self._narrow(self._types.parser)
        self._messages = LineMessages(names, unit)
        if isinstance(self._types, InferredTypes):
            self._types.on_named_data = self._tell
        self._sets_bad_aside = sets_bad_aside
        self._prefix_end: RecordPosition | None = None
        """Records of batches that begin behind it are not learned from."""

    def infer_from_prefix(self, input_index: int) -> None:
        self._prefix_end = RecordPosition(input_index, 0)

    @property
    def schema(self) -> pa.Schema | None:
        return self._final_parser.schema if self._final_parser else None

    def check(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        check_all(
            lambda lines, _: check_lines(lines), *_list_lines(batch, input_index, first_row), self._messages
        )

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        if self._prefix_end is not None and (input_index, first_row) > self._prefix_end:
            self.check(batch, input_index, first_row)
            return None
        records, rows = _list_lines(batch, input_index, first_row)
        errors, conflict = LineErrors(), None
        for start, lines in cut_pieces(records):
            part = rows.take(slice(start, start + len(lines)))
            if self._sets_bad_aside:
                errors |= _find_bad(self._types, lines, part, self._messages)
                continue
            try:
                check_all(self._types.learn if conflict is None else _check_json, lines, part, self._messages)
            except BadRecordError:
                raise
            except InputError as error:  # a scatter takes types that conflict, but no line that is not JSON
                conflict = error
                check_all(_check_json, lines, part, self._messages)
        if conflict is not None:
            raise conflict
        if not errors:
            return None
        bad_rows = sorted(errors)
        return BadRecords(np.array(bad_rows) - first_row, [errors[row].reason for row in bad_rows])

    @property
    def null_columns(self) -> frozenset[str]:
        return self._types.valid.find_nulls(self.finish().names)

    def state(self) -> Any:
        return self._types.state()

    def merge(self, state: Any) -> None:
        try:
            self._types.merge(state)
        except Conflict as conflict:
            raise self._messages.conflict_error(conflict) from conflict
        except BadRecord as error:
            last = Shape.unpack(state).last_appearance()
            raise self._messages.record_error(error, last) from error

    def finish(self) -> pa.Schema:
        """Return the schema: fields in the order of their first appearance, of type null if never filled."""
        return self._finish_parser().schema

    def explain(self, field: str) -> ConversionError | None:
        proposed = propose_texts(self.finish())
        if proposed is None or not field.startswith(proposed[0][0] or ""):
            return None
        path, remedy = proposed
        problem = "all its objects are empty, which no column holds"
        return ConversionError(name_path(path), problem, remedy=remedy)

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        parser, lines = self._finish_parser(), as_lines(batch.column(0))
        if batch.nbytes > _MAX_BATCH_BYTES:
            raise ConversionError("record", f"{batch.nbytes:,} bytes of JSON are too much to convert at once")
        cut = cut_kept_pieces(lines, parser.field_count, parser.listed_count)
        parse = _parse_observed if self._prefix_end is None else _parse_by_prefix
        pieces = [parse(parser, piece) for piece in cut]
        if not pieces:
            pieces = [[pa.nulls(0, field.type) for field in parser.schema]]
        return _join_pieces(pieces, parser.schema, len(lines))

    def _finish_parser(self) -> Parser:
        if self._final_parser is None:
            parser = self._types.parser
            wanted = {*(self._columns or ())}
            if self._prefix_end is not None and not wanted <= {*parser.schema.names}:
                raise SchemaMismatch  # other records may have the field
            self._final_parser = self._narrow(parser)
            if isinstance(self._types, InferredTypes) and (note := self._types.find_named_data()):
                self.notes = (note,)
        return self._final_parser

    def _tell(self, note: str) -> None:
        if self.on_note is not None:
            self.on_note(note)

    def _narrow(self, parser: Parser) -> Parser:
        if self._columns is not None:
            parser = parser.pick(self._columns)
        return parser if self._field is None else parser.narrow(self._field)


def _check_json(lines: pa.Array, rows: Rows) -> None:  # noqa: ARG001 - as what learns
    check_lines(lines)
    check_json(lines)


def _list_lines(batch: pa.RecordBatch, input_index: int, first_row: int) -> tuple[pa.Array, Rows]:
    lines = as_lines(batch.column(0))
    return lines, Rows(input_index, np.arange(first_row, first_row + len(lines)))


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
