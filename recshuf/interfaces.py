"""The interface of a file format: `Source`, `Decoder`, `Target` and `Sink`.

Records travel as Arrow record batches in the *native* form of their source; the passes do not look inside.
If input and output formats differ, the source's `Decoder` converts native batches to *table form* (ordinary
typed Arrow columns), which every `Target` accepts.

Native batches are fastest if every column is ``fixed_size_binary`` or ``large_binary`` without nulls.

A package adds a format by an entry point of the group ``recshuf.formats`` that names an instance of its `Format`::

    [project.entry-points."recshuf.formats"]
    NAME = "package.module:FORMAT"
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Protocol, Self, runtime_checkable

from recshuf.dataclass import dataclass

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from io import RawIOBase
    from pathlib import Path
    from types import TracebackType

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.errors import ConversionError


FORMATS_GROUP = "Formats"
"""Heading of the options of formats."""


class Stamp(NamedTuple):
    """Size, time and inode of a file, or size, time and ETag of an object, by which a change is noticed."""

    size: int = 0
    modified_ns: int = 0
    inode: int = 0
    etag: str = ""
    """Empty if it is unknown, or for a file."""

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """Return the stamp of a file with this status."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)

    def find_change(self, before: Stamp) -> str | None:
        """Describe the difference from an earlier stamp; None if there is none.

        Inodes are compared only if both are known, and so are ETags; times are not compared where ETags are.
        """
        if self.size != before.size:
            return f"its size was {before.size:,} bytes and is {self.size:,}"
        if self.etag and before.etag:
            return None if self.etag == before.etag else "it was replaced"
        if self.modified_ns != before.modified_ns or (before.inode and self.inode != before.inode):
            return "it was written to or replaced"
        return None


class NameSuffix(NamedTuple):
    """The suffixes of a file name."""

    kind: str = ""
    """The suffix before that of the compression, in lower case: ``.jsonl``."""
    compression: str | None = None
    """Compression of the last suffix; None if that is not one of a compression."""


class Handle(Protocol):
    """An input that is open. Many threads may use it, each of them at any place.

    Every method but `close` raises an `InputError` that names the input when it cannot be read or has changed.
    """

    @property
    def stamp(self) -> Stamp:
        """Its stamp when it was opened."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset` on; none at the end."""
        ...

    def readinto_at(self, offset: int, view: memoryview) -> int:
        """Fill a part of `view` from byte `offset` on, and return its size; 0 at the end."""
        ...

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note that bytes ``begin:end`` will soon be read, each range in order."""
        ...

    def drop_pages(self, offset: int, size: int) -> None:
        """Note that these bytes will not be read again; the page cache need not keep them."""
        ...

    def take_stream(self) -> BinaryIO | None:
        """Return a stream that is closed in place of this, if there are no places in it, as in a pipe; else None."""
        ...

    def close(self) -> None:
        """Close it. Idempotent; never raises."""
        ...


class Opener(Protocol):
    """Opens one input, at any time and in any thread."""

    def open(self) -> Handle:
        """Return the open input; an `InputError` says that it cannot be opened."""
        ...

    def open_raw(self) -> RawIOBase:
        """Return the open input as an unbuffered file, for libraries; its methods raise what those of a `Handle` do.

        An `OSError` says that it cannot be opened.
        """
        ...

    def find_stamp(self) -> Stamp | None:
        """Return the stamp that it has now; None if it cannot change while it is read, as every read checks that.

        An `OSError` says that it is gone.
        """
        ...


class Table(Protocol):
    """Records that the caller of a Python function holds, or a reader of them."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of its batches, but for metadata."""
        ...

    @property
    def row_count(self) -> int | None:
        """Number of records; None if only reading tells."""
        ...

    @property
    def byte_count(self) -> int | None:
        """Bytes of its records, about; None if only reading tells."""
        ...

    @property
    def is_once(self) -> bool:
        """Whether it can be read once only, as standard input."""
        ...

    def head(self, row_count: int, byte_count: int) -> Sequence[pa.RecordBatch]:
        """Return its first batches, until they have so many rows or bytes; they are read again as the others."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its records in order; called again only if they can be read again."""
        ...


class TableName(str):
    """The name of a table among paths, with the table, and the object of the caller that it is."""

    table: Table
    held: object

    def __new__(cls, name: str, table: Table, held: object) -> Self:
        own = super().__new__(cls, name)
        own.table, own.held = table, held
        return own


