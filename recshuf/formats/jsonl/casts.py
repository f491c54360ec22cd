r"""Arrow types that `pyarrow.json` cannot read: the type read instead, and the cast from it.

Values of type null are rebuilt as well: inside lists pyarrow gives them the wrong length. For a type ``json`` or a map the lines
are written otherwise first: a value of type ``json`` becomes a string with its text, an object that is a map a list of its entries::

    {"m": {"a": 1, "b": 2}, "j": {"c": [3]}}
    {"m": [{"key":"a","value": 1},{"key":"b","value": 2}], "j": "{\"c\": [3]}"}

Such values are found by the brackets, commas and colons outside of strings, in all lines at once. Lines that are no JSON give
lines that are none either, or lose their meaning: `pyarrow.json` must have read the lines before.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.errors import ConversionError
from recshuf.formats.jsonl.encoding import decode_base64, escape
from recshuf.formats.jsonl.line_checks import (
    STEPS,
    BadRecord,
    MarkState,
    Path,
    find_marks,
    name_path,
    shorten,
)
from recshuf.records.arrays import FLAT, is_contiguous_list, view_bytes, view_offsets
from recshuf.records.conforming import fit_digits, roomy_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    Cast = Callable[[pa.Array, pa.DataType], pa.Array]
    Rewrite = tuple[Path, bool]
    """The path of a type that needs other lines, and whether it is a map."""
    Bytes = NDArray[np.uint8]
    Places = NDArray[np.int64]

_SPACES = np.frombuffer(b" \t\r\n", np.uint8)
_TEXT = pa.large_string()


def is_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.JsonType)


def read_fields(fields: Iterable[pa.Field], path: Path = ()) -> list[pa.Field]:
    """Return the fields as which `pyarrow.json` reads records for those of a schema."""
    return [pa.field(field.name, _read_type(field.type, (*path, field.name))) for field in fields]


def _read_type(kind: pa.DataType, path: Path) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct(read_fields(kind, path))
    if is_contiguous_list(kind):
        return pa.list_(_read_type(kind.value_type, (*path, None)))
    if pt.is_map(kind) and pt.is_string(kind.key_type):
        return pa.list_(
            pa.struct([("key", pa.string()), ("value", _read_type(kind.item_type, (*path, None)))])
        )
    if any(accepts(kind) for accepts in _READ_DIRECTLY):
        return kind
    if _is_decimal(kind):
        return roomy_type(kind)
    for accepts, read_as, _ in _CASTS:
        if accepts(kind):
            return read_as
    raise ConversionError(name_path(path), f"the type {kind} cannot be read from JSON")


def cast_column(read: pa.Array, kind: pa.DataType, rows: int, path: Path) -> pa.Array:
    """Return a column that was read by `read_fields`, in the type of the schema and as long as `rows`.

    Raises `BadRecord` if a value does not fit the type.
    """
    if kind.id in FLAT and read.type == kind:
        return read
    if pt.is_null(kind):
        return pa.nulls(rows)
    if pt.is_struct(kind):
        return _cast_struct(read, kind, path)
    if is_contiguous_list(kind):
        return _cast_list(read, kind, path)
    if pt.is_map(kind):
        return _cast_map(read, kind, path)
    if _is_decimal(kind):
        return _cast_scalars(read, kind, path, fit_digits)
    if read.type == kind:
        return read
    return _cast_scalars(read, kind, path, next(cast for accepts, _, cast in _CASTS if accepts(kind)))


def _cast_struct(read: pa.Array, kind: pa.DataType, path: Path) -> pa.Array:
    children = []
    for index, field in enumerate(kind):
        child_path = (*path, field.name)
        child = cast_column(read.field(index), field.type, len(read), child_path)
        check_nulls(child, field, read, child_path)
        children.append(child)
    return pa.Array.from_buffers(kind, len(read), read.buffers()[:1], children=children)


def _cast_list(read: pa.Array, kind: pa.DataType, path: Path) -> pa.Array:
    field, offsets = kind.value_field, read.offsets
    values = cast_column(read.values, field.type, offsets[-1].as_py(), (*path, None))
    check_nulls(values, field, None, (*path, None))
    if pt.is_large_list(kind):  # Arrow's cast gives nulls of type null the wrong length
        ends = pa.py_buffer(view_offsets(read).astype(np.int64))
        return pa.Array.from_buffers(kind, len(read), [read.buffers()[0], ends], children=[values])
    buffers = [read.buffers()[0], offsets.buffers()[1]]
    lists = pa.Array.from_buffers(pa.list_(field), len(read), buffers, children=[values])
    if pt.is_fixed_size_list(kind):
        lengths = pc.list_value_length(lists)
        wrong = lengths.filter(pc.not_equal(lengths, kind.list_size))
        if len(wrong):
            raise BadRecord(f"has {wrong[0]} elements where the schema says {kind.list_size}", path=path)
        return _fix_sizes(lists, kind)
    return lists


def _fix_sizes(lists: pa.ListArray, kind: pa.DataType) -> pa.Array:
    """Return lists in a type of a fixed size. Arrow's cast has values of others under nulls, or memory that is none, and fails on required values there."""
    values = lists.values
    if lists.null_count:
        places = view_offsets(lists)[:-1, None] + np.arange(kind.list_size)
        hidden = np.repeat(lists.is_null().to_numpy(zero_copy_only=False), kind.list_size)
        values = values.take(pa.array(places.ravel(), mask=hidden))
    return pa.Array.from_buffers(kind, len(lists), lists.buffers()[:1], children=[values])


