"""The public functions that write: shuffle, plan, scatter, gather, window, compact; and tasks of a saved plan."""

from __future__ import annotations

import os  # noqa: TC003 - `typing.get_type_hints` needs it, as it does the names below
import sys
from collections.abc import Mapping  # noqa: TC003 - for typing.get_type_hints
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime  # noqa: TC003 - for typing.get_type_hints
from typing import Any, Unpack, cast

import recshuf  # noqa: TC001
from recshuf.api import listen, speak_batches
from recshuf.errors import ConversionError, UsageError
from recshuf.formats import TABLES
from recshuf.job.arguments import list_paths, make_job, parse_place
from recshuf.job.features import SplitFiles
from recshuf.job.job import Epoch
from recshuf.job.options import (
    OPTIONS,
    GatherOptions,
    Inputs,
    Names,
    Options,
    Paths,
    ScatterOptions,
    Size,
    StreamOptions,
    flag_of,
    refuse_unknown,
)
from recshuf.job.report import Progress  # noqa: TC001
from recshuf.piles.epochs import MAX_EPOCH, Reshuffle
from recshuf.records.keys import MAX_PILES
from recshuf.system.memory import choose_allocators
from recshuf.system.units import check_number


def shuffle(
    inputs: Inputs,
    output: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | bool | None = None,
    **options: Unpack[Options],
) -> recshuf.ShuffleReport:
    """Write the records of all inputs in a uniformly random order.

    Parameters
    ----------
    inputs
        Files, directories (searched at any depth) and globs; ``"-"`` means standard input. Also tables that the program
        holds, alone or in a list: of pyarrow, pandas, polars, DuckDB and Hugging Face, and what else has
        ``__arrow_c_stream__``. They are shuffled as if they were Parquet files. A reader can be read once, as standard input.
    output
        A directory of shards if it ends in ``/``, is an existing directory, or an option asks for shards; else
        one file. ``"-"`` means standard output. It must be given: None, the default, is a `UsageError`.
    progress
        True for a display on standard error, or an object that gets passes, record counts and warnings
        (`recshuf.Progress`). Default: none.
    **options
        See `recshuf.Options`.

    Raises
    ------
    UsageError
        When an option is out of range or contradicts another.
    InputError
        When an input cannot be read or does not fit the others.
    ConversionError
        When the output format cannot hold a field or value.
    OutputError
        When the output exists or cannot be written; `DiskFullError` when there is no space, `AlreadyCompleteError` when
        `resume` finds the output complete.
    MemoryLimitError
        When the run cannot fit the memory limit.

    After an exception the output is as it was, unless `verify` has compared one in an object store, which is in place by
    then. A work folder for ``resume`` may be left beside it.
    """
    if output is None:
        raise UsageError('no output; name a file or directory, or give "-" for standard output')
    job = make_job(inputs, output, options)
    if job.options["engine"] == "tasks":
        raise UsageError(
            "--engine tasks: run recshuf task FILE with each number of the plan that is written by "
            "recshuf INPUT... -o OUTPUT --engine tasks --plan --report FILE"
        )
    choose_allocators(job.memory_bytes)
    from recshuf.run.driver import run_job

    with listen(progress) as listener:
        return listener.sign(run_job(job, listener))


def stream(
    inputs: Inputs,
    *,
    progress: Progress | bool | None = None,
    **options: Unpack[StreamOptions],
) -> recshuf.RecordBatchReader:
    """Return a reader of the records of all inputs in a uniformly random order: that of `shuffle` with the same seed.

    The inputs are read before this returns. Their records wait in memory, or, beyond the limit, in files without a name, until
    the reader loads them one part after the other. It frees both at its end and when it is deleted; its `close`, a method of
    pyarrow, does nothing. The process needs no other cleanup.

    Parameters
    ----------
    inputs
        As for `shuffle`.
    progress
        As for `shuffle`.
    **options
        See `recshuf.StreamOptions`.

    Raises what `shuffle` does, and so does reading; what the inputs are to blame for is raised by this function.

    Examples
    --------
    >>> import pyarrow as pa
    >>> reader = stream(pa.table({"a": range(5)}), seed=1)
    >>> reader.read_all()["a"].to_pylist()
    [0, 4, 2, 3, 1]
    """
    refuse_unknown(options, StreamOptions)
    given = cast("Options", options | {"to": TABLES})
    job = replace(make_job(inputs, None, given, needs_local_scratch=True), streams=True)
    choose_allocators(job.memory_bytes)
    import pyarrow

    from recshuf.run.driver import RecordStream

    with ExitStack() as cleanup:
        listener = cleanup.enter_context(listen(progress))
        records = RecordStream(job, listener, cleanup.pop_all())
    return pyarrow.RecordBatchReader.from_batches(records.schema, speak_batches(records))


