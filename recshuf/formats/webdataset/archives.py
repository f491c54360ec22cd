"""Tar archives: one thread walks the headers of an input in order, and cuts blocks of whole records; as a table, `__key__` and bytes for each suffix.

No two records of a run may have one key, as readers would take neighbours for one record.
"""

from __future__ import annotations

import re
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError, InputError
from recshuf.formats.files import changed, stored_of
from recshuf.formats.lines.cutting import SCHEMA, view_records
from recshuf.formats.lines.files import BlockReader, CutFragment, FramedCutter
from recshuf.formats.lines.sink import LineSink, LineTarget
from recshuf.formats.lines.source import LineLayout, LineSource
from recshuf.formats.webdataset import RENAME_KEYS
from recshuf.formats.webdataset.cutting import (
    KEYS_BYTES,
    ArchiveError,
    KeySet,
    Member,
    TarDecoder,
    check_schema,
    encode,
    find_key,
    group_members,
    hash_key,
    list_records,
    lower,
    rename,
    show,
    walk,
)
from recshuf.interfaces import InputFile, ReadOptions
from recshuf.records.arrays import view_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from recshuf.formats.lines.cutting import Bytes, Positions, RecordLimit
    from recshuf.interfaces import Fragment, WriteOptions


_READING_BYTES, _SEARCH_BYTES = 2 << 20, 1 << 20
_MOST_BYTES = 1 << 62
_PLACEHOLDER = b"_"
"""Key of all records to which shards give keys."""
_FILES_OF_RECORDS = b"csv tsv jsonl ndjson parquet arrow h5 hdf5 tfrecord tar".split()
_END_BYTES, _MULTIPLE_BYTES = 1024, 10240
"""Zeros at the end of an archive, and what the size of those of tar is a multiple of."""


@dataclass(frozen=True, slots=True)
class TarLayout:
    """What shards keep of the inputs."""

    compression: str
    renames: bool
    """Whether shards give every record a key of its own."""
    names: tuple[str, ...] = ()
    """Names of the inputs, in which a key that occurs twice is looked for."""


class TarCutter(FramedCutter):
    """Estimates the records of an input, and notes what of the first ones may be mistaken."""

    kind = "a tar archive"
    _name = ""

    def check_head(self, name: str, head: bytes) -> None:  # noqa: ARG002 - as reading will say
        self._name = name

    def find_ends(self, data: Bytes, begin: int) -> Iterator[Positions]:
        """Yield where records end; the last one may do so behind `data`."""
        members = list[Member]()
        with suppress(ArchiveError):  # as reading will say
            members.extend(one for one in walk(data.data, begin) if isinstance(one, Member))
        self.notes += [] if self.notes else _find_notes(self._name, members)
        yield np.array([min(group[-1].end, _MOST_BYTES) for group in group_members(members)], np.int64)

    def is_record(self, rest: Bytes) -> bool:  # noqa: ARG002 - they are zeros
        return False


class TarSource(LineSource):
    """All inputs of a run. A record is the bytes of its members, headers and padding included."""

    layout: TarLayout  # type: ignore[assignment] # of targets of its own
    spans_lines = True

    def __init__(self, files: Sequence[InputFile], options: ReadOptions) -> None:
        super().__init__(files, options, TarCutter(options))
        self.reader_type = TarReader
        if streams := [one.name for one in self._lines if one.stream]:
            problem = "is a stream, and archives are read as files"
            raise InputError(streams[0], problem, remedy="give its path")
        self.inputs = tuple(one._replace(record_count_is_exact=False) for one in self.inputs)
        self.notes += (*_find_indexes(files[0]),)
        self._expected = options.schema.names if options.schema else ()
        self._renames = RENAME_KEYS.of(options)
        self.layout = TarLayout(
            self._lines[0].compression, self._renames, tuple(one.name for one in self.inputs)
        )

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        with closing(KeySet()) as keys:
            for fragment in super().fragments(input_index, block_bytes, max_record_bytes):
                if not self._renames and isinstance(fragment, TarFragment):
                    keys.add(fragment.hashes)
                yield fragment
            twice = keys.finish()
        if twice is None:
            return
        name, found = self.inputs[input_index].name, self.find_key(input_index, twice)
        if found is None:
            raise changed(name)
        # Members of its record may lie apart.
        one = "write the archive again with GNU tar --sort=name"
        remedy = f"if these are two records, shuffle to webdataset with --rename-keys; if one, {one}"
        problem = f"the key {found[0]} comes again behind other keys"
        raise InputError(name, problem, place=f"byte {found[1]}", remedy=remedy)

    def find_key(self, input_index: int, wanted: bytes) -> tuple[str, int] | None:
        """Return the key of a hash, and where the first record begins that has it; reads the archive once more."""
        for fragment in super().fragments(input_index, _SEARCH_BYTES, self._cutter.options.max_record_bytes):
            if isinstance(fragment, TarFragment) and wanted in fragment.hashes:
                return fragment.show_key(fragment.hashes.index(wanted))
        return None

    def reading_bytes(self, block_bytes: int) -> int:
        window_bytes = max(one.window_bytes for one in self._lines)
        # The last part is for the members that are found: of some without content, as much as a block.
        return 3 * block_bytes + window_bytes + KEYS_BYTES + _READING_BYTES + block_bytes

    def decoder(self) -> TarDecoder:
        return TarDecoder(stored_of(self), self._expected)


