"""All errors that recshuf raises, with one base class."""

from __future__ import annotations

import errno
import signal


class RecshufError(Exception):
    """Base class. The message is one line: what happened, where, and what to do.

    Each can be made of its message alone: PyTorch's workers send no more than that, and pickle makes it so before it sets the
    attributes.
    """

    def __str__(self) -> str:
        """Return the message, also where `OSError` would add an error number."""
        return str(self.args[0]) if self.args else ""


class UsageError(RecshufError, ValueError):
    """Invalid or contradictory arguments; the command line exits with 2."""


class UnknownOptionError(UsageError, TypeError):
    """An argument that a function does not have."""


class MissingStoreError(UsageError, FileNotFoundError):
    """A pile store that does not exist."""

    errno = errno.ENOENT


class MissingRecordError(UsageError, IndexError):
    """A record that a store does not hold."""


class UsedNameError(UsageError):
    """The name of pile sets that a store has already."""


class InputError(RecshufError, ValueError):
    """An input that is missing, unreadable, of the wrong format, truncated, or does not fit the others.

    Parameters
    ----------
    name
        Path of the input, or ``standard input``.
    problem
        What is wrong, in half a sentence.
    place
        Position in the input: ``"row 17"``, ``"byte 4096"``, ``"line 3"``, ``"field 'a.b'"``.
    remedy
        What the user can do, in half a sentence.
    record_bytes
        Of a record that is too long: its size, or if that is unknown twice the limit.
    """

    def __init__(
        self,
        name: str,
        problem: str | None = None,
        *,
        place: str | None = None,
        remedy: str | None = None,
        record_bytes: int = 0,
    ) -> None:
        if problem is None:
            name, problem = "", name
        self.name = name
        self.problem = problem
        self.place = place
        self.remedy = remedy
        self.record_bytes = record_bytes
        super().__init__(self.reason + (f"; {remedy}" if remedy else ""))

    @property
    def reason(self) -> str:
        """The message without the remedy, for a caller that knows another one."""
        return ": ".join(part for part in (self.name, self.place, self.problem) if part)

    @classmethod
    def of_system(
        cls, error: OSError, name: str, problem: str | None = None, *, remedy: str | None = None
    ) -> InputError:
        """Return the error for a failed call of the operating system, also of the built-in kind of `error`.

        Parameters
        ----------
        problem
            Default: the system's message.
        remedy
            Default: one where this user may not read it.
        """
        kinds = (MissingInputError, ForbiddenInputError, DirectoryInputError)
        # Libraries raise `OSError` without a number for what is wrong in a file.
        other = UnavailableInputError if error.errno else InputError
        kind: type[InputError] = next((kind for kind in kinds if kind.errno == error.errno), other)
        if kind is ForbiddenInputError:
            remedy = remedy or "give this user the right to read it"
        return kind(name, problem or error.strerror or str(error), remedy=remedy)


class BadRecordError(InputError):
    """A record that cannot be decoded, whatever the others hold; a line that may be set aside."""


class MissingInputError(InputError, FileNotFoundError):
    """An input that does not exist."""

    errno = errno.ENOENT


class UnavailableInputError(InputError):
    """An input that its store, the network or the system does not give, which may pass: nothing is known to be wrong in it."""


class ForbiddenInputError(UnavailableInputError, PermissionError):
    """An input that this user may not read."""

    errno = errno.EACCES


class DirectoryInputError(InputError, IsADirectoryError):
    """A directory in place of a file."""

    errno = errno.EISDIR


class ConversionError(RecshufError, TypeError):
    """A field or a value that the output format cannot hold.

    `field` is its path, with dots between its parts; empty for the records as a whole. The others are as in an `InputError`.
    """

    def __init__(self, field: str, problem: str | None = None, *, remedy: str | None = None) -> None:
        if problem is None:
            field, problem = "", field
        self.field = field
        self.problem = problem
        self.remedy = remedy
        super().__init__(self.reason + (f"; {remedy}" if remedy else ""))

    @property
    def reason(self) -> str:
        """As that of an `InputError`."""
        return f"field {self.field!r}: {self.problem}" if self.field else self.problem


class OutputError(RecshufError, OSError):
    """An output that exists, cannot be created, or cannot be written."""


class OutputExistsError(OutputError, FileExistsError):
    """An output that exists and may not be replaced."""

    errno = errno.EEXIST


class ForeignFileError(OutputExistsError):
    """A directory for shards that holds something that no run has written."""


class UnfinishedOutputError(OutputError):
    """A directory for shards that a run was putting in place when it died."""


class MissingFolderError(OutputError, FileNotFoundError):
    """A folder to write in that does not exist."""

    errno = errno.ENOENT


class MissingBucketError(OutputError, FileNotFoundError):
    """A bucket to write in that does not exist."""

    errno = errno.ENOENT


class ForbiddenOutputError(OutputError, PermissionError):
    """An output that this user may not write."""

    errno = errno.EACCES


class BusyNameError(OutputError):
    """The name of pile sets that another process writes."""


class AlreadyCompleteError(OutputExistsError):
    """An output that ``--resume`` would continue exists, and no unfinished run of it is left."""


class DiskFullError(OutputError):
    """No space left while writing; the message names the folder and the option that moves it."""

    errno = errno.ENOSPC


class MemoryLimitError(RecshufError, MemoryError):
    """The memory limit is too small; the message names the need, the limit and the option."""

    least_bytes = 0
    """The least limit with which it would not be raised, if that is known."""


class PileError(RecshufError, RuntimeError):
    """Spilled data is damaged or missing."""


class DamagedSetError(PileError):
    """A pile set that does not read back as it was written.

    `name` is its path or URL. The others are as in an `InputError`.
    """

    def __init__(self, name: str, problem: str = "", remedy: str = "") -> None:
        self.name = name
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{name}: {problem}; {remedy}" if problem else name)


class CheckError(RecshufError, RuntimeError):
    """A pass lost or changed records: a fault of recshuf, a library, or the machine."""


class EngineError(RecshufError, RuntimeError):
    """The engine that runs the tasks of a run has failed."""


class RecshufWarning(UserWarning):
    """What a run says without ending: something was left out, taken for another thing, or is done again."""


class SchemaMismatch(Exception):  # noqa: N818 - no failure of its own
    """A record does not fit the schema inferred from a prefix, so all must be observed. Never reaches the user."""


class Stopped(Exception):  # noqa: N818 - no failure of its own
    """Another thread failed or the run was interrupted, so this thread stops. Never reaches the user."""


class Interrupted(KeyboardInterrupt):
    """A signal of this number, to end the process. Only the command line raises it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.deadline: float | None = None
        """Until when, by the monotonic clock, the clean-up may wait for others; None before it does."""
        super().__init__(signal.Signals(number).name)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the number in place of the message."""
        return type(self), (self.number,), self.__dict__
