"""Records as a table: `__key__`, and a column of bytes for each suffix."""

from __future__ import annotations

import os
import threading
from tarfile import TarInfo
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import ConversionError, InputError
from recshuf.formats.webdataset.members import (
    list_members,
    list_records,
    lower,
    make_member,
    parse_name,
    show,
)
from recshuf.interfaces import Decoder

if TYPE_CHECKING:
    from collections.abc import Sequence


KEY = "__key__"
_TYPES = {pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()}


class TarDecoder(Decoder):
    """Finds the suffixes of all records, and divides records into their members.

    Parameters
    ----------
    schema
        The finished schema; None to find it.
    """

    def __init__(self, names: Sequence[str], schema: pa.Schema | None = None) -> None:
        self._names, self._schema = names, schema
        self._suffixes: set[str] = set()
        self._lock = threading.Lock()

    @property
    def schema(self) -> pa.Schema | None:
        return self._schema

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        for row, record in enumerate(list_records(batch.column(0)), first_row):
            try:
                found = {
                    lower(member.suffix).decode() for member in list_members(record) if member.name.decode()
                }
            except UnicodeDecodeError as error:
                problem = f"the name {show(error.object)} is not UTF-8, and cannot become a key and a column"
                raise InputError(
                    self._names[input_index], problem, place=f"row {row}", remedy="rename it"
                ) from error
            if not found <= self._suffixes:
                with self._lock:
                    self._suffixes |= found

    def finish(self) -> pa.Schema:
        if self._schema is None:
            if KEY in self._suffixes:
                raise ConversionError(
                    KEY, "is a suffix, and the name of the column of keys", remedy="rename those members"
                )
            columns = [pa.field(name, pa.large_binary()) for name in sorted(self._suffixes)]
            self._schema = pa.schema([pa.field(KEY, pa.string(), nullable=False), *columns])
        return self._schema

    def state(self) -> Any:
        return sorted(self._suffixes)

    def merge(self, state: Any) -> None:
        with self._lock:
            self._suffixes |= set(state)

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.finish()
        columns: dict[str, list[Any]] = {name: [None] * batch.num_rows for name in schema.names}
        for row, record in enumerate(list_records(batch.column(0))):
            for member in list_members(record):
                columns[KEY][row] = (member.key or b"").decode()
                columns[lower(member.suffix).decode()][row] = record[member.data : member.data + member.size]
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def check_schema(schema: pa.Schema) -> None:
    """Raise `ConversionError` unless tables of a schema can be archives."""
    if KEY not in schema.names:
        problem = f"webdataset needs a column {KEY} of text, and one of bytes or text for each member"
        raise ConversionError(problem, remedy="rename columns, or choose --to parquet")
    for field in schema:
        name, kind = field.name.encode(), field.type
        if (kind.value_type if pt.is_dictionary(kind) else kind) not in _TYPES:
            problem = f"members of webdataset hold bytes or text, not {kind}"
            raise ConversionError(field.name, problem, remedy="choose --to parquet")
        if parse_name(b"k." + name) != (b"k", lower(name)):
            problem = "is no suffix that readers see: it has a slash or capital letters"
            raise ConversionError(field.name, problem, remedy="rename it")


def encode(batch: pa.RecordBatch) -> pa.LargeBinaryArray:
    """Return the rows of a table as records: a member for each value that is not null, in the order of the columns."""
    batch = batch.cast(pa.schema([pa.field(name, pa.large_binary()) for name in batch.schema.names]))
    keys = batch.column(KEY).to_pylist()
    columns = {name.encode(): batch.column(name).to_pylist() for name in batch.schema.names if name != KEY}
    return pa.array(
        [
            _encode(
                key, [(suffix, values[row]) for suffix, values in columns.items() if values[row] is not None]
            )
            for row, key in enumerate(keys)
        ],
        pa.large_binary(),
    )


def _encode(key: bytes | None, members: Sequence[tuple[bytes, bytes]]) -> bytes:
    if not members:
        problem = f"the record {show(key or b'')} has no members: all its columns are null"
        raise ConversionError(KEY, problem, remedy="leave it out")
    parts = list[bytes | memoryview]()
    for suffix, value in members:
        if key is None or b"\0" in key or parse_name(key + b"." + suffix) != (key, suffix):
            problem = f"{show(key or b'')} is no key that readers see: it is empty, has a dot in its last part, or begins with __"
            raise ConversionError(KEY, problem, remedy="change it")
        parts += make_member(TarInfo(os.fsdecode(key + b"." + suffix)), value)
    return b"".join(parts)
