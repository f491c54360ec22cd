"""The inputs of a job: which files and objects they are, without those of its own output; and as tasks take them.

What a process has opened is a pickle in the task folder, if that belongs to the user alone, so that tasks open only what they
read. Its name has the version of recshuf, whose classes it names; a task of another version opens the inputs itself, and is then
refused. Storage options are left out: they may be secrets, and each task has its own.
"""

from __future__ import annotations

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

import xxhash

from recshuf.dataclass import dataclass
from recshuf.errors import InputError, UsageError
from recshuf.formats.folders import NameRules
from recshuf.interfaces import InputFile, Source
from recshuf.output.local.log import read_own
from recshuf.storage.reading.listing import InputLister, find_pattern, leave_out_output
from recshuf.storage.reading.local import name_stdin
from recshuf.storage.reading.objects import Stores
from recshuf.storage.settings import StorageOptions
from recshuf.storage.urls import is_url
from recshuf.system.files import find_descriptor, place_file
from recshuf.system.locks import wait_exclusive
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.job.job import Job
    from recshuf.job.plan import InputSizes
    from recshuf.job.report import Progress
    from recshuf.output.run_log import TaskResults
    from recshuf.output.stage import Destination
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
        _warn_of_next_run(job, destination, files, progress)
        return files
    progress.warn(
        f"{destination.name}: passed over {passed_over} of the inputs found, since this is the output"
    )
    return others


def _refuse_store(name: str, job: Job) -> None:
    from recshuf.piles.kept.places import is_store  # most inputs are files

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


def _warn_of_next_run(job: Job, destination: Destination, files: list[InputFile], progress: Progress) -> None:
    """Warn of an output that a later run on the same inputs would find among them."""
    output = destination.name
    if destination.is_stream:
        return
    named = set(job.inputs)
    single = {file.name for file in files if file.name in named}
    patterns = [name for name in job.inputs if name not in single]
    pattern = find_pattern(patterns, output, is_directory=destination.is_directory)
    if pattern is not None:
        progress.warn(
            f"{output}: lies in the input {pattern}, and a later run on that reads it too; choose an "
            "output elsewhere"
        )


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