class TarFragment(CutFragment):
    """Whole records in memory, with the hashes of their keys, and what is wrong with one of them."""

    def __init__(self, hashes: list[bytes], wrong: ArchiveError | None, *block: Any) -> None:
        super().__init__(*block)
        self.hashes, self._wrong = hashes, wrong

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._wrong is not None:
            raise _place(self._wrong, self._limit, self._position) from self._wrong
        for batch in super().batches():
            if RENAME_KEYS.of(self._cutter.options):
                renamed = pa.array(self._rename(batch.column(0)), pa.large_binary())
                batch = pa.RecordBatch.from_arrays([renamed], schema=SCHEMA)
            yield batch

    def show_key(self, row: int) -> tuple[str, int]:
        """Return the key of a record, and where it begins."""
        begin, end = np.append(0, self._ends)[row : row + 2].tolist()
        return show(find_key(self._data[begin:end].data)), self._position + begin

    def _rename(self, column: pa.LargeBinaryArray) -> Iterator[bytes]:
        for begin, record in zip(view_offsets(column).tolist(), list_records(column), strict=False):
            try:
                yield rename(record, _PLACEHOLDER)
            except ArchiveError as error:
                raise _place(error, self._limit, self._position + begin) from error


def _place(error: ArchiveError, limit: RecordLimit, origin: int) -> InputError:
    """Return the error for what is wrong in memory that begins at a byte of an input."""
    at, problem, remedy = error.args
    return limit.refuse(origin + at, problem, remedy)


class TarReader(BlockReader):
    """Cuts bytes into blocks of whole records, up to the first zero block behind them.

    A member that is of no record stays with the one behind it, wherever that comes to lie. At the end it is put before the
    last one.
    """

    def _find_stop(self, data: Bytes) -> int:
        try:
            stop, groups = self._find_records(data)
        except ArchiveError as error:
            raise _place(error, self._limit, self._position) from error
        self._hashes = [hash_key(group[0].key or b"") for group in groups]
        # Not refused at once: neighbours in shards, whose keys were the same, are looked for.
        self._wrong = next(filter(None, map(_find_twice, groups)), None)
        return stop

    def _end(self, data: Bytes, stop: int, filled: int) -> tuple[int, int]:  # noqa: ARG002 - more archives may follow
        return stop, filled

    def _make_fragment(self, data: Bytes, position: int, *block: Any) -> Iterator[Fragment]:
        begin, *ends = self._edges
        if ends:
            known = self._hashes, self._wrong, np.array(ends) - begin
            yield TarFragment(*known, data[begin:], position + begin, *block)

    def _find_records(self, data: Bytes) -> tuple[int, list[list[Member]]]:
        """Return where the records end of one archive that are in memory, and their members."""
        members, begin, stop = list[Member](), 0, 0
        for one in walk(data.data, 0):
            if isinstance(one, Member):
                members.append(one)
            elif members:
                stop = one
                break
            else:
                begin = one
        last = max((one.end for one in members[-2:] if one.end <= data.size), default=begin)
        groups = group_members(members)
        self._edges = [begin, *(group[-1].end for group in groups[:-1])]
        start = self._edges[-1]
        if members and members[-1].end > data.size and members[-1].end - start > self._limit.max_bytes:
            raise self._limit.exceeded(self._position + start, members[-1].end - start)
        if not stop and not self._is_ended:
            return start, groups[:-1]  # the last one may go on
        if not stop and data[last:].any():
            raise ArchiveError(last, "is truncated: a member ends behind the end of the archive")
        if groups:
            data[start:last] = np.roll(data[start:last], last - groups[-1][-1].end)
            self._edges.append(last)
        elif members:
            raise ArchiveError(begin, "holds only members that readers leave out", "leave the archive out")
        return stop or data.size, groups


