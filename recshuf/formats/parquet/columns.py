"""The columns of a run from those of a file: projection, Hive partition folders, and the unit of INT96 times.

A writer of partitions gives some type to a column that has no values in one of them: double in pandas, null in Arrow. Types
of columns, and of parts of them, that hold no values in a file give way to those of other files.
"""

from __future__ import annotations

import math
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats.parquet.annotations import with_marks_of
from recshuf.formats.parquet.file import OpenFile, explained
from recshuf.formats.parquet.pages import check_pages, find_valued
from recshuf.formats.parquet.types import (
    child_fields,
    is_extension,
    is_joinable,
    is_narrow,
    is_ordered,
    walk,
    with_children,
)
from recshuf.formats.parquet.union import conform_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.formats.parquet.file import Footer
    from recshuf.formats.parquet.metadata import RangeIndex
    from recshuf.formats.parquet.types import Path
    from recshuf.interfaces import InputFile


class Projection:
    """Columns to read of a file, and of all files with an equal schema; a place of one of `columns` is that in the file."""

    def __init__(
        self, footer: Footer, schema: pa.Schema, columns: Sequence[int | pa.Scalar | RangeIndex | None]
    ) -> None:
        self._schema = schema
        stored = sorted({column for column in columns if isinstance(column, int)})
        places = {column: place for place, column in enumerate(stored)}
        self._columns = [places[column] if isinstance(column, int) else column for column in columns]
        self.leaves = footer.leaves(stored)
        self.is_joinable = all(is_joinable(footer.schema.field(column).type) for column in stored)
        """Whether row groups may be read together."""

    def conform(self, stored: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        if stored.schema.equals(self._schema, check_metadata=True):
            return stored
        return conform_batch(stored, self._schema, self._columns, first_row)


_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def read_partitions(inputs: Sequence[InputFile], own: set[str]) -> list[dict[str, pa.Scalar]]:
    """Return the columns that each input has from its partition folders, each constant within the input.

    A column is int64 if every value of every input is an integer, else string. All inputs must have the same keys. The `own`
    columns of the files take precedence over folders of the same name.
    """
    texts = [_values_of(file, own) for file in inputs]
    for file, values in zip(inputs, texts, strict=True):
        if values.keys() != texts[0].keys():
            problem = f"its folders give the columns {_listed(values)}, those of {inputs[0].name} {_listed(texts[0])}"
            remedy = "shuffle them apart, or move files so that all have the same partition folders"
            raise InputError(file.name, problem, remedy=remedy)
    kinds = {key: _type_of([values[key] for values in texts]) for key in texts[0]}
    return [{key: _make_scalar(values[key], kind) for key, kind in kinds.items()} for values in texts]


def _make_scalar(text: str | None, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(int(text) if text is not None and kind == pa.int64() else text, kind)


def _type_of(values: list[str | None]) -> pa.DataType:
    known = [value for value in values if value is not None]
    return pa.int64() if known and all(map(_INTEGER.fullmatch, known)) else pa.string()


def _values_of(file: InputFile, own: set[str]) -> dict[str, str | None]:
    pairs = ((unquote(key), None if value == _NULL else unquote(value)) for key, value in file.partitions)
    return {key: value for key, value in pairs if key not in own}


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(keys))) or "nothing"


_BATCH_ROWS = 1 << 14
_UNITS = ("ns", "us")
_MOST_VALUES = 1 << 16
"""Values of the widest narrow index."""


def choose_unit(files: Sequence[tuple[Footer, Sequence[int]]], first: str, memory_bytes: int | None) -> str:
    """Return the unit that holds every INT96 time of all files exactly, ``ns`` or ``us``; `first` if both do.

    INT96 exceeds the range of a 64-bit count of nanoseconds or microseconds. pyarrow drops the upper bits of times that do
    not fit, and digits below the unit. Milliseconds hold every INT96 time but for these digits. `files` are footers, with the
    Arrow columns to read that hold INT96 times.
    """
    problems: dict[str, InputError] = {}
    for footer, columns in files:
        _find_misfits(footer, columns, problems, memory_bytes)
    fitting = [unit for unit in (first, *_UNITS) if unit not in problems]
    if fitting:
        return fitting[0]
    coarse, fine = problems["us"], problems["ns"]
    problem = f"{coarse.problem}, and {fine.problem} in {fine.name}"
    remedy = "leave the column out with --columns, or write it with another type of time"
    raise InputError(coarse.name, problem, place=coarse.place, remedy=remedy)