def _cast_map(read: pa.Array, kind: pa.DataType, path: Path) -> pa.Array:
    offsets = view_offsets(read)
    entries = read.values.slice(0, int(offsets[-1]))
    keys, values = (
        entries.field(0),
        cast_column(entries.field(1), kind.item_type, len(entries), (*path, None)),
    )
    check_nulls(keys, kind.key_field, None, (*path, None))
    check_nulls(values, kind.item_field, None, (*path, None))
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    rows = np.repeat(np.arange(len(read)), np.diff(offsets))
    codes = rows * (int(codes.max(initial=0)) + 1) + codes[int(offsets[0]) :]
    if len(np.unique(codes)) < len(codes):
        raise BadRecord("has a key twice in one object", path=path)
    fields = [kind.key_field, kind.item_field]
    entries = pa.StructArray.from_arrays([keys, values], fields=fields)
    return pa.Array.from_buffers(kind, len(read), read.buffers()[:2], children=[entries])


def check_nulls(values: pa.Array, field: pa.Field, parent: pa.Array | None, path: Path) -> None:
    """Raise `BadRecord` if a required field is null in a parent that is not."""
    if field.nullable or not values.null_count:
        return
    missing = values.is_null() if parent is None else pc.and_(values.is_null(), parent.is_valid())
    if missing.true_count:
        raise BadRecord("is missing or null where the schema requires a value", path=path)


def _is_decimal(kind: pa.DataType) -> bool:
    return bool(pt.is_decimal128(kind) or pt.is_decimal256(kind))


def _cast_scalars(read: pa.Array, kind: pa.DataType, path: Path, cast: Cast) -> pa.Array:
    try:
        return cast(read, kind)
    except pa.ArrowInvalid as error:
        detail = shorten(str(error).partition(". If these")[0])
        raise BadRecord(f"cannot be read as {kind} ({detail})", path=path) from error


def _cast_half(read: pa.Array, kind: pa.DataType) -> pa.Array:
    with np.errstate(over="ignore"):  # `check_floats` finds infinite values
        halves = pc.fill_null(read, 0).to_numpy(zero_copy_only=False).astype(np.float16)
    return pa.Array.from_buffers(kind, len(read), [read.buffers()[0], pa.py_buffer(halves)])


def _cast_time(read: pa.Array, kind: pa.DataType) -> pa.Array:
    moments = pc.binary_join_element_wise("1970-01-01T", read, "")  # Arrow parses no bare times
    return moments.cast(pa.timestamp(kind.unit)).cast(kind)


