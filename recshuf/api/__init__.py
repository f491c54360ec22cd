"""The public functions, from arguments to jobs, and from jobs to runs."""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from recshuf.errors import RecshufError, UsageError
from recshuf.job.options import to_keywords
from recshuf.job.report import Progress, SilentProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


P = ParamSpec("P")
R = TypeVar("R")


def speak_python(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function as a public one, whose errors and notes name its arguments in place of the command's flags."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, RecshufError):
                error.args = (to_keywords(str(error)),)
            if notes := getattr(error, "__notes__", None):
                notes[:] = map(to_keywords, notes)
            raise

    call.__module__ = "recshuf"  # where pickle finds it
    return call


@contextmanager
def listen(progress: Progress | bool | None) -> Iterator[Progress]:
    """Yield a listener, by default a silent one, and stop it at the end."""
    listener: Progress
    if progress is True:
        from recshuf.audit.reports.terminal import open_terminal

        listener = open_terminal()
    elif progress is None or progress is False:
        listener = SilentProgress()
    elif isinstance(progress, Progress):
        listener = progress
    else:
        raise UsageError("progress: give True, False, or an object with start, advance, warn and stop")
    try:
        yield listener
    finally:
        listener.stop()
