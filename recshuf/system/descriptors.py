"""The number of files that a process may have open."""

from __future__ import annotations

import errno
import resource
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def open_more(open_file: Callable[[], T]) -> T:
    """Return what a function opens. If too many files are open, the soft limit is raised to the hard one first.

    Raises
    ------
    OSError
        When it cannot be opened.
    """
    try:
        return open_file()
    except OSError as error:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if error.errno != errno.EMFILE or soft == hard:
            raise
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return open_file()
