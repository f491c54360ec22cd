"""The command line: options in, exit code and one-line messages out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit
from click.shell_completion import shell_complete

from recshuf._check_options import make_check_command, make_picture_command
from recshuf._options import ShuffleCommand
from recshuf._verify_options import make_verify_command
from recshuf.disk import real_path
from recshuf.errors import OutputError, RecshufError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any, NoReturn

    from recshuf.progress import Progress

COMPLETION_VARIABLE = "_RECSHUF_COMPLETE"

FAILED = 1
WRONG_USAGE = 2
NOT_UNIFORM = 3
SIGNALLED = 128
"""Plus the number of the signal."""
CLEANUP_SECONDS = 1.5
"""How long a run that was told to stop may take to clean up."""


class Interrupted(KeyboardInterrupt):
    """A signal asked the program to stop."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


class DefaultGroup(click.Group):
    """A group of commands; a command line whose first word names none of them is for the default one."""

    def __init__(self, default: click.Command) -> None:
        super().__init__("recshuf")
        self.default = default

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the parsed command line, of this group or of the default command."""
        if args and args[0] in self.commands:
            return super().make_context(info_name, args, parent, **extra)
        return self.default.make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run what the command line asks for."""
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


def main() -> int:
    """Run the command line of this process.

    Returns
    -------
    int
        Exit code: 0 done, 1 failed, 2 wrong usage, 128 + n stopped by signal n, also by a closed pipe.
    """
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        return shell_complete(commands, {}, "recshuf", COMPLETION_VARIABLE, instruction)
    verbose = False
    try:
        with _raising_signals(), commands.make_context("recshuf", sys.argv[1:]) as context:
            verbose = context.params.get("verbose", False)
            commands.invoke(context)
            if sys.stdout is not None:
                sys.stdout.flush()
    except Exit as done:
        return done.exit_code
    except (Exception, KeyboardInterrupt) as error:
        _discard_output(error)
        return _explain(error, verbose)
    return 0


def run() -> NoReturn:
    """Run the command line of this process, and end it.

    Libraries' own clean-up at the end is left out: there is nothing to save, it takes time, and HDF5's crashes when a
    file could not be closed.
    """
    # NumPy's linear algebra, which is not used, starts a thread for each core unless told otherwise.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What a library complains of while its objects are torn down says nothing that the error has not said.
    # Some of them print it as if nobody had caught it, so both hooks are needed.
    sys.unraisablehook = lambda _: None
    sys.excepthook = lambda *_: None
    try:
        code = main()
    except BaseException:
        traceback.print_exc()
        code = FAILED
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


