"""`PileWriter`: fills one pile set of a store from a program.

What a program gives to a writer, as a table.

Arrow's data, arrays and data frames have types, which must be those of the store. Values of Python have none: they are
converted to the types of the store, and refused if that would change them.

Values of Python of several kinds, of which Arrow makes one, and loses what others hold.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from recshuf.errors import UsageError
from recshuf.piles.footer import SetDescription, SetSource
from recshuf.piles.kept.folder import StoreFolder
from recshuf.piles.kept.new_sets import SetNames, describe_new_set, open_new_sets
from recshuf.piles.kept.snapshots import SetEntry, Snapshot, describe_drift, describe_type_drift
from recshuf.piles.layout import StorePlan
from recshuf.piles.planes import plain_type
from recshuf.piles.slices import Origin
from recshuf.records.arrays import count_bytes, is_contiguous_list, is_list_view, is_variable_list
from recshuf.records.batch import Records, RowRange, concat_batches
from recshuf.records.conforming import check_digits, conform
from recshuf.records.digests import Digest, InputCount, digest_records
from recshuf.records.keys import MAX_PILES, MAX_SEED, draw_keys, stream_of
from recshuf.records.provenance import add_provenance, extend_schema
from recshuf.system.paths import local_path
from recshuf.system.units import check_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from recshuf.piles.store import RunPiles


def find_mixable(
    name: str, kind: pa.DataType, values: Iterable[Any]
) -> Iterator[tuple[str, pa.DataType, list[Any]]]:
    """Yield all values of Python, but None, of each column of dates, times, durations, text or bytes, its name and its type.

    Parameters
    ----------
    name
        Of the column, with those of the fields down to the values.
    kind
        The type that Arrow infers.
    """
    if not _holds_mixable(kind):
        return
    given = [one for one in values if one is not None]
    if pt.is_struct(kind):
        for field in kind:
            inner = (one.get(field.name) for one in given)
            yield from find_mixable(f"{name}.{field.name}", field.type, inner)
    elif is_contiguous_list(kind):
        # Arrays of times or bytes are of one kind each, and Python takes long to look at their values.
        lists = (one for one in given if not (isinstance(one, np.ndarray) and one.dtype.kind in "MmS"))
        yield from find_mixable(name, kind.value_type, chain.from_iterable(lists))
    else:
        yield name, kind, given


def check_values(name: str, kind: pa.DataType, values: Sequence[Any]) -> None:
    """Raise `UsageError` if the type that Arrow infers would lose the time or the zone of some, or which of them are text.

    Parameters
    ----------
    name
        Of the column, with those of the fields down to the values.
    kind
        The type that Arrow infers.
    values
        None of them None.
    """
    if pt.is_binary(kind) or pt.is_string(kind):
        lost = str if pt.is_binary(kind) else (bytes, bytearray)
        if any(issubclass(one, lost) for one in set(map(type, values))):
            raise UsageError(f"column {name!r} mixes text and bytes; convert them to one kind")
    elif pt.is_time(kind):
        if any(getattr(one, "tzinfo", None) is not None for one in values):
            raise UsageError(
                f"column {name!r} has times of day with a zone, which would be lost; give them without, and the zone in "
                "a column of its own"
            )
    elif is_mixable(kind):
        found = {(isinstance(one, datetime), getattr(one, "tzinfo", None) is None) for one in values}
        if len(found) > 1:
            raise UsageError(
                f"column {name!r} mixes dates and times, or times with and without a zone; convert them to one kind"
            )


def _holds_mixable(kind: pa.DataType) -> bool:
    inner = (kind.field(index).type for index in range(kind.num_fields))
    return is_mixable(kind) or any(map(_holds_mixable, inner))


def is_mixable(kind: pa.DataType) -> bool:
    """Tell whether Arrow infers a type also of values that it does not keep as they are."""
    return any(
        holds(kind)
        for holds in (pt.is_date, pt.is_time, pt.is_timestamp, pt.is_duration, pt.is_binary, pt.is_string)
    )


_TAKEN = "give record batches, tables, data frames, a dict of arrays, or a list of dicts or batches"
_NO_COLUMNS = "the records have no columns; give at least one"
_PROBLEMS = (pa.ArrowException, TypeError, ValueError, OverflowError, RuntimeError)
"""What Arrow, NumPy and libraries with arrays of their own raise."""
_UNTYPED_KINDS = "OSUT"
"""Kinds of NumPy arrays that hold objects, bytes or text."""
_KINDS_OF_TEXT = {"S": pa.binary(), "U": pa.string(), "T": pa.string()}
_CLASSES: tuple[Callable[[pa.DataType], bool], ...] = (
    lambda kind: pt.is_integer(kind) or pt.is_floating(kind),
    lambda kind: pt.is_string(kind) or pt.is_large_string(kind),
    lambda kind: pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind),
    pt.is_decimal,
    pt.is_date,
    pt.is_time,
    pt.is_timestamp,
    pt.is_duration,
)
"""Types whose values are of one class of Python, or of two that are equal where none is changed."""


def to_table(data: Any, schema: pa.Schema | None) -> pa.Table:
    """Return records as a table, which may have other columns than the store.

    Parameters
    ----------
    data
        What `PileWriter.write` takes.
    schema
        Columns of the store; None if it has none yet.

    Raises
    ------
    UsageError
        When they are no table, have no columns, or two of one name, or values of Python do not fit the columns of the
        store.
    """
    table = _make_table(data, schema)
    if table.num_rows and not table.num_columns:
        raise UsageError(_NO_COLUMNS)
    check_names(table.column_names)
    return table


def check_names(names: Sequence[str]) -> None:
    """Raise `UsageError` if two columns have one name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"column {twice!r}: comes {names.count(twice)} times; give each column a name of its own"
        )


