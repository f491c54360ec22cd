"""What a format must give so that it can be shuffled: a `Source`, a `Decoder`, a `Target` and its `Sink`.

Records travel as Arrow record batches in the *native* form of their source, and nobody between source and
sink looks inside. Only when input and output formats differ does the source's `Decoder` turn native batches
into *table form* (ordinary typed Arrow columns), which every `Target` accepts.

The passes move native batches fastest when every column is ``fixed_size_binary`` or ``large_binary`` without
nulls; anything else travels as Arrow IPC.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


class Stamp(NamedTuple):
    """What tells whether a file is still the one that was looked at."""

    size: int = 0
    modified_ns: int = 0
    inode: int = 0

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """Return the stamp of a file with this status."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)

    def find_change(self, before: Stamp) -> str | None:
        """Return in words what is different from an earlier stamp; None where nothing is.

        The inode counts only where both have one.
        """
        if self.size != before.size:
            return f"its size was {before.size:,} bytes and is {self.size:,}"
        if self.modified_ns != before.modified_ns or (before.inode and self.inode != before.inode):
            return "it was written to or replaced"
        return None


class NameSuffix(NamedTuple):
    """The suffixes of a file's name, taken apart."""

    kind: str = ""
    """The suffix without that of the compression, in small letters: ``.jsonl``."""
    compression: str | None = None
    """What the last suffix stands for, if that is a compression."""


class InputFile(NamedTuple):
    """One input, before it is opened."""

    name: str
    """The input as messages and the manifest show it."""
    path: Path | None
    """Where it lies; None for a stream."""
    stream: BinaryIO | None = None
    """Standard input, when `path` is None. Read once, from where it stands, and not closed."""
    partitions: tuple[tuple[str, str], ...] = ()
    """Hive partition keys and values taken from the folders of the path, outermost first."""
    stamp: Stamp | None = None
    """What it looked like when it was listed; None for a stream, which cannot be looked at twice."""
    suffix: NameSuffix = NameSuffix()
    """Taken from the name when it was listed."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How inputs are read. Each format uses its own part."""

    separator: bytes = b"\n"
    """What ends a text record."""
    header_lines: int = 0
    """Lines at the start of each text input that are no records."""
    max_record_bytes: int = 1 << 30
    """Longest text record accepted, separator included."""
    datasets: tuple[str, ...] | None = None
    """HDF5 datasets that are the record; None for all with a first axis."""
    columns: tuple[str, ...] | None = None
    """Parquet columns to keep, in this order; None for all."""
    field: str | None = None
    """Path of the only field of the table form that is wanted: ``a``, ``a.b``, ``a/b``; None for all. Others may be
    left out, and are where that saves reading them."""
    schema: pa.Schema | None = None
    """Table form of JSONL or text records, where inference is not enough."""
    drop_page_cache: bool = False
    """Drop what was read from the page cache, which cannot hold all files of the run."""
    sets_bad_aside: bool = False
    """Whether decoders return lines that do not parse, instead of refusing them."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How shards are written. Each format uses its own part."""

    compression: str | None = None
    """``none``, ``zstd``, ``gzip``, ``snappy`` or ``lz4``; None for that of the inputs."""
    compression_level: int | None = None
    """None for the library's own default."""
    separator: bytes = b"\n"
    """What ends a text record."""
    nan_as_null: bool = False
    """Write NaN and infinities as JSON null instead of refusing them."""
    drop_page_cache: bool = False
    """Drop what is written from the page cache, which cannot hold all files of the run."""


class InputSummary(NamedTuple):
    """What the census knows of one input before it is read."""

    name: str
    file_bytes: int | None
    """Size on disk; None for a stream."""
    record_count: int | None
    """Exact or estimated number of records; None for a stream."""
    record_count_is_exact: bool
    native_bytes: int | None
    """Estimated size of all its records as native batches, offsets included; None for a stream."""


