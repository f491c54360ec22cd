"""One schema for files with different schemas, without loss of values."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from recshuf.errors import InputError, UsageError
from recshuf.formats.metadata import MetadataUnion
from recshuf.formats.parquet.annotations import merge_marks, name_type, with_marks
from recshuf.formats.parquet.metadata import RangeIndex, adopt, merge, read_metadata, settle_copies
from recshuf.formats.parquet.types import dense_type, is_extension
from recshuf.records.arrays import is_list_view, is_variable_list, list_known, split_path, storage_of
from recshuf.records.conforming import conform, with_value_field

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from recshuf.interfaces import InputSummary, Metadata, ReadOptions


_UNITS = ("s", "ms", "us", "ns")
_BITS = {
    **{pa.type_for_alias(f"uint{bits}"): (0, bits) for bits in (8, 16, 32, 64)},
    **{pa.type_for_alias(f"int{bits}"): (bits - 1, bits - 1) for bits in (8, 16, 32, 64)},
    pa.float16(): (11, 11),
    pa.float32(): (24, 24),
    pa.float64(): (53, 53),
}
"""Bits of the whole numbers below and above zero that each type holds, floats without gaps; floats come last."""
_DECIMAL_DIGITS = {128: 38, 256: 76}


class FieldClash(Exception):  # noqa: N818 - never leaves the adapter: `SchemaUnion` turns it into an InputError
    """Two types of one field that no type holds without loss. `path` has parts joined by dots."""

    def __init__(self, path: str, left: pa.DataType | str, right: pa.DataType | str) -> None:
        super().__init__(path, left, right)
        self.path = path
        self.left = left
        self.right = right


class SchemaClashError(InputError):
    """Two files have types of one field that no type holds without loss."""


class SchemaUnion:
    """The schema that holds the records of every file added so far.

    Columns are in the order of the file that first had them. A column that some file lacks is nullable, and null there.
    Metadata comes from the first file; that of a field from the first file that has the column.
    If it `widens`, numbers of two types become a type that may not hold every value of both, but refuses those.
    Columns that options leave out keep their first type, whether others fit it or not.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._widens = options.widens
        self._wanted = options.columns
        self._store_schema = options.store_schema
        self._schema: pa.Schema | None = None
        self._last: pa.Schema | None = None
        self._owners: list[str] = []

    @property
    def schema(self) -> pa.Schema:
        """The union; at least one file must have been added."""
        if self._schema is None:
            raise ValueError("no schema has been added")
        return self._schema

    def add(self, schema: pa.Schema, name: str) -> None:
        """Add the schema of the file `name`; one that does not fit is refused."""
        if self._schema is None:
            self._schema = schema
            self._owners = [name] * len(schema)
        elif schema is not self._last:
            self._merge(schema, name)
        if self._store_schema is not None and schema is not self._last:
            self._schema = _take_types(self._schema, self._store_schema, widens=self._widens)
        self._last = schema

    def _merge(self, schema: pa.Schema, name: str) -> None:
        fields = list(self.schema)
        for index, column in enumerate(columns_of(self.schema, schema, name, self._owners[:1])):
            field, owner = fields[index], self._owners[index]
            if column is None:
                fields[index] = field.with_nullable(True)
            elif self._wanted is None or field.name in self._wanted:
                fields[index] = _merge_columns(field, schema.field(column), owner, name, widens=self._widens)
        known = set(self.schema.names)
        new = [field.with_nullable(True) for field in schema if field.name not in known]
        self._owners += [name] * len(new)
        metadata = merge(self.schema.metadata, schema.metadata)
        self._schema = pa.schema(fields + new, metadata=metadata)


def _take_types(schema: pa.Schema, kept: pa.Schema, *, widens: bool) -> pa.Schema:
    """Return a schema whose columns have the types of those that they join, where these hold all their values."""
    counts, known = Counter(kept.names), {field.name: field for field in kept}
    fields = list(schema)
    for index, field in enumerate(fields):
        held = known.get(field.name)
        if held is None or held.equals(field) or counts[field.name] > 1:
            continue
        with suppress(FieldClash):
            if unify_types(held.type, field.type, widens=widens) == held.type:
                fields[index] = field.with_type(held.type).with_nullable(held.nullable or field.nullable)
    return pa.schema(fields, schema.metadata)


def columns_of(union: pa.Schema, schema: pa.Schema, name: str, others: list[str]) -> list[int | None]:
    """Return, for each column of the union, its position in the schema of one file; None where it is missing.

    Columns may share a name only if the two schemas list the same names in the same order.
    """
    if union.names == schema.names:
        return list(range(len(schema)))
    for column, count in Counter(schema.names).items() | Counter(union.names).items():
        if count > 1:
            other = f" of {others[0]}" if others else ""
            problem = f"its columns and those{other} differ, and more than one is called {column!r}"
            raise InputError(name, problem, remedy="rename columns so that names are unique")
    positions = {column: index for index, column in enumerate(schema.names)}
    return [positions.get(column) for column in union.names]


