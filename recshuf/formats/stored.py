"""Inputs that lie in a pile store: what of a `Source` is kept there, as JSON, a source made from it, and the columns of its records that are wanted."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError, UsageError
from recshuf.formats import find_package, list_names, load_format
from recshuf.formats.files import stored_of
from recshuf.interfaces import InputSummary, Metadata, MetadataKey, ReadOptions, Source
from recshuf.records.arrays import (
    check_path,
    dotted,
    find_value,
    list_known,
    pack_schema,
    unpack_schema,
    wrap_values,
)
from recshuf.records.provenance import find_origins, unpack_provenance

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recshuf.errors import InputError
    from recshuf.interfaces import Decoder, FieldAdder, Format, Fragment


_TABLE_FORMAT = "parquet"
"""Format of records that a program wrote: batches in table form are its native batches."""


class TableForm(NamedTuple):
    """The table form of the records in a store, or why they have none."""

    schema: pa.Schema | None
    error: InputError | ConversionError | None = None


def pack_source(source: Source, format_name: str, options: ReadOptions, table: TableForm) -> dict[str, Any]:
    """Return what a store keeps of its inputs, as JSON values."""
    kept = replace(source.options or options, schema=table.schema, memory_bytes=None, drop_page_cache=False)
    packed = {
        "format": format_name,
        "compression": source.compression,
        "file_bytes": [summary.file_bytes for summary in source.inputs],
        "options": pack(kept),
        "layout": pack(source.layout),
        "problem": str(table.error or ""),
    }
    if source.repeated:
        packed["repeated"] = dict(source.repeated)
    if source.metadata is not None:
        packed["metadata"] = [[*key, text] for key, text in source.metadata.values.items()]
    if (package := find_package(format_name)) is not None:
        packed["package"] = " ".join(package)
    return packed


def read_table_schema(origin: dict[str, Any]) -> pa.Schema | None:
    """Return the schema of the table form that `pack_source` has kept; None if the records have none."""
    schema = origin["options"]["ReadOptions"]["schema"]
    return None if schema is None else unpack(schema, ())


def read_metadata(origin: dict[str, Any]) -> Metadata | None:
    """Return the metadata of the inputs that `pack_source` has kept; None if an earlier version has not."""
    said = origin.get("metadata")
    if said is None:
        return None
    return Metadata({MetadataKey(owner, tuple(path), name): text for owner, path, name, text in said})


def pack(value: object) -> Any:
    """Return a value as JSON values; it is made of numbers, text, bytes, tuples, dictionaries, Arrow arrays and dataclasses."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return {"tuple": [pack(element) for element in value]}
    if isinstance(value, dict):
        return {"dict": [[pack(key), pack(element)] for key, element in value.items()]}
    if isinstance(value, pa.Schema):
        return {"schema": pack_schema(value)}
    if isinstance(value, pa.Array):
        batch = pa.record_batch([value], names=["values"])
        return {"array": [pack(batch.schema), base64.b64encode(batch.serialize()).decode()]}
    if is_dataclass(value):
        return {
            type(value).__name__: {field.name: pack(getattr(value, field.name)) for field in fields(value)}
        }
    raise TypeError(f"a store cannot keep a value of type {type(value).__name__}")


def unpack(value: Any, classes: Sequence[type]) -> Any:
    """Return the value that `pack` was given; dataclasses are among `classes`."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "bytes":
            return base64.b64decode(content)
        case "tuple":
            return tuple(unpack(element, classes) for element in content)
        case "dict":
            return {unpack(key, classes): unpack(element, classes) for key, element in content}
        case "schema":
            return unpack_schema(content)
        case "array":
            schema = unpack(content[0], classes)
            return pa.ipc.read_record_batch(pa.py_buffer(base64.b64decode(content[1])), schema).column(0)
    chosen = next(known for known in classes if known.__name__ == kind)
    return chosen(**{name: unpack(field, classes) for name, field in content.items()})


_OLD_NAMES = {"header_lines": "header", "keeps_others": "keep_others"}


def _unpack_options(packed: dict[str, Any]) -> ReadOptions:
    """Return the read options of a store; those of early versions had a field for each option of a format."""
    values = {name: unpack(value, ()) for name, value in packed.items()}
    old = [
        (_OLD_NAMES.get(name, name), values.pop(name))
        for name in packed.keys() - ReadOptions.__annotations__.keys()
    ]
    own = [pair for pair in old if pair[1] is not None]
    return ReadOptions(**values | {"own": (*own, *values.get("own", ()))})


class StoredSource(Source):
    """The inputs of a store. Their records are in piles, and have no fragments.

    Parameters
    ----------
    schema
        Native schema of the records, without provenance.
    origin
        What `pack_source` returned; None if a program wrote the records.
    """

    def __init__(
        self, schema: pa.Schema, origin: dict[str, Any] | None, inputs: Sequence[InputSummary]
    ) -> None:
        self.schema = schema
        self.inputs = tuple(inputs)
        self.format_name: str = _TABLE_FORMAT if origin is None else origin["format"]
        self._problem = ""
        self.options = ReadOptions(schema=schema)
        self._kept_layout = None if origin is None else origin["layout"]
        self._has_grown = origin is not None and len(inputs) > len(origin["file_bytes"])
        if origin is not None:
            if "package" in origin and self.format_name not in list_names():
                raise UsageError(
                    f"the records of this store are of the format {self.format_name!r} of the package "
                    f"{origin['package']}; install it"
                )
            self.compression = origin["compression"]
            self.options = _unpack_options(origin["options"]["ReadOptions"])
            self._problem = origin["problem"]
            self.repeated = origin.get("repeated", {})
            self.metadata = read_metadata(origin)

    @cached_property
    def layout(self) -> object:  # type: ignore[override] # loading its classes takes as long as opening a store
        if self._kept_layout is None:
            return None
        layout: object = unpack(self._kept_layout, self._format.layout_types)
        return self._format.grow_layout(layout) if self._has_grown else layout

    @property
    def _format(self) -> Format:
        return load_format(self.format_name)

    def fragments(self, *_: object) -> Iterator[Fragment]:
        raise RuntimeError("records of a store are read from its piles")

    def reading_bytes(self, _: int) -> int:
        return 0

    def decoder(self) -> Decoder:
        if self._problem:
            problem = f"the records of this store have no table form: {self._problem}"
            raise ConversionError("", problem, remedy="then scatter the inputs anew")
        return self._format.restore_decoder(stored_of(self))

    def field_adder(self, names: Sequence[str]) -> FieldAdder | None:
        return self._format.restore_field_adder(stored_of(self), names)


ID = "_id"
ID_TYPE = pa.struct(
    [pa.field("source", pa.int32(), nullable=False), pa.field("row", pa.int64(), nullable=False)]
)
"""Number of the source in the store's list of sources, and number of the row there, from 0."""