class InputFile(NamedTuple):
    """One input, before it is opened."""

    name: str
    """Name of the input in messages and the manifest."""
    path: Path | None
    """None for a stream, and for an object."""
    stream: BinaryIO | None = None
    """Standard input, if `path` is None. Read once, from its current position, and not closed."""
    partitions: tuple[tuple[str, str], ...] = ()
    """Hive partition keys and values in the folders of the path, outermost first."""
    stamp: Stamp | None = None
    """Its stamp when it was listed; None for a stream, and for what was not listed, as in tests."""
    suffix: NameSuffix = NameSuffix()
    """Suffixes of the name."""
    opener: Opener | None = None
    """Opens an object; None for a file or a stream."""
    table: Table | None = None
    """What is read in place of a file; None for all others."""
    documents: tuple[InputFile, ...] = ()
    """Files of its folder that say what its inputs are, if the folder was given."""
    companions: tuple[InputFile, ...] = ()
    """Files beside it that hold the rest of its records; see `Traits.companion_suffixes`."""
    argument: int = 0
    """Number of the argument that named it, from 0."""

    @property
    def files(self) -> tuple[InputFile, ...]:
        """It, and its companions."""
        return (self, *self.companions)

    @property
    def is_stream(self) -> bool:
        """Whether it has no places: it is standard input."""
        return self.path is None and self.opener is None and self.table is None


@dataclass(frozen=True, slots=True)
class FormatOption:
    """An option that a format declares, for the command line and for Python. Formats that share one declare it alike."""

    name: str
    """Its name in Python: ``line_width``. The flag is ``--line-width``. No option of recshuf has it."""
    help: str
    """What it means, and its default, in a sentence each. The name of the format is put before it. Empty for what is not given,
    but found in inputs, for `ReadOptions.found`."""
    metavar: str | None = None
    """Name of its value in ``--help``; None for a flag, which is False or True."""
    parse: Callable[[str], Any] = str
    """Returns the value of a text; a `ValueError` says what is wrong with it. Numbers that Python gives become texts first."""
    default: Any = None
    side: Literal["inputs", "output", "records", "both", "native"] = "inputs"
    """What must be of a format that declares it; ``records`` means inputs or output, ``both`` the same one on both sides, where records of a store are read
    without it, ``native`` that, too, but commands that only read take it as well."""
    group: str = FORMATS_GROUP
    """Its heading in ``--help``. Under another one than the default, `help` names the formats itself."""
    elsewhere: tuple[tuple[str, str], ...] = ()
    """Names of commands, ``*`` for all but the shuffle, and what it means there in place of `help`."""
    flags: tuple[str, ...] = ()
    """Its flags, if ``--line-width`` is not the only one."""
    is_list: bool = False
    """Whether its value is a tuple of names, which Python may give as a list; text is split at commas."""
    has_opposite: bool = False
    """Whether a flag has an opposite, ``--no-NAME``. Its value is `default` if neither is given."""

    def of(self, options: ReadOptions | WriteOptions) -> Any:
        """Return its value; the default if it is not given."""
        default = self.default if self.metavar or self.has_opposite else False
        return dict(options.own).get(self.name, default)


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return what parses a whole number within limits, for `FormatOption.parse`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError("it is no whole number") from None
        if number < least or (most is not None and number > most):
            raise ValueError(
                f"it must be {f'at least {least}' if most is None else f'from {least} to {most}'}"
            )
        return number

    return parse