def scatter(
    inputs: Inputs,
    store: str | os.PathLike[str],
    *,
    split: str | Mapping[str, float | str] | None = None,
    split_by: Names | None = None,
    split_seed: int | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[ScatterOptions],
) -> recshuf.ScatterReport:
    """Write the records of all inputs into a new pile store, from which `gather` writes shuffled files.

    Raises what `shuffle` does. After an exception there is no store.

    Parameters
    ----------
    inputs
        As for `shuffle`.
    store
        Folder of the store, or URL of s3://, gs:// or az://; it must not exist.
    split
        Shares of the records by name, numbers or text such as ``"1/3"``, which add up to 1, or all as one text. Each becomes a store of this name
        in the folder or prefix `store`. Counts are exact, and every choice of so many records is equally likely, unless ``split_by`` is
        given. Inputs whose files do not tell how many records they hold are read twice. Default: one store.
    split_by, split_seed
        As for `shuffle`.
    **options
        See `recshuf.ScatterOptions`.
    """
    refuse_unknown(options, ScatterOptions)
    parts = {"split": split, "split_by": split_by, "split_seed": split_seed}
    job = make_job(inputs, None, cast("Options", options | parts))
    # Parts are stores, and no keys: nothing else of the job is other than that of one store.
    feature, job = job.feature, replace(job, feature=None)
    choose_allocators(job.memory_bytes)
    from recshuf.piles.kept.stored import open_place
    from recshuf.run.stores.new_stores import scatter_split, scatter_store

    place = open_place(parse_place("store", store), job.storage)
    with listen(progress) as listener:
        if isinstance(feature, SplitFiles):
            return listener.sign(scatter_split(job, place, feature, listener))
        return listener.sign(scatter_store(job, place, listener))


def cache_store(
    inputs: Inputs,
    cache: str | os.PathLike[str],
    *,
    progress: Progress | bool | None = None,
    **options: Unpack[ScatterOptions],
) -> Any:
    """Return the store of some inputs in a cache folder; see `PileLoader.from_files`."""
    refuse_unknown(options, ScatterOptions)
    job = make_job(inputs, None, cast("Options", options))
    choose_allocators(job.memory_bytes)
    from recshuf.run.stores.new_stores import find_or_scatter

    with listen(progress) as listener:
        return find_or_scatter(job, parse_place("cache", cache), listener)


def gather(
    store: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    epoch: int = 0,
    reshuffle: Reshuffle = "rotate",
    mix: int = 1,
    progress: Progress | bool | None = None,
    **options: Unpack[GatherOptions],
) -> recshuf.ShuffleReport:
    """Write the records of a pile store in random order, by default the bytes that `shuffle` writes from its inputs.

    Raises what `shuffle` does; a `UsageError` when there is no such store, a `PileError` when it is damaged.

    Parameters
    ----------
    store
        Folder or URL of a store.
    output
        As for `shuffle`.
    epoch, reshuffle, mix
        The order: that of a `PileLoader` with the same arguments. Default: that of `shuffle` with the store's seed.
    **options
        See `recshuf.GatherOptions`.
    """
    refuse_unknown(options, GatherOptions)
    order = Epoch(
        check_number("--epoch", epoch, MAX_EPOCH),
        reshuffle,
        check_number("--mix", mix, MAX_PILES, least=1),
    )
    job = make_job(parse_place("store", store), output, cast("Options", options), needs_local_scratch=True)
    choose_allocators(job.memory_bytes)
    from recshuf.run.driver import run_job

    with listen(progress) as listener:
        try:
            return listener.sign(run_job(replace(job, epoch=order), listener))
        except ConversionError as error:
            if "--columns" not in (error.remedy or ""):
                raise
            # That is no option of this command.
            remedy = "give another --to"
            raise ConversionError(error.field, error.problem, remedy=remedy) from error


def window(
    store: str | os.PathLike[str],
    append: Paths = (),
    *,
    time: float | str | datetime | None = None,
    expire_before: float | str | datetime | None = None,
    keep_records: int | None = None,
    keep_bytes: Size | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[ScatterOptions],
) -> recshuf.PileStore:
    """Append inputs to a pile store as a time slice, and remove old slices, in one step.

    Returns the store at its new snapshot. Raises what `scatter` does. After an exception the store is as it was.

    Parameters
    ----------
    store
        Folder or URL of the store; it must exist.
    append
        Inputs, as for `scatter`. Default: none.
    time
        Time of the slice: seconds since 1970, a datetime, or text such as ``2026-01-31``; UTC. Default: now.
    expire_before, keep_records, keep_bytes
        Remove slices that are older than a time, given as `time` is. Keep the newest slices that together hold at most so
        many records or bytes. Default: keep all. A slice is removed as a whole. Records of `scatter` and `PileWriter` have no
        time, and count as older than all others.
    **options
        See `recshuf.ScatterOptions`.
    """
    paths = list_paths("append", append)
    from recshuf.run.stores.pile_store import PileStore

    refuse_unknown(options, ScatterOptions)
    if time is not None and not paths:
        raise UsageError("--time: is that of what is appended; give --append, too, or --expire-before")
    if not paths and expire_before is None and keep_records is None and keep_bytes is None:
        raise UsageError("nothing to do; give append, expire_before, keep_records or keep_bytes")
    if not paths:
        _refuse_unused(options)
    if keep_records is not None:
        keep_records = check_number("--keep-records", keep_records, sys.maxsize)
    window_store = PileStore(
        parse_place("store", store),
        endpoint_url=options.get("endpoint_url"),
        storage_options=options.get("storage_options"),
    )
    with listen(progress) as listener, window_store.update(listener) as update:
        update.expire(before=expire_before, records=keep_records, bytes=keep_bytes)
        if paths:
            update.append(paths, time=time, **options)
    return window_store


