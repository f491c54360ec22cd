"""Errors of the operating system while shards are written, as users are told of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from recshuf.errors import RecshufError
from recshuf.system.paths import write_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from recshuf.run.resolving.resolve import ResolvedJob


@contextmanager
def name_output(resolved: ResolvedJob, folder: Path | None) -> Iterator[None]:
    """Have errors of the operating system name the output.

    Parameters
    ----------
    folder
        Where shards are written; None for a stream.

    Raises
    ------
    OutputError
        In place of an `OSError`. A `BrokenPipeError` stays: the reader has closed the pipe, which is no failure.
    """
    try:
        yield
    except (BrokenPipeError, RecshufError):
        raise
    except OSError as error:
        needed = resolved.plan.peak_disk_bytes
        raise write_error(error, resolved.output.name, folder, needed) from error
