"""The inputs of a run as the process that opened them found them, so that its tasks open only what they read.

It is a pickle in the task folder, if that belongs to the user alone. Its name has the version of recshuf, whose classes it
names; a task of another version opens the inputs itself, and is then refused. Storage options are left out: they may be
secrets, and each task has its own.
"""

from __future__ import annotations

import io
import os
import pickle
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from recshuf.errors import OutputError
from recshuf.storage.settings import StorageOptions
from recshuf.system.atomic import place_file
from recshuf.system.locks import wait_exclusive
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.interfaces import InputFile
    from recshuf.output.run_log import TaskResults
    from recshuf.run.inputs import Inputs


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
        place_file(path, content.getvalue())


def load_inputs(tasks: TaskResults, storage: StorageOptions) -> Inputs | None:
    """Return what `save_inputs` has kept; None if there is nothing.

    Parameters
    ----------
    storage
        How to reach inputs in object stores.
    """
    if tasks.private is None:
        return None
    path = tasks.private / _NAME
    try:
        found: Inputs = _InputUnpickler(path.read_bytes(), storage).load()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be read: {error.strerror}; make it readable, or delete it"
        ) from error
    except Exception as error:
        # What a damaged pickle raises is not known.
        raise OutputError(f"{path}: is damaged; delete it") from error
    # The same file may have another inode on another machine.
    return replace(found, files=[_forget_inode(file) for file in found.files])


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
