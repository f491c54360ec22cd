"""Every error that recshuf raises on purpose: one root, and the kinds a caller can tell apart."""

from __future__ import annotations

import signal


class RecshufError(Exception):
    """Root of all errors that carry a message meant for the user: one line of what, where and what to do."""


class UsageError(RecshufError, ValueError):
    """Arguments that contradict each other or cannot be meant; the command line exits with 2."""


class InputError(RecshufError, ValueError):
    """An input that is missing, unreadable, of the wrong format, truncated, or does not fit the others.

    Parameters
    ----------
    name
        The input as the user knows it: its path, or ``standard input``.
    problem
        What is wrong, in half a sentence.
    place
        Where in the input: ``"row 17"``, ``"byte 4096"``, ``"line 3"``, ``"field 'a.b'"``.
    remedy
        What the user can do, in half a sentence.
    """

    def __init__(
        self, name: str, problem: str, *, place: str | None = None, remedy: str | None = None
    ) -> None:
        self.name = name
        self.problem = problem
        self.place = place
        self.remedy = remedy
        where = f"{name}: {place}" if place else name
        super().__init__(f"{where}: {problem}" + (f"; {remedy}" if remedy else ""))


class ConversionError(RecshufError, TypeError):
    """A field or a value that the output format cannot hold.

    Parameters
    ----------
    field
        Path of the field, parts joined by dots.
    problem
        What cannot be held, in half a sentence.
    remedy
        What the user can do, in half a sentence.
    """

    def __init__(self, field: str, problem: str, *, remedy: str | None = None) -> None:
        self.field = field
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"field {field!r}: {problem}" + (f"; {remedy}" if remedy else ""))


class OutputError(RecshufError, OSError):
    """An output that exists, cannot be created, or cannot be written."""


class DiskFullError(OutputError):
    """No space left while writing; the message names the folder and the option that moves it."""


class MemoryLimitError(RecshufError, MemoryError):
    """The run cannot fit into the memory limit; the message names both numbers and the option."""


class PileError(RecshufError, RuntimeError):
    """Spilled data that does not read back as it was written."""


class CheckError(RecshufError, RuntimeError):
    """A run whose passes did not pass on what they were given: a fault of recshuf, a library, or the machine."""


class SchemaMismatch(Exception):  # noqa: N818 - no failure of its own
    """A record does not fit the schema inferred from the first ones: all must be observed. Never reaches the user."""


class Stopped(Exception):  # noqa: N818 - no failure of its own
    """Another thread failed or the run was interrupted: drop what you do. Never reaches the user."""


class Interrupted(KeyboardInterrupt):
    """A signal has asked this process to end. Only the command line raises it, and then ends the process.

    Parameters
    ----------
    number
        Of the signal.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)