def make_ids(batch: pa.RecordBatch) -> pa.StructArray:
    sources, rows = unpack_provenance(find_origins(batch))
    columns = [wrap_values(sources.astype(np.int32), pa.int32()), wrap_values(rows, pa.int64())]
    return pa.StructArray.from_arrays(columns, fields=list(ID_TYPE))


class Selection:
    """Makes the wanted columns of native records. Used by many threads.

    Parameters
    ----------
    decoder
        Decodes native records without provenance to table form.
    columns
        Names of columns of the store, paths of fields in structs (see `find_value`), or `ID`. Default: all columns of the
        store.
    """

    def __init__(self, decoder: Decoder, columns: Sequence[str] | None) -> None:
        whole = decoder.finish()
        self.known: list[str] = whole.names
        self._decoder = decoder
        self._names = self.known if columns is None else list(columns)
        self._has_id = columns is not None and ID in self._names
        _check_names(self._names, whole.append(pa.field(ID, ID_TYPE)) if self._has_id else whole)
        no_paths = {*self.known, ID}
        self._paths = [name for name in self._names if name not in no_paths]

    @property
    def schema(self) -> pa.Schema:
        known = self._decoder.finish()
        others = {path: pa.field(path, check_path(path, known)) for path in self._paths}
        if self._has_id:
            others[ID] = pa.field(ID, ID_TYPE)
        return pa.schema([others.get(name) or known.field(name) for name in self._names])

    def make_empty(self) -> pa.RecordBatch:
        schema = self.schema
        return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)

    def make_table(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of native records with provenance, in the wanted order."""
        ids = make_ids(records) if self._has_id else None
        if self._names == [ID] and ids is not None:
            return pa.RecordBatch.from_arrays([ids], names=[ID])
        table = self._decoder.decode(records.select(range(records.num_columns - 1)))
        added = {path: find_value(table, path) for path in self._paths}
        if ids is not None:
            added[ID] = ids
        if added:  # at once: to append a column copies the list of all
            fields = [*table.schema, *(pa.field(name, values.type) for name, values in added.items())]
            table = pa.RecordBatch.from_arrays([*table.columns, *added.values()], schema=pa.schema(fields))
        return table.select(self._names)


def list_columns(columns: Iterable[str] | None) -> list[str] | None:
    """Return the names of columns; None if none are given."""
    if columns is None:
        return None
    names = None if isinstance(columns, str) or not isinstance(columns, Iterable) else list(columns)
    if names is None or not all(isinstance(name, str) for name in names):
        raise UsageError(f"columns={columns!r}: give a list of names")
    return names


def _check_names(wanted: Sequence[str], schema: pa.Schema) -> None:
    known = schema.names
    if not wanted and known:  # a store without records may have no columns
        raise UsageError("columns=[]: name at least one column")
    counts, asked = Counter(known), Counter(wanted)
    for name in wanted:
        column = name if name in counts else dotted(name).split(".")[0]
        if column not in counts:
            raise UsageError(
                f"columns: no column {name!r} in the store; it has {list_known(name, known, repr)}"
            )
        if counts[column] > 1:
            raise UsageError(
                f"columns: two columns are called {column!r}; give the inputs columns of different names"
            )
        if asked[name] > 1:
            raise UsageError(f"columns: {name!r} is named twice; name it once")
        if name in counts:
            continue
        try:
            check_path(name, schema)
        except UsageError as error:
            raise UsageError(f"columns: {error}; name a field of a struct, or {column!r}") from None