def _find_twice(group: Sequence[Member]) -> ArchiveError | None:
    """Return what is wrong with a record that has a suffix twice."""
    known = set[bytes]()
    for member in group:
        suffix = lower(member.suffix)
        if suffix in known:
            problem = f"the record {show(member.key or b'')} has the suffix {show(suffix)} twice, which readers refuse"
            return ArchiveError(member.start, problem, "rename one of the members")
        known.add(suffix)
    return None


def _find_notes(name: str, members: Sequence[Member]) -> Iterator[str]:
    lone = next((one for one in members if one.key is None and one.size), None)
    if lone is not None:
        yield f"{name}: {show(lone.name)} is of no record, as readers leave it out; such members stay with the record behind them"
    record = next((one for one in members if lower(one.suffix) in _FILES_OF_RECORDS), None)
    if record is not None:
        yield f"{name}: a file such as {show(record.name)} is one record; unpack the archive to shuffle the records of its files"


def _find_indexes(file: InputFile) -> Iterator[str]:
    """Yield what lies beside archives and is of no use for others."""
    path = file.path
    if path and ((path.parent / ".nv-meta").exists() or path.with_name(f"{path.name}.idx").exists()):
        yield (
            f"{file.name}: the indexes of energon beside it (.nv-meta, .idx) do not fit the output; make new ones with energon "
            "prepare FOLDER"
        )


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
        self.sees_all = layout is None or not (layout.renames or RENAME_KEYS.of(options))
        self.keys, self.paths, self._layout = KeySet(), list[Path](), layout

    def sink_bytes(self, threads: int) -> int:
        return super().sink_bytes(threads) + KEYS_BYTES

    def check_shards(self) -> None:
        with closing(self.keys) as keys:
            twice = keys.finish()
        if twice is None:
            return
        inputs = self._layout.names if self._layout else ()
        found = [*islice(_find_key([*inputs, *map(str, self.paths)], twice), 2)]
        names = " and ".join(name for name, _ in found if name in inputs)
        key, places = f"the key {found[0][1]}" if found else "a key", f" (in {names})" if names else ""
        raise ConversionError(
            f"{key} is that of several records{places}, which readers would take for one where they are neighbours",
            remedy="give --rename-keys" if self._layout else "give each record a __key__ of its own",
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

    def __init__(self, target: TarTarget, *others: Any) -> None:
        super().__init__(*others)
        self._target, path = target, cast("Path", self._output.path)
        self._stem = re.sub(r"[^\w-]", "-", path.name.removesuffix(target.suffix), flags=re.ASCII)
        target.keys.folder = str(path.parent)
        target.paths.append(path)

    def _write_lines(self, lines: pa.LargeBinaryArray) -> None:
        records = list_records(lines)
        if self._target.sees_all:
            self._target.keys.add(hash_key(find_key(one)) for one in records)
        else:
            rows = enumerate(records, self._count)
            made = [rename(one, f"{self._stem}_{row:09d}".encode()) for row, one in rows]
            lines = pa.array(made, pa.large_binary())
        super()._write_lines(lines)
        self._byte_count += view_records(lines)[0].size

    def _complete(self) -> None:
        zeros = _END_BYTES + -(self._byte_count + _END_BYTES) % _MULTIPLE_BYTES
        self._writer.write(memoryview(bytes(zeros)))
        super()._complete()
