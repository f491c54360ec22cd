"""Table form to JSON lines, column by column; and fields that lines get before their last brace, without being parsed.

`docs/formats.md`, "To JSONL", says which form each type has.

Encoders take an array of one type and return a ``large_string`` array of the same length, null where the value is
null, or raise `ConversionError` for a value that JSON cannot represent.

Base64 is that of RFC 4648, padded. The values lie back to back, as in an Arrow buffer. Both directions are one call of `binascii`, once the last group of
every value is complete::

    bytes   A B C | D E 0 | ...     padding bytes masked out of the decoded side
    text    wwww  | xxx=  | ...     and overwritten by '=' on the encoded side
"""

from __future__ import annotations

import binascii
import json
import re
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.errors import ConversionError, InputError
from recshuf.formats.lines.cutting import SCHEMA, make_batch, view_records
from recshuf.formats.texts import BARE, QUOTED, write_floats
from recshuf.interfaces import FieldAdder
from recshuf.records.arrays import is_any_list, is_bytes, storage_of, view_bytes, view_offsets, wrap_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from recshuf.formats.lines.cutting import Bytes, Positions

    _Write = Callable[[pa.Array, str], pa.Array]
    Lengths = NDArray[np.int64]
    """Bytes of each value, shape ``(values,)``; a column has ``lengths.sum()``."""


_PAD = ord("=")
_ZERO = ord("A")
_TEXT = pa.large_string()
_SPACE = r"[ \t\r\n]*"
_BEGINS = rf"^{_SPACE}\{{"
_ENDS = rf"\}}{_SPACE}$"
_IS_EMPTY = rf"^{_SPACE}\{{{_SPACE}\}}"
_VALUE = r'(?:"(?:[^"\\]|\\.)*"|[0-9]+)'
_SPELLED = r"\\u00(?:5[fF]|6[0-9a-fA-F]|7[0-9aA])"
"""A lowercase letter or an underscore, written as an escape."""
_BYTES = pa.large_binary()
_SHORT_ESCAPES = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}


def check_schema(schema: pa.Schema) -> None:
    """Raise `ConversionError` unless every field has a form in JSON, and names are unique on their level."""
    columns = [pa.nulls(0, field.type) for field in schema]
    _encode_fields(list(schema), columns, 0, "", "}", nan_as_null=True)


def encode_lines(batch: pa.RecordBatch, nan_as_null: bool) -> pa.Array:
    r"""Return one compact JSON object with a trailing newline for each row, as a large_binary array.

    Keys come in the order of the schema, and a null is written as ``null``.

    >>> encode_lines(pa.record_batch({"a": [1, None], "b": ["x", "y"]}), nan_as_null=False).to_pylist()
    [b'{"a":1,"b":"x"}\n', b'{"a":null,"b":"y"}\n']
    """
    lines = _encode_fields(list(batch.schema), batch.columns, batch.num_rows, "", "}\n", nan_as_null)
    return lines.cast(pa.large_binary())


