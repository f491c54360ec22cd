"""The inputs of a run as the process that opened them found them, so that its tasks open only what they read.

It is a pickle in the task folder, if that belongs to the user alone. Its name has the version of recshuf, whose classes it
names; a task of another version opens the inputs itself, and is then refused.
"""

from __future__ import annotations

import errno
import os
import pickle
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from recshuf.output.task_folder import place_file
from recshuf.system.locks import wait_exclusive
from recshuf.system.paths import write_error
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.output.task_folder import TaskFolder
    from recshuf.run.resolve import ResolvedInputs

_NAME = f"inputs-{__version__}.pickle"


def save_inputs(tasks: TaskFolder, inputs: ResolvedInputs) -> None:
    """Keep the inputs of a run, unless they are kept, or cannot be.

    Streams cannot, nor sources of plug-ins that are no pickles, nor anything where others may write.

    Raises
    ------
    OutputError
        When they cannot be written.
    """
    path = tasks.private and tasks.private / _NAME
    if path is None or path.exists() or not all(file.stamp for file in inputs.files):
        return
    with suppress(pickle.PicklingError, TypeError, AttributeError):
        place_file(path, pickle.dumps(inputs))


def load_inputs(tasks: TaskFolder) -> ResolvedInputs | None:
    """Return what `save_inputs` has kept; None if there is nothing.

    Raises
    ------
    OutputError
        When it cannot be read.
    """
    if tasks.private is None:
        return None
    path = tasks.private / _NAME
    try:
        found: ResolvedInputs = pickle.loads(path.read_bytes())  # noqa: S301 # the folder is private
    except FileNotFoundError:
        return None
    except OSError as error:
        raise write_error(error, str(path)) from error
    except Exception as error:
        # What a damaged pickle raises is not known.
        raise write_error(OSError(errno.EIO, "is damaged; delete it"), str(path)) from error
    # The same file may have another inode on another machine.
    known = [file._replace(stamp=file.stamp and file.stamp._replace(inode=0)) for file in found.files]
    return replace(found, files=known)


@contextmanager
def lock_inputs(tasks: TaskFolder) -> Iterator[None]:
    """Let one process at a time open the inputs, if the others can take what it found."""
    if tasks.private is None:
        yield
        return
    descriptor = wait_exclusive(tasks.private / "inputs.lock")
    try:
        yield
    finally:
        os.close(descriptor)