def _make_table(data: Any, schema: pa.Schema | None) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    try:
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            return _copy(_read_frame(data))
        if isinstance(data, Mapping):
            return _fit_columns(data, schema)
        if isinstance(data, Sequence) and all(isinstance(record, Mapping) for record in data):
            return _fit_columns(_to_columns(data), schema)
        if isinstance(data, Sequence) and all(isinstance(one, pa.RecordBatch | pa.Table) for one in data):
            return pa.concat_tables(to_table(one, schema) for one in data)
    except UsageError:
        raise
    except _PROBLEMS as error:
        raise UsageError(f"the records are no table: {error}; {_TAKEN}") from error
    raise UsageError(f"{type(data).__name__} is not taken; {_TAKEN}")


def _read_frame(frame: Any) -> pa.Table:
    """Return a data frame, or other object with Arrow's C interface, as a table that may share its memory."""
    polars, pandas = (sys.modules.get(library) for library in ("polars", "pandas"))
    if polars is not None and isinstance(frame, polars.DataFrame):
        for column in frame.get_columns():
            _check_series(column.name, column)
    table = pa.table(frame)
    if pandas is not None and isinstance(frame, pandas.DataFrame):
        for place, kind in enumerate(frame.dtypes):
            inferred = table.schema.types[place]
            if isinstance(kind, np.dtype) and kind.hasobject and is_mixable(inferred):
                check_values(table.column_names[place], inferred, frame.iloc[:, place].dropna().tolist())
    return table


def _check_series(name: str, values: Any) -> None:
    """Refuse objects of polars, which exports their addresses."""
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(values, polars.Series) and values.dtype == polars.Object:
        raise UsageError(
            f"column {name!r} has the type Object of polars, which Arrow lacks; give its values as a list, as to_list() does"
        )


def _copy(table: pa.Table) -> pa.Table:
    """Return a table in memory of its own; data frames share theirs with arrays that may change."""
    batches = [concat_batches([batch, batch.slice(0, 0)]) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, table.schema)