class Fragment(ABC):
    """A part of one input that one thread reads at once; fragments of an input are independent."""

    record_count: int | None = None
    """Number of records, where it is known before reading."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the fragment's records in order as native batches of the source's schema.

        A batch holds about `block_bytes` or less, except where a single record is larger. A fragment without
        a `record_count` holds no more than that in total. Batches own their memory or keep it alive.

        Raises
        ------
        InputError
            When the input cannot be read, naming it and the place.
        """


@dataclass(frozen=True, slots=True)
class BadRecords:
    """Records of a batch that have no table form, each by itself and whatever the others are."""

    index: NDArray[np.int64]
    """Their ascending positions in the batch."""
    reasons: list[str]
    """What is wrong with each, in half a sentence."""


class Decoder(ABC):
    """Turns native batches of a source into table form, once it has seen all of them.

    `observe` and `decode` are called from many threads.
    """

    @property
    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """Schema of the table form; None as long as it depends on records not yet observed."""

    @abstractmethod
    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        """Learn from a native batch whose first record is row `first_row` of input `input_index`.

        Returns
        -------
        BadRecords | None
            With `ReadOptions.sets_bad_aside`, the records that were not learned from and must not be given to
            `decode`; they are the same however records are cut into batches. Never empty; None for none.

        Raises
        ------
        InputError
            When a record cannot be decoded, naming input, row and field: here, because in the second pass
            nobody knows any more where a record came from.
        """

    @abstractmethod
    def finish(self) -> pa.Schema:
        """Return the schema of the table form, after every batch has been observed.

        Raises
        ------
        InputError
            When the types of a field in different places cannot be reconciled.
        """

    @abstractmethod
    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of a native batch, in the same order, as a batch of the finished schema."""


class FieldAdder(Decoder):
    """Leaves native batches as they are, and can give their records further fields in native form."""

    @abstractmethod
    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        """Make sure that every record can get the fields.

        Raises
        ------
        InputError
            When one cannot, naming input and row: it has no fields, or may have one of the names.
        """

    @abstractmethod
    def add_fields(self, batch: pa.RecordBatch, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of a native batch with the values of as many rows of further columns."""

    @abstractmethod
    def remove_fields(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of a native batch as they were before `add_fields`; those that were not stay as they are."""


@runtime_checkable
class SupportsFields(Protocol):
    """A source whose native records can get further fields."""

    def field_adder(self, names: Sequence[str]) -> FieldAdder:
        """Return what adds fields of these names."""
        ...


@runtime_checkable
class SupportsPrefixInference(Protocol):
    """A decoder that can infer its schema from the first records."""

    def infer_from_prefix(self, input_index: int) -> None:
        """Infer the schema from the inputs before this one and from its first batch.

        `observe` then checks only the outer form of all other records. `decode` raises `SchemaMismatch` where one does
        not fit; another decoder must then observe all records. Where all fit, the schema is the same as if all
        had been observed.
        """
        ...


class Joined(NamedTuple):
    """The records of several inputs, one after the other."""

    batch: pa.RecordBatch
    rows: list[int]
    """Of each of the inputs."""


@runtime_checkable
class SupportsJoining(Protocol):
    """A source that can read several small inputs at once."""

    def read_joined(self, inputs: Sequence[int], block_bytes: int, max_record_bytes: int) -> Joined | None:
        """Return all records of the first few of some inputs that follow each other; None if not even one can be read so.

        They need no more memory than a fragment does. What is wrong with an input is left to `Source.fragments` to tell.
        """
        ...


class Source(ABC):
    """All inputs of a run, opened together: they share one native schema.

    A source holds no file open between calls, except for a stream.
    """

    schema: pa.Schema
    """Native schema of every batch."""
    inputs: tuple[InputSummary, ...]
    """One for each `InputFile` given, in the same order."""
    compression: str | None = None
    """What `--compression` calls the compression of the first input; None where it has no such name."""
    layout: object
    """What a target of the same format takes over from the inputs (codec, chunk shapes, header...). Opaque
    to everybody else."""

    @abstractmethod
    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        """Yield the fragments of one input in order.

        The caller serialises ``next`` on one iterator, but reads fragments in many threads, also after the
        iterator has moved on. Closing or exhausting the iterator and dropping its fragments releases files.

        Parameters
        ----------
        block_bytes
            How large a native batch should be at most.
        max_record_bytes
            The longest record that fits the memory limit; a longer one is an `InputError` that names this
            number and the place.
        """

    @abstractmethod
    def reading_bytes(self, block_bytes: int) -> int:
        """Return the most memory that reading one fragment holds at once, the yielded batch included."""

    @abstractmethod
    def decoder(self) -> Decoder:
        """Return a new decoder from this source's native batches to table form.

        Raises
        ------
        ConversionError
            When the schema alone shows that a field has no table form.
        """


class Sink(ABC):
    """One shard being written. Used by one thread at a time.

    What is written depends on the sequence of records alone, never on how it is cut into batches.
    """

    @property
    @abstractmethod
    def record_count(self) -> int:
        """Number of records in the file, by its own account, once it is closed."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Append the records of a batch of the target's schema; the batch is not kept alive for long.

        Raises
        ------
        ConversionError
            When a value cannot be held by the format.
        OSError
            When the file cannot be written.
        """

    @abstractmethod
    def close(self) -> None:
        """Complete and flush the file. Idempotent."""

    @abstractmethod
    def abort(self) -> None:
        """Give up: release what is open without completing the file. Idempotent; never raises."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class Target(ABC):
    """How the shards of one run are written; every shard is opened from the same target."""

    suffix: str
    """File name suffix of a shard, leading dot included: ``.jsonl.zst``."""

    @abstractmethod
    def sink_bytes(self, threads: int) -> int:
        """Return the most memory an open sink holds beside the batch it is given."""

    @abstractmethod
    def open(self, path: Path, threads: int) -> Sink:
        """Create the file and return its sink, which may use that many threads for encoding.

        The number of threads never changes a byte.

        Raises
        ------
        OSError
            When the file exists or cannot be created.
        """


@runtime_checkable
class SupportsStream(Protocol):
    """A target that can also write to a stream which cannot seek."""

    def open_stream(self, stream: BinaryIO, threads: int) -> Sink:
        """Return a sink that writes to `stream`; closing the sink flushes but does not close the stream."""
        ...


@dataclass(frozen=True, slots=True)
class FormatNames:
    """How a format is recognised."""

    name: str
    """What `--format` and `--to` call it."""
    suffixes: tuple[str, ...]
    """File name suffixes without compression, the one to write first: ``(".jsonl", ".ndjson")``."""
    compressions: tuple[str, ...] = field(default=("none",))
    """What `--compression` accepts for it."""


class Format(ABC):
    """A file format: how to recognise, read and write it."""

    @property
    @abstractmethod
    def names(self) -> FormatNames:
        """How the format is recognised."""

    @abstractmethod
    def recognises(self, head: bytes) -> bool:
        """Tell whether a file that begins with these (decompressed, at most 64 KiB) bytes is of this format."""

    @abstractmethod
    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> Source:
        """Look at every input and return the source that reads them all. At least one input is given.

        Raises
        ------
        InputError
            When an input is missing, unreadable, not of this format, or does not fit the others.
        UsageError
            When an option does not fit this format.
        """

    @abstractmethod
    def open_target(self, schema: pa.Schema, layout: object | None, options: WriteOptions) -> Target:
        """Return the target for shards of this format.

        Parameters
        ----------
        schema
            Schema of the batches the sinks will get: native if `layout` is given, else table form.
        layout
            The `Source.layout` of inputs of this same format; None for a conversion.

        Raises
        ------
        ConversionError
            When a field of a table form cannot be held.
        UsageError
            When an option does not fit this format.
        """
