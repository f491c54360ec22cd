"""`PileWriter`: fills one pile set of a store from a program, whose tables get the types of the store."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from recshuf.errors import OutputError, UsageError
from recshuf.piles.footer import SetDescription, SetSource
from recshuf.piles.kept.snapshots import Snapshot, describe_drift
from recshuf.piles.kept.stored import open_new_sets, open_place
from recshuf.piles.layout import StorePlan
from recshuf.piles.planes import plain_type
from recshuf.piles.slices import Origin
from recshuf.records.arrays import count_bytes, find_nulls, is_list_view, is_variable_list
from recshuf.records.batch import Records, concat_batches
from recshuf.records.conforming import check_digits, conform
from recshuf.records.digests import InputCount, digest_records
from recshuf.records.keys import KEY_BYTES, MAX_PILES, MAX_SEED, RowRange, draw_keys, stream_of
from recshuf.records.provenance import PROVENANCE_BYTES, add_provenance, extend_schema
from recshuf.run.stores.samples import check_names, to_table
from recshuf.storage import parse_storage
from recshuf.system.units import check_number, show_call

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from recshuf.piles.kept.place import StorePlace
    from recshuf.piles.layout import SealedSet
    from recshuf.piles.store import Store


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
        self._count = InputCount()
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