def encode_values(array: pa.Array, path: str, nan_as_null: bool) -> pa.Array:
    """Return the JSON text of each value as a large_string array, null where the value is null; the `path` is for messages."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return encode_values(array.storage, path, nan_as_null)
    if pt.is_dictionary(kind) and pt.is_string(kind.value_type):
        return encode_values(array.dictionary, path, nan_as_null).take(array.indices)
    if pt.is_dictionary(kind):
        return encode_values(array.dictionary_decode(), path, nan_as_null)
    if pt.is_run_end_encoded(kind):
        return encode_values(pc.run_end_decode(array), path, nan_as_null)
    if pt.is_struct(kind):
        texts = _encode_fields(list(kind), array.flatten(), len(array), path, "}", nan_as_null)
        return _mask(texts, array)
    if pt.is_map(kind):
        entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return _encode_list(array.cast(pa.list_(entry)), path, nan_as_null)
    if is_any_list(kind):
        return _encode_list(array, f"{path}[]", nan_as_null)
    if pt.is_floating(kind):
        return _encode_floats(array, path, nan_as_null)
    encode = next((encode for accepts, encode in _ENCODERS if accepts(kind)), None)
    if encode is None:
        raise ConversionError(path, f"the type {kind} has no form in JSON", remedy="leave the column out")
    return encode(array, path)


def _encode_fields(
    fields: list[pa.Field], columns: list[pa.Array], rows: int, path: str, end: str, nan_as_null: bool
) -> pa.Array:
    for name, count in Counter(field.name for field in fields).items():
        if count > 1:
            problem = f"JSON cannot hold {count} fields of one name"
            raise ConversionError(_join(path, name), problem, remedy="rename all but one")
    parts: list[str | pa.Array] = []
    for field, column in zip(fields, columns, strict=True):
        parts.append(f"{',' if parts else '{'}{json.dumps(field.name, ensure_ascii=False)}:")
        parts.append(encode_values(column, _join(path, field.name), nan_as_null))
    if not parts:
        return pa.repeat(pa.scalar("{" + end, _TEXT), rows)
    return _concat(*parts, end, null="null")


def _encode_list(array: pa.Array, path: str, nan_as_null: bool) -> pa.Array:
    """Encode lists of any kind: the elements as one flat array, then joined list by list."""
    elements = pc.fill_null(encode_values(array.flatten(), path, nan_as_null), "null")
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ConversionError(path, f"{offsets[-1]} list elements are too many to convert at once")
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements)
    return _mask(_concat("[", pc.binary_join(lists, pa.scalar(",", _TEXT)), "]"), array)


def _mask(texts: pa.Array, array: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, _TEXT)) if array.null_count else texts


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name


def _concat(*parts: str | pa.Array, null: str | None = None) -> pa.Array:
    """Return the parts joined row by row; at least one of them is an array.

    A row with a null part is null, or has `null` in its place if that is given.
    """
    texts = [pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in (*parts, "")]
    if null is None:
        return pc.binary_join_element_wise(*texts)
    return pc.binary_join_element_wise(*texts, null_handling="replace", null_replacement=null)


def _encode_floats(array: pa.Array, field: str, nan_as_null: bool) -> pa.Array:
    """Encode floats as the shortest text that reads back as the same value of the same width.

    A text never looks like an integer (``1.0``, not ``1``), so that readers that infer types see a float.
    """
    values = array.to_numpy(zero_copy_only=False)
    finite = np.isfinite(values)
    broken = pa.array(~finite & array.is_valid().to_numpy(zero_copy_only=False))
    if broken.true_count and not nan_as_null:
        raise ConversionError(
            field, "NaN and infinities have no form in JSON", remedy="write them as null with --nan-as-null"
        )
    texts = write_floats(array)
    return pc.if_else(broken, pa.scalar(None, _TEXT), texts) if broken.true_count else texts


def _encode_strings(array: pa.Array, field: str) -> pa.Array:
    texts = array.cast(_TEXT, safe=False)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ConversionError(
            field, "a text is not valid UTF-8, which JSON requires", remedy="keep the column as binary"
        ) from error
    return _concat('"', escape(texts), '"')


def escape(texts: pa.Array) -> pa.Array:
    """Escape quotes, backslashes and control characters only."""
    data = view_bytes(texts)
    if not len(data):
        return texts
    if (data == ord("\\")).any():
        texts = pc.replace_substring(texts, "\\", "\\\\")
    if (data == ord('"')).any():
        texts = pc.replace_substring(texts, '"', '\\"')
    if data.min() < ord(" "):
        for code in np.unique(data[data < ord(" ")]).tolist():
            escape = _SHORT_ESCAPES.get(code, f"\\u{code:04x}")
            texts = pc.replace_substring(texts, chr(code), escape)
    return texts


def _encode_binary(array: pa.Array, _: str) -> pa.Array:
    array = array.cast(pa.large_binary())
    text, lengths = encode_base64(view_bytes(array), np.diff(view_offsets(array)))
    ends = np.concatenate(([0], np.cumsum(lengths)))
    texts = pa.LargeStringArray.from_buffers(len(array), pa.py_buffer(ends), pa.py_buffer(text))
    return _concat('"', _mask(texts, array), '"')


def _quote(write: _Write, array: pa.Array, field: str) -> pa.Array:
    return _concat('"', write(array, field), '"')


_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], _Write], ...] = (
    (pt.is_null, lambda array, _: pa.nulls(len(array), _TEXT)),
    *BARE,
    (pt.is_string, _encode_strings),
    (pt.is_large_string, _encode_strings),
    (pt.is_string_view, _encode_strings),
    (pt.is_binary, _encode_binary),
    (pt.is_large_binary, _encode_binary),
    (pt.is_binary_view, _encode_binary),
    (pt.is_fixed_size_binary, _encode_binary),
    *((accepts, partial(_quote, write)) for accepts, write in QUOTED),
)
"""The encoder of each type, called with the array and the name of its field; floats need an option more, see `_encode_floats`."""


def reading_schema(table: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, _parsed_type(field.type)) for field in table])


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    kind = storage_of(kind)
    if pt.is_map(kind):
        pair = [("key", _parsed_type(kind.key_type)), ("value", _parsed_type(kind.item_type))]
        return pa.large_list(pa.struct(pair))
    if pt.is_struct(kind):
        return pa.struct([(field.name, _parsed_type(field.type)) for field in kind])
    if is_any_list(kind):
        return pa.large_list(_parsed_type(kind.value_type))
    if is_bytes(kind):
        is_text = pt.is_string(kind) or pt.is_large_string(kind) or str(kind) == "string_view"
        return pa.large_string() if is_text else pa.large_binary()
    if pt.is_decimal(kind) and kind.bit_width < 128:  # pyarrow parses no narrower ones
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def encode_base64(data: Bytes, lengths: Lengths) -> tuple[Bytes, Lengths]:
    """Return the base64 text of values lying back to back, and the length of each text."""
    text_lengths = (lengths + 2) // 3 * 4
    ends = np.cumsum(text_lengths)
    pads = -lengths % 3
    whole = np.zeros(int(text_lengths.sum()) // 4 * 3, np.uint8)
    whole[_kept(len(whole), ends // 4 * 3, pads)] = data
    text = np.frombuffer(bytearray(binascii.b2a_base64(whole.data, newline=False)), np.uint8)
    text[~_kept(len(text), ends, pads)] = _PAD
    return text, text_lengths


def decode_base64(text: Bytes, lengths: Lengths) -> tuple[Bytes, Lengths] | None:
    """Return the bytes of base64 texts lying back to back, and the length of each value.

    None when any text is not canonical base64, so that encoding the result gives the same texts again.
    """
    if (lengths % 4).any():
        return None
    ends = np.cumsum(lengths)
    pads = _count_pads(text, ends[lengths > 0], lengths)
    is_pad = text == _PAD
    if pads.sum() != np.count_nonzero(is_pad):
        return None
    try:
        octets = binascii.a2b_base64(np.where(is_pad, np.uint8(_ZERO), text).data, strict_mode=True)
    except binascii.Error:
        return None
    whole = np.frombuffer(octets, np.uint8)
    kept = _kept(len(whole), ends // 4 * 3, pads)
    if whole[~kept].any():
        return None
    return whole[kept], lengths // 4 * 3 - pads


def _count_pads(text: Bytes, filled_ends: Lengths, lengths: Lengths) -> Lengths:
    pads = np.zeros(len(lengths), np.int64)
    last = text[filled_ends - 1] == _PAD
    pads[lengths > 0] = last + (last & (text[filled_ends - 2] == _PAD)).astype(np.int64)
    return pads


def _kept(size: int, ends: Lengths, pads: Lengths) -> NDArray[np.bool_]:
    """Return a mask that leaves out the last `pads` (0, 1 or 2) places before each end."""
    kept = np.ones(size, np.bool_)
    kept[ends[pads >= 1] - 1] = False
    kept[ends[pads == 2] - 2] = False
    return kept


class JsonFieldAdder(FieldAdder):
    """Appends fields to objects.

    Quotes inside strings are escaped, so a quoted name followed by a colon is a key of the object or of a nested one. A key
    with escaped letters may be any name. The names of the fields are letters and underscores. If it `checks_late`, `add_fields`
    checks the records, because nobody observes them.
    """

    def __init__(self, inputs: Sequence[str], names: Sequence[str], *, checks_late: bool = False) -> None:
        self._inputs = inputs
        self._checks_late = checks_late
        words = "|".join(map(re.escape, names))
        # Two patterns, since a search first looks for the fixed text that a pattern begins with.
        self._clashes = (rf'"(?:{words})"{_SPACE}:', rf'{_SPELLED}[^"]*"{_SPACE}:')
        self._added = (
            ",?"
            + ",".join(f'"{re.escape(name)}":{_VALUE}' for name in names)
            + f"({_ENDS.removesuffix('$')})$"
        )
        self._names = " and ".join(names)

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        if problem := self._find_problem(batch.column(0)):
            raise self._refuse(problem[1], self._inputs[input_index], first_row + problem[0])

    def _find_problem(self, lines: pa.Array) -> tuple[int, str] | None:
        """Return the row of a line that cannot get the fields, and why; None if all can."""
        is_object = pc.and_(pc.match_substring_regex(lines, _BEGINS), pc.match_substring_regex(lines, _ENDS))
        row = pc.index(is_object, pa.scalar(False)).as_py()
        if row >= 0:
            return row, "is not a JSON object, so fields cannot be added"
        data, offsets = view_records(lines)
        whole = wrap_bytes(data, offsets[[0, -1]])
        for clash in self._clashes:
            # Clashes are rare, and one search of all lines is faster than one per line.
            if pc.match_substring_regex(whole, clash)[0].as_py():
                row = pc.index(pc.match_substring_regex(lines, clash), pa.scalar(True)).as_py()
                if row >= 0:
                    return row, "may already have one of these fields, at the top level or nested"
        return None

    def _refuse(self, problem: str, name: str, row: int) -> InputError:
        remedy = "leave out --provenance, or choose --to parquet"
        return InputError(name, f"{problem}: {self._names}", place=f"line {row + 1}", remedy=remedy)

    def finish(self) -> pa.Schema:
        return SCHEMA

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def add_fields(self, batch: pa.RecordBatch, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Return the lines with the fields of `columns`: the name of the input and the row."""
        if not batch.num_rows:
            return batch
        if self._checks_late and (problem := self._find_problem(batch.column(0))):
            raise self._refuse(problem[1], *(column[problem[0]].as_py() for column in columns.columns))
        data, offsets = view_records(batch.column(0))
        cuts = _find_cuts(batch.column(0), data, offsets)
        # A piece reaches from one insertion to the next: the end of a line and the beginning of the next one. The fields
        # inserted after the last line are cut off.
        pieces = wrap_bytes(data, np.concatenate(([0], cuts, offsets[-1:])))
        columns = pa.concat_batches([columns, columns.slice(batch.num_rows - 1)])
        is_empty = pc.match_substring_regex(batch.column(0), _IS_EMPTY)
        # Not with the module, as scalars import pandas where there is one.
        nothing, comma = pa.scalar(b"", _BYTES), pa.scalar(b",", _BYTES)
        parts = [pc.if_else(pa.concat_arrays([is_empty, pa.array([True])]), nothing, comma)]
        for index, (field, column) in enumerate(zip(columns.schema, columns.columns, strict=True)):
            name = f"{',' if index else ''}{json.dumps(field.name)}:"
            values = encode_values(column, field.name, nan_as_null=False)
            parts += [pa.scalar(name.encode(), _BYTES), values.cast(_BYTES)]
        joined = pc.binary_join_element_wise(pieces, *parts, nothing)
        filled, ends = view_records(joined)
        ends = np.append(0, ends[1:-1] + (offsets[1:] - cuts))
        return make_batch(filled, ends)

    def remove_fields(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        lines = pc.replace_substring_regex(batch.column(0), self._added, r"\1")
        return pa.RecordBatch.from_arrays([lines], schema=SCHEMA)


def _find_cuts(lines: pa.Array, data: Bytes, offsets: Positions) -> Positions:
    cuts = offsets[1:] - len(b"}\n")
    other = np.flatnonzero((data[cuts] != ord("}")) | (data[cuts + 1] != ord("\n")))
    if len(other):
        cuts[other] = offsets[other] + pc.find_substring_regex(lines.take(pa.array(other)), _ENDS).to_numpy()
    return cuts