_WITHOUT_INPUTS = ("memory", "workers", "endpoint_url", "storage_options")
"""Options of `window` that say nothing of what is appended; the first two are limits."""


def _refuse_unused(options: Mapping[str, object]) -> None:
    """Refuse options of inputs where none are appended; the command line gives the defaults of others, too."""
    for name, value in options.items():
        if name not in _WITHOUT_INPUTS and _is_given(name, value):
            raise UsageError(f"{flag_of(name)}: is for what is appended; give --append, too, or leave it out")


def _is_given(name: str, value: object) -> bool:
    """Tell whether the value of an option is another one than its default, parsed or not."""
    if value is None or value is False:
        return False
    default = OPTIONS[name].default if name in OPTIONS else None
    return default is None or value not in (
        default,
        OPTIONS[name].parse(default) if isinstance(default, str) else default,
    )


def compact(
    store: str | os.PathLike[str],
    *,
    sets: int = 16,
    progress: Progress | bool | None = None,
    endpoint_url: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> recshuf.PileStore:
    """Write the records of a pile store to fewer sets, which load faster than many small ones.

    Slices of a window that follow each other are joined, and then leave it together. The order of epoch 0 stays the same.
    Later epochs change.

    A store with no more than `sets` sets stays as it is. Returns the store at its newest snapshot.

    Raises
    ------
    UsageError
        When there is no such store.
    PileError
        When it is damaged.
    OutputError
        When it cannot be written, or another process removes records meanwhile.
    """
    from recshuf.piles.kept.place import StorePlace
    from recshuf.piles.kept.upkeep import compact_store
    from recshuf.run.stores.pile_store import PileStore

    sets = check_number("--sets", sets, MAX_PILES, least=1)
    place = store if isinstance(store, StorePlace) else parse_place("store", store)
    before = PileStore(place, endpoint_url=endpoint_url, storage_options=storage_options)
    with listen(progress) as listener:
        listener.start("compact", before.num_records, before.num_bytes)
        compact_store(before.place, sets, listener.advance)
    return PileStore(before.place)


def plan(
    inputs: Inputs,
    output: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | bool | None = None,
    **options: Unpack[Options],
) -> recshuf.Plan:
    """Return what `shuffle` would do with the same arguments: piles, memory, disk, descriptors, shards.

    Reads a part of the inputs, and writes nothing. Raises what `shuffle` does before it reads the inputs.
    """
    from recshuf.run.driver import plan_job

    with listen(progress) as listener:
        return plan_job(make_job(inputs, output, options), listener)


def plan_tasks(
    inputs: Inputs,
    output: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | bool | None = None,
    **options: Unpack[Options],
) -> tuple[recshuf.Plan, dict[str, Any]]:
    """Return the plan of a run whose tasks `run_task` runs, and the run as JSON values."""
    job = make_job(inputs, output, options | {"engine": "tasks"})
    from recshuf.run.saved_plan import save_plan

    with listen(progress) as listener:
        return save_plan(job, listener)


def list_tasks(run: dict[str, Any], stage: str) -> range:
    """Return the numbers of the tasks of a stage of what `plan_tasks` returned: count, scatter, gather or commit."""
    _choose_allocators(run)
    from recshuf.run.saved_plan import list_stage

    return list_stage(run, stage)


def _choose_allocators(run: dict[str, Any]) -> None:
    """Choose allocators before the values of a plan are checked, which imports Arrow."""
    with suppress(LookupError, TypeError):
        choose_allocators(run["options"]["memory"])


def run_task(
    run: dict[str, Any], number: int, *, progress: Progress | bool | None = None
) -> recshuf.ShuffleReport | None:
    """Run one task of what `plan_tasks` returned; the last one returns the report of the run."""
    _choose_allocators(run)
    from recshuf.run.saved_plan import run_saved

    with listen(progress) as listener:
        done = run_saved(run, number, listener)
        return None if done is None else listener.sign(done)
