"""`StoreUpdate`: records are appended to a store and expire, in one step."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from recshuf.errors import BusyNameError, ConversionError, UsageError, UsedNameError
from recshuf.formats.stored import read_table_schema
from recshuf.job.arguments import make_job
from recshuf.job.options import ScatterOptions, refuse_unknown
from recshuf.piles.store.set_names import SetNames
from recshuf.piles.store.set_writer import PileWriter
from recshuf.records.keys import stream_of
from recshuf.records.provenance import extend_schema
from recshuf.run.resolving.job_inputs import list_inputs
from recshuf.run.resolving.resolve import resolve_inputs
from recshuf.run.stores.scatter_store import scatter_sets
from recshuf.run.stores.slice_times import parse_time
from recshuf.run.stores.window import find_expired, parse_bytes
from recshuf.system.numbers import check_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from recshuf.job.job import Job
    from recshuf.job.options import Options, Size
    from recshuf.job.progress import Progress
    from recshuf.piles.store.snapshots import SetEntry, Snapshot
    from recshuf.piles.store.store_folder import StoreFolder

Taken = TypeVar("Taken")


class StoreUpdate:
    """Records to append and to expire. See `PileStore.update`."""

    def __init__(
        self, folder: StoreFolder, snapshot: Snapshot, progress: Progress, cleanup: ExitStack
    ) -> None:
        self._folder = folder
        self._snapshot = snapshot
        self._progress = progress
        self._cleanup = cleanup
        self._append_count = 0
        self._entries: list[SetEntry] = []
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
        if options and not _are_paths(data):
            raise UsageError(f"{next(iter(options))}: is for inputs that are given as paths; leave it out")
        entries, schema = (
            self._append_inputs(data, name, options) if _are_paths(data) else self._append_records(data, name)
        )
        timed = [replace(one, time=seconds) for one in entries]
        if schema is not None:
            # Also what is appended next must have these columns.
            self._snapshot = self._snapshot.add(tuple(timed), schema)
        self._entries += timed

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
            "bytes": None if bytes is None else parse_bytes(bytes),
        }
        self._limits |= {name: limit for name, limit in given.items() if limit is not None}

    def commit(self) -> Snapshot:
        """Put the new snapshot in place, and return it.

        Raises
        ------
        UsageError
            When the limits would remove what is appended; else as `append` does.
        """
        self._check_open()
        if not self._entries and not self._limits:
            return self._snapshot
        return self._folder.commit(self._change, self._snapshot.store)

    def end(self) -> None:
        """Take no more changes. Idempotent."""
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError(
                f"{self._folder.path}: the update has ended; begin another with `with store.update() as update`"
            )
        if self._process != os.getpid():
            raise UsageError(f"{self._folder.path}: the update belongs to another process; begin one in each")

    def _change(self, newest: Snapshot) -> Snapshot:
        if self._entries and self._snapshot.schema is not None:
            newest = newest.add(tuple(self._entries), self._snapshot.schema)
        expired = find_expired(newest.sets, self._limits)
        if any(one.name in expired for one in self._entries):
            raise UsageError(
                f"{self._folder.path}: the limits of the window would remove what is appended; raise them"
            )
        return newest.drop(expired)

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

    def _append_records(self, data: Any, name: str | None) -> tuple[Sequence[SetEntry], pa.Schema | None]:
        schema = self._snapshot.schema
        columns = schema and schema.remove(len(schema) - 1)
        writer = self._take_name(name, lambda name: PileWriter(self._folder.path, name, columns))
        self._cleanup.callback(writer.abort)
        for part in data if hasattr(data, "__next__") else [data]:
            writer.write(part)
        sealed = writer.seal()
        return ([], None) if sealed is None else ([sealed[0]], sealed[1])

    def _lock(self, name: str) -> str:
        self._cleanup.enter_context(SetNames(self._folder, name))
        return name

    def _check_same(self, what: str, given: object, found: int) -> None:
        if given not in (None, found):
            raise UsageError(f"--{what} {given}: {self._folder.path} has {found}; leave it out")

    def _append_inputs(
        self, data: Any, name: str | None, options: dict[str, Any]
    ) -> tuple[Sequence[SetEntry], pa.Schema | None]:
        origin = self._snapshot.origin
        if origin is not None:
            options = options | {"format": options.get("format") or origin["format"]}
        job = _fit_job(make_job(data, None, cast("Options", options)), self._snapshot)
        self._check_same("seed", options.get("seed"), self._snapshot.seed)
        self._check_same("piles", options.get("piles"), self._snapshot.pile_count)
        inputs = resolve_inputs(job, list_inputs(job, None, self._progress))
        if (origin["format"] if origin else "parquet") != inputs.format:
            raise UsageError(
                f"{self._folder.path}: holds no records of {inputs.format} files; begin a new store for them"
            )
        self._snapshot.check_schema(extend_schema(inputs.source.schema))
        name = self._take_name(name, self._lock)
        stream = stream_of(name)
        made = scatter_sets(job, inputs, self._snapshot, self._folder, name, stream, self._progress)
        if made.table.schema is None and origin is not None and not origin["problem"]:
            # The columns of a store never change, so a schema cannot be the remedy.
            raise ConversionError(
                "",
                f"does not fit the columns of the store: {made.table.reason}",
                remedy="begin a new store, or change the records",
            )
        return made.entries, made.schema


def _fit_job(job: Job, snapshot: Snapshot) -> Job:
    """Return a job that reads inputs with the columns of a store."""
    schema = None if snapshot.origin is None else read_table_schema(snapshot.origin)
    if schema is None or (snapshot.origin or {})["format"] not in ("jsonl", "csv", "text"):
        return job
    return replace(job, read=replace(job.read, schema=schema))


def _are_paths(data: Any) -> bool:
    if isinstance(data, str | os.PathLike):
        return True
    return (
        isinstance(data, list | tuple)
        and bool(data)
        and all(isinstance(one, str | os.PathLike) for one in data)
    )
