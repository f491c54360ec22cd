"""Archives that are written, of records or of tables: `__key__`, and a column of bytes for each suffix.

No two records of a run may have one key, as readers would take neighbours for one record.
"""

from __future__ import annotations

import re
import threading
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from tarfile import TarInfo
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import ConversionError, InputError
from recshuf.formats.lines.cutting import view_records
from recshuf.formats.lines.sink import LineSink, LineTarget
from recshuf.formats.lines.source import LineLayout
from recshuf.formats.webdataset.cutting import (
    KEYS_BYTES,
    KeySet,
    find_key,
    hash_key,
    list_members,
    list_records,
    lower,
    make_member,
    parse_name,
    rename,
    show,
)
from recshuf.formats.webdataset.source import TarSource
from recshuf.interfaces import Decoder, InputFile, ReadOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from recshuf.formats.lines.sink import Output
    from recshuf.formats.webdataset.source import TarLayout
    from recshuf.interfaces import WriteOptions


KEY = "__key__"
_TYPES = {pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()}
_END_BYTES, _MULTIPLE_BYTES = 1024, 10240
"""Zeros at the end of an archive, and what the size of those of tar is a multiple of."""


class TarDecoder(Decoder):
    """Finds the suffixes of all records, unless it is given the finished schema, and divides records into their members."""

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
                found = {lower(one.suffix).decode() for one in list_members(record) if one.name.decode()}
            except UnicodeDecodeError as error:
                name, place = self._names[input_index], f"row {row}"
                problem = f"the name {show(error.object)} is not UTF-8, and cannot become a key and a column"
                raise InputError(name, problem, place=place, remedy="rename it") from error
            if not found <= self._suffixes:
                with self._lock:
                    self._suffixes |= found

    def finish(self) -> pa.Schema:
        if self._schema is None:
            if KEY in self._suffixes:
                problem = "is a suffix, and the name of the column of keys"
                raise ConversionError(KEY, problem, remedy="rename those members")
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
                # As bytes: Arrow keeps each view that it takes for ever.
                content = bytes(record[member.data : member.data + member.size])
                columns[lower(member.suffix).decode()][row] = content
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
    columns = {name.encode(): batch.column(name).to_pylist() for name in batch.schema.names}
    keys = columns.pop(KEY.encode())
    rows = zip(*columns.values(), strict=True) if columns else ((),) * len(keys)
    records = (
        _encode(key or b"", [pair for pair in zip(columns, row, strict=True) if pair[1] is not None])
        for key, row in zip(keys, rows, strict=True)
    )
    return pa.array(records, pa.large_binary())


def _encode(key: bytes, members: Sequence[tuple[bytes, bytes]]) -> bytes:
    if not members:
        problem = f"the record {show(key)} has no members: all its columns are null"
        raise ConversionError(KEY, problem, remedy="leave it out")
    parts = list[bytes | memoryview]()
    for suffix, value in members:
        name = key + b"." + suffix
        if b"\0" in key or parse_name(name) != (key, suffix):
            problem = f"{show(key)} is no key that readers see: it is empty, has a dot in its last part, or begins with __"
            raise ConversionError(KEY, problem, remedy="change it")
        parts += make_member(TarInfo(), name, value)
    return b"".join(parts)


class TarTarget(LineTarget):
    """Shards of one run. They give records keys of their own if the layout says so."""

    open_stream = None  # type: ignore[assignment] # keys begin with the name of the shard, and repeats are told by files

    def __init__(self, schema: pa.Schema, layout: TarLayout | None, options: WriteOptions) -> None:
        if layout is None:
            check_schema(schema)
        # Native records, too, are taken in parts: what is made of a large batch is never all in memory.
        own = LineLayout(b"\n", b"", layout.compression if layout else "none")
        super().__init__(".tar", own, options, (lambda batch: batch.column(0)) if layout else encode)
        self.sink_type = partial(TarSink, self)  # type: ignore[assignment] # makes them
        self.is_table = layout is None
        self.sees_all = layout is None or not layout.renames
        self.keys, self.paths = KeySet(), list[Path]()
        self._names = layout.names if layout else ()

    def sink_bytes(self, threads: int) -> int:
        return super().sink_bytes(threads) + KEYS_BYTES

    def check_shards(self) -> None:
        with closing(self.keys) as keys:
            twice = keys.finish()
        if twice is None:
            return
        found = [*islice(_find_key([*self._names, *map(str, self.paths)], twice), 2)]
        names = " and ".join(name for name, _ in found if name in self._names)
        key, places = f"the key {found[0][1]}" if found else "a key", f" (in {names})" if names else ""
        raise ConversionError(
            f"{key} is that of several records{places}, which readers would take for one where they are neighbours",
            remedy="give each record a __key__ of its own" if self.is_table else "give --rename-keys",
        )


def _find_key(names: Iterable[str], twice: bytes) -> Iterator[tuple[str, str]]:
    for name in names:
        with suppress(InputError, OSError):  # some may not be complete, or uploaded and gone
            found = TarSource([InputFile(name, Path(name))], ReadOptions()).find_key(0, twice)
            if found is not None:
                yield name, found[0]


class TarSink(LineSink):
    """One archive being written; keys that it makes begin with the name of the shard."""

    _byte_count = 0

    def __init__(self, target: TarTarget, output: Output, *others: Any) -> None:
        super().__init__(output, *others)
        self._target, path = target, cast("Path", output.path)
        self._stem = re.sub(r"[^\w-]", "-", path.name.removesuffix(target.suffix), flags=re.ASCII)
        target.keys.folder = str(path.parent)
        target.paths.append(path)

    def _write_lines(self, lines: pa.LargeBinaryArray) -> None:
        records = list_records(lines)
        if self._target.sees_all:
            self._target.keys.add(hash_key(find_key(one)) for one in records)
        else:
            rows = enumerate(records, self._record_count)
            made = [rename(one, f"{self._stem}_{row:09d}".encode()) for row, one in rows]
            lines = pa.array(made, pa.large_binary())
        super()._write_lines(lines)
        self._byte_count += view_records(lines)[0].size

    def _end(self) -> None:
        zeros = _END_BYTES + -(self._byte_count + _END_BYTES) % _MULTIPLE_BYTES
        self._writer.write(memoryview(bytes(zeros)))