def _to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return a list of dicts as a dict of lists; a key that is missing in one is null."""
    names = dict.fromkeys(chain.from_iterable(rows))
    if rows and not names:
        raise UsageError(_NO_COLUMNS)
    return {name: [row.get(name) for row in rows] for name in names}


def _fit_columns(columns: Mapping[str, Any], schema: pa.Schema | None) -> pa.Table:
    arrays = {}
    for name, values in columns.items():
        if not isinstance(name, str):
            raise UsageError(f"column {name!r}: the name is of type {type(name).__name__}; give it as text")
        wanted = schema.field(name).type if schema is not None and name in schema.names else None
        try:
            array, has_type = _to_array(name, values, wanted)
        except UsageError:
            raise
        except _PROBLEMS as error:
            raise UsageError(
                f"column {name!r}: {error}; convert the values, or give an Arrow array"
            ) from error
        arrays[name] = array if has_type or wanted is None else _convert(array, wanted, (name,))
    return pa.table(arrays)


def _to_array(name: str, values: Any, wanted: pa.DataType | None) -> tuple[pa.Array | pa.ChunkedArray, bool]:
    """Return values as an array, and whether they have a type of Arrow or NumPy.

    Parameters
    ----------
    wanted
        Type of the column in the store, if known.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values, True
    if isinstance(values, str | bytes | Mapping):
        raise UsageError(
            f"column {name!r} is one value of type {type(values).__name__}; give a list or an array of values"
        )
    if not hasattr(values, "__array__"):
        return _infer(name, values if isinstance(values, Sequence) else list(values), wanted), False
    if hasattr(values, "__arrow_c_stream__") and not isinstance(getattr(values, "dtype", None), np.dtype):
        # A column of a data frame, which may have nulls that NumPy has no place for.
        _check_series(name, values)
        return _copy(pa.table({name: pa.chunked_array(values)}))[name], True
    return _copy_array(name, values, wanted)


def _copy_array(name: str, values: Any, wanted: pa.DataType | None) -> tuple[pa.Array, bool]:
    """Do as `_to_array` for what NumPy takes as an array, which Arrow would look at in the caller's memory."""
    is_masked = isinstance(values, np.ma.MaskedArray)
    values = values.copy() if is_masked else np.array(values, order="C")
    flat = values.reshape(-1)
    has_type = flat.dtype.kind not in _UNTYPED_KINDS
    if has_type:
        made = pa.array(np.ma.getdata(flat), mask=np.ma.getmaskarray(flat) if is_masked else None)
    else:
        # Value by value, as Arrow would end text and bytes of NumPy at the first NUL.
        item = wanted
        for _ in values.shape[1:]:
            item = item.value_type if item is not None and is_contiguous_list(item) else None
        made = _infer(name, flat.tolist(), item)
        if pt.is_null(made.type) and flat.dtype.kind in _KINDS_OF_TEXT:
            made = made.cast(_KINDS_OF_TEXT[flat.dtype.kind])
    for size in reversed(values.shape[1:]):
        made = pa.FixedSizeListArray.from_arrays(made, size)
    return made, has_type


def _infer(name: str, values: Sequence[Any], wanted: pa.DataType | None) -> pa.Array:
    """Return values of Python as an array of the type that Arrow infers, or one that holds more of them exactly."""
    kind = pa.infer_type(values)
    if pt.is_string(kind):
        made = pa.array(values)
        if pt.is_string(made.type):
            return made
        kind = made.type  # bytes that follow text, before which `infer_type` ends
    has_nanoseconds = False
    for path, inner, found in find_mixable(name, kind, values):
        check_values(path, inner, found)
        has_nanoseconds |= not pt.is_binary(inner) and any(
            getattr(one, "nanosecond", 0) or getattr(one, "nanoseconds", 0) for one in found
        )
    return pa.array(values, _refine(kind, wanted, has_nanoseconds=has_nanoseconds))


