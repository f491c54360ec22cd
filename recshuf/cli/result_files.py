"""What a command writes besides records: summaries, reports, pages, pictures."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, cast

import click

from recshuf.errors import ForbiddenOutputError, OutputError, RecshufError, UsageError
from recshuf.storage import is_url
from recshuf.system.paths import check_name, naming_errors, real_path, refuse_url
from recshuf.system.units import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from recshuf.job.options import Options
    from recshuf.job.report import ShuffleReport


def check_report(report: str, output: str | None, plan: bool) -> None:
    """Refuse, before the run, a report that cannot be written after it."""
    if report == "-":
        if output in (None, "-") and not plan:
            raise UsageError(
                "--report - and the records cannot both go to standard output; name a file for one"
            )
        if sys.stdout is None:
            raise UsageError("--report -: standard output is closed; name a file")
        return
    check_writable("--report", report, output)


def check_html(
    html: str, inputs: tuple[str, ...], output: str | None, plan: bool, report: str | None
) -> None:
    """Refuse, before the run, a page that cannot be written after it beside the report."""
    if report and real_path(html) == real_path(report):
        raise UsageError(f"--report and --html are both {html}; name another file for one of them")
    if plan:
        raise UsageError("--html needs a run, and --plan makes none; give one of them")
    if output is not None and is_url(output):
        against = " ".join(map(quote, inputs))
        raise UsageError(
            f"--html: not possible for the output {output}; leave it out, and when the output is there, run "
            f"recshuf check {quote(output)} --against {against} --html {quote(html)}"
        )
    check_writable("--html", html, output)


def check_writable(option: str, name: str, output: str | None) -> None:
    """Refuse, before the run, a file whose folder is missing or read-only, or that runs write themselves."""
    from recshuf.output.manifest import check_beside

    check_name(name)
    refuse_url(name)
    if name == "-":
        raise UsageError(f"{option} -: standard output is not possible here; name a file")
    check_beside(f"{option} {name}", name, output)
    path = real_path(name)
    is_replaced = path.is_file() or not Path(name).exists()  # a pipe of the shell is there, but not its path
    if is_replaced and not os.access(path.parent, os.W_OK | os.X_OK):
        raise ForbiddenOutputError(
            f"{option} {name}: folder {path.parent} cannot be written; name a file in another one"
        )


def check_new_folder(name: str) -> None:
    """Refuse, before the run, a folder for its files that is none, or exists."""
    check_name(name)
    refuse_url(name)
    refuse_stdout(name)
    if Path(name).exists():
        raise OutputError(f"{name}: exists; name a new folder")
    from recshuf.piles.kept.folder import refuse_in_store

    refuse_in_store(Path(name))


@contextmanager
def make_new_folder(name: str) -> Iterator[Path]:
    """Give a folder that `check_new_folder` has accepted, or an empty one. It is deleted unless all its files are written."""
    folder = Path(name)
    try:
        with naming_errors(name):
            folder.mkdir(parents=True, exist_ok=True)
            yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def refuse_stdout(name: str) -> None:
    if name == "-":
        raise UsageError("-o -: standard output is no folder; name one")


def check_spared(report: str, read: list[str | None], *, overwrite: bool) -> None:
    """Refuse a report that would replace one of the files that are read, or without `overwrite` any file."""
    import glob

    path = Path(report)
    if report == "-" or not path.is_file():
        return
    for name in read:
        if not name:
            continue
        folder = Path(name).is_dir() and real_path(name) in real_path(path).parents
        files = [name] if Path(name).is_file() else glob.glob(name, recursive=True)  # noqa: PTH207 - may be absolute
        if folder or any(path.samefile(file) for file in files if Path(file).is_file()):
            raise UsageError(f"{report} is or lies among the inputs; name another file")
    if not overwrite:
        raise OutputError(f"{report}: exists; give --overwrite, or choose another name")


def may_replace(names: list[str], inputs: tuple[str, ...], output: str, options: dict[str, Any]) -> bool:
    """Tell whether files about a run, of these names, may exist.

    A resumed run with an output is complete, or fails without ``--overwrite``: its report may be there.
    """
    is_resumed = options["resume"] and any(map(os.path.exists, names))
    return bool(options["overwrite"] or (is_resumed and _is_output_there(inputs, output, options)))


def _is_output_there(inputs: tuple[str, ...], output: str, options: dict[str, Any]) -> bool:
    """Tell whether an output exists; a set in an object store only with its manifest."""
    if not is_url(output):
        return output != "-" and Path(output).exists()
    from recshuf.job.arguments import make_job
    from recshuf.job.options import OPTIONS
    from recshuf.run.resolve import find_destination

    # The options of an epoch say nothing of where the output is.
    known = {name: value for name, value in options.items() if name in OPTIONS}
    destination = find_destination(make_job(inputs, output, cast("Options", known)))
    return destination is not None and destination.is_complete()


def check_quarantine(what: str, others: list[str | None]) -> None:
    """Refuse a quarantine file that is also another option's file."""
    name = what.partition(":")[2]
    for other in others if name else ():
        if other and real_path(name) == real_path(other):
            raise UsageError(
                f"--on-bad-record quarantine:{name} is also another option's file; name another one"
            )


def say_done(done: ShuffleReport, output: str, quiet: bool, verbose: bool) -> None:
    from recshuf.audit.reports.text import detail_lines, summary

    for line in detail_lines(done) if verbose else ():
        say(line)
    if not quiet:
        say(summary(done, output))


def say_written(name: str, quiet: bool) -> None:
    from recshuf.system.units import format_size

    if not quiet:
        say(f"wrote {name}, {format_size(Path(name).stat().st_size)}")


def write_result(name: str, what: str, write: Callable[[], None]) -> None:
    """Write a file about records that are written already; an error says so."""
    try:
        write()
    except OSError as error:
        reason = f"the records are written, but not the {what}: {error.strerror}"
        raise OutputError(f"{name}: {reason}; name another file, and another output") from error
    except RecshufError as error:
        raise OutputError(f"{name}: the records are written, but not the {what}: {error}") from error


def write_json(name: str, values: dict[str, object]) -> None:
    """Write a JSON file atomically; ``-`` is standard output."""
    text = json.dumps(values, indent=2) + "\n"
    if name == "-":
        click.echo(text, nl=False)
    else:
        write_whole(name, text.encode())


def write_whole(name: str | Path, content: bytes) -> None:
    """Write a file atomically; an error names it."""
    given, path = Path(name), real_path(name)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if given.exists() and not given.is_file():
            given.write_bytes(content)  # a device or a pipe cannot be replaced, one of the shell has no path
        else:
            unfinished.write_bytes(content)
            unfinished.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        unfinished.unlink(missing_ok=True)
