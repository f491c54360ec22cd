"""Tables that the caller of a Python function holds: which objects are inputs, how their batches are read, and the source of some."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from recshuf.errors import InputError, UsageError
from recshuf.formats import TABLES, load_format
from recshuf.interfaces import Fragment, Source, TableName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.formats.parquet.source import HeldTables
    from recshuf.interfaces import Decoder, Format, InputFile, ReadOptions


_FRAMES = ("pandas", "polars", "modin", "cudf")
"""Packages whose frames are in memory; of other objects with a stream, only one with a number of rows is known to be."""
_ROWS, _BATCH_BYTES = 1 << 14, 4 << 20
"""Most rows of a batch, where they are asked for by number, and about the most bytes of several."""
_STREAM_ROWS = 1 << 10
"""Rows of a batch, where nothing tells how long they are."""
_COUNTED = ("parquet", "arrow", "ipc", "feather")
"""Suffixes of formats whose files tell how many rows they have."""
_HEAD_ROWS, _HEAD_BYTES = 1 << 16, 16 << 20
"""First rows that tell how the columns of tables are best stored, and how many bytes of them suffice; those of a reader are held."""

_BEGUN: WeakSet[Any] = WeakSet()
"""Readers of which rows were taken, which another call would miss in silence."""


def name_table(value: object, place: int) -> TableName | None:
    """Return a table as an input, with a name for messages and the manifest; None if the value is none, but perhaps a path."""
    if isinstance(value, TableName):
        return value
    if isinstance(value, str | bytes | os.PathLike):
        return None
    package, kind = _name_package(type(value)), type(value).__name__
    if problem := _find_problem(value, package, kind):
        raise UsageError(f"inputs: {problem}")
    table = _open_table(value, package, place)
    if table is None:
        return None
    word = (
        "reader" if isinstance(table, _Reader) else "table" if isinstance(table, _MemoryTable) else "dataset"
    )
    return TableName(f"<{word} {place}>", table, value)


def _find_problem(value: object, package: str, kind: str) -> str | None:
    """Return what keeps a value, and others of its class, from being an input, and what to do."""
    if (package, kind) == ("polars", "LazyFrame"):
        return "polars.LazyFrame is a plan, and holds no records; collect() it"
    if (package, kind) == ("pyarrow", "Scanner"):
        return "pyarrow.dataset.Scanner is a plan, and holds no records; give to_reader() of it"
    if package == "recshuf":
        return f"a {kind} is no input; recshuf.gather writes the records of a store"
    if not isinstance(value, Mapping):
        return None
    if package == "datasets":
        return f"datasets.{kind} is a dict of splits; give one, such as [{next(iter(value), 'train')!r}]"
    remedy = "pyarrow.table(...) makes one of columns, pyarrow.Table.from_pylist([...]) one of records"
    return f"a dict is no table; {remedy}"


def _name_package(kind: type) -> str:
    """Return the package of a class; of a frame that another package has extended, that of the frame."""
    names = [base.__module__.partition(".")[0] for base in kind.__mro__]
    return next((name for name in names if name in _FRAMES), names[0])


def _open_table(value: Any, package: str, place: int) -> _Table | None:
    if package == "datasets" and hasattr(value, "with_format"):
        return _HuggingFace(value, f"<dataset {place}>")
    if package == "datasets":  # a column of texts would pass for a list of paths
        shown = f"inputs: datasets.{type(value).__name__} is no table"
        raise UsageError(f"{shown}; give the data set, or select_columns([...]) of it")
    if (arrow_dataset := sys.modules.get("pyarrow.dataset")) and isinstance(value, arrow_dataset.Dataset):
        return _ArrowDataset(value)
    if not hasattr(value, "__arrow_c_stream__"):
        return None
    owner = type(value).__module__.partition(".")[0]
    shown = f"inputs: {owner}.{type(value).__name__} is one column, and no table"
    if package in _FRAMES and not hasattr(value, "columns"):
        raise UsageError(f"{shown}; give to_frame() of it")
    if package == "polars" and "Object" in map(str, value.dtypes):
        problem = "a polars.DataFrame with a column of type Object has no form in Arrow"  # but addresses
        raise UsageError(f"inputs: {problem}; cast or drop it")
    if package in _FRAMES or hasattr(value, "num_rows"):
        return _load_table(value, f"<table {place}>")
    return _Reader(value, shown)


def _load_table(value: Any, name: str) -> _MemoryTable:
    import pyarrow as pa

    try:
        return _MemoryTable(pa.table(value))
    except (pa.ArrowException, TypeError, ValueError) as error:
        text = " ".join(str(error).split())[:300]
        remedy = "give each column a name of its own, and values of one type that Arrow has"
        place = _find_unfit(value) if _name_package(type(value)) == "polars" else None
        raise InputError(name, f"has no form in Arrow: {text}", place=place, remedy=remedy) from error


def _find_unfit(frame: Any) -> str | None:
    """Return the first column of a frame of polars that Arrow cannot hold; of one of pandas, the error itself names it."""
    import pyarrow as pa

    for column in frame.columns:
        try:
            pa.table(frame.select(column))
        except (pa.ArrowException, TypeError, ValueError):
            return f"column {column!r}"
    return None


class _Table(ABC):
    """A `Table`. Batches that were looked at are kept, if they are read once."""

    byte_count: int | None = None

    def __init__(self, *, is_once: bool) -> None:
        self.is_once = is_once
        self._ahead: list[pa.RecordBatch] = []
        self._rest: Iterator[pa.RecordBatch] | None = None

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """See `Table`."""

    @property
    def row_count(self) -> int | None:
        return None

    @abstractmethod
    def _open(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches; called once if it is read once."""

    def head(self, row_count: int, byte_count: int) -> list[pa.RecordBatch]:
        taken: list[pa.RecordBatch] = []
        if self.is_once:
            batches = self._rest = self._rest or self._open()
            taken = self._ahead
        else:
            batches = self._open()
        rows, size = sum(batch.num_rows for batch in taken), sum(batch.nbytes for batch in taken)
        while rows < row_count and size < byte_count and (batch := next(batches, None)) is not None:
            taken.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        return list(taken)

    def batches(self) -> Iterator[pa.RecordBatch]:
        while self._ahead:
            yield self._ahead.pop(0)
        yield from self._rest or self._open()


