"""`PileWriter`: fills one pile set of a store from a program, whose data become tables with the types of the store."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from recshuf.errors import OutputError, UsageError
from recshuf.piles.footer import SetDescription, SetSource
from recshuf.piles.kept.places import open_new_sets, open_place
from recshuf.piles.kept.snapshots import Snapshot, describe_drift
from recshuf.piles.layout import StorePlan
from recshuf.piles.planes import plain_type
from recshuf.piles.slices import Origin
from recshuf.records.arrays import count_bytes, find_nulls, is_contiguous_list, is_list_view, is_variable_list
from recshuf.records.batch import Records, concat_batches
from recshuf.records.conforming import check_digits, conform
from recshuf.records.digests import Digest, InputCount, digest_records
from recshuf.records.keys import KEY_BYTES, MAX_PILES, MAX_SEED, RowRange, draw_keys, stream_of
from recshuf.records.provenance import PROVENANCE_BYTES, add_provenance, extend_schema
from recshuf.run.stores.array_samples import make_plain, stack, to_numpy
from recshuf.storage.settings import parse_storage
from recshuf.system.units import check_number, show_call

if TYPE_CHECKING:
    from types import TracebackType

    from recshuf.piles.kept.place import StorePlace
    from recshuf.piles.sealed_set import SealedSet
    from recshuf.piles.store import Store


_TAKEN = "give record batches, tables, data frames, a dict of arrays, or a list of dicts or batches"
_NO_COLUMNS = "the records have no columns; give at least one"
_PROBLEMS = (pa.ArrowException, TypeError, ValueError, OverflowError, RuntimeError)
"""What Arrow, NumPy and libraries with arrays of their own raise."""
_UNTYPED_KINDS = "OSUT"
"""Kinds of NumPy arrays that hold objects, bytes or text: Arrow would end these at the first NUL."""
_NULLS = ("NoneType", "NaTType", "NAType")
"""Classes of values that stand for none, those of pandas among them, which need not be installed."""


def to_table(data: Any, schema: pa.Schema | None) -> pa.Table:
    """Return what a program gives to a writer as a table, which may have other columns than the store.

    Arrow's data, arrays and data frames have types, which are not changed here. Values of Python have none: they take the
    types of the store, or those that Arrow infers, and are refused unless Arrow gives back what came.

    Parameters
    ----------
    schema
        Columns of the store; None if it has none yet.
    """
    table = _make_table(data, schema)
    if table.num_rows and not table.num_columns:
        raise UsageError(_NO_COLUMNS)
    check_names(table.column_names)
    return table


def check_names(names: Sequence[str]) -> None:
    """Raise `UsageError` if two columns have one name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"column {name!r}: comes {count} times; give each column a name of its own")


def _make_table(data: Any, schema: pa.Schema | None) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    try:
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            return _copy(_read_frame(data))
        if isinstance(data, Mapping):
            return _join_columns(data, schema)
        if isinstance(data, Sequence) and all(isinstance(record, Mapping) for record in data):
            return _join_columns(_to_columns(data), schema)
        if isinstance(data, Sequence) and all(isinstance(part, pa.RecordBatch | pa.Table) for part in data):
            return pa.concat_tables(to_table(part, schema) for part in data)
    except UsageError:
        raise
    except _PROBLEMS as error:
        raise UsageError(f"the records are no table: {_first_line(error)}; {_TAKEN}") from error
    raise UsageError(f"{type(data).__name__} is not taken; {_TAKEN}")


def _read_frame(frame: Any) -> pa.Table:
    """Return a data frame, or other object with Arrow's C interface, as a table that may share its memory."""
    kinds = [*getattr(frame, "dtypes", ())]
    for place, kind in enumerate(kinds):
        _refuse_objects(frame.columns[place], kind)
    table = pa.table(frame)
    for place, kind in enumerate(kinds):
        if isinstance(kind, np.dtype) and kind.hasobject:
            column = table.column(place)
            _check_same(table.column_names[place], frame.iloc[:, place].tolist(), column, column.type)
    return table


def _refuse_objects(name: str, kind: object) -> None:
    """Refuse objects of polars, which exports their addresses."""
    if str(kind) == "Object":
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