class BatchLimits(NamedTuple):
    """What native batches may hold."""

    block_bytes: int
    """Size limit of a batch; only a longer single record exceeds it."""
    record_bytes: int
    """The longest record that is accepted."""
    remedy: str
    """What to do about a longer one."""

    def check(self, size: int, name: str, place: str) -> None:
        """Refuse a record of an input that is longer."""
        from recshuf.errors import InputError

        if size > self.record_bytes:
            problem = f"a record of {size:,} bytes is longer than the {self.record_bytes:,} bytes allowed"
            raise InputError(name, problem, place=place, remedy=self.remedy, record_bytes=size)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How inputs are read: what concerns formats of any kind, and what those of one kind declare, in `own`."""

    max_record_bytes: int = 1 << 30
    """Longest record accepted, the separator of a line included."""
    columns: tuple[str, ...] | None = None
    """Columns to keep, in this order; None for all."""
    widens: bool = False
    """Whether columns of integers here, and of floats or decimals there, get one type. A value that it does not hold exactly
    is an error. Also whether files that are written with the types of the inputs may get wider ones."""
    first_metadata: bool = False
    """Whether the metadata of the first input hold for others where these say something else of the same values."""
    field: str | None = None
    """Path of the only wanted field of the table form: ``a``, ``a.b``, ``a/b``; None for all. Sources may leave out
    other fields."""
    schema: pa.Schema | None = None
    """Table form of records that do not say their types; None to infer it."""
    store_schema: pa.Schema | None = None
    """Schema of the store that records of tables join: columns get its types where these hold all their values."""
    drop_page_cache: bool = False
    """Drop read data from the page cache, because it cannot hold all files of the run."""
    memory_bytes: int | None = None
    """Memory limit of the run. None for no limit."""
    refuses_foreign: bool = False
    """Whether text, JSONL and CSV whose bytes or names are those of other formats are an error, and HDF5 whose datasets seem
    to be no list of records."""
    sets_bad_aside: bool = False
    """Whether decoders return lines that do not parse, instead of raising an error."""
    own: tuple[tuple[str, Any], ...] = ()
    """Names and values of those given that formats declare, and in `Source.options` of what was found; see `FormatOption.of`."""

    def found(self, values: Mapping[FormatOption, object]) -> ReadOptions:
        """Return options with what was found in the inputs in place of what was left open, for `Source.options`."""
        own = dict(self.own) | {option.name: value for option, value in values.items()}
        return replace(self, own=tuple(own.items()))

    def limit(self, block_bytes: int, max_record_bytes: int) -> BatchLimits:
        """Return the limits on batches, given the arguments of `Source.fragments`."""
        record_bytes = min(max_record_bytes, self.max_record_bytes)
        return BatchLimits(block_bytes, record_bytes, f"raise {self.name_limit(max_record_bytes)}")

    def name_limit(self, max_record_bytes: int) -> str:
        """Return the option that raises the limit on records that `Source.fragments` was given."""
        return "--memory" if max_record_bytes < self.max_record_bytes else "--max-record-bytes"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How shards are written."""

    compression: str | None = None
    """One of `Traits.compressions`; None for that of the inputs."""
    compression_level: int | None = None
    """None for the default of the library."""
    file_name: str = ""
    """Name of the output, if it is a file: its suffix may tell more than the format."""
    drop_page_cache: bool = False
    """Drop written data from the page cache, because it cannot hold all files of the run."""
    table_bytes: int | None = None
    """Most memory of all records in table form, as far as `Decoder.table_bytes` knows."""
    own: tuple[tuple[str, Any], ...] = ()
    """As those of `ReadOptions`."""


class MetadataKey(NamedTuple):
    """Where a file says something beside its records."""

    owner: str
    """``dataset``, ``group``, ``field``, or ``file`` and ``footer``, of which there is one."""
    path: tuple[str, ...]
    """The names that lead to it; in a field of tables, its column comes first."""
    name: str
    """Of an attribute or a key; empty if the owner itself is what is said."""

    @property
    def subject(self) -> str:
        """The name by which its weight is known."""
        return (self.name or self.path[-1]).rpartition("/")[2]

    @property
    def column(self) -> str | None:
        """The column that it is about; None if it is about none, or all."""
        return self.path[0] if self.owner == "field" else None

    @property
    def place(self) -> str:
        """Its owner in words."""
        return f"{self.owner} {'.'.join(self.path)!r}" if self.path else f"the {self.owner}"

    @property
    def item(self) -> str:
        """Its name in words, to follow `place`."""
        word = "key" if self.owner in ("field", "footer") else "attribute"
        return f", {word} {self.name!r}," if self.name else ""


class Metadata(NamedTuple):
    """What files say beside their records."""

    values: Mapping[MetadataKey, str]
    """Each value as a text that is the same for values that read alike."""
    differences: str = ""
    """A sentence about those in which the files differ; empty if they agree."""


class InputSummary(NamedTuple):
    """Counts and sizes of one input, known or estimated before it is read."""

    name: str
    file_bytes: int | None
    """Size on disk; None for a stream."""
    record_count: int | None
    """Exact or estimated number of records; None for a stream."""
    record_count_is_exact: bool
    """Whether reading must give this number, else the run fails."""
    native_bytes: int | None
    """Estimated size of all its records as native batches, offsets included; None for a stream."""


class Fragment(ABC):
    """A part of one input, read by one thread. Fragments of an input are independent."""

    record_count: int | None = None
    """Number of records; None if it is not known before reading."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the fragment's records in order as native batches of the source's schema.

        A batch holds about `block_bytes` or less, except where a single record is larger. A fragment without
        a `record_count` holds no more than that in total. Batches own their memory or keep it alive.

        Raises
        ------
        InputError
            When the input cannot be read; names the input and the position.
        """