def conform_batch(
    stored: pa.RecordBatch,
    schema: pa.Schema,
    columns: Sequence[int | pa.Scalar | RangeIndex | None],
    first_row: int,
) -> pa.RecordBatch:
    """Return a batch, whose first row is row `first_row` of its file, in another schema.

    For each column of that, `columns` has the place in the stored batch, a constant value, the index of pandas, or None for nulls.
    """
    arrays = []
    for field, column in zip(schema, columns, strict=True):
        if column is None:
            array = pa.nulls(stored.num_rows, field.type)
        elif isinstance(column, int):
            array = stored.column(column)
        elif isinstance(column, RangeIndex):
            array = column.values(first_row, stored.num_rows)
        else:
            array = pa.repeat(column, stored.num_rows)
        arrays.append(conform(array, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def pick_columns(schema: pa.Schema, options: ReadOptions, added: Collection[str] = ()) -> list[int | str]:
    """Return the columns that options choose, as indices in the schema, or as names of those that are added to it."""
    names, picks = schema.names, list[int | str]()
    for name in options.columns or ():
        places = schema.get_all_field_indices(name)
        if not places and name not in added:
            listed = list_known(name, [*names, *added], repr, most=0)
            raise UsageError(f"no column {name!r} in the inputs; there are {listed}")
        picks += places or [name]
    if options.columns is None:
        picks = [*range(len(names)), *added]
    if options.field is None:
        return picks
    chosen = [names[pick] if isinstance(pick, int) else pick for pick in picks]
    wanted, _ = split_path(options.field, chosen)
    return [pick for pick, name in zip(picks, chosen, strict=True) if name == wanted]


def unite(
    inputs: Sequence[InputSummary], schemas: Sequence[pa.Schema], options: ReadOptions
) -> tuple[pa.Schema, list[int], pa.Schema, Metadata]:
    """Return the union of the schemas of inputs, its columns that options choose, and the schema of these, with all that is said.

    What inputs say of the records and the first one does not, is in the schema, too.
    """
    union = SchemaUnion(options)
    said = MetadataUnion(is_lenient=options.first_metadata)
    for index, (summary, schema) in enumerate(zip(inputs, schemas, strict=True)):
        union.add(schema, summary.name)
        if options.field is None:
            values, columns = read_metadata(schema, options.columns), frozenset(schema.names)
            is_empty = summary.record_count == 0 and index > 0
            said.add(index, summary.name, values, columns=columns, origin=schema, is_empty=is_empty)
    picks = cast("list[int]", pick_columns(union.schema, options))  # no column is added
    chosen = pa.schema([union.schema.field(pick) for pick in picks])
    declared = settle_copies(union.schema.metadata, schemas[0], chosen)
    metadata, taken = said.merge()
    return union.schema, picks, adopt(declared, taken), metadata


def _merge_columns(left: pa.Field, right: pa.Field, owner: str, name: str, *, widens: bool) -> pa.Field:
    try:
        return _unify_fields(left, right, left.name, widens=widens)
    except FieldClash as clash:
        raise SchemaClashError(
            name,
            f"type {clash.right} does not fit type {clash.left} in {owner}",
            place=f"field {clash.path!r}",
            remedy=_find_remedy(left, right),
        ) from None


def _find_remedy(left: pa.Field, right: pa.Field) -> str:
    try:
        kind = _unify_fields(left, right, left.name, widens=True).type
    except FieldClash:
        return "convert one of them, or shuffle the files apart"
    return f"give --widen to make both {kind}, or shuffle the files apart"


def _unify_fields(left: pa.Field, right: pa.Field, path: str, *, widens: bool = False) -> pa.Field:
    """Return a field that holds the values of both, with name and metadata of `left`."""
    kind = unify_types(left.type, right.type, path, widens=widens)
    marks = merge_marks(left, right)
    if marks is None:
        raise FieldClash(path, name_type(left), name_type(right))
    field = left.with_type(kind).with_nullable(left.nullable or right.nullable)
    return with_marks(field, marks) if marks or left.metadata else field


def unify_types(
    left: pa.DataType, right: pa.DataType, path: str = "", *, widens: bool = False
) -> pa.DataType:
    """Return the narrowest type that holds every value of both; a `FieldClash` if there is none.

    >>> unify_types(pa.int32(), pa.float32()), unify_types(pa.int64(), pa.float32(), widens=True)
    (DataType(double), DataType(double))
    """
    if left.equals(right, check_metadata=True) or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if pa.types.is_dictionary(left) and pa.types.is_dictionary(right):
        return _unify_dictionaries(left, right, path, widens=widens)
    left, right = _surface(left), _surface(right)
    # The annotations of equal nested types may differ.
    if left == right and not pa.types.is_nested(left):
        return left
    if is_extension(left) or is_extension(right):
        if storage_of(left) != storage_of(right):
            raise FieldClash(path, left, right)
        return left  # what differs is metadata, which have a union of their own
    lossless = (_unify_numbers, _unify_bytes, _unify_decimals, _unify_times)
    for unify in (*lossless, _widen_numbers) if widens else lossless:
        kind = unify(left, right)
        if kind is not None:
            return kind
    return _unify_nested(left, right, path, widens=widens)


def _surface(kind: pa.DataType) -> pa.DataType:
    """Return the type without a dictionary or view at the top level; nested types are unified later."""
    if pa.types.is_nested(kind) and not is_list_view(kind):
        return kind
    return dense_type(kind)


def _unify_dictionaries(
    left: pa.DictionaryType, right: pa.DictionaryType, path: str, *, widens: bool
) -> pa.DataType:
    index = _unify_numbers(left.index_type, right.index_type) or pa.int64()
    value = unify_types(left.value_type, right.value_type, path, widens=widens)
    return pa.dictionary(index, value, ordered=left.ordered and right.ordered)


def _unify_numbers(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if left not in _BITS or right not in _BITS:
        return None
    both = [kind for kind in _BITS if _holds(kind, left) and _holds(kind, right)]
    return min(both, key=lambda kind: kind.bit_width, default=None)


def _holds(kind: pa.DataType, other: pa.DataType) -> bool:
    if pa.types.is_floating(other) and not pa.types.is_floating(kind):
        return False
    return all(bits >= needed for bits, needed in zip(_BITS[kind], _BITS[other], strict=True))


def _widen_numbers(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return float64 for integers and floats, and a decimal for integers and decimals of other signs, sizes and scales."""
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        other = right if pa.types.is_floating(left) else left
        return pa.float64() if pa.types.is_integer(other) else None
    digits = [_count_digits(kind) for kind in (left, right)]
    if digits[0] is None or digits[1] is None:
        return None
    scale = max(scale for _, scale in (digits[0], digits[1]))
    precision = scale + max(whole for whole, _ in (digits[0], digits[1]))
    if precision > _DECIMAL_DIGITS[256]:
        return None
    is_wide = precision > _DECIMAL_DIGITS[128] or 256 in (left.bit_width, right.bit_width)
    return (pa.decimal256 if is_wide else pa.decimal128)(precision, scale)


def _count_digits(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the most digits of a number before and behind the point; None for a type without exact decimals."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    if not pa.types.is_integer(kind):
        return None
    bits = kind.bit_width - pa.types.is_signed_integer(kind)
    return len(str(2**bits)), 0


def _unify_bytes(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    pair = {str(left), str(right)}
    if pair == {"string", "large_string"}:
        return pa.large_string()
    if pair == {"binary", "large_binary"}:
        return pa.large_binary()
    return None


def _unify_decimals(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if not (pa.types.is_decimal(left) and pa.types.is_decimal(right)) or left.scale != right.scale:
        return None
    is_wide = 256 in (left.bit_width, right.bit_width)
    precision = max(left.precision, right.precision)
    return (pa.decimal256 if is_wide else pa.decimal128)(precision, left.scale)


def _unify_times(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pa.types.is_timestamp(left) and pa.types.is_timestamp(right):
        return pa.timestamp(_finer(left, right), left.tz) if left.tz == right.tz else None
    if pa.types.is_duration(left) and pa.types.is_duration(right):
        return pa.duration(_finer(left, right))
    if pa.types.is_time(left) and pa.types.is_time(right):
        unit = _finer(left, right)
        return pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)
    return None


def _finer(left: pa.DataType, right: pa.DataType) -> str:
    return _UNITS[max(_UNITS.index(left.unit), _UNITS.index(right.unit))]


def _unify_nested(left: pa.DataType, right: pa.DataType, path: str, *, widens: bool) -> pa.DataType:
    unify, types = partial(_unify_fields, widens=widens), pa.types
    are_fixed = types.is_fixed_size_list(left) and types.is_fixed_size_list(right)
    if (is_variable_list(left) and is_variable_list(right)) or (
        are_fixed and left.list_size == right.list_size
    ):
        wide = right if types.is_large_list(right) else left
        return with_value_field(wide, unify(left.value_field, right.value_field, f"{path}.element"))
    if types.is_map(left) and types.is_map(right):
        return pa.map_(
            unify(left.key_field, right.key_field, f"{path}.key"),
            unify(left.item_field, right.item_field, f"{path}.value"),
            keys_sorted=left.keys_sorted and right.keys_sorted,
        )
    if types.is_struct(left) and types.is_struct(right):
        ours, theirs = ({field.name: field for field in kind} for kind in (left, right))
        if len(ours) == left.num_fields and len(theirs) == right.num_fields:
            both = [
                unify(field, theirs[name], f"{path}.{name}") if name in theirs else field.with_nullable(True)
                for name, field in ours.items()
            ]
            new = [field.with_nullable(True) for name, field in theirs.items() if name not in ours]
            return pa.struct([*both, *new])
    raise FieldClash(path, left, right)