def _find_misfits(
    footer: Footer, columns: Sequence[int], problems: dict[str, InputError], memory_bytes: int | None
) -> None:
    """Note the first time in a file that does not fit a unit, unless one is known already."""
    with ExitStack() as stack:
        files = [
            stack.enter_context(OpenFile(footer.input_file, int96_unit=unit)) for unit in ("ms", *_UNITS)
        ]
        leaves = footer.leaves(columns)
        for group in footer.groups:
            check_pages(files[0], group, leaves, memory_bytes)
            readers = [file.batches([group], leaves, _BATCH_ROWS) for file in files]
            for batches in zip(*readers, strict=True):
                for place, column in enumerate(sorted(columns)):
                    where = f"field {footer.schema.field(column).name!r}, row group {group}"
                    leaves_of = [_list_leaves(batch.column(place)) for batch in batches]
                    for same in zip(*leaves_of, strict=True):
                        for unit, problem in _list_problems(*same):
                            problems.setdefault(unit, InputError(footer.name, problem, place=where))


def _list_leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays without any below them, in their order."""
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    children = _list_children(array)
    if not children:
        yield array
    for child in children:
        yield from _list_leaves(child)


def _list_children(array: pa.Array) -> list[pa.Array]:
    """Return the arrays one level down, in the order of their fields; none of an extension type."""
    if isinstance(array, pa.ExtensionArray) or not child_fields(array.type):
        return []
    if pa.types.is_map(array.type):
        return [array.keys, array.items]
    parts: list[pa.Array] = array.flatten() if pa.types.is_struct(array.type) else [array.flatten()]
    return parts


def _list_problems(millis: pa.Array, nanos: pa.Array, micros: pa.Array) -> Iterator[tuple[str, str]]:
    """Yield the units that do not hold times, and why, given these times in each unit."""
    if nanos.type == millis.type:
        return  # stored with a unit, not as INT96, or no times
    thousands, millions, billions = map(_numbers, (millis, micros, nanos))
    if not np.array_equal(billions // 1_000_000, thousands):
        yield "ns", "an INT96 time is outside the range of nanoseconds in 64 bits"
    if not np.array_equal(millions // 1000, thousands):
        yield "us", "an INT96 time is outside the range of microseconds in 64 bits"
    elif not np.array_equal(millions * 1000, billions):  # modulo 2^64
        yield "us", "an INT96 time has digits below microseconds"


def _numbers(times: pa.Array) -> NDArray[np.int64]:
    counts = times.drop_null().cast(pa.int64())
    numbers: NDArray[np.int64] = counts.to_numpy(zero_copy_only=False)
    return numbers


class _DictionaryValues:
    """The values of a dictionary, in an order that fits that of each one added; else by first appearance."""

    def __init__(self, kind: pa.DataType) -> None:
        self.values = pa.array([], kind)
        self.contrary: str | None = None
        """The first file whose order contradicts that of the files before."""
        self._last = self.values

    def add(self, found: pa.DictionaryArray, name: str) -> None:
        # Most row groups of one writer have the same dictionary, and no index of more values is narrow.
        is_full = not found.type.ordered and len(self.values) > _MOST_VALUES
        if is_full or found.dictionary.equals(self._last):
            return
        self._last = found.dictionary
        import pyarrow.compute as pc  # takes long, and few files have such dictionaries

        values = found.dictionary.cast(self.values.type).drop_null().unique()
        places = pc.index_in(values, value_set=self.values)
        ranks = places.cast(pa.float64()).fill_null(math.inf).to_numpy(zero_copy_only=False)
        known = ranks[np.isfinite(ranks)]
        if (np.diff(known) < 0).any():
            if found.type.ordered:
                self.contrary = self.contrary or name
            ranks = np.full_like(ranks, math.inf)
        # What is new stands before the next value that is known.
        following = np.minimum.accumulate(ranks[::-1])[::-1] - 0.5
        new = places.is_null().to_numpy(zero_copy_only=False)
        keys = np.concatenate([np.arange(len(self.values)), following[new]])
        merged = pa.concat_arrays([self.values, values.filter(pa.array(new))])
        self.values = merged.take(pa.array(np.argsort(keys, kind="stable")))


class Dictionaries:
    """The dictionaries in columns of all inputs, by their paths.

    Readers give all values of a column one dictionary, with the index type that the file declares. They fail if it is too
    narrow for the union of the dictionaries of all row groups that came into a shard.
    """

    def __init__(self) -> None:
        self._known: dict[Path, _DictionaryValues] = {}

    @property
    def counts(self) -> dict[Path, int]:
        """The number of values of each; of an unordered one at most some more than any narrow index has room for."""
        return {path: len(known.values) for path, known in self._known.items()}

    def add(self, file: OpenFile, footer: Footer, column: int, memory_bytes: int | None) -> None:
        """Read a column of a file, within the memory limit of the run."""
        field = footer.schema.field(column)
        parts = (
            (path, part.type) for path, part in walk(field, (field.name,)) if not child_fields(part.type)
        )
        known = {
            leaf: self._known.setdefault(path, _DictionaryValues(kind.value_type))
            for leaf, (path, kind) in zip(footer.leaves([column]), parts, strict=True)
            if is_narrow(kind) or is_ordered(kind)
        }
        for group in footer.groups:
            pages, rows = check_pages(file, group, [*known], memory_bytes), footer.group_rows[group]
            # Rows of lists may have many values.
            step = max(1, _BATCH_ROWS * rows // max(rows, *pages.values))
            for batch in file.batches([group], [*known], step):
                with explained(footer.name, f"row group {group}"):
                    for values, array in zip(known.values(), _list_leaves(batch.column(0)), strict=True):
                        values.add(array, footer.name)

    def find_orders(self, schema: pa.Schema) -> dict[int, pa.Array]:
        """Return the values of each column of an ordered dictionary type, in an order that fits that of each input if there is one."""
        return {
            index: self._known[field.name,].values
            for index, field in enumerate(schema)
            if is_ordered(field.type) and (field.name,) in self._known
        }

    def describe_orders(self) -> Iterator[str]:
        """Yield a sentence for each column whose ordered categories have contrary orders in two files."""
        for path, known in self._known.items():
            if known.contrary is not None and len(path) == 1:  # else no order is kept
                yield (
                    f"{known.contrary}: field {path[0]!r}: its ordered categories contradict the order of files before, "
                    f"and these are taken in theirs"
                )


def known_schema(file: OpenFile, footer: Footer, memory_bytes: int | None) -> pa.Schema:
    """Return the schema of the records of a file, with type null, at any depth, for what has no values."""
    groups = footer.groups
    fields = list(footer.declared.record_schema)
    valued = find_valued(file, footer) if groups else set()
    for column, field in enumerate(fields):
        if not groups:
            fields[column] = field.with_type(pa.null())
        elif column < len(footer.schema) and not valued.issuperset(footer.leaves([column])):
            for group in groups:
                check_pages(file, group, footer.leaves([column]), memory_bytes)
            batches = file.batches(groups, footer.leaves([column]), _BATCH_ROWS)
            fields[column] = field.with_type(_known_type(field.type, (batch.column(0) for batch in batches)))
    return pa.schema(fields)


def _known_type(kind: pa.DataType, arrays: Iterable[pa.Array]) -> pa.DataType:
    known: pa.DataType = pa.null()
    for array in arrays:
        known = _join(known, _known_in(array))
        if known == kind:
            break
    return known


def _known_in(array: pa.Array) -> pa.DataType:
    kind = array.type
    if array.null_count == len(array):
        return pa.null()
    if is_extension(kind) or not (children := child_fields(kind)):
        return kind
    pairs = zip(children, _list_children(array), strict=True)
    return with_children(kind, [child.with_type(_known_in(part)) for child, part in pairs])


def _join(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_null(left) or left == right:
        return right
    if pa.types.is_null(right) or not (children := child_fields(left)):
        return left
    pairs = zip(children, child_fields(right), strict=True)
    return with_children(left, [one.with_type(_join(one.type, other.type)) for one, other in pairs])


def fill_types(declared: pa.Schema, known: pa.Schema, union: pa.Schema) -> pa.Schema:
    """Return the declared schema of a file with the types of all files, which `union` knows, where it has no values."""
    fields = [
        _fill(field, known.field(place).type, union.field(union.get_field_index(field.name)))
        if len(union.get_all_field_indices(field.name)) == 1
        else field
        for place, field in enumerate(declared)
    ]
    return pa.schema(fields, metadata=declared.metadata)


def _fill(field: pa.Field, known: pa.DataType, union: pa.Field) -> pa.Field:
    if pa.types.is_null(known):
        return field if pa.types.is_null(union.type) else with_marks_of(field.with_type(union.type), union)
    ours, theirs = child_fields(field.type), child_fields(union.type)
    are_alike = all(test(field.type) == test(union.type) for test in (pa.types.is_struct, pa.types.is_map))
    # The union of a column that is left out has no children.
    if is_extension(field.type) or not ours or not theirs or not are_alike:
        return field
    if pa.types.is_struct(field.type):
        named = {other.name: other for other in reversed(theirs)}
        theirs = [named[child.name] for child in ours]
    parts = zip(ours, child_fields(known), theirs, strict=True)
    return field.with_type(
        with_children(field.type, [_fill(child, below.type, other) for child, below, other in parts])
    )
