"""The public functions, from arguments to jobs, and from jobs to runs."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from recshuf.errors import RecshufError, UsageError
from recshuf.job import options
from recshuf.job.options import fit_remedy, to_keywords
from recshuf.job.report import Progress, PythonWarnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Report = TypeVar("Report", bound=Any)
"""A dataclass with `warnings`."""
_words: ContextVar[Callable[[str], str]] = ContextVar("words", default=str)
"""Puts a message in the words of the caller: flags for the command, arguments for Python."""


def speak_python(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function as a public one, whose errors and notes name its arguments in place of the command's flags."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        words = _words.set(to_keywords)
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, RecshufError):
                error.args = (to_keywords(_fit(error, function)),)
            if notes := getattr(error, "__notes__", None):
                notes[:] = map(to_keywords, notes)
            raise
        finally:
            _words.reset(words)

    call.__module__ = "recshuf"  # where pickle finds it
    return call


def _fit(error: RecshufError, function: Callable[..., object]) -> str:
    """Return the message of an error, without remedies that a function with options does not have."""
    taken = {name: str(each.annotation) for name, each in signature(function).parameters.items()}
    kind = getattr(options, taken.get("options", "").removeprefix("Unpack[").removesuffix("]"), None)
    return str(error) if kind is None else fit_remedy(error, taken, kind)


def speak_batches(batches: Iterator[T]) -> Iterator[T]:
    """Yield batches; errors name arguments, as those of `speak_python` do."""
    try:
        yield from batches
    except RecshufError as error:
        error.args = (to_keywords(str(error)),)
        raise


class Listener:
    """Passes progress on, and keeps the warnings for the report."""

    def __init__(self, progress: Progress) -> None:
        self.start, self.advance, self.stop = progress.start, progress.advance, progress.stop
        self._warn, self.words = progress.warn, _words.get()
        self._warnings: list[str] = []

    def warn(self, message: str) -> None:
        """Show a warning, and keep it."""
        message = self.words(message)
        self._warnings.append(message)
        self._warn(message)

    def sign(self, report: Report) -> Report:
        return replace(report, warnings=tuple(self._warnings))


@contextmanager
def listen(progress: Progress | bool | None) -> Iterator[Listener]:
    """Yield a listener, by default one that issues warnings only, and stop it at the end."""
    listener: Progress
    if progress is True:
        from recshuf.audit.reports.text import open_terminal

        listener = open_terminal()
    elif progress is None or progress is False:
        listener = PythonWarnings()
    elif isinstance(progress, Progress):
        listener = progress
    else:
        raise UsageError("progress: give True, False, or an object with start, advance, warn and stop")
    try:
        yield Listener(listener)
    finally:
        listener.stop()