def _cast_base64(read: pa.Array, kind: pa.DataType) -> pa.Array:
    texts = pc.fill_null(read, "").cast(pa.large_string())
    decoded = decode_base64(view_bytes(texts), np.diff(view_offsets(texts)))
    if decoded is None:
        raise pa.ArrowInvalid("not base64 with the standard alphabet and padding")
    values, lengths = decoded
    ends = np.concatenate(([0], np.cumsum(lengths)))
    buffers = [read.buffers()[0], pa.py_buffer(ends), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.large_binary(), len(read), buffers).cast(kind)


_READ_DIRECTLY: tuple[Callable[[pa.DataType], bool], ...] = (
    pt.is_null,
    pt.is_boolean,
    pt.is_integer,
    pt.is_float32,
    pt.is_float64,
    pt.is_string,
    pt.is_large_string,
)
_CASTS: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType, Cast], ...] = (
    (pt.is_float16, pa.float64(), _cast_half),
    (pt.is_timestamp, pa.string(), pa.Array.cast),
    (pt.is_date32, pa.string(), pa.Array.cast),
    (pt.is_date64, pa.string(), lambda read, kind: read.cast(pa.date32()).cast(kind)),
    (pt.is_time, pa.string(), _cast_time),
    (pt.is_duration, pa.int64(), pa.Array.cast),
    (pt.is_binary, pa.string(), _cast_base64),
    (pt.is_large_binary, pa.string(), _cast_base64),
    (is_json, pa.string(), lambda read, kind: pa.ExtensionArray.from_storage(kind, read)),
)


def walk_types(fields: Iterable[pa.Field], *, into_maps: bool = True) -> Iterator[tuple[Path, pa.DataType]]:
    """Yield each type at all levels with its path, outer ones first; a map is a list of its entries."""
    for field in fields:
        yield from _walk((field.name,), field.type, into_maps)


def _walk(path: Path, kind: pa.DataType, into_maps: bool) -> Iterator[tuple[Path, pa.DataType]]:
    yield path, kind
    for index in range(kind.num_fields if into_maps or not pt.is_map(kind) else 0):
        field = kind.field(index)
        yield from _walk((*path, field.name if pt.is_struct(kind) else None), field.type, into_maps)


def list_rewrites(fields: Iterable[pa.Field]) -> list[Rewrite]:
    """Return the types of a schema that need other lines, outer ones first, so that paths are those of the lines before."""
    types = walk_types(fields)
    return [(path, pt.is_map(kind)) for path, kind in types if pt.is_map(kind) or is_json(kind)]


def rewrite(lines: pa.Array, rewrites: Iterable[Rewrite]) -> pa.Array:
    r"""Return lines (large_string, JSON) with the values of some paths written otherwise.

    >>> lines = pa.array(['{"a": [{"b":1}, null, "c"]}\n'], pa.large_string())
    >>> print(rewrite(lines, [(("a", None), False)])[0])
    {"a": ["{\"b\":1}", null, "\"c\""]}
    <BLANKLINE>
    >>> print(rewrite(lines, [(("a", None), True)])[0])
    {"a": [[{"key":"b","value":1}], null, "c"]}
    <BLANKLINE>
    """
    for path, is_map in rewrites:
        outline = _Outline(lines)
        found = outline.find(path)
        lines = outline.splice(*(outline.list_entries(found) if is_map else outline.quote(found)))
    return lines