def _count_rows(byte_count: int, rows: int) -> int:
    """Return how many rows to read at once, of rows that are as long as some of so many bytes."""
    return max(1, min(_ROWS, _BATCH_BYTES * rows // max(1, byte_count)))


def _take_rows(batches: Sequence[pa.RecordBatch], rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Return some rows of batches that follow each other. Arrow would join all batches first, and the owner make one of each row."""
    import numpy as np
    import pyarrow as pa

    ends = np.cumsum([batch.num_rows for batch in batches])
    owners = np.searchsorted(ends, rows, side="right")
    order = np.argsort(owners, kind="stable")
    parts = []
    for group in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
        batch = batches[owners[group[0]]]
        parts.append(batch.take(pa.array(rows[group] - (ends[owners[group[0]]] - batch.num_rows))))
    return pa.concat_batches(parts).take(pa.array(np.argsort(order)))


class _MemoryTable(_Table):
    def __init__(self, table: pa.Table) -> None:
        super().__init__(is_once=False)
        self._table = table
        self.byte_count = table.nbytes

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    @property
    def row_count(self) -> int:
        return int(self._table.num_rows)

    def _open(self) -> Iterator[pa.RecordBatch]:
        yield from self._table.to_batches()


class _Reader(_Table):
    """What gives a stream of batches, opened when the first is asked for: until then, its owner may still use it.

    Parameters
    ----------
    problem
        What to say of one without columns by name.
    """

    def __init__(self, value: Any, problem: str) -> None:
        super().__init__(is_once=True)
        self._value, self._problem = value, problem

    @property
    def schema(self) -> pa.Schema:
        return self._opened.schema

    @cached_property
    def _opened(self) -> pa.RecordBatchReader:
        import pyarrow as pa

        if isinstance(self._value, pa.RecordBatchReader):
            return self._value
        try:
            return pa.RecordBatchReader.from_stream(self._value)
        except (pa.ArrowException, TypeError, ValueError) as error:
            remedy = "pyarrow.table({'NAME': ...}) makes one of it"
            raise UsageError(f"{self._problem}; {remedy}") from error

    def _open(self) -> Iterator[pa.RecordBatch]:
        if self._opened is self._value:
            if self._value in _BEGUN:
                problem = "inputs: an earlier call, perhaps of plan, has taken rows of this reader"
                raise UsageError(f"{problem}; give a new one")
            _BEGUN.add(self._value)
        return iter(self._opened)  # which does not refer to this, so that a query of DuckDB ends with it


class _ArrowDataset(_Table):
    """A data set of pyarrow. Its files are read in order, and again if need be."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(is_once=False)
        self._dataset = dataset

    @property
    def schema(self) -> pa.Schema:
        return self._dataset.schema

    @cached_property
    def row_count(self) -> int | None:
        return int(self._dataset.count_rows()) if self._suffix in ("", *_COUNTED) else None

    @property
    def _suffix(self) -> str:
        return getattr(getattr(self._dataset, "format", None), "default_extname", "")

    @cached_property
    def _batch_rows(self) -> int:
        """Rows that are read at once; other formats than Parquet read by bytes."""
        files = self._dataset.get_fragments() if self._suffix == _COUNTED[0] else ()
        groups = (group for file in files for group in file.row_groups if group.num_rows)
        first = next(groups, None)
        return _ROWS if first is None else _count_rows(first.total_byte_size, first.num_rows)

    def _open(self) -> Iterator[pa.RecordBatch]:
        # By default, it reads ahead up to 16 batches in each of 4 files, and whole row groups, which no plan of memory knows.
        options: dict[str, Any] = {"batch_readahead": 1, "fragment_readahead": 1}
        if self._suffix == _COUNTED[0]:
            from pyarrow.dataset import ParquetFragmentScanOptions as ScanOptions

            options["fragment_scan_options"] = ScanOptions(use_buffered_stream=True, pre_buffer=False)
        yield from self._dataset.scanner(batch_size=self._batch_rows, **options).to_reader()


class _HuggingFace(_Table):
    """A data set of Hugging Face: its rows in the order of its indices, all columns, as stored.

    One that can only be iterated may differ each time, so it is read once.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        super().__init__(is_once=not hasattr(dataset, "__len__"))
        self._dataset, self._name = dataset.with_format("arrow"), name

    @cached_property
    def schema(self) -> pa.Schema:
        if self._dataset.features is not None:
            return self._dataset.features.arrow_schema
        if not (first := self.head(1, 1)):
            raise InputError(self._name, "has no records and no features", remedy="give it features")
        return first[0].schema

    @property
    def row_count(self) -> int | None:
        return None if self.is_once else len(self._dataset)

    def _open(self) -> Iterator[pa.RecordBatch]:
        indices, data = getattr(self._dataset, "_indices", None), getattr(self._dataset, "data", None)
        if data is None:
            yield from self._open_iterable()
        elif indices is None:
            yield from data.table.to_batches(max_chunksize=_ROWS)
        else:
            batches = data.table.to_batches()
            count = _count_rows(data.table.nbytes, data.table.num_rows)
            for start in range(0, len(indices), count):
                rows = indices.table.column(0).slice(start, count).to_numpy()
                yield _take_rows(batches, rows.astype("int64"))

    def _open_iterable(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of the columns of the features; without these, of the columns and types of the first batch."""
        import pyarrow as pa

        from recshuf.formats.parquet.union import columns_of, conform_batch

        features = self._dataset.features
        schema = None if features is None else features.arrow_schema
        try:
            for table in self._dataset.iter(batch_size=_STREAM_ROWS):
                schema = schema or table.schema
                if features is None:
                    _check_types(schema, table.schema)
                # Dictionaries of a batch have their own order of keys.
                places = columns_of(schema, table.schema, self._name, [])
                for batch in table.to_batches():
                    yield conform_batch(batch, schema, places, 0)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            problem = f"records differ in type: {' '.join(str(error).split())[:300]}"
            remedy = "make a Dataset of it: Dataset.from_generator(lambda: iter(DATASET), features=...)"
            raise InputError(self._name, problem, remedy=remedy) from error


def _check_types(first: pa.Schema, later: pa.Schema) -> None:
    """Raise `pyarrow.ArrowInvalid` unless values of a schema are of the columns and types of the first: Arrow would make a number of text."""
    import pyarrow as pa

    from recshuf.formats.parquet.union import FieldClash, unify_types

    if odd := sorted({*first.names} ^ {*later.names}):
        raise pa.ArrowInvalid(f"not all of them have the column {odd[0]!r}")
    for field in first:
        kind = later.field(field.name).type
        with suppress(FieldClash):
            if unify_types(field.type, kind, widens=True) == field.type:
                continue
        raise pa.ArrowInvalid(f"column {field.name!r} is {field.type} in the first of them, later {kind}")


class TableSource(Source):
    """Tables, and files of a format whose sources have `schemas`, those that each file declares.

    Each kind is read by a source of its own, whose batches are then brought to the schema of all.
    """

    def __init__(self, known: Format, inputs: Sequence[InputFile], options: ReadOptions) -> None:
        from recshuf.formats.parquet.source import make_layout
        from recshuf.formats.parquet.types import dense_schema
        from recshuf.formats.parquet.union import unite

        kinds = [
            [index for index, file in enumerate(inputs) if bool(file.table) is held] for held in (True, False)
        ]
        # Columns that only some inputs have are chosen from those of all.
        own = replace(options, columns=None) if kinds[1] else options
        formats = (load_format(TABLES), known)
        parts: list[Any] = [
            one.open_source([inputs[index] for index in kind], own)
            for one, kind in zip(formats, kinds, strict=True)
            if kind
        ]
        self._places = {
            index: (part, place)
            for part, kind in zip(parts, kinds, strict=False)
            for place, index in enumerate(kind)
        }
        order = [self._places[index] for index in range(len(inputs))]
        self._parts = parts
        self.inputs = tuple(part.inputs[place] for part, place in order)
        self.notes = tuple(chain.from_iterable(part.notes for part in parts))
        schemas = [part.schemas[place] for part, place in order]
        declared, self.metadata = parts[0].layout.schema, parts[0].metadata
        if kinds[1]:
            _, _, declared, self.metadata = unite(self.inputs, schemas, options)
            if self.metadata.differences and self.metadata.differences not in self.notes:
                self.notes += (self.metadata.differences,)
        held = self._hold(parts[0], declared)
        self.layout = make_layout(held, parts[1].layout if kinds[1] else None)
        self.schema = dense_schema(self.layout.schema)

    def _hold(self, source: Any, declared: pa.Schema) -> HeldTables:
        import pyarrow as pa

        from recshuf.formats.parquet.source import HeldTables

        heads = (source.find_head(index, _HEAD_ROWS, _HEAD_BYTES) for index in range(len(source.inputs)))
        head = next(filter(len, heads), pa.Table.from_batches([], source.schema))
        names = source.layout.schema.names
        dictionaries = {
            declared.names.index(names[index]): values
            for index, values in source.layout.dictionaries.items()
            if names[index] in declared.names
        }
        rows = sum(one.record_count or 0 for one in source.inputs)
        return HeldTables(declared, dictionaries, head, rows)

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        from recshuf.formats.parquet.union import columns_of

        part, place = self._places[input_index]
        fragments: Iterator[Fragment] = part.fragments(place, block_bytes, max_record_bytes)
        if part.schema.equals(self.schema, check_metadata=True):
            return fragments
        places = columns_of(self.schema, part.schema, self.inputs[input_index].name, [])
        return (_Conformed(fragment, self.schema, places) for fragment in fragments)

    def reading_bytes(self, block_bytes: int) -> int:
        return max(int(part.reading_bytes(block_bytes)) for part in self._parts)

    def decoder(self) -> Decoder:
        from recshuf.formats.parquet.source import ParquetDecoder

        return ParquetDecoder(self)


class _Conformed(Fragment):
    """A fragment whose batches have the columns of a schema at these places, None for those that it lacks."""

    def __init__(self, fragment: Fragment, schema: pa.Schema, places: Sequence[int | None]) -> None:
        self._fragment, self._schema, self._places = fragment, schema, places
        self.record_count = fragment.record_count

    def batches(self) -> Iterator[pa.RecordBatch]:
        from recshuf.formats.parquet.union import conform_batch

        for batch in self._fragment.batches():
            yield conform_batch(batch, self._schema, self._places, 0)
