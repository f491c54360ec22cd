"""Fields of JSON lines as texts: strings after escapes, numbers as they are written, whatever types other lines have.

A piece is parsed with the fields as text, or as int64 where the last one held integers. If it holds other numbers or
booleans, these are first put in quotes. A line that still does not parse is read by itself.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recshuf.errors import UsageError
from recshuf.formats.jsonl.decoder import LineMessages, check_all
from recshuf.formats.jsonl.inference import Rows
from recshuf.formats.jsonl.line_checks import BadRecord, Path, as_lines, check_lines
from recshuf.formats.jsonl.parser import LITERAL, Parser, check_json
from recshuf.interfaces import ValueReader
from recshuf.records.arrays import check_path, dotted, split_path, unknown_column
from recshuf.records.value_keys import cut_pieces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.interfaces import ReadOptions

    _Tree = dict[str, "int | _Tree"]


_TEXT, _BYTES = pa.string(), pa.large_binary()
_ZERO = r"0(?:\.0+)?(?:[eE][+-]?[0-9]+)?"
_SIGNED = f"^-{_ZERO}$"
_SPELLINGS = (
    (r"-?NaN", r"\1null"),
    (r"(-?)Inf(?:inity)?", r'\1"\2inf"'),
    (rf"-({_ZERO})(\s*[,}}])", r"\1\2\3"),
)
"""Patterns of values behind keys, and what has the same text: NaN is no value, and a zero has no sign."""
_KINDS = {
    "dict": "an object",
    "list": "an array",
    "str": "a string",
    "bool": "a boolean",
    "_Literal": "a number",
}


class _Literal(str):
    """A number, NaN or an infinity as it is written."""

    __slots__ = ()


class JsonValueReader(ValueReader):
    """Reads fields of lines.

    A path is a name of the record, or names with dots or slashes between them of objects inside each other. A record
    that has both is an error.
    """

    parses_records = True
    knows_fields = False

    def __init__(self, names: Sequence[str], paths: Sequence[str], options: ReadOptions, unit: str) -> None:
        self._messages = LineMessages(names, unit)
        self._fields = [_find_slots(path, options) for path in paths]
        self._slots = list(dict.fromkeys(slot for slots in self._fields for slot in slots))
        self._tree = _grow_tree(self._slots)
        self._names = {name for slot in self._slots for name in slot}
        self._begin = _match_keys({str(slot[-1]) for slot in self._slots})
        self._parsers: dict[frozenset[Path], Parser] = {}
        self._whole: frozenset[Path] = frozenset()
        """Slots that held integers alone in the last piece."""
        self._mixed = False
        """Whether a piece held other numbers, booleans, or numbers among texts."""

    def read(
        self, batch: pa.RecordBatch, input_index: int, first_row: int
    ) -> tuple[pa.LargeBinaryArray, ...]:
        records, parts = batch.column(0), list[list[pa.Array]]()

        def add(lines: pa.Array, _: Rows) -> None:
            parts.append(self._read(lines))

        for piece in cut_pieces(records):
            rows = Rows(input_index, np.arange(first_row + piece.start, first_row + piece.stop))
            check_all(add, as_lines(records[piece]), rows, self._messages)
        if not parts:
            return tuple(pa.array([], _BYTES) for _ in self._fields)
        return tuple(pa.concat_arrays(field) for field in zip(*parts, strict=True))

    def _read(self, lines: pa.Array) -> list[pa.Array]:
        check_lines(lines)
        try:
            found = self._parse(lines)
        except BadRecord as error:
            if len(lines) > 1:
                raise
            found = self._read_line(lines, error)
        values = dict(zip(self._slots, found, strict=True))
        return [_unite([values[slot] for slot in slots], slots) for slots in self._fields]

    def _parse(self, lines: pa.Array) -> list[pa.Array]:
        whole, tried = self._whole, set[Path | None]()
        while not self._mixed:
            try:
                found = self._parse_by(whole, lines)
            except BadRecord as error:
                path = error.path
                if path in tried or path not in self._slots:  # with no path an integer is none of int64
                    if path is not None and path not in self._slots:
                        raise
                    break
                tried.add(path)
                whole ^= {path}
            else:
                self._whole = whole
                return found
        found = self._parse_quoted(lines)
        self._mixed = True
        return found

    def _parse_quoted(self, lines: pa.Array) -> list[pa.Array]:
        """Return the texts of each slot, from lines with the numbers and booleans of the fields in quotes."""
        try:
            found = self._parse_by(frozenset(), self._quote(lines))
        except BadRecord:  # perhaps NaN
            found = []
        if found and not any(pc.any(pc.match_substring_regex(texts, _SIGNED)).as_py() for texts in found):
            return found
        for pattern, text in _SPELLINGS:
            lines = pc.replace_substring_regex(lines, self._begin + pattern, text)
        return self._parse_by(frozenset(), self._quote(lines))

    def _quote(self, lines: pa.Array) -> pa.Array:
        return pc.replace_substring_regex(lines, f"{self._begin}({LITERAL})", r'\1"\2"')

    def _parse_by(self, whole: frozenset[Path], lines: pa.Array) -> list[pa.Array]:
        parser = self._parsers.get(whole)
        if parser is None:
            parser = Parser(pa.schema(_list_fields(self._tree, self._slots, whole)), others="ignore")
            self._parsers[whole] = parser
        columns = dict(zip(parser.schema.names, parser.parse(lines), strict=True))
        values = [
            pc.struct_field(columns[slot[0]], list(slot[1:])) if slot[1:] else columns[slot[0]]
            for slot in self._slots
        ]
        return [(value if value.type == _TEXT else value.cast(_TEXT)).cast(_BYTES) for value in values]

    def _read_line(self, line: pa.Array, error: BadRecord) -> list[pa.Array]:
        """Return the texts of a line that does not parse with others; raises `BadRecord` that says what is wrong."""
        check_json(line)
        try:
            record = json.loads(
                line[0].as_py(),
                strict=False,
                parse_int=_Literal,
                parse_float=_Literal,
                parse_constant=_Literal,
                object_pairs_hook=self._join_pairs,
            )
        except (ValueError, RecursionError):
            raise error from None
        texts = [_find_text(record, slot) for slot in self._slots]
        return [pa.array([None if text is None else text.encode()], _BYTES) for text in texts]

    def _join_pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for name, value in pairs:
            if name in record and name in self._names:
                raise BadRecord("occurs twice in one object", path=(name,))
            record[name] = value
        return record


def _match_keys(names: set[str]) -> str:
    """Return a pattern of keys of these names, plain or in ASCII, up to their values."""
    spellings = {
        json.dumps(name, ensure_ascii=is_ascii)[1:-1] for name in names for is_ascii in (True, False)
    }
    # Begins with as many letters as it can: a search for them is 2 to 3 times as fast. What it matches in other keys or
    # fields is ignored, quoted or not.
    escaped = sorted(map(re.escape, spellings))
    name = escaped[0] if len(escaped) == 1 else f"(?:{'|'.join(escaped)})"
    return rf'("{name}"\s*:\s*)'


def _find_slots(path: str, options: ReadOptions) -> tuple[Path, ...]:
    inner = tuple(dotted(path).split("."))
    if options.schema is not None:
        check_path(path, options.schema)
        column, fields = split_path(path, options.schema.names)
        slots: tuple[Path, ...] = ((column, *fields),)
    else:
        slots = tuple(dict.fromkeys([(path,), inner]))
    if options.columns is not None:
        slots = tuple(slot for slot in slots if slot[0] in options.columns)
        if not slots:
            raise unknown_column(inner[0], options.columns)
    return slots


def _grow_tree(slots: Sequence[Path]) -> _Tree:
    """Return slots as nested dictionaries, whose leaves are the numbers of slots."""
    root: _Tree = {}
    for number, slot in enumerate(slots):
        tree: Any = root
        for name in slot[:-1]:
            tree = tree.setdefault(name, {})
            if not isinstance(tree, dict):
                break
        if not isinstance(tree, dict) or slot[-1] in tree:
            raise UsageError(
                f"column {'.'.join(map(str, slot))!r}: another field is inside it, or it is inside another one"
            )
        tree[slot[-1]] = number
    return root


def _list_fields(tree: _Tree, slots: Sequence[Path], whole: frozenset[Path]) -> list[pa.Field]:
    return [
        pa.field(name, pa.struct(_list_fields(part, slots, whole)))
        if isinstance(part, dict)
        else pa.field(name, pa.int64() if slots[part] in whole else _TEXT)
        for name, part in tree.items()
    ]


def _unite(values: list[pa.Array], slots: Sequence[Path]) -> pa.Array:
    first, *others = values
    if not others or first.null_count == len(first):
        return others[-1] if others else first
    if (twice := pc.and_(first.is_valid(), others[0].is_valid())).true_count:
        problem = f"has a value, and so has {'.'.join(map(str, slots[1]))!r} inside of an object"
        row = int(np.argmax(twice.to_numpy(zero_copy_only=False)))
        raise BadRecord(problem, remedy="rename one of them", path=slots[0], row=row)
    return pc.coalesce(first, others[0])


def _find_text(record: Any, slot: Path) -> str | None:
    for depth, name in enumerate(slot):
        if record is None:
            return None
        if not isinstance(record, dict):
            problem = f"holds {_KINDS[type(record).__name__]}, and no object with a field {name!r}"
            raise BadRecord(problem, path=slot[:depth])
        record = record.get(name)
    if isinstance(record, dict | list):
        remedy = "name a field inside it" if isinstance(record, dict) else "name another field"
        raise BadRecord(f"holds {_KINDS[type(record).__name__]}", remedy=remedy, path=slot)
    if isinstance(record, bool):
        return str(record).lower()
    text = None if record is None else str(record)
    if text is None or not isinstance(record, _Literal):
        return text
    if re.fullmatch(f"-{_ZERO}", text):
        return text[1:]
    return {"NaN": None, "Infinity": "inf", "-Infinity": "-inf"}.get(text, text)
