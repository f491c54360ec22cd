"""Stores of inputs in a cache folder: made once, and taken as long as inputs, options and versions are the same.

A store is named by what its inputs have in common, a hash of their names, and a hash of all that decides its content.
Beside it lies a file whose lock is held while it is made.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import xxhash

from recshuf.errors import BusyNameError, InputError, OutputError, OutputExistsError, UsageError
from recshuf.interfaces import InputFile, Stamp
from recshuf.job.options import describe_options
from recshuf.piles.kept.places import open_place
from recshuf.piles.kept.snapshots import STORE_VERSION
from recshuf.records.keys import ORDER_VERSION
from recshuf.run.inputs import list_inputs
from recshuf.run.stores.scatter_store import scatter_store
from recshuf.system.locks import wait_exclusive
from recshuf.system.paths import choose_temp_dir, naming_errors
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from recshuf.job.job import Job
    from recshuf.job.report import Progress
    from recshuf.piles.kept.place import StorePlace


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