def pick_fields(lines: pa.Array, names: Iterable[str]) -> pa.Array:
    r"""Return lines (large_string, JSON) of objects with only the fields of some names.

    >>> lines = pa.array(['{"a": 1, "b": {"a":2}}\n', '{"b": 3}\n'], pa.large_string())
    >>> pick_fields(lines, ["a"]).to_pylist()
    ['{"a":1}\n', '{}\n']
    """
    outline = _Outline(lines)
    rows: list[Places] = []
    texts: list[pa.Array] = []
    for name in names:
        key, spans = json.dumps(name, ensure_ascii=False) + ":", outline.find((name,))
        rows.append(np.searchsorted(outline.offsets, spans.begins, "right") - 1)
        values = outline.cut(spans.begins, spans.ends)
        texts.append(pc.binary_join_element_wise(pa.scalar(key, _TEXT), values, pa.scalar("", _TEXT)))
    owners = np.concatenate(rows)
    ends = np.cumsum(np.bincount(owners, minlength=len(lines)))
    fields = pa.concat_arrays(texts).take(pa.array(np.argsort(owners, kind="stable")))
    lists = pa.LargeListArray.from_arrays(pa.array(np.append(0, ends)), fields)
    joined = pc.binary_join(lists, pa.scalar(",", _TEXT))
    return pc.binary_join_element_wise(
        pa.scalar("{", _TEXT), joined, pa.scalar("}\n", _TEXT), pa.scalar("", _TEXT)
    )


class _Spans(NamedTuple):
    """Values of one depth: where each begins and ends, ascending."""

    begins: Places
    ends: Places

    def take(self, which: NDArray[np.bool_]) -> _Spans:
        return _Spans(self.begins[which], self.ends[which])

    def holds(self, places: Places) -> NDArray[np.bool_]:
        at = np.searchsorted(self.begins, places, "right") - 1
        return (
            (at >= 0) & (places < self.ends[np.maximum(at, 0)])
            if len(self.begins)
            else np.zeros(len(places), bool)
        )