def _refine(kind: pa.DataType, wanted: pa.DataType | None, *, has_nanoseconds: bool) -> pa.DataType:
    """Return an inferred type with nanoseconds if there are some, which Arrow cuts off, and with unsigned integers where the store has them."""
    refine = partial(_refine, has_nanoseconds=has_nanoseconds)
    if pt.is_struct(kind):
        inner = {} if wanted is None or not pt.is_struct(wanted) else {one.name: one.type for one in wanted}
        return pa.struct([field.with_type(refine(field.type, inner.get(field.name))) for field in kind])
    if pt.is_list(kind):
        item = wanted.value_type if wanted is not None and is_contiguous_list(wanted) else None
        return pa.list_(kind.value_field.with_type(refine(kind.value_type, item)))
    if pt.is_int64(kind) and wanted == pa.uint64():
        return wanted
    if has_nanoseconds and pt.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    return pa.duration("ns") if has_nanoseconds and pt.is_duration(kind) else kind


def _convert(found: Any, kind: pa.DataType, path: tuple[str, ...]) -> Any:
    """Return an array that Arrow made of values of Python with another type, and the same values.

    Parameters
    ----------
    found
        An array or a chunked array, not sliced.
    path
        Names of the column and of the fields down to the values.
    """
    if isinstance(found, pa.ChunkedArray):
        return pa.chunked_array([_convert(chunk, kind, path) for chunk in found.chunks], kind)
    if found.type == kind:
        return found
    if pt.is_null(found.type):
        return pa.nulls(len(found), kind)
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(_convert(found, kind.storage_type, path))
    if pt.is_struct(found.type) and pt.is_struct(kind):
        return _convert_struct(found, kind, path)
    if is_contiguous_list(found.type) and is_contiguous_list(kind):
        return _convert_list(found, kind, path)
    return _convert_values(found, kind, path)


def _convert_struct(found: pa.StructArray, kind: pa.StructType, path: tuple[str, ...]) -> pa.StructArray:
    """Convert each field; one that is missing is null."""
    given, wanted = ([field.name for field in one] for one in (found.type, kind))
    for name in given:
        if name not in wanted:
            raise UsageError(
                f"column {path[0]!r}: field {'.'.join((*path, name))!r} is not in the store; leave it out, or begin "
                "a new store"
            )
    children = []
    for field in kind:
        inner = (*path, field.name)
        child = found.field(given.index(field.name)) if field.name in given else pa.nulls(len(found))
        child = _convert(child, field.type, inner)
        _check_nulls(pc.and_(child.is_null(), found.is_valid()), field, inner)
        children.append(child)
    mask = found.is_null() if found.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _convert_list(found: Any, kind: Any, path: tuple[str, ...]) -> pa.Array:
    """Convert the items, and then the lists."""
    items = _convert(found.values, kind.value_type, path)
    mask = found.is_null() if found.null_count else None
    if pt.is_fixed_size_list(found.type):
        made = pa.FixedSizeListArray.from_arrays(items, found.type.list_size, mask=mask)
    else:
        made = type(found).from_arrays(found.offsets, items, mask=mask)
        _check_nulls(items.is_null(), kind.value_field, path)
    return _cast(made, kind, path)


def _check_nulls(nulls: pa.BooleanArray, field: pa.Field, path: tuple[str, ...]) -> None:
    if not field.nullable and pc.any(nulls).as_py():
        raise UsageError(f"column {'.'.join(path)!r} has a null where the store takes none; fill it in")


def _convert_values(found: pa.Array, kind: pa.DataType, path: tuple[str, ...]) -> pa.Array:
    has_zones = [pt.is_timestamp(one) and one.tz is not None for one in (found.type, kind)]
    if has_zones[0] != has_zones[1] or not any(holds(found.type) and holds(kind) for holds in _CLASSES):
        raise UsageError(describe_type_drift(".".join(path), kind, found.type))
    made = _cast(found, kind, path)
    if pt.is_floating(kind) and not _is_kept(found, made):
        raise _would_change(path, kind, "a number is too large, or needs more digits")
    return made


def _cast(found: pa.Array, kind: pa.DataType, path: tuple[str, ...]) -> pa.Array:
    try:
        return found.cast(kind)
    except pa.ArrowException as error:
        raise _would_change(path, kind, str(error)) from error


