r"""Lines as `pyarrow.json` can read them where a schema has a type ``json`` or a map.

A value of type ``json`` becomes a string with its text, an object that is a map a list of its entries::

    {"m": {"a": 1, "b": 2}, "j": {"c": [3]}}
    {"m": [{"key":"a","value": 1},{"key":"b","value": 2}], "j": "{\"c\": [3]}"}

Values are found by the brackets, commas and colons outside of strings, in all lines at once. Lines that are no JSON give
lines that are none either, or lose their meaning: `pyarrow.json` must have read the lines before.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.formats.jsonl.encoding import escape
from recshuf.formats.jsonl.line_checks import STEPS, MarkState, find_marks
from recshuf.records.arrays import view_bytes, view_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from recshuf.formats.jsonl.line_checks import Path

    Bytes = NDArray[np.uint8]
    Places = NDArray[np.int64]

JSON = pa.json_(pa.string())
"""The type of text that holds any JSON."""
_SPACES = np.frombuffer(b" \t\r\n", np.uint8)
_TEXT = pa.large_string()


class Rewrite(NamedTuple):
    """One type of a schema that needs other lines."""

    path: Path
    """In the lines as the rewrites before this one leave them."""
    is_map: bool


def is_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.JsonType)


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
    """Return what a schema needs, outer types first."""
    types = walk_types(fields)
    return [Rewrite(path, pt.is_map(kind)) for path, kind in types if pt.is_map(kind) or is_json(kind)]


def rewrite(lines: pa.Array, rewrites: Iterable[Rewrite]) -> pa.Array:
    r"""Return lines (large_string, JSON) with the values of some paths written otherwise.

    >>> lines = pa.array(['{"a": [{"b":1}, null, "c"]}\n'], pa.large_string())
    >>> print(rewrite(lines, [Rewrite(("a", None), is_map=False)])[0])
    {"a": ["{\"b\":1}", null, "\"c\""]}
    <BLANKLINE>
    >>> print(rewrite(lines, [Rewrite(("a", None), is_map=True)])[0])
    {"a": [[{"key":"b","value":1}], null, "c"]}
    <BLANKLINE>
    """
    for path, is_map in rewrites:
        outline = _Outline(lines)
        found = outline.find(path)
        lines = outline.splice(*(outline.list_entries(found) if is_map else outline.quote(found)))
    return lines


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


class _Edits(NamedTuple):
    """Bytes to replace: where they begin, how many they are, and the texts in their place."""

    places: Places
    sizes: Places
    texts: pa.Array


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
        keys = self._cut(opens + 1, closes)
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

    def quote(self, spans: _Spans) -> _Edits:
        """Return the edits that make strings of values; nulls stay."""
        spans = spans.take((spans.ends - spans.begins != 4) | (self.data[spans.begins] != ord("n")))
        texts = self._cut(spans.begins, spans.ends)
        quote = pa.scalar('"', _TEXT)
        texts = pc.binary_join_element_wise(quote, escape(texts), quote, pa.scalar("", _TEXT))
        return _Edits(spans.begins, spans.ends - spans.begins, texts)

    def list_entries(self, spans: _Spans) -> _Edits:
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
        return _Edits(places[order], sizes[kinds[order]], texts)

    def _cut(self, begins: Places, ends: Places) -> pa.Array:
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
        pieces = self._cut(begins, np.concatenate((places, [len(self.data)])))
        ends = pa.concat_arrays([texts, pa.array([""], _TEXT)])
        joined = pc.binary_join_element_wise(pieces, ends, pa.scalar("", _TEXT))
        growth = np.concatenate(([0], np.cumsum(pc.binary_length(texts).to_numpy() - sizes)))
        offsets = self.offsets + growth[np.searchsorted(places, self.offsets)]
        buffers = [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(view_bytes(joined))]
        return pa.Array.from_buffers(_TEXT, len(offsets) - 1, buffers, null_count=0)
