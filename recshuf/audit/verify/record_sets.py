"""A set of records, the inputs or the output: its files, how they are read, and the hash of each record."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from recshuf.errors import InputError, RecshufError, SchemaMismatch, UsageError
from recshuf.formats import keeps_records, load_format, open_source
from recshuf.output.manifest import Manifest, manifest_path
from recshuf.output.objects.place import read_object_manifest
from recshuf.piles.kept.stored import is_store
from recshuf.records.conforming import conform
from recshuf.records.hashing import hash_rows
from recshuf.storage import is_url
from recshuf.storage.reading import InputLister
from recshuf.storage.reading.objects import Stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from recshuf.formats.folders import NameRules
    from recshuf.interfaces import Decoder, InputFile, ReadOptions, Source, Traits
    from recshuf.job.job import Job
    from recshuf.job.report import Progress
    from recshuf.records.word_hashing import HashKey


T = TypeVar("T")
READING_SHARE = 0.6
"""Share of a memory limit for reading: batches, their decoding and hashing. It is given back before what is kept is used."""
KEPT_SHARE = 0.25
"""Share for what is kept of records in memory: a sample, or hashes of those that may differ."""
_BLOCK_BYTES = 1 << 20


@dataclass(slots=True)
class RecordSet:
    """The inputs, or the output."""

    name: str
    format: str
    source: Source
    files: list[InputFile]
    decoder: Decoder | None = None
    """Decodes native batches to tables. None: records are compared in their native form."""
    added: tuple[str, ...] = ()
    """Columns that only this set has by design; they are not compared."""
    order: tuple[str, ...] = ()
    """Columns that are compared first, in this order."""
    nan_as_null: bool = False
    """Whether tables are compared with NaN and infinities as nulls."""
    wants_prefix: bool = False
    """Whether the first records are to tell the schema, if no file states it and the decoder can infer it from them."""
    is_from_prefix: bool = False
    """Whether the decoder has its schema from the first records, which others may not fit."""
    filled: dict[str, pa.DataType] = field(default_factory=dict)
    """Types for columns, or parts of them, that hold no values, as the other set has them, by name."""
    is_from_program: bool = False
    """Whether a program made the records: their types are those of Arrow, of which an output may lack some."""

    @property
    def traits(self) -> Traits:
        return load_format(self.format).traits

    @property
    def names(self) -> list[str]:
        return [file.name for file in self.source.inputs]

    def find_header(self) -> bytes:
        """Return the lines before the records that every shard repeats: the `header` of the layout, if that is bytes."""
        header = getattr(self.source.layout, "header", b"")
        return header if isinstance(header, bytes) else b""

    def try_prefix(self, use: Callable[[], T]) -> T:
        """Return what `use` does with the schema that the first records tell, or if others do not fit it, that of all records."""
        self.wants_prefix = True
        try:
            return use()
        except (RecshufError, SchemaMismatch):
            if not self.is_from_prefix:
                raise
        self.wants_prefix = self.is_from_prefix = False
        self.decoder = self.source.decoder()
        return use()

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        """Let the decoder infer types from a native batch."""
        if self.decoder is not None and batch.num_rows:
            self.decoder.observe(batch, input_index, first_row)

    def hash(
        self, batch: pa.RecordBatch, input_index: int, first_row: int, key: HashKey
    ) -> NDArray[np.uint64]:
        """Return the hash of each record of a native batch, shape ``(n, 2)``."""
        if self.decoder is None:
            return hash_rows(self._choose(batch), key)
        table = self._choose(self.decode(batch, input_index, first_row))
        for name, kind in self.filled.items():
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, conform(table.column(place), kind))
        return hash_rows(table, key, is_converted=True, nan_as_null=self.nan_as_null)

    def seems_to_have(self, names: tuple[str, str], max_record_bytes: int) -> bool:
        """Tell whether the first native record has fields of these names that could be removed."""
        adder = None if self.decoder is not None else self.source.field_adder(names)
        if adder is None:
            return False
        for fragment in self.source.fragments(0, _BLOCK_BYTES, max_record_bytes):
            for batch in fragment.batches():
                first = batch.slice(0, 1)
                return not adder.remove_fields(first).equals(first)
        return False

    def _choose(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.added and not self.order:
            return batch
        adder = self.source.field_adder(self.added) if self.decoder is None else None
        if adder is not None:
            return adder.remove_fields(batch)
        return batch.select(self._find_compared(batch.schema.names))

    def list_compared(self, schema: pa.Schema) -> pa.Schema:
        fields = [schema.field(index) for index in self._find_compared(schema.names)]
        return pa.schema(fields, schema.metadata)

    def _find_compared(self, names: list[str]) -> list[int]:
        places = {name: place for place, name in enumerate(self.order)}
        compared = [index for index, name in enumerate(names) if name not in self.added]
        return sorted(compared, key=lambda index: places.get(names[index], len(places)))

    def decode(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> pa.RecordBatch:
        if self.decoder is None:
            raise RuntimeError("a record set without a decoder has no tables")
        self.decoder.check(batch, input_index, first_row)
        try:
            return self.decoder.decode(batch)
        except (RecshufError, pa.ArrowException):
            self.observe(batch, input_index, first_row)  # raises an error that names the record
            raise


def read_manifest(job: Job, output: str) -> Manifest | None:
    is_object = is_url(output)
    name = f"the manifest of {output}" if is_object else str(manifest_path(Path(output)))
    try:
        if is_object:
            return read_object_manifest(output, Stores(job.storage, job.memory_bytes, job.workers))
        return Manifest.read(Path(output))
    except (InputError, UsageError):
        raise
    except OSError as error:
        raise InputError.of_system(error, name) from error
    except ValueError as error:
        remedy = "remove it, so that the folder is compared without one"
        raise InputError(name, "is not a manifest of recshuf", remedy=remedy) from error


def list_files(
    patterns: Sequence[str],
    rules: NameRules,
    stores: Stores,
    progress: Progress,
    *,
    mixes_splits: bool = False,
) -> list[InputFile]:
    """Return the files that patterns match; in a folder, those that `rules` choose."""
    _refuse_stores([one for one in patterns if not is_url(one)], stores)
    try:
        files = InputLister(rules, progress.warn, stores).list_all(patterns, mixes_splits=mixes_splits)
    except InputError:
        _refuse_stores(filter(is_url, patterns), stores)  # asked only here, since it takes a request
        raise
    for file in files:
        if file.stamp is None and file.table is None:  # a pipe or a device, which opening might block
            raise UsageError(
                f"{file.name}: verify reads files, some of them twice, and this is none; give a file"
            )
    return files


def _refuse_stores(names: Iterable[str], stores: Stores) -> None:
    for name in names:
        if is_store(name, stores.options):
            raise UsageError(
                f"{name}: is a pile store; recshuf gather {quote(name)} -o OUTPUT --verify writes it and compares, recshuf "
                f"check --loader {quote(name)} tests its order"
            )


def open_record_set(name: str, files: list[InputFile], format_name: str, read: ReadOptions) -> RecordSet:
    is_from_program = any(file.table is not None for file in files)
    source = open_source(format_name, files, read)
    return RecordSet(name, format_name, source, files, is_from_program=is_from_program)


def options_of_output(read: ReadOptions, format_name: str, to: str, schema: pa.Schema | None) -> ReadOptions:
    """Return the read options of an output by those of its inputs, which have a schema if they are read as tables."""
    is_same, written = keeps_records(format_name, to), load_format(to)
    own = dict(read.own)
    if not is_same:
        of_output = {option.name for option in written.traits.options if option.side != "inputs"}
        own = {name: own[name] for name in own.keys() & of_output} | dict(written.traits.written_options)
    # A short shard does not show which datasets are of the record; else it has those that were chosen.
    if not own.get("keep_others"):
        own.pop("datasets", None)
    return replace(
        read,
        columns=None,
        first_metadata=True,  # where its files differ is told as a difference
        refuses_foreign=False,  # shuffled lines may begin with any bytes
        schema=None if is_same or schema is None else written.reading_schema(schema),
        own=tuple(own.items()),
    )