def _is_kept(given: pa.Array, made: pa.Array) -> bool:
    """Tell whether numbers became floats that mean the same: Arrow overflows to infinity, and rounds integers to 16 bits."""
    if pt.is_integer(given.type):
        changed = pc.not_equal(given.cast(pa.float64()), made.cast(pa.float64()))
    else:
        changed = pc.and_not(pc.is_inf(made.cast(pa.float64())), pc.is_inf(given.cast(pa.float64())))
    return not pc.any(changed).as_py()


def _would_change(path: tuple[str, ...], kind: pa.DataType, problem: str) -> UsageError:
    return UsageError(
        f"column {'.'.join(path)!r} is {kind} in the store, and its values would change: {problem}; convert them, or "
        "begin a new store"
    )


_DEFAULT_PILES = 1024
"""Piles of a store whose size is not known. 64 MB at a time are then written in slices of 64 kB, and 10 GB are in piles of
10 MB."""
BUFFER_BYTES = 64 << 20
"""Records collected before they are scattered."""
_HOLDERS = ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary()))
"""Types that hold the same values."""


class PileWriter:
    """Adds one pile set to a store: the records of one source.

    Many processes may write to one store at the same time, each under its own name. The order of the store depends on
    its seed, the names, and the records of each; not on who was faster. Nothing can be seen of the records before
    `close`, and nothing of them is left after an exception or if the process dies.

    Parameters
    ----------
    store
        Folder of the store, made if it does not exist.
    name
        Name of the source: letters, digits, ``.``, ``_`` and ``-``.
    schema
        Columns of the records. Default: those of the store, else of the first records.
    seed
        Seed of a new store. Default: drawn at random.
    piles
        Number of piles of a new store. Default: 1024. Choose about 1 for each 8 MB of all its records.
    buffer_bytes
        Bytes collected before they are written; the writer needs about four times as much memory.

    Raises
    ------
    UsageError
        When the name is taken or not valid, or `seed`, `piles` or `schema` differ from those of the store.
    OutputError
        When another process writes under this name, or the folder cannot be written.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        name: str,
        schema: pa.Schema | None = None,
        seed: int | None = None,
        *,
        piles: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        if piles is not None:
            piles = check_number("piles", piles, MAX_PILES, least=1)
        if seed is not None:
            seed = check_number("seed", seed, MAX_SEED)
        buffer_bytes = check_number("buffer_bytes", buffer_bytes, sys.maxsize, least=1)
        if schema is not None and not isinstance(schema, pa.Schema):
            raise UsageError(
                f"schema={schema!r}: give a pyarrow.Schema, such as pyarrow.schema({{'id': pyarrow.int64()}})"
            )
        # The process may go to another folder meanwhile.
        self._folder = StoreFolder(local_path(store).absolute())
        own_name = SetNames(self._folder, name)
        self._name = name
        self._buffer_bytes = buffer_bytes
        snapshot = self._folder.create(Snapshot.new(seed, piles or _DEFAULT_PILES))
        self._snapshot = _check_store(self._folder.path, snapshot, seed, piles)
        if schema is not None:
            check_names(schema.names)
        self._schema = _plain_schema(schema) if schema is not None else _find_schema(snapshot)
        if self._schema is not None and snapshot.schema is not None:
            snapshot.check_schema(extend_schema(self._schema))
        self._batches: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._rows = 0
        self._count = InputCount(0, Digest())
        self._piles: RunPiles | None = None
        self._cleanup = ExitStack()
        self._cleanup.enter_context(own_name)
        self._process = os.getpid()
        self._is_open, self._is_sealed = True, False

    @property
    def num_records(self) -> int:
        """Number of records written so far."""
        return self._rows + sum(len(batch) for batch in self._batches)

    def write(self, data: Any) -> None:
        """Add records after those written before.

        Parameters
        ----------
        data
            A record batch, a table, a data frame or other object with Arrow's C interface, a dict of arrays (an array of
            several axes becomes lists of a fixed size), or a list of dicts, of batches or of tables. Arrays and data
            frames may be changed afterwards. Arrow data is not copied; memory of others under it must not change before
            `close`.

            Data with types, of Arrow, NumPy or a data frame, must have those of the store. Text, bytes and lists may be
            large or not, or views, at any depth; any values may lie in dictionaries. Values of Python, in lists and dicts,
            take the types of the store: integers that they hold, text, bytes, and floats, which are rounded where a column
            has fewer than 64 bits. A value that would change otherwise is refused.

        Raises
        ------
        UsageError
            When the columns are not those of the store, a value does not fit its column, or the writer is closed or that of
            another process.
        OutputError
            When the records cannot be written.
        """
        self._check_process()
        if not self._is_open or self._is_sealed:
            raise UsageError(f"{self._name}: the writer is closed; nothing can be written any more")
        for batch in self._read(data):
            # Sliced, because a batch may be far larger than the buffer.
            rows = max(1, batch.num_rows * self._buffer_bytes // max(1, count_bytes(batch)))
            for start in range(0, batch.num_rows, rows):
                self._collect(batch.slice(start, rows))

    def _read(self, data: Any) -> list[pa.RecordBatch]:
        table = to_table(data, self._schema)
        if not table.num_columns:  # an empty list, which tells nothing about columns
            return []
        if self._schema is None:
            self._schema = _plain_schema(table.schema)
        if sorted(table.schema.names) == sorted(self._schema.names):
            table = table.select(self._schema.names)
        plain = _plain_schema(table.schema)
        if plain.names != self._schema.names or not all(map(_is_alike, plain.types, self._schema.types)):
            raise UsageError(describe_drift(self._schema, _take_alike(plain, self._schema)))
        columns = list(map(_fit, table.columns, self._schema))
        batches: list[pa.RecordBatch] = pa.Table.from_arrays(columns, schema=self._schema).to_batches()
        return batches

    def _collect(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._held_bytes += count_bytes(batch)
        if self._held_bytes >= self._buffer_bytes:
            self._scatter()

    def _scatter(self) -> None:
        """Write the collected records to their piles."""
        if not self._batches:
            return
        batch = concat_batches(self._batches)
        rows = RowRange(0, self._rows, batch.num_rows)
        keys = draw_keys(self._snapshot.seed, [rows], stream_of(self._name))
        records = Records(keys, add_provenance(batch, [rows]))
        count = InputCount(
            self._count.byte_count + count_bytes(batch), self._count.digest + digest_records(records)
        )
        self._open_piles().add(0, Origin(0, self._rows), records)
        self._count, self._rows = count, self._rows + batch.num_rows
        self._batches, self._held_bytes = [], 0

    def _open_piles(self) -> RunPiles:
        """Return the piles, made with the first records."""
        if self._piles is None:
            assert self._schema is not None  # noqa: S101 - records have been read
            plan = StorePlan(self._snapshot.pile_count, (None,), 0, set_prefix=self._name)
            self._piles = open_new_sets(self._folder, plan, extend_schema(self._schema), self._cleanup)
        return self._piles

    def seal(self) -> tuple[SetEntry, pa.Schema] | None:
        """Write the set to disk, synced, and return its entry for a snapshot; None without records.

        Nothing can be written any more. The name stays locked until `close` or `abort`.

        Raises
        ------
        OutputError
            When the set cannot be written.
        """
        self._check_process()
        self._scatter()
        self._is_sealed = True
        if self._piles is None:
            return None
        source = SetSource(0, self._name, self._count)
        description = SetDescription(self._snapshot.seed, (source,), stream_of(self._name))
        self._piles.complete(0, self._count.digest, description)
        self._piles.seal_next()
        entry = describe_new_set(self._folder, self._name, 0, self._rows, self._count.byte_count)
        return entry, self._piles.codec.schema

    def close(self) -> None:
        """Put the records in the store, synced to disk. Idempotent.

        A writer without records adds nothing but the columns of a store that has none yet.

        Raises
        ------
        UsageError
            When another writer has given the store other columns, or the writer is that of another process.
        OutputError
            When they cannot be written; nothing of them is left.
        """
        if not self._is_open:
            return
        self._check_process()
        self._is_open = False
        with self._cleanup:
            sealed = self.seal()
            if sealed is not None:
                entry, schema = sealed
                self._folder.commit(lambda newest: newest.add((entry,), schema), self._snapshot.store)
            elif self._schema is not None and self._snapshot.schema is None:
                columns = extend_schema(self._schema)
                self._folder.commit(lambda newest: newest.add((), columns), self._snapshot.store)

    def abort(self) -> None:
        """Drop all records. Idempotent; a forked child leaves the set to its parent."""
        if self._is_open and self._process == os.getpid():
            self._is_open = False
            self._cleanup.__exit__(GeneratorExit, GeneratorExit(), None)

    def _check_process(self) -> None:
        # Parent and child would write over each other's slices.
        if self._process != os.getpid():
            raise UsageError(
                f"{self._name}: this writer belongs to another process; make one in each process, under its own name"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            self.abort()


def _check_store(path: Path, snapshot: Snapshot, seed: int | None, piles: int | None) -> Snapshot:
    """Return the snapshot, if a writer with these arguments can add to it."""
    for what, given, found in (("seed", seed, snapshot.seed), ("piles", piles, snapshot.pile_count)):
        if given not in (None, found):
            raise UsageError(f"{what}={given}: {path} has {found}; leave it out, or begin a new store")
    if snapshot.origin is not None and snapshot.origin["format"] != "parquet":
        raise UsageError(
            f"{path}: holds records of {snapshot.origin['format']} files, not of tables; begin a new store"
        )
    return snapshot


def _find_schema(snapshot: Snapshot) -> pa.Schema | None:
    """Return the columns of the records of a store; None if it has none yet."""
    schema = snapshot.schema
    return None if schema is None else schema.remove(len(schema) - 1)


def _is_alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether types are the same but for the width of offsets and for views, which are up to the library of a data frame."""
    found = plain_type(found)
    if found == wanted:
        return True
    if any(found in kinds and wanted in kinds for kinds in _HOLDERS):
        return True
    types = pa.types
    if is_variable_list(wanted):
        return (is_variable_list(found) or is_list_view(found)) and _has_place(
            found.value_field, wanted.value_field
        )
    if types.is_fixed_size_list(found) and types.is_fixed_size_list(wanted):
        return found.list_size == wanted.list_size and _has_place(found.value_field, wanted.value_field)
    if types.is_map(found) and types.is_map(wanted):
        return _has_place(found.key_field, wanted.key_field) and _has_place(
            found.item_field, wanted.item_field
        )
    if types.is_struct(found) and types.is_struct(wanted):
        return [field.name for field in found] == [field.name for field in wanted] and all(
            map(_has_place, found, wanted)
        )
    return False