@dataclass(frozen=True, slots=True)
class BadRecords:
    """Records of a batch that have no table form. Whether one is bad does not depend on others."""

    index: NDArray[np.int64]
    """Their ascending positions in the batch."""
    reasons: list[str]
    """What is wrong with each, in half a sentence."""


class Decoder(ABC):
    """Converts native batches of a source to table form, after it has observed all of them.

    `observe` and `decode` are called from many threads.
    """

    notes: tuple[str, ...] = ()
    """What is odd about the types that `finish` has found: a sentence each."""
    on_note: Callable[[str], None] | None = None
    """Gets a sentence that is worth knowing before all records are observed, in the thread that observes. Set by the run."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """Schema of the table form; None while it depends on records not yet observed."""

    @abstractmethod
    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        """Observe a native batch whose first record is row `first_row` of input `input_index`.

        Returns
        -------
        BadRecords | None
            With `ReadOptions.sets_bad_aside`, the records that must not be given to `decode`. They do not depend
            on how records are cut into batches. None if there are none.

        Raises
        ------
        InputError
            When a record cannot be decoded; names input, row and field. `decode` cannot raise it, because the
            second pass does not know the input of a record.
        """

    @abstractmethod
    def finish(self) -> pa.Schema:
        """Return the schema of the table form, after every batch has been observed.

        Raises
        ------
        InputError
            When a field has types that cannot be reconciled.
        """

    def explain(self, field: str) -> ConversionError | None:  # noqa: ARG002 - by default the target says all
        """Return the error for a field of the finished schema that a target does not hold; None for that of the target."""
        return None

    def check(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:  # noqa: B027 # by default `decode` finds all
        """Check records that need not be observed, as the schema is known, for what `decode` does not find.

        Raises
        ------
        InputError
            When a record is bad; names input and row.
        """

    @abstractmethod
    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of a native batch, in the same order, as a batch of the finished schema."""

    @property
    def null_columns(self) -> frozenset[str] | None:
        """Names of the columns of numbers that have a null in the records observed; None if that is not known.

        Others may be among them.
        """
        return None

    def state(self) -> Any:
        """Return what the records observed have shown, as JSON values; None if that does not matter for `decode`."""
        return None

    def merge(self, state: Any) -> None:  # noqa: B027 # by default there is nothing to learn
        """Learn what another decoder of the same inputs has learned from other records, as its `state` says.

        Raises
        ------
        InputError
            When those records and the ones observed here have types that cannot be reconciled.
        """

    def table_bytes(self, record_count: int, native_bytes: int) -> int | None:  # noqa: ARG002 # of no use here
        """Return the most memory of records in table form; None if their number and native size do not tell."""
        return None


