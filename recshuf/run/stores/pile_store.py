"""`PileStore`, a kept pile store as programs open it, and its updates: records are appended and expire in one step."""

from __future__ import annotations

import os
import sys
import time as clock
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from itertools import groupby
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, cast

from recshuf.errors import (
    BadRecordError,
    BusyNameError,
    ConversionError,
    InputError,
    RecshufError,
    UsageError,
    UsedNameError,
)
from recshuf.formats import detect_format, load_format
from recshuf.formats.metadata import check_appended, find_other_copies, name_copy
from recshuf.formats.stored import StoredSource, list_columns, read_metadata, read_table_schema
from recshuf.interfaces import InputSummary, ReadOptions
from recshuf.job.arguments import make_job
from recshuf.job.options import Options, ScatterOptions, Size, refuse_unknown, to_keywords
from recshuf.job.report import Progress, PythonWarnings
from recshuf.piles.kept.stored import StoredPiles, open_place
from recshuf.records.keys import stream_of
from recshuf.records.provenance import extend_schema
from recshuf.run.inputs import Inputs, list_inputs
from recshuf.run.resolve import resolve_inputs
from recshuf.run.stores.looking import Looker, read_ids, read_positions
from recshuf.run.stores.scatter_store import Part, ScatteredSets, scatter_sets
from recshuf.run.stores.writer import PileWriter
from recshuf.storage import parse_storage
from recshuf.system.units import check_number, check_size, show_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.formats.stored import TableForm
    from recshuf.interfaces import InputFile
    from recshuf.job.job import Job
    from recshuf.piles.kept.place import StorePlace
    from recshuf.piles.kept.snapshots import Snapshot
    from recshuf.piles.layout import SealedSet