def _has_place(found: pa.Field, wanted: pa.Field) -> bool:
    """Tell whether a field below a column can become another one, whatever its values are."""
    return (wanted.nullable or not found.nullable) and _is_alike(found.type, wanted.type)


def _take_alike(found: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """Return a schema with the types of another one where they are alike, so that the columns that differ do."""
    kinds = dict(zip(wanted.names, wanted.types, strict=True))
    return pa.schema(
        [
            field.with_type(kinds[field.name])
            if field.name in kinds and _is_alike(field.type, kinds[field.name])
            else field
            for field in found
        ]
    )


def _fit(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Return a column, of a type whose plain type is alike, as the store has it."""
    try:
        # Not `cast`, which fails with lists and slices of structs that hold values of type null.
        made = pa.chunked_array([conform(chunk, field.type) for chunk in column.chunks], field.type)
        for chunk in made.chunks:
            check_digits(chunk)
    except pa.ArrowException as error:
        raise UsageError(
            f"column {field.name!r} cannot become {field.type}: {error}; write fewer records at a time, or cast it"
        ) from error
    if made.null_count and not field.nullable:
        raise UsageError(f"column {field.name!r} has a null where the store takes none; fill it in")
    return made


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the values of dictionaries in their place, without metadata of other programs."""
    return pa.schema([field.with_type(plain_type(field.type)).remove_metadata() for field in schema])
