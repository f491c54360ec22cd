"""The command line, the only code that prints: its entry point, with signals, error messages and exit codes."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from click.exceptions import Exit
from click.shell_completion import shell_complete

from recshuf.cli.audit_commands import FAILED
from recshuf.cli.commands import commands as group
from recshuf.cli.options import is_verbose
from recshuf.errors import AlreadyCompleteError, Interrupted, RecshufError, UsageError
from recshuf.job.options import find_meant, flag_of
from recshuf.system.paths import write_error
from recshuf.system.units import say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


_COMPLETION_VARIABLE = "_RECSHUF_COMPLETE"
_WRONG_USAGE = 2
_SIGNALLED = 128
"""Plus the number of the signal."""
_COLLECTED_OBJECTS = 20_000


class _WithoutPandas:
    """Keeps pyarrow from importing pandas when it converts NumPy arrays, which takes 0.2 s."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main() -> int:
    """Run the command line of this process, and return its exit code.

    0: success, 1: failure, 2: wrong usage, 3: not uniformly random, 128 + n: stopped by signal n.
    """
    context = None
    try:
        if instruction := os.environ.get(_COMPLETION_VARIABLE):
            return shell_complete(group, {}, "recshuf", _COMPLETION_VARIABLE, instruction)
        with _raising_signals(), group.make_context("recshuf", sys.argv[1:]) as context:
            group.invoke(context)
            if sys.stdout is not None:
                sys.stdout.flush()
    except Exit as done:
        return done.exit_code
    except (Exception, KeyboardInterrupt) as error:
        _discard_output(error)
        return _explain(error, is_verbose(context))
    return 0


def run() -> NoReturn:
    """Run the command line of this process, and end it.

    Skips the clean-up of libraries at exit: it takes time, and that of HDF5 crashes when a file could not be closed.
    """
    # By default, NumPy's linear algebra starts a thread for each core. It is not used.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # The library for hf:// would report each request that it tries again, in lines of its own.
    os.environ.setdefault("HF_HUB_VERBOSITY", "critical")
    sys.meta_path.insert(0, _WithoutPandas())
    # Garbage collections stop all threads, 0.5 s in a run with 4,096 piles. Few objects are in cycles.
    gc.set_threshold(_COLLECTED_OBJECTS)
    # Errors in the destructors of libraries add nothing to the error that is printed.
    # Some libraries print them as uncaught, so both hooks are needed.
    sys.unraisablehook = lambda _: None
    sys.excepthook = lambda *_: None
    try:
        code = main()
    except BaseException:
        traceback.print_exc()
        code = FAILED
    # After a signal, a thread may still be writing to standard output and hold its lock.
    for stream in (sys.stderr,) if code > _SIGNALLED else (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


@contextmanager
def _raising_signals() -> Iterator[None]:
    """Raise `Interrupted` on the first signal to stop; later ones must not cut the clean-up short."""
    came: int | None = None

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal came
        if came is None:
            came = number
            raise Interrupted(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # Ignored signals stay ignored, as under nohup and in background jobs of a script.
    old = {
        number: signal.signal(number, stop)
        for number in numbers
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if came is None or isinstance(error, Interrupted):
            raise
        # The signal's exception may have led to another one: while taking a lock, or in a library that raises its own.
        interrupted = Interrupted(came)
        for note in getattr(error, "__notes__", ()):
            interrupted.add_note(note)
        raise interrupted from error
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _discard_output(error: BaseException) -> None:
    """Drop the buffer of standard output if writing it would fail again or block."""
    if sys.stdout is None:
        return
    try:
        if not isinstance(error, KeyboardInterrupt):
            sys.stdout.flush()
            return
    except (OSError, ValueError):
        pass
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _explain(error: BaseException, verbose: bool | None) -> int:
    """Print an error and its notes, a line each, and return the exit code."""
    if isinstance(error, BrokenPipeError) or isinstance(error.__cause__, BrokenPipeError):
        return _SIGNALLED + signal.SIGPIPE
    if verbose and not isinstance(error, click.ClickException | UsageError | AlreadyCompleteError):
        traceback.print_exception(error)
    code, text = _describe(error, verbose)
    for line in (text, *getattr(error, "__notes__", ())):
        say(line)
    return code


def _describe(error: BaseException, verbose: bool | None) -> tuple[int, str]:
    """Return the exit code for an error, and what to say of it."""
    match error:
        case KeyboardInterrupt():
            number = getattr(error, "number", signal.SIGINT)
            return _SIGNALLED + number, f"stopped by {signal.Signals(number).name}"
        case UsageError():
            return _WRONG_USAGE, f"error: {error}"
        case AlreadyCompleteError():
            return 0, f"{error}"
        case RecshufError():
            return FAILED, f"error: {error}"
        case click.ClickException():
            return error.exit_code, f"error: {_add_remedy(error)}"
        case RuntimeError() if "start new thread" in str(error):
            remedy = "raise its limit of processes (ulimit -u, pids.max) or of addresses (ulimit -v)"
            return FAILED, f"error: the system starts no more threads; {remedy}"
        case MemoryError():
            return FAILED, "error: out of memory; give a lower --memory to spill more to disk"
    from recshuf.formats import find_culprit

    culprit = None
    # One without a number is of no system call, but of a library.
    if isinstance(error, OSError) and (error.errno is not None or not (culprit := find_culprit(error))):
        return FAILED, f"error: {_describe_os_error(error)}"
    hint = "; run again with -v for the traceback" if verbose is False else ""
    what = f"{culprit} has failed" if (culprit := culprit or find_culprit(error)) else "internal error"
    return FAILED, f"{what}: {type(error).__name__}: {error} ({_find_origin(error)}){hint}"


def _add_remedy(error: click.ClickException) -> str:
    """Return the message of an error about the command line; one without a proposal names the help."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        known = {param.name or "" for param in error.ctx.command.get_params(error.ctx)}
        if meant := find_meant(error.option_name.lstrip("-").replace("-", "_"), known):
            return f"No such option {error.option_name!r}; did you mean {flag_of(meant)}?"
        if not error.possibilities:  # click 8.1 words it in another way
            return f"No such option {error.option_name!r}; see {error.ctx.command_path} --help"
    message = error.format_message()
    if not isinstance(error, click.UsageError) or error.ctx is None or not message.endswith("."):
        return message
    return f"{message[:-1]}; see {error.ctx.command_path} --help"


def _find_origin(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[:-3:-1]) or "nowhere"


def _describe_os_error(error: OSError) -> str:
    names = " and ".join(
        os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)
    )
    if not names and _is_of_stdout(error):
        names = "standard output"
    if names and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return str(write_error(error, names))
    if not names and error.errno == errno.ENOENT and not _has_folder():
        return "the current folder has been deleted; change to another"
    problem = ": ".join(filter(None, [names, error.strerror or str(error)]))
    is_forbidden = names and error.errno == errno.EACCES
    return f"{problem}; give this user the right to it, or name another" if is_forbidden else problem


def _has_folder() -> bool:
    try:
        return bool(Path.cwd())
    except FileNotFoundError:
        return False


def _is_of_stdout(error: OSError) -> bool:
    """Tell whether `click.echo` raised an error, which writes to standard output alone here."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is click.echo.__code__ for frame, _ in frames)