def parse_time(given: Any) -> float:
    """Return seconds since 1970; None means now.

    >>> parse_time("1970-01-02"), parse_time(5), parse_time("1970-01-01T00:00:01+00:00")
    (86400.0, 5.0, 1.0)
    """
    if given is None:
        return clock.time()
    found: Any = _parse_text(given) if isinstance(given, str) else given
    if isinstance(found, date) and not isinstance(found, datetime):
        found = datetime(found.year, found.month, found.day, tzinfo=UTC)
    is_number = isinstance(found, Real) and not isinstance(found, bool)
    if not is_number and not isinstance(found, datetime):
        raise UsageError(
            f"{given!r} is no time; give seconds since 1970, a datetime, or text such as 2026-01-31"
        )
    try:
        seconds = (
            float(found) if is_number else (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        )
        datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        shown = str(given) if isinstance(given, datetime) else f"{given!r:.80}"
        raise UsageError(
            f"{shown} is no time; give seconds since 1970, or a time, in the years 1 to 9999 of UTC"
        ) from None
    return seconds


def _parse_text(text: str) -> float | datetime:
    """Return seconds since 1970, or a time."""
    seconds: float | None = None
    day: datetime | None = None
    with suppress(ValueError):
        seconds = float(text)
    with suppress(ValueError):
        is_year = text.strip().isdecimal() and len(text.strip()) == 4
        day = datetime(int(text), 1, 1, tzinfo=UTC) if is_year else datetime.fromisoformat(text)
    if seconds is not None and day is not None:
        raise UsageError(f"{text!r} may be a date or seconds since 1970; write {day:%Y-%m-%d}, or {text}.0")
    if seconds is None and day is None:
        raise UsageError(
            f"{text!r} is no time; write 2026-01-31, 2026-01-31T12:00:00Z, or seconds since 1970"
        )
    return cast("float | datetime", seconds if day is None else day)


def find_expired(sets: Sequence[SealedSet], limits: dict[str, float]) -> set[str]:
    """Return the names of the sets that leave a window. Sets of one time leave together.

    >>> from recshuf.piles.layout import SealedSet
    >>> sets = [SealedSet("a", 5, 50, 0, "", 1.0), SealedSet("b", 5, 50, 0, "", 2.0), SealedSet("c", 5, 50, 0)]
    >>> sorted(find_expired(sets, {"records": 9})), sorted(find_expired(sets, {"before": 2.0}))
    (['a', 'c'], ['a', 'c'])
    """
    newest_first = sorted(sets, key=lambda one: (one.age_key, one.name), reverse=True)
    expired: set[str] = set()
    records, byte_count = 0, 0
    for _, same_time in groupby(newest_first, lambda one: one.name if one.time is None else one.time):
        members = list(same_time)
        records += sum(one.records for one in members)
        byte_count += sum(one.byte_count for one in members)
        time = members[0].age_key
        is_old = time < limits.get("before", time)
        if is_old or records > limits.get("records", records) or byte_count > limits.get("bytes", byte_count):
            expired.update(one.name for one in members)
    return expired


_BAD_REMEDY = "change it, set such lines aside with --on-bad-record quarantine:FILE, or begin a new store for other columns"
Taken = TypeVar("Taken")


class StoreUpdate:
    """Records to append and to expire. See `PileStore.update`."""

    def __init__(self, place: StorePlace, snapshot: Snapshot, progress: Progress, cleanup: ExitStack) -> None:
        self._place = place
        self._snapshot = snapshot
        self._progress = progress
        self._cleanup = cleanup
        self._append_count = 0
        self._entries: list[SealedSet] = []
        self._made: list[ScatteredSets] = []
        self._limits: dict[str, float] = {}
        self._is_open = True
        self._process = os.getpid()

    def append(self, data: Any, *, time: Any = None, name: str | None = None, **options: Any) -> None:
        """Add records as a slice of the window.

        Parameters
        ----------
        data
            Paths of inputs, as `scatter` takes them; or what `PileWriter.write` takes, or an iterator over such.
        time
            Seconds since 1970, a datetime, or text such as ``2026-01-31`` or ``2026-01-31T12:00:00Z``; UTC. Default: now.
        name
            Name of the slice, on which the order depends: letters, digits, ``.``, ``_`` and ``-``. It must be that of no
            slice in the store or in an open reader. Default: ``append-``, the number of the snapshot, and the first
            number that no other process has taken.
        **options
            For inputs: see `recshuf.ScatterOptions`.

        Raises
        ------
        UsageError
            When the update has ended, or is that of another process.
        """
        self._check_open()
        seconds = parse_time(time)
        refuse_unknown(options, ScatterOptions)
        if seconds < self._limits.get("before", seconds):
            raise self._explain_limits()
        if options and not _are_paths(data):
            raise UsageError(f"{next(iter(options))}: is for inputs that are given as paths; leave it out")
        with ExitStack() as own:  # a name is free again for another try if this one fails
            entries, schema = (
                self._append_inputs(data, name, options, own)
                if _are_paths(data)
                else self._append_records(data, name, own)
            )
            timed = [replace(one, time=seconds) for one in entries]
            if schema is not None:
                # Also what is appended next must have these columns.
                self._snapshot = self._snapshot.add(tuple(timed), schema)
            self._entries += timed
            self._cleanup.push(own.pop_all())

    def expire(
        self,
        *,
        before: Any = None,
        records: int | None = None,
        bytes: Size | None = None,  # noqa: A002
    ) -> None:
        """Remove the oldest slices, those without a time first. A slice leaves as a whole: all that has the same time.

        Parameters
        ----------
        before
            A time, as in `append`: slices that are older leave.
        records, bytes
            The newest slices that together hold no more than so much stay. `bytes` is a number, or text such as ``"300MB"``.

        Raises
        ------
        UsageError
            As `append` does.
        """
        self._check_open()
        given = {
            "before": None if before is None else parse_time(before),
            "records": None if records is None else check_number("records", records, sys.maxsize),
            "bytes": None if bytes is None else check_size("bytes", bytes),
        }
        self._limits |= {name: limit for name, limit in given.items() if limit is not None}

    def commit(self) -> Snapshot:
        """Put the new snapshot in place, and return it. The end of the update does so with what follows.

        Raises
        ------
        UsageError
            When the limits would remove what is appended; else as `append` does.
        """
        self._check_open()
        if not self._entries and not self._limits:
            return self._snapshot
        snapshot = self._place.commit(self._change, self._snapshot.store)
        for made in self._made:
            made.settle()
        self._snapshot, self._entries, self._made, self._limits = snapshot, [], [], {}
        return snapshot

    def end(self) -> None:
        """Take no more changes. Idempotent."""
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError(
                f"{self._place.name}: the update has ended; begin another with `with store.update() as update`"
            )
        if self._process != os.getpid():
            raise UsageError(f"{self._place.name}: the update belongs to another process; begin one in each")

    def _change(self, newest: Snapshot) -> Snapshot:
        if self._entries and self._snapshot.schema is not None:
            newest = newest.add(tuple(self._entries), self._snapshot.schema)
        expired = find_expired(newest.sets, self._limits)
        if any(one.name in expired for one in self._entries):
            raise self._explain_limits()
        return newest.drop(expired)

    def _explain_limits(self) -> UsageError:
        return UsageError(
            f"{self._place.name}: the limits of the window would remove what is appended; widen them"
        )

    def _take_name(self, name: str | None, take: Callable[[str], Taken]) -> Taken:
        """Return what a function returns that locks a name: the given one, or the next that is free."""
        if name:
            return take(name)
        while True:
            chosen = f"append-{self._snapshot.number + 1:06d}-{self._append_count:03d}"
            self._append_count += 1
            # Another process may append to the same snapshot.
            with suppress(BusyNameError, UsedNameError):
                return take(chosen)

    def _append_records(
        self, data: Any, name: str | None, cleanup: ExitStack
    ) -> tuple[Sequence[SealedSet], pa.Schema | None]:
        schema = self._snapshot.schema
        columns = schema and schema.remove(len(schema) - 1)
        writer = self._take_name(name, lambda name: PileWriter(self._place, name, columns))
        cleanup.callback(writer.abort)
        for part in data if hasattr(data, "__next__") else [data]:
            writer.write(part)
        sealed = writer.seal()
        return ([], None) if sealed is None else ([sealed[0]], sealed[1])

    def _lock(self, cleanup: ExitStack, name: str) -> str:
        cleanup.enter_context(self._place.hold_name(name))
        return name

    def _check_same(self, what: str, given: object, found: int) -> None:
        if given not in (None, found):
            raise UsageError(f"--{what} {given}: {self._place.name} has {found}; leave it out")

    def _append_inputs(
        self, data: Any, name: str | None, options: dict[str, Any], cleanup: ExitStack
    ) -> tuple[Sequence[SealedSet], pa.Schema | None]:
        origin = self._snapshot.origin
        if origin is not None:
            options = options | {"format": options.get("format") or origin["format"]}
        job = _fit_job(make_job(data, None, cast("Options", options)), self._snapshot)
        self._check_same("seed", options.get("seed"), self._snapshot.seed)
        self._check_same("piles", options.get("piles"), self._snapshot.pile_count)
        files = list_inputs(job, None, self._progress)
        try:
            inputs = resolve_inputs(job, files, self._progress)
        except InputError as error:
            if origin is None or job.options["format"] != origin["format"]:
                raise
            if (found := _find_other(files, origin["format"])) is None:
                raise
            raise self._format_error(files[0].name, found, origin["format"]) from error
        is_table = load_format(inputs.format).traits.native_is_table
        if not (is_table if origin is None else origin["format"] == inputs.format):
            raise UsageError(
                f"{self._place.name}: holds no records of {inputs.format} files; begin a new store for them"
            )
        try:
            if origin is not None:
                known = zip(origin.get("names", []), origin["file_bytes"], strict=False)
                first = [InputSummary(one, size, None, False, None) for one, size in known]
                kept = StoredSource(inputs.source.schema, origin, first)
                load_format(inputs.format).check_appended(kept, inputs.source)
            self._snapshot.check_schema(extend_schema(inputs.source.schema))
        except UsageError as error:
            name, *others = [one.name for one in inputs.source.inputs]
            raise UsageError(f"{name}{' and others' * bool(others)}: {error}") from error
        self._check_metadata(inputs, is_lenient=job.read.first_metadata)
        name = self._take_name(name, partial(self._lock, cleanup))
        stream = stream_of(name)
        try:
            parts = [Part(self._place, self._snapshot)]
            (made,) = scatter_sets(job, inputs, parts, name, stream, self._progress, cleanup)
        except BadRecordError as error:
            # The columns of a store never change, so a schema cannot be the remedy.
            raise BadRecordError(error.name, error.problem, place=error.place, remedy=_BAD_REMEDY) from error
        kept_form = None if is_table or origin is None or origin["problem"] else origin
        if kept_form and (problem := _find_misfit(made.table, kept_form)):
            raise ConversionError(
                "",
                f"does not fit the columns of the store: {problem}",
                remedy="begin a new store, or change the records",
            )
        self._made.append(made)
        return made.entries, made.schema

    def _format_error(self, name: str, found: str, kept: str) -> InputError:
        """Return the error for a file that is in another format than the records of the store."""
        traits, remedy = load_format(kept).traits, "begin a new store for it"
        if traits.has_columns:
            copy = f"COPY{traits.suffixes[0]}"
            remedy += f", or append what recshuf INPUT --to {kept} -o {copy} writes"
        return InputError(name, f"is {found}, and {self._place.name} holds {kept}", remedy=remedy)

    def _check_metadata(self, inputs: Inputs, *, is_lenient: bool) -> None:
        """Compare what inputs say beside their records with what the store says."""
        origin, name, store = self._snapshot.origin or {}, inputs.source.inputs[0].name, str(self._place.name)
        if copies := find_other_copies(origin.get("repeated", {}), inputs.source.repeated):
            place = name_copy(inputs.format, copies[0])
            problem = f"differs from that in {store}, and every shard repeats only one"
            if not is_lenient:
                remedy = "make them equal, or begin a new store"
                raise InputError(name, problem, place=place, remedy=remedy)
            self._progress.warn(f"{name}: {place} {problem}")
        held, found = read_metadata(origin), inputs.source.metadata
        if held is None or found is None:
            return
        if differences := check_appended(held, store, found, name, is_lenient=is_lenient):
            self._progress.warn(differences)


def _fit_job(job: Job, snapshot: Snapshot) -> Job:
    """Return a job that reads inputs with the columns of a store."""
    job = replace(job, read=replace(job.read, store_schema=snapshot.schema))
    schema = None if snapshot.origin is None else read_table_schema(snapshot.origin)
    if schema is None or "schema" not in load_format((snapshot.origin or {})["format"]).traits.read_options:
        return job
    return replace(job, read=replace(job.read, schema=schema))


def _find_other(files: Sequence[InputFile], kept: str) -> str | None:
    """Return the format that files show, if it is not the one `kept`; None if they are tables, or if one of both is any bytes."""
    with suppress(RecshufError):
        if all(file.table is None for file in files):
            found = detect_format(files, ReadOptions())
            if found != kept and not any(load_format(name).traits.takes_any_bytes for name in (found, kept)):
                return found
    return None


def _find_misfit(table: TableForm, origin: dict[str, Any]) -> str | None:
    """Return why the table form of records is not in that of a store, some columns of which they may lack; None if it is."""
    if table.error is not None:
        return table.error.reason
    kept = read_table_schema(origin)
    if kept is None or table.schema is None:
        return None
    for field in table.schema:
        if field.name not in kept.names:
            return f"it has no column {field.name!r}"
        if field.type != (held := kept.field(field.name).type):
            return f"column {field.name!r} is {field.type} here, and {held} there"
    return None


def _are_paths(data: Any) -> bool:
    parts = data if isinstance(data, list | tuple) else [data]
    return bool(parts) and all(isinstance(one, str | os.PathLike) for one in parts)


class PileStore:
    """A pile store, as its newest snapshot is when it is opened.

    To look at data, ``store[i]``, `take` and iteration read records in the order of `recshuf.gather`, which is that of epoch 0
    of a loader. Each call reads every pile that holds a record that it asks for: to train, use `PileLoader`.

    Parameters
    ----------
    path
        Folder, or URL of s3://, gs:// or az://.
    endpoint_url, storage_options
        For URLs; see `recshuf.ScatterOptions`.

    Raises
    ------
    UsageError
        When there is no store.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | StorePlace,
        *,
        endpoint_url: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.place = open_place(path, parse_storage(endpoint_url, storage_options))
        self.path: Path | str = self.place.local_path or self.place.name
        self._snapshot = self._open()

    def __repr__(self) -> str:
        """Return what it holds."""
        shown = {"snapshot": self.snapshot, "num_records": self.num_records, "num_bytes": self.num_bytes}
        return show_call(type(self).__name__, str(self.path), **shown)

    def _open(self) -> Snapshot:
        snapshot, lease = self.place.open()
        lease.close()
        return snapshot

    @property
    def id(self) -> str:
        """Identifier of the store, 32 hexadecimal digits."""
        return self._snapshot.store

    @property
    def snapshot(self) -> int:
        """Number of the snapshot."""
        return self._snapshot.number

    @property
    def num_records(self) -> int:
        """Number of records."""
        return self._snapshot.record_count

    @property
    def num_bytes(self) -> int:
        """Bytes of the records."""
        return self._snapshot.byte_count

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources, which `_id` numbers."""
        with closing(self.piles()) as piles:
            return piles.sources

    @property
    def schema(self) -> pa.Schema:
        """Columns of the records.

        Raises
        ------
        ConversionError
            When the records have no columns.
        PileError
            When there are no records yet.
        """
        with closing(self.piles()) as piles:
            return StoredSource(piles.schema, piles.info.origin, ()).decoder().finish()

    def __len__(self) -> int:
        """Return the number of records."""
        return self.num_records

    def __getitem__(self, position: SupportsIndex) -> dict[str, Any]:
        """Return the record at a position as values of Python; a negative position counts from the end.

        Raises
        ------
        MissingRecordError
            When there is none: an `IndexError`.
        """
        try:
            number = index(position)
        except TypeError:
            raise UsageError(
                f"store[{position!r:.80}]: give an integer; store.take(rows) returns several records"
            ) from None
        record: dict[str, Any] = self.take([number]).to_pylist()[0]
        return record

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over all records as values of Python, pile by pile."""
        with closing(self.piles()) as piles:
            yield from Looker(piles).iterate()

    def take(
        self, rows: Any = None, *, ids: Any = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """Return records in the order in which they are asked for.

        Parameters
        ----------
        rows
            Their positions; negative ones count from the end.
        ids
            In place of `rows`, the source and the row of each, as a loader gives them in ``_id``.
        columns
            As those of `PileLoader`.

        Raises
        ------
        MissingRecordError
            When the store does not hold one of them: an `IndexError`.
        """
        if (rows is None) == (ids is None):
            raise UsageError("take: give either rows or ids")
        names = list_columns(columns)
        positions = self.find(ids) if rows is None else read_positions(rows, self.num_records, self.path)
        with closing(self.piles()) as piles:
            return Looker(piles, names).take(positions)

    def find(self, ids: Any) -> NDArray[np.int64]:
        """Return the positions of records, given the source and the row of each, as a loader gives them in ``_id``.

        It reads one pile for each, and all piles for a record that the store does not hold, or holds in sets that `compact`
        has joined.

        Raises
        ------
        MissingRecordError
            When the store does not hold one of them: an `IndexError`.
        """
        wanted = read_ids(ids, self.path)
        with closing(self.piles()) as piles:
            return Looker(piles).find(wanted)

    def piles(self) -> StoredPiles:
        """Open the piles of this snapshot; the caller closes them."""
        return StoredPiles(self.place, self.snapshot)

    @contextmanager
    def update(self, progress: Progress | None = None) -> Iterator[StoreUpdate]:
        """Change what the store holds, in one step at the end of the context; nothing changes after an exception.

        Open loaders keep the snapshot that they have.

        Raises
        ------
        RecshufError
            When records cannot be read or written, or do not fit the store.
        """
        with ExitStack() as cleanup:
            update = StoreUpdate(self.place, self._open(), progress or PythonWarnings(to_keywords), cleanup)
            cleanup.callback(update.end)
            yield update
            self._snapshot = update.commit()
