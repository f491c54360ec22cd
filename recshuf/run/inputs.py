"""The inputs of a job: which files and objects they are, without those of its own output; as tasks take them; those of a pile store.

What a process has opened is a pickle in the task folder, if that belongs to the user alone, so that tasks open only what they
read. Its name has the version of recshuf, whose classes it names; a task of another version opens the inputs itself, and is then
refused. Storage options are left out: they may be secrets, and each task has its own.
"""

from __future__ import annotations

import glob
import io
import os
import pickle
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import PurePath
from shlex import quote
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from recshuf.dataclass import dataclass
from recshuf.errors import InputError, UsageError
from recshuf.formats.folders import NameRules
from recshuf.formats.stored import StoredSource
from recshuf.interfaces import Decoder, FieldAdder, Fragment, InputFile, InputSummary, Source
from recshuf.job.planner import take_census
from recshuf.output.local.log import read_own
from recshuf.piles.layout import PileLayout
from recshuf.records.digests import InputCount, InputCounts
from recshuf.records.provenance import PROVENANCE_BYTES
from recshuf.storage import StorageOptions, is_url
from recshuf.storage.reading import InputLister, leave_out_output
from recshuf.storage.reading.local import is_hidden, name_stdin, real_names
from recshuf.storage.reading.objects import Stores
from recshuf.system.files import find_descriptor, place_file, wait_exclusive
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from recshuf.job.job import Job
    from recshuf.job.plan import InputSizes
    from recshuf.job.report import Progress
    from recshuf.output import Destination
    from recshuf.output.run_log import TaskResults
    from recshuf.piles.kept.stored import StoredPiles


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a job, opened."""

    format: str
    files: list[InputFile]
    source: Source
    sizes: InputSizes
    drop_page_cache: bool
    """Whether the page cache cannot hold all files of the run, so that finished files are dropped from it."""
    counts: tuple[int, ...] | None = None
    """Number of records of each input; None unless the run needs it before it reads them."""
    stored: StoredPiles | None = None
    """The piles of a store that holds the records; None if they are read from the files."""


def list_inputs(job: Job, destination: Destination | None, progress: Progress) -> list[InputFile]:
    """Return the inputs of a job. Files of its output, if it has one, are left out, unless there are no others."""
    if job.reads_stdin:
        stdin = job.options.get("stdin")
        files = [InputFile("standard input", None, stdin) if stdin else name_stdin()]
        _refuse_own_output(job, files)
        return files

    for name in job.inputs:
        if os.path.isdir(name):  # noqa: PTH112 - false in a folder that may not be read, where Path raises
            _refuse_store(name, job)
    stores = Stores(job.storage, job.memory_bytes, job.workers, progress.warn)
    lister = InputLister(
        NameRules(job.options["format"], job.options["schema"], job.read), progress.warn, stores
    )
    try:
        files = lister.list_all(job.inputs)
    except InputError:
        for name in filter(is_url, job.inputs):  # asked only here, since it takes a request
            _refuse_store(name, job)
        raise
    _refuse_own_output(job, files)
    _tell_repeated(files, progress)
    _hint_at_directory(destination, files, progress)
    if destination is None:
        return files
    others = leave_out_output(files, job.inputs, destination.name)
    passed_over = len(files) - len(others)
    if not passed_over or not others:
        _warn_of_next_run(job, destination.name, progress)
        return files
    progress.warn(
        f"{destination.name}: passed over {passed_over} of the inputs found, since this is the output"
    )
    return others


def _refuse_store(name: str, job: Job) -> None:
    from recshuf.piles.kept.stored import is_store  # most inputs are files

    if is_store(name, job.storage):
        raise UsageError(f"{name}: is a pile store; write it with recshuf gather {quote(name)} -o OUTPUT")


def _refuse_own_output(job: Job, files: list[InputFile]) -> None:
    """Refuse an input that standard output is written to, which a shell has emptied or would append to."""
    descriptor = find_descriptor(sys.stdout)
    if not job.writes_stdout or job.options.get("stdout") or descriptor is None:
        return
    target = os.fstat(descriptor)
    for file in files:
        if file.path is None or file.stamp is None or file.stamp.inode != target.st_ino:
            continue
        if os.path.samestat(file.path.stat(), target):
            raise UsageError(
                f"{file.name} is also standard output, and > and >> change a file before it is read; give another file"
            )


def _tell_repeated(files: list[InputFile], progress: Progress) -> None:
    """Warn of files that were named twice, also by other paths; hard links are other files."""
    stamps = Counter(file.stamp for file in files)
    alike = [file for file in files if file.stamp is not None and stamps[file.stamp] > 1]
    paths = [file.name if file.path is None else os.path.realpath(file.path) for file in alike]
    repeated = [path for path, count in Counter(paths).items() if count > 1]
    if repeated:
        name = alike[paths.index(repeated[0])].name
        more = f" and {len(repeated) - 1:,} more are" if len(repeated) > 1 else " is"
        progress.warn(f"{name}{more} given more than once, and so are the records")


def _hint_at_directory(destination: Destination | None, files: list[InputFile], progress: Progress) -> None:
    if destination is None or destination.is_directory or destination.is_stream:
        return
    if len(files) > 1 and not PurePath(destination.name).suffix:
        progress.warn(
            f"{destination.name}: this is one file without a suffix; for a directory of shards, give {destination.name}/"
        )


def _warn_of_next_run(job: Job, output: str, progress: Progress) -> None:
    """Warn of an output in a folder, below a prefix or in a pattern that is an input: a later run on that would find it there."""
    target, *roots = real_names([output, *job.inputs])
    for name, root in zip(job.inputs, roots, strict=True):
        below = target.removeprefix(root.rstrip("/") + "/")
        if glob.has_magic(name) and PurePath(target).match(root):
            below = PurePath(target).name
        if below != target and not any(map(is_hidden, below.split("/"))):
            progress.warn(
                f"{output}: lies in the input {name}, and a later run on that reads it too; choose an output elsewhere"
            )
            return


_NAME = f"inputs-{__version__}.pickle"


def save_inputs(tasks: TaskResults, inputs: Inputs) -> None:
    """Keep the inputs of a run, unless they are kept, or cannot be.

    Streams cannot, nor sources of plug-ins that are no pickles, nor anything where others may write.
    """
    path = tasks.private and tasks.private / _NAME
    if path is None or path.exists() or not all(file.stamp for file in inputs.files):
        return
    with suppress(pickle.PicklingError, TypeError, AttributeError):
        content = io.BytesIO()
        _InputPickler(content).dump(inputs)
        place_file(path, xxhash.xxh3_64_digest(content.getvalue()) + content.getvalue())


def load_inputs(tasks: TaskResults, storage: StorageOptions) -> Inputs | None:
    """Return what `save_inputs` has kept; None if there is nothing. `storage` is for inputs in object stores."""
    if tasks.private is None:
        return None
    found: Inputs | None = read_own(
        tasks.private / _NAME, lambda content: _InputUnpickler(_unseal(content), storage).load()
    )
    # The same file may have another inode on another machine.
    return found and replace(found, files=[_forget_inode(file) for file in found.files])


def _unseal(content: bytes) -> bytes:
    """Return what follows its checksum."""
    checksum, packed = content[:8], content[8:]
    if checksum != xxhash.xxh3_64_digest(packed):
        raise ValueError("the checksum differs")
    return packed


def _forget_inode(file: InputFile) -> InputFile:
    companions = tuple(map(_forget_inode, file.companions))
    return file._replace(stamp=file.stamp and file.stamp._replace(inode=0), companions=companions)


class _InputPickler(pickle.Pickler):
    """Leaves out storage options."""

    def persistent_id(self, value: object) -> str | None:
        return "storage" if isinstance(value, StorageOptions) else None


class _InputUnpickler(pickle.Unpickler):
    """Puts storage options in their place. Its bytes are from a folder that only the user can write."""

    def __init__(self, content: bytes, storage: StorageOptions) -> None:
        super().__init__(io.BytesIO(content))
        self._storage = storage

    def persistent_load(self, _: object) -> StorageOptions:
        return self._storage


@contextmanager
def lock_inputs(tasks: TaskResults) -> Iterator[None]:
    """Let one process at a time open the inputs, if the others can take what it found."""
    if tasks.private is None:
        yield
        return
    descriptor = wait_exclusive(tasks.private / "inputs.lock")
    try:
        yield
    finally:
        os.close(descriptor)


# The records of a pile store in place of inputs


def open_stored(piles: StoredPiles) -> tuple[Inputs, PileLayout]:
    """Return the sources of a store as inputs, and how their records are divided."""
    origin = piles.info.origin or {}
    names = piles.sources
    sizes = [*origin.get("file_bytes", []), *[None] * len(names)]
    counts, sets = _list_sources(piles, len(names))
    inputs = [
        InputSummary(name, size, one.digest.records, True, one.byte_count)
        for name, size, one in zip(names, sizes, counts, strict=False)
    ]
    source = StoredSource(piles.schema, piles.info.origin, inputs)
    resolved = Inputs(
        source.format_name,
        [_identify(piles)],
        source,
        take_census(source.inputs, PROVENANCE_BYTES),
        drop_page_cache=False,
        stored=piles,
    )
    return resolved, PileLayout(piles.info.pile_count, tuple(sets))


def open_records(piles: StoredPiles) -> Inputs:
    """Return the records of a store as one input, which gets keys like any other. Their order is that of sets and piles."""
    inputs = [InputSummary(name, None, None, False, None) for name in piles.sources]
    stored = StoredSource(piles.schema, piles.info.origin, inputs)
    source = PileSource(stored, piles)
    sizes = take_census(source.inputs)
    return Inputs(stored.format_name, [_identify(piles)], source, sizes, drop_page_cache=False)


def _identify(piles: StoredPiles) -> InputFile:
    return InputFile(f"{piles.path}, snapshot {piles.snapshot} of store {piles.store_id}", None)


def _list_sources(piles: StoredPiles, count: int) -> tuple[list[InputCount], list[int]]:
    """Return the counts of each source, and its set."""
    counts = InputCounts(count)
    sets = [0] * count
    for set_index, (base, description) in enumerate(piles.descriptions):
        for index, one in description.counts.items():
            # A large input is in several sets.
            counts.put(base + index, counts[base + index] + one)
            sets[base + index] = set_index
    return [*counts.take(slice(None))], sets


class PileSource(Source):
    """The records of a store, whose sources are `stored`, as a single input, read from its piles."""

    def __init__(self, stored: Source, piles: StoredPiles) -> None:
        self._stored = stored
        self._piles = piles
        self.schema, self.layout = stored.schema, stored.layout
        self.options, self.repeated, self.metadata = stored.options, stored.repeated, stored.metadata
        count, size = piles.record_count, int(piles.byte_counts.sum())
        self.inputs = (InputSummary(str(piles.path), None, count, True, size),)
        self.is_from_program = piles.info.origin is None

    def fragments(self, _input_index: int, block_bytes: int, _max_record_bytes: int) -> Iterator[Fragment]:
        """Yield the regions of the store."""
        for set_index, pile in np.argwhere(self._piles.counts).tolist():
            yield _Region(self._piles, (set_index, pile), block_bytes)

    def reading_bytes(self, _: int) -> int:
        """Return the memory of the largest region and of what it is read from."""
        return 2 * int(self._piles.byte_counts.max(initial=0))

    def decoder(self) -> Decoder:
        return self._stored.decoder()

    def field_adder(self, names: Sequence[str]) -> FieldAdder | None:
        return self._stored.field_adder(names)


class _Region(Fragment):
    """The records of a region, set and pile, without provenance."""

    def __init__(self, piles: StoredPiles, region: tuple[int, int], block_bytes: int) -> None:
        self.record_count = int(piles.counts[region])
        self._piles = piles
        self._region = region
        self._block_bytes = block_bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        records = self._piles.load([self._region])
        batch = records.batch.select(range(records.batch.num_columns - 1))
        rows = max(1, self._block_bytes * batch.num_rows // max(1, int(batch.nbytes)))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)