def _join_columns(columns: Mapping[str, Any], schema: pa.Schema | None) -> pa.Table:
    arrays, fields = dict[str, Any](), {field.name: field for field in schema or ()}
    for name, values in columns.items():
        if not isinstance(name, str):
            raise UsageError(f"column {name!r}: the name is of type {type(name).__name__}; give it as text")
        try:
            arrays[name] = _to_array(name, values, fields.get(name))
        except UsageError:
            raise
        except (*_PROBLEMS, OSError) as error:  # of polars 1.33 and older
            raise UsageError(
                f"column {name!r}: {_first_line(error)}; convert the values, or give an Arrow array"
            ) from error
    return pa.table(arrays)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _to_array(name: str, values: Any, field: pa.Field | None) -> pa.Array | pa.ChunkedArray:
    """Return a column as an array; `field` is that of the store, if it has one."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    values = to_numpy(values)
    if isinstance(values, str | bytes | Mapping):
        raise UsageError(
            f"column {name!r} is one value of type {type(values).__name__}; give a list or an array of values"
        )
    if not hasattr(values, "__array__"):
        return _build(name, values if isinstance(values, list | tuple) else list(values), field)
    kind = getattr(values, "dtype", None)
    is_stream = hasattr(values, "__arrow_c_stream__")
    # Series of pandas 2 have no stream, and what `values` of a series gives neither.
    is_pandas = hasattr(kind, "construct_array_type") and (
        hasattr(getattr(values, "array", values), "__arrow_array__") or hasattr(kind, "categories")
    )
    if (is_stream or is_pandas) and not isinstance(kind, np.dtype):
        # A column of a data frame, which may have nulls that NumPy has no place for.
        _refuse_objects(name, kind)
        return _copy(pa.table({name: pa.chunked_array(values) if is_stream else pa.array(values)}))[name]
    return _copy_array(name, values, field)


def _copy_array(name: str, values: Any, field: pa.Field | None) -> pa.Array:
    """Return what NumPy takes as an array, copied; axes after the first become lists of a fixed size."""
    is_masked = isinstance(values, np.ma.MaskedArray)
    values = values.copy() if is_masked else np.array(values, order="C")
    flat = values.reshape(-1)
    if flat.dtype.kind in _UNTYPED_KINDS:
        for _ in values.shape[1:]:
            field = None if field is None or not is_contiguous_list(field.type) else field.type.value_field
        array = _build(name, flat.tolist(), field)
    else:
        array = pa.array(np.ma.getdata(flat), mask=np.ma.getmaskarray(flat) if is_masked else None)
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def _build(name: str, values: Sequence[Any], field: pa.Field | None) -> pa.Array:
    """Return values of Python as an array that gives back the same."""
    if field is not None and isinstance(field.type, pa.BaseExtensionType):
        return field.type.wrap_array(_build(name, values, field.with_type(field.type.storage_type)))
    kind = None if field is None else field.type
    try:
        array = pa.array(values, kind)
    except _PROBLEMS:  # arrays of several axes, and tensors
        stacked = stack(values)
        if stacked is not None:
            array = _copy_array(name, stacked, field)
            return array if kind is None else array.cast(kind)
        values = make_plain(values)
        array = pa.array(values, kind)
    _check_same(name, values, array, array.type)
    if field is not None:
        _check_nulls(name, array, field)
    return array


def _check_same(name: str, values: Sequence[Any], array: Any, kind: pa.DataType) -> None:
    if not _are_same(values, array.to_pylist(), kind):
        raise UsageError(
            f"column {name!r}: some values would change as {kind}; give values of one kind, an Arrow array, or a schema"
        )


def _are_same(given: Sequence[Any], stored: list[Any], kind: pa.DataType) -> bool:
    """Tell whether values are the same; long lists of numbers or text are compared at once."""
    if not pt.is_nested(kind) and stored == given:
        classes = set(map(type, given))
        if pt.is_boolean(kind) or bool not in classes:
            return not pt.is_boolean(kind) or classes <= {bool, np.bool_, type(None)}
    if pt.is_nested(kind) and is_contiguous_list(kind) and len(given) == len(stored):
        return all(map(_are_same_lists, given, stored, repeat(kind.value_type)))
    return len(given) == len(stored) and all(map(_is_same, given, stored))


def _are_same_lists(given: Any, stored: Any, kind: pa.DataType) -> bool:
    if isinstance(given, list | tuple) and isinstance(stored, list):
        return _are_same(list(given), stored, kind)
    return _is_same(given, stored)


def _is_same(given: Any, stored: Any) -> bool:
    """Tell whether a value is the same, also a truth, a missing field, and a float that was rounded to fewer bits."""
    if type(given).__name__ in _NULLS or stored is None:
        return stored is None and (type(given).__name__ in _NULLS or given != given)
    if isinstance(given, np.generic | np.ndarray):
        return _is_same(given.tolist(), stored)
    if isinstance(given, Mapping):
        return (
            isinstance(stored, dict)
            and given.keys() <= stored.keys()
            and all(_is_same(given.get(name), value) for name, value in stored.items())
        )
    if isinstance(given, list | tuple) and isinstance(stored, list):
        return len(given) == len(stored) and all(map(_is_same, given, stored))
    if isinstance(given, bool) or isinstance(stored, bool):
        return given is stored
    if isinstance(given, float) and isinstance(stored, float):
        return math.isnan(given) == math.isnan(stored) and math.isinf(given) == math.isinf(stored)
    return bool(given == stored)


def _check_nulls(name: str, array: pa.Array, field: pa.Field) -> None:
    """Refuse nulls in fields that take none, at any depth; Arrow puts them there."""
    if array.null_count and not field.nullable:
        raise UsageError(f"column {name!r} has a null where the store takes none; fill it in")
    if pt.is_struct(field.type):
        filled = array.filter(array.is_valid())
        for place, inner in enumerate(field.type):
            _check_nulls(f"{name}.{inner.name}", filled.field(place), inner)
    elif is_contiguous_list(field.type):
        _check_nulls(name, array.flatten(), field.type.value_field)


_DEFAULT_PILES = 1024
"""Piles of a store whose size is not known. 64 MB at a time are then written in slices of 64 kB, and 10 GB are in piles of
10 MB."""
BUFFER_BYTES = 64 << 20
"""Records collected before they are scattered."""
MOST_SMALL = 1024
"""So many collected batches are joined: each takes some KB, however few records it has."""
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
        Folder of the store, or URL of s3://, gs:// or az://; made if it does not exist.
    name
        Name of the source: letters, digits, ``.``, ``_`` and ``-``.
    schema
        Columns of the records. Default: those of the store, else of the first records.
    seed
        Seed of a new store. Default: drawn at random.
    piles
        Number of piles of a new store. Default: 1024. Choose about 1 for each 8 MB of all its records.
    buffer_bytes
        Bytes collected before they are written, 16 of each record for its key and place; the writer needs about four times as
        much memory.
    endpoint_url, storage_options
        For URLs; see `recshuf.ScatterOptions`.

    Raises
    ------
    UsageError
        When the name is taken or not valid, or `seed`, `piles` or `schema` differ from those of the store.
    OutputError
        When another process writes under this name, or the folder cannot be written.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | StorePlace,
        name: str,
        schema: pa.Schema | None = None,
        seed: int | None = None,
        *,
        piles: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        endpoint_url: str | None = None,
        storage_options: Mapping[str, str] | None = None,
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
        self._place = open_place(store, parse_storage(endpoint_url, storage_options)).anchor()
        own_name = self._place.hold_name(name)
        self._name = name
        self._buffer_bytes = buffer_bytes
        snapshot = self._place.create(Snapshot.new(seed, piles or _DEFAULT_PILES))
        self._snapshot = _check_store(self._place.name, snapshot, seed, piles)
        known = snapshot.schema
        self._schema: pa.Schema | None = None
        if schema is not None:
            check_names(schema.names)
            self._schema = _plain_schema(schema)
        elif known is not None:
            self._schema = known.remove(len(known) - 1)  # provenance
        if schema is not None and known is not None:
            snapshot.check_schema(extend_schema(self._schema))
        self._batches: list[pa.RecordBatch] = []
        self._joined_count = 0
        """How many of the first are joined ones."""
        self._held_bytes = 0
        self._rows = 0
        self._nulls: set[str] = set()
        self._count = InputCount(0, Digest())
        self._piles: Store | None = None
        self._cleanup = ExitStack()
        self._cleanup.enter_context(own_name)
        self._process = os.getpid()
        self._is_open, self._is_sealed = True, False
        self._is_whole = True
        """Whether all that was written to piles is there."""
        self._sealed: tuple[SealedSet, pa.Schema] | None = None

    def __repr__(self) -> str:
        """Return what it has been given."""
        shown = {"name": self._name, "num_records": self.num_records}
        return show_call(type(self).__name__, str(self._place.name), **shown)

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
            several axes becomes lists of a fixed size), or a list of dicts, of batches or of tables. Values of dicts may be
            arrays, too: those of several axes become lists of a fixed size if all that come first have one shape. Tensors
            count as arrays, and floats of them that NumPy lacks, as bfloat16, become float32. Arrays and data frames may be changed afterwards. Arrow data is not copied; memory of others under it must not change before
            `close`.

            Data with types, of Arrow, NumPy or a data frame, must have those of the store. Text, bytes and lists may be
            large or not, or views, at any depth; any values may lie in dictionaries. Values of Python, in lists and dicts,
            take the types of the store, or those that Arrow infers. Floats are rounded where a column has fewer than 64
            bits; a value that would change otherwise is refused.

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
            self._nulls |= find_nulls(batch)
            # Sliced, because a batch may be far larger than the buffer.
            rows = max(1, batch.num_rows * self._buffer_bytes // max(1, _count_held(batch)))
            for start in range(0, batch.num_rows, rows):
                self._batches.append(batch.slice(start, rows))
                self._held_bytes += _count_held(self._batches[-1])
                if len(self._batches) - self._joined_count == MOST_SMALL:
                    latest = slice(self._joined_count, None)
                    self._batches[latest] = [concat_batches(self._batches[latest])]
                    self._joined_count += 1
                if self._held_bytes >= self._buffer_bytes:
                    self._scatter()

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

    def _scatter(self) -> None:
        """Write the collected records to their piles."""
        if not self._is_whole:
            raise OutputError(
                f"{self._name}: what was written before has failed, and nothing of this writer gets into the store; make a new "
                "one, and write all records again"
            )
        if not self._batches:
            return
        self._is_whole = False
        batch = concat_batches(self._batches)
        rows = RowRange(0, self._rows, batch.num_rows)
        keys = draw_keys(self._snapshot.seed, [rows], stream_of(self._name))
        records = Records(keys, add_provenance(batch, [rows]))
        count = InputCount(
            self._count.byte_count + count_bytes(batch), self._count.digest + digest_records(records)
        )
        if self._piles is None:
            plan = StorePlan(self._snapshot.pile_count, (None,), 0, set_prefix=self._name)
            self._piles = open_new_sets(self._place, plan, extend_schema(batch.schema), self._cleanup)
        self._piles.add(0, Origin(0, self._rows), records)
        self._count, self._rows = count, self._rows + batch.num_rows
        self._batches, self._joined_count, self._held_bytes, self._is_whole = [], 0, 0, True

    def seal(self) -> tuple[SealedSet, pa.Schema] | None:
        """Write the set to disk, synced, and return its entry for a snapshot; None without records. Idempotent.

        Nothing can be written any more. The name stays locked until `close` or `abort`.

        Raises
        ------
        OutputError
            When the set cannot be written.
        """
        self._check_process()
        self._sealed = self._sealed or self._seal()
        return self._sealed

    def _seal(self) -> tuple[SealedSet, pa.Schema] | None:
        self._scatter()
        self._is_sealed = True
        if self._piles is None:
            return None
        source = SetSource(0, self._name, self._count)
        description = SetDescription(self._snapshot.seed, (source,), stream_of(self._name))
        self._piles.complete(0, self._count.digest, description)
        entry = self._piles.seal_next()
        assert entry is not None  # noqa: S101 - it has records
        return replace(entry, nulls=tuple(sorted(self._nulls))), self._piles.codec.schema

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
                self._place.commit(lambda newest: newest.add((entry,), schema), self._snapshot.store)
            elif self._schema is not None and self._snapshot.schema is None:
                columns = extend_schema(self._schema)
                self._place.commit(lambda newest: newest.add((), columns), self._snapshot.store)

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


def _count_held(batch: pa.RecordBatch) -> int:
    """Return the bytes of records with their keys and provenance, of which short records are the lesser part."""
    added: int = batch.num_rows * (KEY_BYTES + PROVENANCE_BYTES)
    return count_bytes(batch) + added


def _check_store(path: str, snapshot: Snapshot, seed: int | None, piles: int | None) -> Snapshot:
    """Return the snapshot, if a writer with these arguments can add to it."""
    for what, given, found in (("seed", seed, snapshot.seed), ("piles", piles, snapshot.pile_count)):
        if given not in (None, found):
            raise UsageError(f"{what}={given}: {path} has {found}; leave it out, or begin a new store")
    name = None if snapshot.origin is None else snapshot.origin["format"]
    if name is not None:
        from recshuf.formats import load_format

        if not load_format(name).traits.native_is_table:
            raise UsageError(f"{path}: holds records of {name} files, not of tables; begin a new store")
    return snapshot


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
