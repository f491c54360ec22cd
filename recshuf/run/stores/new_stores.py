"""New stores: that of some inputs, those of a split, such as one to train on and one to validate on, and those in a cache folder.

A store in a cache is made once, and taken as long as inputs, options and versions are the same. It is named by what its inputs have
in common, a hash of their names, and a hash of all that decides its content. Beside it lies a file whose lock is held while it is made.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, cast

import xxhash

from recshuf.errors import (
    BusyNameError,
    CheckError,
    InputError,
    OutputError,
    OutputExistsError,
    RecshufError,
    UsageError,
    UsedNameError,
)
from recshuf.interfaces import InputFile, Stamp
from recshuf.job.options import describe_options
from recshuf.piles.kept.folder import StoreFolder, refuse_in_store
from recshuf.piles.kept.snapshots import STORE_VERSION
from recshuf.piles.kept.stored import open_place
from recshuf.piles.regions import SplitStore
from recshuf.records.key_makers import find_deviation
from recshuf.records.keys import ORDER_VERSION, Split, apportion
from recshuf.records.value_keys import PartFinder, PlacedParts, ValueParts
from recshuf.run.features import count_records, open_fields, require_files
from recshuf.run.inputs import Inputs, list_inputs
from recshuf.run.resolve import find_limits, resolve_inputs
from recshuf.run.stores.scatter_store import (
    SCATTER_NAME,
    Part,
    ScatteredSets,
    describe_scatter,
    fill_snapshot,
    make_part,
    scatter_sets,
)
from recshuf.storage import Url
from recshuf.system.files import lock_folder, sync, wait_exclusive
from recshuf.system.paths import choose_temp_dir, naming_errors, real_path
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from recshuf.job.features import SplitFiles
    from recshuf.job.job import Job
    from recshuf.job.report import Progress, ScatterReport
    from recshuf.piles.kept.bucket import StoreBucket
    from recshuf.piles.kept.place import StorePlace
    from recshuf.storage import StorageOptions


def scatter_store(job: Job, place: StorePlace, progress: Progress) -> ScatterReport:
    """Scatter the inputs of a job into a new store.

    On an error nothing of it can be seen.
    """
    started = time.perf_counter()
    if place.find() is not None:
        raise _explain_existing(place.name)
    place.check_free()
    inputs = resolve_inputs(job, list_inputs(job, None, progress), progress)
    part = make_part(job, inputs, job.options["seed"], place)
    first = part.snapshot
    try:
        with place.hold_name(SCATTER_NAME), ExitStack() as cleanup:
            (made,) = scatter_sets(job, inputs, [part], SCATTER_NAME, (), progress, cleanup)
            found = place.create(fill_snapshot(first, made, job))
            made.settle()
    except UsedNameError:  # another process has made it meanwhile
        raise _explain_existing(place.name) from None
    if found.store != first.store:
        raise OutputExistsError(
            f"{place.name}: another process made a pile store of this name; choose another name"
        )
    return describe_scatter(place.name, found, made, time.perf_counter() - started)


def _explain_existing(store: str) -> OutputExistsError:
    return OutputExistsError(
        f"{store}: is a pile store already; choose another name, or delete it with recshuf store drop {quote(store)}"
    )


# Those of a split


def scatter_split(job: Job, place: StorePlace, feature: SplitFiles, progress: Progress) -> ScatterReport:
    """Scatter the inputs of a job into new stores, the folders in a place, or prefixes, with the names of the parts.

    They appear all at once. On an error nothing of them can be seen.
    """
    started = time.perf_counter()
    _check_free(place)
    files = list_inputs(job, None, progress)
    if job.quarantine is not None:
        raise UsageError("--split and --on-bad-record quarantine: exclude each other; leave one of them out")
    shares = feature.shares
    if feature.counts_records:
        job.require_rereading("--split")
        require_files("--split", files, ", or --split-by")
    inputs = resolve_inputs(job, files, progress)
    seed = secrets.randbits(128) if job.options["seed"] is None else job.options["seed"]
    finder, sizes = _choose_finder(job, feature, inputs, seed, progress)
    hold = (
        _hold_folder(place.path)
        if isinstance(place, StoreFolder)
        else _hold_prefix(cast("StoreBucket", place), job.storage)
    )
    with hold as open_part:
        parts = {
            name: make_part(job, inputs, seed, open_part(name), float(share))
            for name, share in shares.items()
        }
        made = _scatter_parts(job, inputs, [*parts.values()], finder, feature.fields, progress)
        found = [one.counts.record_count for one in made]
        if found != (sizes or found):
            raise CheckError(
                f"scatter: {found} records in the parts of the split, {sizes} planned; run again"
            )
        snapshots = [
            part.place.create(fill_snapshot(part.snapshot, one, job))
            for part, one in zip(parts.values(), made, strict=True)
        ]
    seconds = time.perf_counter() - started
    reports = tuple(
        describe_scatter(f"{place.name}/{name}", snapshot, one, seconds)
        for name, snapshot, one in zip(parts, snapshots, made, strict=True)
    )
    return replace(
        reports[0],
        path=place.name,
        deviation=None,
        records=sum(found),
        byte_count=sum(one.byte_count for one in reports),
        pile_count=sum(one.pile_count for one in reports),
        set_count=sum(one.set_count for one in reports),
        inputs=tuple(
            replace(one, records=sum(part.inputs[index].records for part in reports))
            for index, one in enumerate(reports[0].inputs)
        ),
        parts=reports,
    )


def _choose_finder(
    job: Job, feature: SplitFiles, inputs: Inputs, seed: int, progress: Progress
) -> tuple[PartFinder, list[int] | None]:
    """Return what tells the part of records, and how many each part has; None if only reading tells."""
    shares = tuple(feature.shares.values())
    if feature.fields:
        reader = open_fields("--split-by", feature.fields, inputs)
        return ValueParts(reader, feature.seed, shares), None
    counts = count_records(inputs, find_limits(job), progress)
    sizes = apportion(sum(counts), shares)
    return PlacedParts(Split.find(seed, counts, sizes)), sizes


def _check_free(place: StorePlace) -> None:
    """Raise an `OutputError` if there is anything where the new stores go."""
    other = "prefix, or delete what is there"
    if isinstance(place, StoreFolder):
        refuse_in_store(place.path)
        other = "folder, or delete it"
    elif cast("StoreBucket", place).list_parts():
        from recshuf.piles.kept.bucket import explain_mark  # most stores are folders

        raise explain_mark(place.name, Url.parse(place.name))
    if place.exists():
        raise OutputExistsError(f"{place.name}: exists already; choose another {other}")


@contextmanager
def _hold_folder(path: Path) -> Iterator[Callable[[str], StorePlace]]:
    """Give what returns the place of a new store by its name: in a hidden folder, which is renamed at the end.

    The folder itself is renamed, so that a process that dies after that leaves nothing else.
    """
    target = real_path(path)
    work = target.parent / f".{target.name}.scatter"
    with ExitStack() as cleanup, naming_errors(str(path), target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        cleanup.callback(os.close, lock_folder(work, str(path)))
        for store in list(work.iterdir()):
            StoreFolder(store).check_free()
            shutil.rmtree(store, ignore_errors=True)
        failed = cleanup.enter_context(ExitStack())
        failed.callback(shutil.rmtree, work, ignore_errors=True)
        yield lambda name: StoreFolder(work / name)
        part = next(work.iterdir())
        work.chmod(stat.S_IMODE(part.stat().st_mode))  # that of new folders; a lock's is private
        sync(work)
        work.rename(target)
        failed.pop_all()
        sync(target.parent)


@contextmanager
def _hold_prefix(place: StoreBucket, options: StorageOptions) -> Iterator[Callable[[str], StorePlace]]:
    """Give what returns the place of a new store by its name: below a prefix with a mark.

    While the mark PREFIX/.scatter is there, which PREFIX/NAME/snapshot-000001.json names, none of the stores can be opened; its
    deletion commits all of them.
    """
    from recshuf.piles.kept.bucket import MARK, StoreBucket, StoreRemains, explain_mark
    from recshuf.storage.writing import Conflict, Match

    _check_free(place)
    url, token = Url.parse(place.name), secrets.token_hex(16)
    key = url.join(MARK).key
    try:
        try:
            etag = place.bucket.put(key, token.encode(), Match())
        except Conflict:
            raise explain_mark(place.name, url) from None
        yield lambda name: StoreBucket(url.join(name), options, token)
        if place.bucket.read(key) != (token.encode(), etag):
            raise OutputError(f"{place.name}: another process has deleted it meanwhile; run again")
        place.bucket.delete_if(key, etag)
    except BaseException:
        with suppress(RecshufError):
            there, remains = place.bucket.read(key), StoreRemains(url, options)
            if there is not None and there[0] == token.encode() and remains.find():
                remains.remove()
        raise


def _scatter_parts(
    job: Job,
    inputs: Inputs,
    parts: Sequence[Part],
    finder: PartFinder,
    fields: Sequence[str],
    progress: Progress,
) -> list[ScatteredSets]:
    """Write the records of all parts to pile sets, synced to disk."""
    with ExitStack() as cleanup:
        for part in parts:
            cleanup.enter_context(part.place.hold_name(SCATTER_NAME))
        made = scatter_sets(job, inputs, parts, SCATTER_NAME, (), progress, cleanup, finder)
    store = made[0].store
    assert isinstance(store, SplitStore)  # noqa: S101 - there is a finder
    record_count = sum(one.counts.record_count for one in made)
    for name, count in zip(fields, store.missing.tolist(), strict=False):
        if record_count == count > 0:
            raise UsageError(f"--split-by: no record has a value of {name!r}; name a field that some have")
    if not fields:
        return made
    return [
        replace(one, deviation=find_deviation(part.share, store.squares))
        for part, one in zip(parts, made, strict=True)
    ]


# Those in a cache

_LABEL_BYTES = 60


def find_or_scatter(job: Job, cache: str, progress: Progress) -> StorePlace:
    """Return the store of the inputs of a job, which is made if it is not there. `cache` is a path or a URL.

    One of several processes makes it, and the others wait. If that one dies, another one makes it. Machines that share a
    bucket may all begin; the first one makes it.
    """
    if job.reads_stdin:
        raise UsageError("standard input cannot be read again to find its store; name files")
    if job.holds_tables:
        raise UsageError(
            "the store of tables cannot be found again, as they have no time; scatter them, and open that store"
        )
    name = _name_store(job, progress)
    place = open_place(os.path.join(cache, name), job.storage)  # noqa: PTH118 - it may be a URL
    if not _is_made(place):
        with _locked(place):
            if not _is_made(place):
                _make(job, place, name, progress)
    return place


def _is_made(place: StorePlace) -> bool:
    """Tell whether there is a store; nothing else may be in its place."""
    try:
        if place.find() is not None:
            return True
        place.check_free()
    except OutputError as error:
        # Else a file is in the place of the cache.
        if place.local_path is None or not os.path.lexists(place.local_path):
            raise
        raise OutputError(
            f"{place.name}: is no pile store, and has the name of the one of these inputs; delete it"
        ) from error
    return False


@contextmanager
def _locked(place: StorePlace) -> Iterator[None]:
    """Hold the lock of a store among the processes that share its folder, or this machine."""
    path = place.local_path
    if path is None:
        lock_file = choose_temp_dir(None) / f"recshuf-{_hash(place.name)}.lock"
    else:
        lock_file = path.with_name(path.name + ".lock")
    with naming_errors(place.name, lock_file.parent):
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        lock = wait_exclusive(lock_file)
    try:
        yield
    finally:
        lock_file.unlink(missing_ok=True)
        os.close(lock)


def _make(job: Job, place: StorePlace, name: str, progress: Progress) -> None:
    if place.local_path is not None:
        _warn_of_others(place.local_path, progress)
    try:
        scatter_store(job, place, progress)
    except (BusyNameError, OutputExistsError):
        if place.local_path is not None or not _wait_for(place):
            raise
        return
    if name != _name_store(job, progress):
        place.drop()
        raise InputError(f"{job.inputs[0]}", "the inputs changed while they were read; run again")


_WAITS, _WAIT_SECONDS = 150, 2.0
"""How often and how long to wait for a store that another machine makes in a bucket; it may have died."""


def _wait_for(place: StorePlace) -> bool:
    """Tell whether another machine has made a store within some minutes."""
    for _ in range(_WAITS):
        if place.find() is not None:
            return True
        time.sleep(_WAIT_SECONDS)
    return False


def _name_store(job: Job, progress: Progress) -> str:
    """Return the name of the store of the inputs as they are now."""
    files = list_inputs(job, None, progress)
    names = [file.name for file in files]
    options = describe_options(job) | {
        name: job.options[name] for name in ("format", "seed", "piles", "spill_compression")
    }
    versions = [__version__, ORDER_VERSION, STORE_VERSION]
    states = [[_pack(_find_stamp(one)), one.partitions] for file in files for one in file.files]
    content = [names, states, options, versions]
    return f"{_find_label(names)}-{_hash(names)[:12]}-{_hash(content)[:20]}"


def _find_stamp(file: InputFile) -> Stamp:
    """Return the stamp of an input. One that may change without a trace is refused: its store could not be taken again."""
    if file.stamp is None:
        raise UsageError(
            f"{file.name}: is a stream, which cannot be read again to find its store; name a file, or make a store with "
            "recshuf.scatter"
        )
    if file.stamp == Stamp(file.stamp.size):
        raise UsageError(
            f"{file.name}: nothing tells its versions apart, as the server sends neither ETag nor Last-Modified; "
            "download it, or make a store with recshuf.scatter"
        )
    return file.stamp


def _find_label(names: Sequence[str]) -> str:
    """Return the last part of the path that all inputs share, cut to some bytes. It depends on their names alone."""
    shared = os.path.commonprefix([name.split("/") for name in names])  # noqa: RUF071 - of lists
    part = next((part for part in reversed(shared) if part.strip(".")), "inputs")
    return os.fsencode(re.sub(r"[^\w.-]+", "_", part))[:_LABEL_BYTES].decode(errors="ignore")


def _pack(stamp: Stamp) -> list[object]:
    return [*stamp[:3], *filter(None, stamp[3:])]


def _hash(value: object) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True).encode())


def _warn_of_others(path: Path, progress: Progress) -> None:
    """Name the stores of the same inputs that another state or other options of these have left."""
    prefix = path.name.rpartition("-")[0]
    others = [one for one in sorted(path.parent.iterdir()) if one.name.startswith(prefix) and one.is_dir()]
    if others:
        names = ", ".join(one.name for one in others)
        progress.warn(
            f"{path.parent}: holds other stores of these inputs: {names}; delete those that no training needs with "
            "recshuf store drop"
        )