class FieldAdder(Decoder):
    """Returns native batches unchanged, and can add fields to their records in native form.

    `observe` raises an `InputError` for a record that has no fields, or may have one of the names.
    """

    @abstractmethod
    def add_fields(self, batch: pa.RecordBatch, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of a native batch with the fields of `columns`, which has as many rows."""

    @abstractmethod
    def remove_fields(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Undo `add_fields`; records without the fields stay unchanged."""


@runtime_checkable
class SupportsPrefixInference(Protocol):
    """A decoder that can infer its schema from the first records."""

    def infer_from_prefix(self, input_index: int) -> None:
        """Infer the schema from the inputs before this one and from its first batch.

        `observe` then checks only the outer form of all other records. `decode` raises `SchemaMismatch` if one does
        not fit; another decoder must then observe all records. If all fit, the schema is the same as after observing
        all.
        """
        ...


class Joined(NamedTuple):
    """The records of several inputs, one after the other."""

    batch: pa.RecordBatch
    rows: list[int]
    """Number of records of each input."""


class ValueReader(ABC):
    """Reads fields of native batches as texts, by which values are told apart. Used by many threads."""

    parses_records: bool = False
    """Whether native records are lines that it parses, so that it takes memory for all their bytes; else for the fields alone."""
    knows_fields: bool = True
    """Whether a field that no record has is refused before one is read."""

    @abstractmethod
    def read(
        self, batch: pa.RecordBatch, input_index: int, first_row: int
    ) -> tuple[pa.LargeBinaryArray, ...]:
        """Return the texts of each field, shape ``(n,)``; null where a record has no value.

        The first record of the batch is row `first_row` of input `input_index`. A text depends on its value alone:
        docs/store.md, "Keys of values", says which.

        Raises
        ------
        InputError
            When a record cannot be read, or a value has no text; names input, row and field.
        """


class Source(ABC):
    """All inputs of a run, opened together: they share one native schema.

    A source holds no file open between calls, except for a stream. If it can be pickled, other processes need not open
    all inputs to read some.
    """

    schema: pa.Schema
    """Native schema of every batch."""
    inputs: tuple[InputSummary, ...]
    """One for each `InputFile` given, in the same order."""
    compression: str | None = None
    """Compression of the first input as a value of `--compression`; None if there is no such value."""
    spans_lines: bool = False
    """Whether a record may hold newlines, so that messages count records and not lines."""
    header_lines: int = 0
    """Lines above the records of each input, if records do not span lines."""
    end_bytes: int = 1
    """Bytes at the end of a record, if that is a line, which are none of its content."""
    options: ReadOptions | None = None
    """How the inputs are read, with what was found in them in place of what was left open; None if nothing was."""
    repeated: Mapping[str, str] = MappingProxyType({})
    """Checksum, by name, of all data that belongs to no record and that every file has."""
    metadata: Metadata | None = None
    """What its files say beside their records, and shards of the same format say again; None if that is not known."""
    notes: tuple[str, ...] = ()
    """What was taken where the inputs leave it open, or where they differ: a sentence each, said once."""
    layout: object
    """Settings of the inputs that a target of the same format keeps (codec, chunk shapes, header...). Opaque to
    all other code."""

    @abstractmethod
    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        """Yield the fragments of one input in order.

        The caller serialises ``next`` on an iterator, but reads fragments in many threads and at any later time.
        Files are released once the iterator is closed or exhausted and its fragments are dropped.

        Parameters
        ----------
        block_bytes
            Size limit of a native batch; only a longer single record exceeds it.
        max_record_bytes
            The longest record that is accepted and fits the memory limit. A longer one is an `InputError` that names
            this number, the position and the option that raises it.
        """

    def read_joined(self, inputs: Sequence[int], block_bytes: int, max_record_bytes: int) -> Joined | None:  # noqa: ARG002 - for others
        """Return all records of the first few of some consecutive small inputs; None if not even one can be read this way.

        They need no more memory than a fragment. Faulty inputs are left to `fragments`, which raises the error.
        """
        return None

    def skips_fragments(self, input_index: int) -> bool:  # noqa: ARG002 # by default no input is like that
        """Tell whether fragments of an input can be passed over at a small part of the cost of reading them.

        Such an input can be read in parts, on several machines. How it is cut into fragments depends on `block_bytes` only.
        """
        return False

    def reading_bytes(self, block_bytes: int) -> int:
        """Return the most memory that reading one fragment takes, with the yielded batch. Default: three blocks."""
        return 3 * block_bytes

    @abstractmethod
    def decoder(self) -> Decoder:
        """Return a new decoder from this source's native batches to table form.

        Raises
        ------
        ConversionError
            When the schema alone shows that a field has no table form.
        """

    def checker(self) -> Decoder | None:
        """Return a decoder that keeps native records, and with `ReadOptions.sets_bad_aside` tells bad ones; None if none are."""
        return None

    def field_adder(self, names: Sequence[str]) -> FieldAdder | None:  # noqa: ARG002 - for others
        """Return a decoder that adds fields of these names to native records; None if they take none."""
        return None

    def value_reader(self, paths: Sequence[str]) -> ValueReader | None:  # noqa: ARG002 - by default records have no fields
        """Return a reader of the fields at some paths, such as ``user`` and ``meta.user``.

        None: records have no fields but those of their table form, if its columns are known before records are observed and it is
        no lines.

        Raises
        ------
        UsageError
            When there is no such field, or its type has no texts.
        """
        return None


class Sink(ABC):
    """One shard being written. Used by one thread at a time.

    The output depends on the sequence of records only, not on how it is cut into batches.
    """

    @property
    @abstractmethod
    def record_count(self) -> int:
        """Number of records in the closed file, as the file states it."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Append the records of a batch of the target's schema; the batch is not kept for long.

        Raises
        ------
        ConversionError
            When the format cannot hold a value.
        OSError
            When the file cannot be written.
        """

    @abstractmethod
    def close(self) -> None:
        """Complete and flush the file. Idempotent."""

    @abstractmethod
    def abort(self) -> None:
        """Release all resources without completing the file. Idempotent; never raises."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class ShardFile(NamedTuple):
    """A shard in a folder of shards."""

    name: str
    records: int
    checksum: str | None
    """xxh3 of 128 bits, as hexadecimal digits."""


class Target(ABC):
    """Opens the shards of one run."""

    suffix: str
    """File name suffix of a shard, with its leading dot: ``.jsonl.zst``."""
    notes: tuple[str, ...] = ()
    """What differs from the inputs, besides the order, and users should know: a sentence each."""
    sees_all: bool = False
    """Whether it must see the records of all shards: one process writes them, all of them anew on a resume."""

    def sink_bytes(self, threads: int) -> int:  # noqa: ARG002 - for others
        """Return the most memory that an open sink takes, without the batch it is given. Default: 32 MiB."""
        return 32 << 20

    def describe(self, shards: Sequence[ShardFile]) -> Mapping[str, bytes]:  # noqa: ARG002 - by default shards say all
        """Return documents, by name, that lie in a folder beside its shards and that readers of it need."""
        return {}

    def describe_parts(self, names: Sequence[str]) -> Mapping[str, bytes]:  # noqa: ARG002 - as above
        """Return documents, by name, that lie beside the folders of parts of these names, each with shards and their documents."""
        return {}

    @abstractmethod
    def open(self, path: Path, threads: int) -> Sink:
        """Create the file and return its sink, which may use that many threads for encoding.

        The number of threads never changes a byte.

        Raises
        ------
        OSError
            When the file exists or cannot be created.
        """

    def check_shards(self) -> None:  # noqa: B027 # by default any records lie together
        """Check all records that its sinks, which are closed, have written.

        Raises
        ------
        ConversionError
            When they cannot lie together in the shards of a run.
        """


@runtime_checkable
class SupportsStream(Protocol):
    """A target that can also write to a stream that cannot seek."""

    def open_stream(self, stream: BinaryIO, threads: int) -> Sink:
        """Return a sink that writes to `stream`; closing the sink flushes but does not close the stream."""
        ...


@runtime_checkable
class SupportsBatches(Protocol):
    """A target whose records a caller can also get as record batches, in place of a file."""

    declared: pa.Schema
    """Schema of these batches."""

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of the target's schema as one of the declared schema. Called in one thread at a time."""
        ...


@dataclass(frozen=True, slots=True)
class Traits:
    """What a format is and can do, known before a library of it is imported."""

    name: str
    """Its name for `--format` and `--to`, and that of its entry point."""
    suffixes: tuple[str, ...]
    """File name suffixes without compression: ``(".jsonl", ".ndjson")``. Shards get the first one."""
    compressions: tuple[str, ...] = ("none",)
    """Its values of `--compression`."""
    more_compressions: tuple[tuple[str, str], ...] = ()
    """Further ones, each with what is to be installed for it."""
    companion_suffixes: tuple[str, ...] = ()
    """Suffixes of further files, without which a file of the first suffix cannot be read: ``x.idx`` of ``x.bin``. They have its
    name but for the suffix. `Format.recognises` is asked for the first one, which a sink writes beside its path, as all others.
    Such shards are not written to object stores."""
    read_options: frozenset[str] = frozenset()
    """Which of the fields `columns`, `schema`, `widens`, `first_metadata` and `sets_bad_aside` of `ReadOptions` have an effect; in
    lines, the last one has it anyway."""
    options: tuple[FormatOption, ...] = ()
    """Options of its own, and those that it shares with others."""
    converted_options: frozenset[str] = frozenset()
    """Those of `read_options`, and names of `options`, that have an effect only if the output has another format."""
    written_options: tuple[tuple[str, Any], ...] = ()
    """Names of `options`, and values with which a shard is read that was written from tables."""
    checks_records: bool = False
    """Whether records that are kept as they are can be bad, and set aside; see `Source.checker`."""
    libraries: tuple[str, ...] = ()
    """Modules whose ``__version__`` the bytes of shards depend on. A run is resumed with the same versions only."""
    is_lines: bool = False
    """Whether it is lines of bytes, which pipes can carry and which compression wraps as a whole."""
    has_streams: bool = False
    """Whether it is read from standard input and written to standard output, as lines always are."""
    is_wrapped: bool = False
    """Whether compression wraps it as a whole, though it is no lines."""
    is_framed: bool = False
    """Whether its native records end with themselves, and not with a separator."""
    reads_partitions: bool = False
    """Whether Hive folders (``year=2024``) become columns."""
    has_columns: bool = True
    """Whether tables written in it keep their columns by name, so that they can get more of them."""
    adds_columns: bool = True
    """Whether native records can get columns: by a `FieldAdder`, or because they are tables."""
    native_is_table: bool = False
    """Whether native batches are tables: any table of Arrow is a native batch."""
    takes_tables: bool = False
    """Whether tables that a caller holds are shuffled as if they had been read from files of it."""
    keeps_dictionaries: bool = False
    """Whether dictionary columns are written as such."""
    drops_blank_end: bool = False
    """Whether blank lines at the end of an input are no records."""
    shares_suffixes: bool = False
    """Whether its suffixes are those of lines, too, so that content tells what is of this format."""
    default_target: str | None = None
    """The format of outputs, if neither an option nor a suffix says it; None for this format."""
    native_targets: tuple[str, ...] = ()
    """Other formats that write its native records as they are."""
    takes_any_bytes: bool = False
    """Whether any file is of it, if it is named."""
    checks_heads: bool = False
    """Whether `Format.refuse_head` is to see the beginning of every file that has a suffix of this format."""
    named_by: frozenset[str] = frozenset()
    """Those of `options` that say, where they are given, that files without a known suffix are of this format."""
    content_rank: int | None = None
    """Order in which formats are asked what content is, the lowest first; None: it is never told by content."""

    @property
    def sets_bad_aside(self) -> bool:
        """Whether records that have no table form can be set aside."""
        return self.is_lines or "sets_bad_aside" in self.read_options


@dataclass(frozen=True, slots=True)
class StoredInputs:
    """Inputs whose records are kept elsewhere."""

    schema: pa.Schema
    """Native schema."""
    names: list[str]
    find_layout: Callable[[], Any]
    """Returns `layout`, which may take its time."""
    options: ReadOptions
    """How they were read; `schema` is that of the table form."""

    @property
    def layout(self) -> Any:
        """`Source.layout`."""
        return self.find_layout()


def load_named(name: str) -> Any:
    """Return what is named as ``package.module:Name``, and import its module."""
    from importlib import import_module

    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


class Format(ABC):
    """A file format: how to recognise, read and write it."""

    layouts: tuple[str, ...] = ()
    """Names of `layout_types`, each as ``package.module:Name``, of which the modules import libraries."""

    @property
    def layout_types(self) -> tuple[type, ...]:
        """Dataclasses that `Source.layout` is made of; formats that import them anyway set them."""
        return tuple(map(load_named, self.layouts))

    @abstractmethod
    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        """Return a decoder of native batches that were kept; a decoder of their source has observed them."""

    def restore_field_adder(self, stored: StoredInputs, names: Sequence[str]) -> FieldAdder | None:  # noqa: ARG002 - for others
        """Return what `Source.field_adder` does, for native batches that were kept and that nobody has observed."""
        return None

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """What the format is and can do. Neither this nor its module imports a library that only this format needs."""

    def recognises(self, head: bytes) -> bool:  # noqa: ARG002 - by default nothing tells
        """Tell whether a file with this beginning (decompressed, at most 64 KiB) is of this format."""
        return False

    def refuse_head(self, head: bytes, *, is_whole: bool) -> str | None:  # noqa: ARG002 - by default none is wrong
        """Return what is wrong with a file that has a suffix of this format, and what to do, in one sentence; None if nothing is.

        Parameters
        ----------
        head
            The decompressed beginning.
        is_whole
            Whether the file has no other lines.
        """
        return None

    def reading_schema(self, table: pa.Schema) -> pa.Schema | None:  # noqa: ARG002 - by default files say their types
        """Return `ReadOptions.schema` to read shards with that were written from tables; None if the files say their types."""
        return None

    def grow_layout(self, layout: Any) -> object:
        """Return a `Source.layout` that suits records of further inputs, too, which were not there when it was made."""
        return layout

    def check_appended(self, kept: Source, source: Source) -> None:  # noqa: B027 - by default the schema tells all
        """Check that native records of a source can lie with those of another one, the `kept`, in one store.

        All of them are decoded, and written, with the `layout` and the `options` that are kept. The inputs that are kept are those
        of the first scatter, by name and size. The native schema is compared after this, and the types
        of the columns of the table form when the records were observed.

        Raises
        ------
        UsageError
            When they would be decoded in another way.
        """

    @abstractmethod
    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> Source:
        """Inspect every input, at least one, and return the source that reads them all.

        Raises
        ------
        InputError
            When an input is missing, unreadable, not of this format, or does not fit the others.
        UsageError
            When an option does not fit this format.
        """

    @abstractmethod
    def open_target(self, schema: pa.Schema, layout: Any, options: WriteOptions) -> Target:
        """Return the target for shards of this format.

        Parameters
        ----------
        schema
            Schema of the batches that sinks get: native if `layout` is given, else table form.
        layout
            The `Source.layout` of inputs of this same format; None for a conversion.

        Raises
        ------
        ConversionError
            When the format cannot hold a field of the table form.
        UsageError
            When an option does not fit this format.
        """


class TableDecoder(Decoder):
    """Decoder of a format whose native batches are tables: it returns them unchanged."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        pass

    def finish(self) -> pa.Schema:
        return self._schema

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


class RowFragment(Fragment):
    """Consecutive rows of an input, which one call reads.

    Parameters
    ----------
    file_name
        As messages name the input.
    first_row
        Number of its first row in the input, for messages.
    read
        Returns its records, as a table, a batch or batches of the native schema; called in any thread, perhaps more than once.
    limits
        What `ReadOptions.limit` returned.
    measure
        Returns the bytes of a batch.
    """

    def __init__(
        self,
        file_name: str,
        first_row: int,
        record_count: int,
        read: Callable[[], pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]],
        limits: BatchLimits,
        *,
        measure: Callable[[pa.RecordBatch], int] = attrgetter("nbytes"),
    ) -> None:
        self.record_count = record_count
        self._file_name, self._first_row, self._read, self._limits = file_name, first_row, read, limits
        self._measure = measure

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records in batches that fit the limits."""
        import pyarrow as pa

        records, first_row = self._read(), self._first_row
        if isinstance(records, pa.RecordBatch):
            records = [records]
        for batch in records.to_batches() if isinstance(records, pa.Table) else records:
            yield from cut_batch(batch, self._file_name, first_row, self._limits, measure=self._measure)
            first_row += batch.num_rows


def cut_batch(
    batch: pa.RecordBatch,
    file_name: str,
    first_row: int,
    limits: BatchLimits,
    *,
    measure: Callable[[pa.RecordBatch], int] = attrgetter("nbytes"),
    name_row: Callable[[int], str] = "row {}".format,
) -> Iterator[pa.RecordBatch]:
    """Yield a batch in slices that fit a block, at least one record each.

    `measure` returns the bytes of a batch, and `name_row` a row as messages show its place.

    Raises
    ------
    InputError
        When a record is longer than the limit.
    """
    size = measure(batch)
    if size > min(limits.block_bytes, limits.record_bytes) and batch.num_rows > 1:
        half = batch.num_rows // 2
        for part, row in ((batch.slice(0, half), first_row), (batch.slice(half), first_row + half)):
            yield from cut_batch(part, file_name, row, limits, measure=measure, name_row=name_row)
    else:
        limits.check(size, file_name, name_row(first_row))
        yield batch


class RowBuffer:
    """Collects record batches and hands out tables of exactly `rows` rows, however the batches were cut.

    Batches are kept by reference until their rows are handed out, and tables consist of their slices.
    """

    def __init__(self, schema: pa.Schema, rows: int) -> None:
        self._schema = schema
        self._rows = rows
        self._batches: list[pa.RecordBatch] = []
        self._held_rows = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Append a batch and yield each table that is full; exhaust the iterator, or rows are missing."""
        start = 0
        while self._held_rows + batch.num_rows - start >= self._rows:
            count = self._rows - self._held_rows
            self._append(batch.slice(start, count))
            start += count
            yield self.rest()
        self._append(batch.slice(start))

    def rest(self) -> pa.Table:
        """Hand out and drop the rows held, fewer than `rows` or none."""
        import pyarrow as pa

        table = pa.Table.from_batches(self._batches, schema=self._schema)
        self._batches, self._held_rows = [], 0
        return table

    def take_back(self, table: pa.Table, rows: int) -> None:
        """Take back the table handed out last, and wait for `rows` rows, at least as many as it has."""
        self._rows = rows
        for batch in table.to_batches():
            self._append(batch)

    def _append(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._batches.append(batch)
            self._held_rows += batch.num_rows


def open_input(file: InputFile) -> Handle:
    """Return a file, an object or a stream, open; of a stream only `Handle.take_stream` reads.

    Raises
    ------
    InputError
        When it cannot be opened.
    """
    from recshuf.storage.reading import local

    return local.open_input(file)


def open_raw(file: InputFile) -> RawIOBase:
    """Return a file or an object, open, as an unbuffered file for libraries, which can seek.

    Raises
    ------
    InputError
        When it cannot be opened, or is a stream.
    """
    from recshuf.errors import InputError
    from recshuf.storage.reading import local

    if file.is_stream:
        raise InputError(file.name, "is a stream, which cannot seek", remedy="give a file")
    try:
        return local.opener_of(file).open_raw()
    except OSError as error:
        raise InputError.of_system(error, file.name) from error
