"""Pass 1 into several stores: a split of the inputs, such as one to train on and one to validate on."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from recshuf.errors import CheckError, OutputError, OutputExistsError, RecshufError, UsageError
from recshuf.piles.division import SplitStore
from recshuf.piles.kept.folder import StoreFolder, refuse_in_store
from recshuf.records.key_makers import find_deviation
from recshuf.records.split import Split, apportion
from recshuf.records.value_keys import PartFinder, PlacedParts, ValueParts
from recshuf.run.features import count_records, open_fields, require_files
from recshuf.run.inputs import Inputs, list_inputs
from recshuf.run.resolve import find_limits, resolve_inputs
from recshuf.run.stores.scatter_store import (
    SCATTER_NAME,
    Part,
    describe_scatter,
    fill_snapshot,
    make_part,
    scatter_sets,
)
from recshuf.storage import Url
from recshuf.system.files import sync
from recshuf.system.locks import lock_folder
from recshuf.system.paths import naming_errors, real_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from recshuf.job.features import SplitFiles
    from recshuf.job.job import Job
    from recshuf.job.report import Progress, ScatterReport
    from recshuf.piles.kept.bucket import StoreBucket
    from recshuf.piles.kept.place import StorePlace
    from recshuf.run.stores.scatter_store import ScatteredSets
    from recshuf.storage import StorageOptions


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