@contextmanager
def _raising_signals() -> Iterator[None]:
    """Raise `Interrupted` on the first signal to stop; later ones must not cut the clean-up short.

    A thread that waits for a disk, or for somebody to read a pipe, cannot be stopped; the process ends without it.
    """
    limit: threading.Timer | None = None
    came: int | None = None

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal limit, came
        if limit is None:
            came = number
            limit = threading.Timer(CLEANUP_SECONDS, _end_at_once, [number])
            limit.daemon = True
            limit.start()
            raise Interrupted(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # What is ignored stays so: nohup, and jobs in the background of a script.
    old = {
        number: signal.signal(number, stop)
        for number in numbers
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    except Exception as error:
        if came is None:
            raise
        # The signal may have struck where its exception led to another one, such as in taking a lock.
        raise _interrupted_by(came, error) from error
    finally:
        if limit is not None:
            limit.cancel()
        for number, handler in old.items():
            signal.signal(number, handler)


def _interrupted_by(number: int, error: Exception) -> Interrupted:
    """Return the interruption that led to an error, with what that one has to say of the work folder."""
    interrupted = Interrupted(number)
    for note in getattr(error, "__notes__", ()):
        interrupted.add_note(note)
    return interrupted


def _end_at_once(number: int) -> None:
    """End the process although it has not cleaned up."""
    from recshuf.terminal import say

    say(
        f"stopped by {signal.Signals(number).name} while it waited; if a work folder is left beside the output, the same "
        "command with --resume goes on from there"
    )
    os._exit(SIGNALLED + number)


def _discard_output(error: BaseException) -> None:
    """Drop what is left in the buffer of standard output, where writing it would fail again or block."""
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


def _explain(error: BaseException, verbose: bool) -> int:
    """Print what went wrong in one line, and return the exit code."""
    from recshuf.terminal import say

    if isinstance(error, BrokenPipeError) or isinstance(error.__cause__, BrokenPipeError):
        return SIGNALLED + signal.SIGPIPE
    code = _explain_kind(error, verbose)
    for note in getattr(error, "__notes__", ()):
        say(note)
    return code


def _explain_kind(error: BaseException, verbose: bool) -> int:
    """Print an error by its kind, and return the exit code."""
    from recshuf.terminal import say

    if verbose and not isinstance(error, click.ClickException | UsageError):
        traceback.print_exception(error)
    match error:
        case KeyboardInterrupt():
            number = getattr(error, "number", signal.SIGINT)
            say(f"stopped by {signal.Signals(number).name}")
            return SIGNALLED + number
        case UsageError():
            say(f"error: {error}")
            return WRONG_USAGE
        case RecshufError():
            say(f"error: {error}")
        case click.ClickException():
            say(f"error: {error.format_message()}")
            return error.exit_code
        case MemoryError():
            say("error: memory ran out; give a lower --memory, so that more is spilled to disk")
        case OSError():
            say(f"error: {_describe_os_error(error)}")
        case _:
            hint = "" if verbose else "; run again with -v for the traceback"
            say(f"internal error: {type(error).__name__}: {error} ({_find_place(error)}){hint}")
    return FAILED


def _find_place(error: BaseException) -> str:
    """Return where an error was raised: one that does not come again leaves nothing else to go by."""
    frames = traceback.extract_tb(error.__traceback__)
    return ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[:-3:-1]) or "nowhere"


def _describe_os_error(error: OSError) -> str:
    names = " and ".join(
        os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)
    )
    return ": ".join(filter(None, [names, error.strerror or str(error)]))


