"""The commands on runs of several processes: task, which runs one task of a saved plan; clean, for what dead runs left."""

from __future__ import annotations

import json
from shlex import quote
from typing import Any

import click

from recshuf.cli.options import (
    WIDE_HELP_SETTINGS,
    choose_progress,
    make_option,
    make_quiet_option,
    make_verbose_option,
)
from recshuf.errors import MissingInputError, UsageError
from recshuf.storage import Url, is_url, parse_storage, refuse_unknown_scheme
from recshuf.system.paths import local_path
from recshuf.system.units import count_of, say

_CLEAN_HELP = """
List what dead runs left in an object store: open uploads and the journal of the output URL, and spilled records below
the URL, if it was a --temp-dir. Of a pile store: sets that no snapshot refers to, and open uploads of sets.

With --yes, remove it. Shards that were put in place stay. A run that still uses what is removed fails.
"""


def _run_clean(
    url: str,
    yes: bool,
    endpoint_url: str | None,
    storage_options: tuple[str, ...],
    verbose: bool,  # noqa: ARG001 - `main` reads it
) -> None:
    refuse_unknown_scheme(url)
    if not is_url(url):
        raise UsageError(
            f"{url}: is no URL of an object store; a run into local files names the folder that it leaves, which you can "
            "delete"
        )
    from recshuf.output.objects import Remains
    from recshuf.piles.kept.bucket import StoreRemains

    place, options = Url.parse(url), parse_storage(endpoint_url, storage_options)
    of_run = Remains(place, options)
    remains: Remains | StoreRemains = of_run
    if not remains.find():
        remains = StoreRemains(place, options)
    if remains is not of_run and not remains.find():
        click.echo(f"{url}: no run left anything")
        return
    for line in remains.describe():
        click.echo(line)
    if yes:
        remains.remove()
        click.echo("removed")
        return
    if isinstance(remains, StoreRemains):
        way = "give --yes to remove this; a process that still writes it fails"
    elif remains.has_commit():
        way = "the commit of a run has begun, complete it with the same command and --resume"
    else:
        way = "give --yes to remove this, or continue the run with --resume"
    click.echo(f"nothing was removed; {way}")


_MOST_DIGITS = 18
"""Of the number of a task; Python converts no texts of thousands."""
_TASK_HELP = """
Run one task of a plan, on any machine that shares the folders of inputs and output.

PLAN is what `recshuf INPUT... -o OUTPUT --plan --report PLAN --engine tasks` wrote. WHAT is the number of a task, or the
name of a stage, whose numbers are then printed: count, scatter, gather, commit. The tasks of a stage run in any order and
at the same time, those of the next one when all are done. A task may run twice, also at the same time.
The last task puts the output in place, and runs alone.

\b
Example, a Bash script:
  recshuf data/ -o out/ --plan --report plan.json --engine tasks
  set -o pipefail
  for stage in count scatter gather commit; do
    recshuf task plan.json $stage | xargs -r -n 1 -P 16 recshuf task plan.json || exit 1
  done
"""


def _run_task(plan: str, what: str, quiet: bool, verbose: bool) -> None:  # noqa: ARG001 - `main` reads it
    run = _read_run(plan)
    from recshuf.api import runs
    from recshuf.job.parts import STAGES

    try:
        numbers = runs.list_tasks(run, what if what in STAGES else STAGES[0])
    except UsageError as error:
        raise UsageError(f"{plan}: {error}") from error
    if what in STAGES:
        for number in numbers:
            click.echo(number)
        return
    if not (what.isascii() and what.isdecimal()):
        raise UsageError(f"{what}: is no number of a task and no stage; stages are {', '.join(STAGES)}")
    if len(what) > _MOST_DIGITS:
        (last,) = runs.list_tasks(run, "commit")
        raise UsageError(f"there is no task {what[:_MOST_DIGITS]}...; the plan has tasks 0 to {last}")
    done = runs.run_task(run, int(what), progress=choose_progress(quiet))
    if quiet:
        return
    written = (
        ""
        if done is None
        else f"; {count_of(done.records_written, 'record')} in {run['output']}, seed {done.seed}"
    )
    say(f"task {what}: done{written}")


def _read_run(plan: str) -> dict[str, Any]:
    path = local_path(plan)
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        remedy = "give the file that --plan --report FILE --engine tasks wrote"
        raise MissingInputError.of_system(error, plan, remedy=remedy) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{plan}: is no plan; make it with --plan --report {quote(plan)} --engine tasks"
        ) from error
    if not isinstance(values, dict) or "run" not in values:
        raise UsageError(f"{plan}: has no tasks; make it with --plan --report {quote(plan)} --engine tasks")
    run: dict[str, Any] = values["run"]
    return run


clean_command = click.Command(
    "clean",
    WIDE_HELP_SETTINGS,
    _run_clean,
    [
        click.Argument(["url"], metavar="URL"),
        click.Option(["--yes"], is_flag=True, help="Abort the uploads, and delete the journal and spilled records."),
        make_option("endpoint_url"),
        make_option("storage_options"),
        make_verbose_option(),
    ],
    help=_CLEAN_HELP,
)  # fmt: skip
task_command = click.Command(
    "task",
    WIDE_HELP_SETTINGS,
    _run_task,
    [
        click.Argument(["plan"], metavar="PLAN"),
        click.Argument(["what"], metavar="WHAT"),
        make_quiet_option(),
        make_verbose_option(),
    ],
    help=_TASK_HELP,
)