class _Outline:
    """The marks of lines outside of strings, each with its level: the number of brackets that it is within.

    The brackets themselves count as within.
    """

    def __init__(self, lines: pa.Array) -> None:
        self.data: Bytes = view_bytes(lines)
        offsets = view_offsets(lines)
        self.offsets: Places = offsets - offsets[0]
        marks, _ = find_marks(self.data, b",:", MarkState())
        is_quote = marks.signs == ord('"')
        self._quotes = marks.places[is_quote]
        is_outside = ~(marks.is_inside | is_quote)
        self._marks, self._bytes = marks.places[is_outside], marks.signs[is_outside]
        self._levels = marks.depths[is_outside] + (STEPS[self._bytes] < 0)

    def _at_level(self, level: int, kinds: bytes) -> Places:
        wanted = (self._levels == level) & np.isin(self._bytes, np.frombuffer(kinds, np.uint8))
        found: Places = self._marks[wanted]
        return found

    def find(self, path: Path) -> _Spans:
        """Return the values at a path, without those of which a part of the path is not an object or list."""
        spans = self._trim(self.offsets[:-1], self.offsets[1:])
        for level, name in enumerate(path, 1):
            inner = spans.take(self.data[spans.begins] == ord("[" if name is None else "{"))
            spans = (
                self._find_elements(inner, level) if name is None else self._find_named(inner, level, name)
            )
        self.level = len(path) + 1
        return spans

    def _find_named(self, spans: _Spans, level: int, name: str) -> _Spans:
        colons = self.list_colons(spans, level)
        opens, closes = self._find_keys(colons)
        colons = colons[self._is_named(opens, closes, name)]
        return self._trim(colons + 1, self.find_ends(colons, level))

    def list_colons(self, spans: _Spans, level: int) -> Places:
        colons = self._at_level(level, b":")
        return colons[spans.holds(colons)]

    def find_ends(self, places: Places, level: int) -> Places:
        ends = self._at_level(level, b",}]")
        return ends[np.minimum(np.searchsorted(ends, places), len(ends) - 1)] if len(ends) else places

    def _find_elements(self, spans: _Spans, level: int) -> _Spans:
        commas = self._at_level(level, b",")
        begins = np.sort(np.concatenate((spans.begins, commas[spans.holds(commas)]))) + 1
        return self._trim(begins, self.find_ends(begins, level))

    def _find_keys(self, colons: Places) -> tuple[Places, Places]:
        """Return the opening and the closing quote of the string before each colon."""
        last = np.searchsorted(self._quotes, colons) - 1
        return self._quotes[last - 1], self._quotes[last]

    def _is_named(self, opens: Places, closes: Places, name: str) -> NDArray[np.bool_]:
        keys = self.cut(opens + 1, closes)
        found: NDArray[np.bool_] = np.array(pc.equal(keys, json.dumps(name, ensure_ascii=False)[1:-1]))
        for row in np.flatnonzero(pc.match_substring(keys, "\\")).tolist():  # which hardly a program writes
            found[row] = json.loads(f'"{keys[row]}"', strict=False) == name
        return found

    def _trim(self, begins: Places, ends: Places) -> _Spans:
        """Return spans without the spaces around them, and without those that hold nothing else."""
        begins, ends = begins.copy(), ends.copy()
        for edges, at, step in ((begins, 0, 1), (ends, -1, -1)):
            rows = np.flatnonzero(begins < ends)
            while (rows := rows[np.isin(self.data[edges[rows] + at], _SPACES)]).size:
                edges[rows] += step
                rows = rows[begins[rows] < ends[rows]]
        return _Spans(begins, ends).take(begins < ends)

    def quote(self, spans: _Spans) -> tuple[Places, Places, pa.Array]:
        """Return the edits that make strings of values; nulls stay."""
        spans = spans.take((spans.ends - spans.begins != 4) | (self.data[spans.begins] != ord("n")))
        texts = self.cut(spans.begins, spans.ends)
        quote = pa.scalar('"', _TEXT)
        texts = pc.binary_join_element_wise(quote, escape(texts), quote, pa.scalar("", _TEXT))
        return (spans.begins, spans.ends - spans.begins, texts)

    def list_entries(self, spans: _Spans) -> tuple[Places, Places, pa.Array]:
        spans = spans.take(self.data[spans.begins] == ord("{"))
        colons = self.list_colons(spans, self.level)
        groups = [
            (spans.begins, 1, "["),
            (spans.ends - 1, 1, "]"),
            (self._find_keys(colons)[0], 0, '{"key":'),
            (colons, 1, ',"value":'),
            (self.find_ends(colons, self.level), 0, "}"),
        ]
        places = np.concatenate([places for places, _, _ in groups])
        kinds = np.repeat(np.arange(len(groups)), [len(places) for places, _, _ in groups])
        sizes = np.array([size for _, size, _ in groups])
        order = np.lexsort((sizes[kinds], places))  # an entry ends before the bracket at the same place
        texts = pa.array([text for _, _, text in groups], _TEXT).take(pa.array(kinds[order]))
        return (places[order], sizes[kinds[order]], texts)

    def cut(self, begins: Places, ends: Places) -> pa.Array:
        """Return the bytes from each begin to the end beside it; both ascend and no two overlap."""
        edges = np.stack([begins, ends], 1).ravel()
        buffers = [None, pa.py_buffer(np.ascontiguousarray(edges)), pa.py_buffer(self.data)]
        if not len(begins):
            return pa.array([], _TEXT)
        pieces = pa.Array.from_buffers(_TEXT, len(edges) - 1, buffers, null_count=0)
        return pieces.take(pa.array(np.arange(0, len(edges) - 1, 2)))

    def splice(self, places: Places, sizes: Places, texts: pa.Array) -> pa.Array:
        """Return the lines with edits, whose places ascend."""
        begins = np.concatenate(([0], places + sizes))
        pieces = self.cut(begins, np.concatenate((places, [len(self.data)])))
        ends = pa.concat_arrays([texts, pa.array([""], _TEXT)])
        joined = pc.binary_join_element_wise(pieces, ends, pa.scalar("", _TEXT))
        growth = np.concatenate(([0], np.cumsum(pc.binary_length(texts).to_numpy() - sizes)))
        offsets = self.offsets + growth[np.searchsorted(places, self.offsets)]
        buffers = [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(view_bytes(joined))]
        return pa.Array.from_buffers(_TEXT, len(offsets) - 1, buffers, null_count=0)