def _run_shuffle(
    inputs: tuple[str, ...],
    output: str | None,
    plan: bool,
    report: str | None,
    html: str | None,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Shuffle, or print the plan; `options` are arguments of `recshuf.shuffle`."""
    if quiet and verbose:
        raise UsageError("-q and -v contradict each other; give one of them")
    _check_streams(inputs, output)
    if report:
        _check_report(report, output, plan)
    if html:
        _check_html(html, output, plan)
    for told in filter(None, (report, html)):
        _check_spared(told, [*inputs, options["schema"]])
    _check_quarantine(options["on_bad_record"], [report, html, options["schema"]])
    if plan:
        _print_plan(inputs, output, report, options)
        return
    from recshuf import api
    from recshuf._standard_streams import open_standard_streams
    from recshuf._wording import detail_lines, summary
    from recshuf.terminal import say

    progress = _choose_progress(quiet, writes_records=output in (None, "-"))
    try:
        with open_standard_streams() as (stdin, stdout):
            done = api.shuffle(inputs, output, progress=progress, stdin=stdin, stdout=stdout, **options)
    finally:
        progress.stop()
    for line in detail_lines(done) if verbose else ():
        say(line)
    if not quiet:
        say(summary(done, output))
    if report:
        _tell(report, "report", lambda: _write_json(report, done.to_json()))
    if html:
        path = real_path(html)
        write = partial(api.write_run, done, inputs, output, progress=progress, **options)
        _tell(html, "page", lambda: _write_whole(path, write().encode()))


def _tell(name: str, what: str, write: Callable[[], None]) -> None:
    """Write what tells of a run that is over."""
    try:
        write()
    except OSError as error:
        reason = f"the records are written, but not the {what}: {error.strerror}"
        raise OutputError(f"{name}: {reason}; name another file") from error
    except RecshufError as error:
        raise OutputError(f"{name}: the records are written, but not the {what}: {error}") from error


def _run_verify(
    inputs: tuple[str, ...], report: str | None, quiet: bool, verbose: bool, **options: Any
) -> None:
    """Compare the last of `inputs` with the others; `options` are arguments of `recshuf.verify`."""
    if quiet and verbose:
        raise UsageError("-q and -v contradict each other; give one of them")
    if len(inputs) < 2:
        raise UsageError("verify compares two sides; usage: recshuf verify [OPTIONS] INPUT... OUTPUT")
    *given, output = inputs
    if report:
        _check_report(report, output, True)
        _check_spared(report, [*inputs, options.get("schema")])
    from recshuf import api
    from recshuf._wording import difference_lines, one_line, verdict

    progress = _choose_progress(quiet)
    done = api.verify(given, output, progress=progress, **options)
    if report:
        _write_json(report, done.to_json())
    lines = (
        []
        if quiet or report == "-" or sys.stdout is None
        else [verdict(done, output), *difference_lines(done)]
    )
    for line in lines:
        click.echo(one_line(line))
    if not done.is_equal:
        raise Exit(FAILED)


def _run_check(
    inputs: tuple[str, ...], as_json: bool, html: str | None, quiet: bool, verbose: bool, **options: Any
) -> None:
    """Test the order of `inputs`; `options` are arguments of `recshuf.check`."""
    if quiet and (verbose or as_json):
        raise UsageError("-q and what prints more contradict each other; give one of them")
    if not inputs:
        raise UsageError(
            "check what? usage: recshuf check [OPTIONS] DATA... [--against INPUT... | --column NAME | --provenance]"
        )
    from recshuf import api
    from recshuf._wording import check_lines, one_line

    progress = _choose_progress(quiet)
    if html:
        _check_place("--html", html, None)
        _check_spared(html, [*inputs, *options["against"], options["schema"]])
        done, page = api.write_check(inputs, progress=progress, **options)
        _write_whole(real_path(html), page.encode())
    else:
        done = api.check(inputs, progress=progress, **options)
    if as_json:
        _write_json("-", done.to_json())
    lines = [] if quiet or as_json or sys.stdout is None else check_lines(done, inputs, with_all=verbose)
    for line in lines:
        click.echo(one_line(line))
    if not done.is_uniform:
        raise Exit(NOT_UNIFORM)


def _run_picture(
    inputs: tuple[str, ...], output: str, quiet: bool, verbose: bool, overwrite: bool, **options: Any
) -> None:
    """Draw the order of `inputs`; `options` are arguments of `recshuf.picture`."""
    if quiet and verbose:
        raise UsageError("-q and -v contradict each other; give one of them")
    if not inputs:
        raise UsageError("a picture of what? usage: recshuf picture [OPTIONS] DATA... -o PICTURE.png")
    path = real_path(output)
    if not path.parent.is_dir():
        raise OutputError(f"{output}: folder {path.parent} does not exist; create it first")
    if path.exists() and not (overwrite and path.is_file()):
        raise OutputError(f"{output}: exists; give --overwrite, or choose another name")
    _check_spared(output, [*inputs, *options["against"]])
    from recshuf import api

    picture = api.picture(inputs, progress=_choose_progress(quiet), **options)
    _write_whole(path, picture)


def _run_gallery(output: str, verbose: bool) -> None:  # noqa: ARG001 - `main` looks at it
    """Write a page about other shufflers into a new folder."""
    folder = Path(output)
    if folder.exists():
        raise OutputError(f"{output}: exists; name a folder that does not")
    from recshuf.gallery import draw_row, render_gallery
    from recshuf.terminal import say

    folder.mkdir(parents=True)
    try:
        page = render_gallery(lambda name: say(f"drawing {name}"))
        _write_whole(folder / "row.png", draw_row())
        _write_whole(folder / "index.html", page.encode())
    except BaseException:
        shutil.rmtree(folder)
        raise
    click.echo(folder / "index.html")


def _run_demo(output: str | None, verbose: bool) -> None:  # noqa: ARG001 - `main` looks at it
    """Show what recshuf does, in a new folder."""
    if output is not None and Path(output).exists():
        raise OutputError(f"{output}: exists; name a folder that does not")
    folder = Path(output or tempfile.mkdtemp(prefix="recshuf-demo-"))
    from recshuf.demo import run_demo

    run_demo(folder, click.echo)


def _check_streams(inputs: tuple[str, ...], output: str | None) -> None:
    if not inputs and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError(
            "no input; usage: recshuf [OPTIONS] INPUT... -o OUTPUT, and recshuf --help tells more"
        )
    if "-" in inputs and sys.stdin is None:
        raise UsageError("standard input is closed; name files instead")
    if output in (None, "-") and sys.stdout is None:
        raise UsageError("standard output is closed; name an output with -o")


def _check_report(report: str, output: str | None, plan: bool) -> None:
    """Find out before the run that the report cannot be written after it."""
    if report == "-":
        if output in (None, "-") and not plan:
            raise UsageError(
                "--report - and the records cannot both go to standard output; name a file for one"
            )
        if sys.stdout is None:
            raise UsageError("--report -: standard output is closed; name a file")
        return
    _check_place("--report", report, output)


def _check_html(html: str, output: str | None, plan: bool) -> None:
    if plan:
        raise UsageError("--html tells of a run, and --plan makes none; give one of them")
    _check_place("--html", html, output)


def _check_place(option: str, name: str, output: str | None) -> None:
    """Find out before the run that a file beside the output cannot be written after it."""
    path, target = real_path(name), None if output is None else real_path(output)
    # The output's own folder may be made only by the run.
    if not path.parent.is_dir() and path.parent != target:
        raise UsageError(f"{option} {name}: folder {path.parent} does not exist; create it first")
    if path == target:
        raise UsageError(f"{option} {name} is also the output; name another file for one of them")


def _check_spared(report: str, given: list[str | None]) -> None:
    """Refuse a report that would replace an input or the schema file."""
    import glob

    path = Path(report)
    if report == "-" or not path.is_file():
        return
    for name in given:
        if not name:
            continue
        folder = Path(name).is_dir() and real_path(name) in real_path(path).parents
        files = [name] if Path(name).is_file() else glob.glob(name, recursive=True)  # noqa: PTH207 - may be absolute
        if folder or any(path.samefile(file) for file in files if Path(file).is_file()):
            raise UsageError(f"{report} is or lies among the inputs; name another file")


def _check_quarantine(what: str, others: list[str | None]) -> None:
    """Refuse to put bad records into the report or the schema file."""
    name = what.partition(":")[2]
    for other in others if name else ():
        if other and real_path(name) == real_path(other):
            raise UsageError(
                f"--on-bad-record quarantine:{name} is also another option's file; name another one"
            )


def _choose_progress(quiet: bool, *, writes_records: bool = False) -> Progress:
    """Return what hears of progress; `writes_records` tells whether records go to standard output meanwhile."""
    from recshuf.progress import SilentProgress
    from recshuf.terminal import TerminalProgress, Warnings

    if quiet:
        return SilentProgress()
    records_on_terminal = writes_records and sys.stdout is not None and sys.stdout.isatty()
    if sys.stderr is None or not sys.stderr.isatty() or records_on_terminal:
        return Warnings()
    return TerminalProgress()


def _print_plan(
    inputs: tuple[str, ...], output: str | None, report: str | None, options: dict[str, Any]
) -> None:
    from recshuf import api
    from recshuf._wording import plan_lines

    made = api.plan(inputs, output, **options)
    if report != "-":
        click.echo("\n".join(plan_lines(made)))
    if report:
        _write_json(report, made.to_json())


def _write_json(name: str, values: dict[str, object]) -> None:
    """Write a file whole or not at all; ``-`` is standard output."""
    text = json.dumps(values, indent=2) + "\n"
    path = real_path(name)
    if name == "-":
        click.echo(text, nl=False)
    elif path.exists() and not path.is_file():
        path.write_text(text)  # a device or a pipe: nothing to rename over
    else:
        _write_whole(path, text.encode(errors="surrogateescape"))


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


_gallery = click.Command(
    "gallery",
    callback=_run_gallery,
    params=[
        click.Option(
            ["-o", "--output"], required=True, metavar="DIR", help="A new folder, for index.html and row.png."
        ),
        click.Option(["-v", "--verbose"], is_flag=True, help="Print the traceback of an error."),
    ],
    help="Draw how other shufflers order records, with scores: a page for a browser, and its most telling row as a picture.",
)
_demo = click.Command(
    "demo",
    callback=_run_demo,
    params=[
        click.Option(
            ["-o", "--output"], metavar="DIR", help="A new folder; else one among the temporary ones."
        ),
        click.Option(["-v", "--verbose"], is_flag=True, help="Print the traceback of an error."),
    ],
    help="Make 100,000 cats and then 100,000 dogs, shuffle them in 64 MB, verify, check and draw the order.",
)
commands = DefaultGroup(ShuffleCommand(_run_shuffle))
commands.add_command(make_verify_command(_run_verify))
commands.add_command(make_check_command(_run_check))
commands.add_command(make_picture_command(_run_picture))
commands.add_command(_demo)
commands.add_command(_gallery)
