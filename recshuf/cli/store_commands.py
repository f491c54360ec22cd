"""The commands on pile stores: scatter, gather, window, store."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click

from recshuf.cli.options import (
    HELP_OF_DETAILS,
    HELP_OF_QUIET_RESULT,
    HELP_SETTINGS,
    GivenPath,
    GroupedCommand,
    Wording,
    check_loudness,
    choose_progress,
    make_epoch_options,
    make_option,
    make_output_option,
    make_quiet_option,
    make_report_option,
    make_verbose_option,
)
from recshuf.cli.result_files import (
    check_quarantine,
    check_report,
    check_spared,
    may_replace,
    refuse_stdout,
    say_done,
    write_json,
    write_result,
)
from recshuf.errors import UsageError
from recshuf.job.options import GatherOptions, ScatterOptions
from recshuf.system.units import one_line, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from recshuf.piles.kept.place import StorePlace


_SCATTER = Wording(
    description="""
Write the records of the INPUTs into a new pile store, the folder STORE.

From a store, `recshuf gather` writes shuffled files any number of times, and recshuf.PileLoader feeds a training loop.
The store appears when it is complete.
""",
    usage=["INPUT...", "-o STORE"],
    example="""\
Example:
  recshuf scatter data/ -o store --seed 7 && recshuf gather store -o shuffled/ --shards 64
""",
    shared=ScatterOptions,
    headings={"Order": "Output"},
)
_WINDOW = Wording(
    description="""
Append inputs to a pile store as a time slice, and remove old slices.

Both happen in one step. Open loaders keep what they have. A slice is removed as a whole. Records of `recshuf scatter` and
recshuf.PileWriter have no time, and count as older than all others.
""",
    usage=["STORE", "[--append INPUT]..."],
    example="""\
Example:
  recshuf window store --append 2026-01-31/ --time 2026-01-31 --keep-bytes 500GB
""",
    shared=ScatterOptions,
    headings={"Order": "Window"},
)
_GATHER = Wording(
    description="""
Write the records of a pile store in random order.

By default the output is, byte for byte, what `recshuf INPUT... -o OUTPUT` writes from the inputs of the store with its
seed.
""",
    usage=["STORE", "-o OUTPUT"],
    example="""\
Example:
  recshuf gather store -o epoch1/ --to parquet --epoch 1
""",
    shared=GatherOptions,
)


def _run_scatter(
    inputs: tuple[str, ...],
    store: str | None,
    split: str | None,
    report: str | None,
    overwrite: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    check_loudness(quiet, verbose)
    if not inputs or store is None:
        raise UsageError(
            "scatter needs inputs and a store; usage: recshuf scatter [OPTIONS] INPUT... -o STORE"
        )
    refuse_stdout(store)
    if report:
        check_report(report, store, False)
        check_spared(report, [*inputs, options["schema"]], overwrite=overwrite)
    check_quarantine(options["on_bad_record"], [report, options["schema"]])
    from recshuf.api import runs
    from recshuf.audit.reports.text import scatter_summary

    done = runs.scatter(
        inputs, store, split=split, progress=choose_progress(quiet), overwrite=overwrite, **options
    )
    for part in () if quiet else done.parts or (done,):
        say(scatter_summary(part))
    if report:
        write_result(report, "report", lambda: write_json(report, done.to_json()))


def _run_gather(
    inputs: tuple[str, ...],
    output: str | None,
    report: str | None,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    check_loudness(quiet, verbose)
    if len(inputs) != 1 or output is None:
        raise UsageError(
            "gather needs one store and an output; usage: recshuf gather [OPTIONS] STORE -o OUTPUT"
        )
    if report:
        check_report(report, output, False)
        check_spared(report, [], overwrite=may_replace([report], inputs, output, options))
    from recshuf.api import runs

    progress = choose_progress(quiet, writes_records=output == "-")
    done = runs.gather(inputs[0], output, progress=progress, **options)
    say_done(done, output, quiet, verbose)
    if report:
        write_result(report, "report", lambda: write_json(report, done.to_json()))


def _run_window(
    inputs: tuple[str, ...],
    append: tuple[str, ...],
    quiet: bool,
    verbose: bool,
    seed: int | None,
    piles: int | None,
    **options: Any,
) -> None:
    check_loudness(quiet, verbose)
    if len(inputs) != 1:
        raise UsageError("window needs one store; usage: recshuf window STORE [--append INPUT]...")
    limits = (options["expire_before"], options["keep_records"], options["keep_bytes"])
    if not append and all(limit is None for limit in limits):
        raise UsageError(
            "nothing to do; give --append INPUT, --expire-before T, --keep-records N or --keep-bytes SIZE"
        )
    from recshuf.api import runs
    from recshuf.system.units import count_of

    done = runs.window(inputs[0], append, progress=choose_progress(quiet), seed=seed, piles=piles, **options)
    if not quiet:
        say(f"{done.path}: {count_of(done.num_records, 'record')}, snapshot {done.snapshot}")


@click.pass_context
def _refuse_nothing(context: click.Context) -> None:
    if context.invoked_subcommand is None:
        raise UsageError("no command; usage: recshuf store info|verify|compact|drop STORE")


def _info(store: StorePlace, as_json: bool, verbose: bool) -> None:  # noqa: ARG001 - `main` reads it
    from recshuf.piles.kept.upkeep import describe_store
    from recshuf.system.units import format_size

    about = describe_store(store)
    if as_json:
        click.echo(json.dumps(about, indent=2))
        return
    times = sorted(part["time"] for part in about["sets"] if part["time"] is not None)
    lines = {
        "store": f"{about['store']}, snapshot {about['snapshot']}",
        "seed": about["seed"],
        "records": f"{about['records']:,}, {format_size(about['bytes'])}",
        "on disk": format_size(about["disk_bytes"]),
        "sets": f"{len(about['sets']):,}",
        "piles": f"{about['piles']:,}",
        "regions": f"{format_size(about['region_bytes'])}{_SAID_OF_OBJECTS if store.are_objects else ''}",
        "format": about["format"],
        "sources": f"{len(about['sources']):,}",
        "columns": ", ".join(f"{name}: {kind}" for name, kind in about["columns"].items()) or "none yet",
    }
    if about["sets"]:
        lines["meetings"] = _show_meetings(len(about["sets"]), about["piles"])
    if times:
        lines["times"] = f"{_format_time(times[0])} to {_format_time(times[-1])}"
    for name, text in lines.items():
        click.echo(one_line(f"{name:<8}  {text}"))


_SAID_OF_OBJECTS = ", each read by a request; a loader has 64 MB of them in flight beside its groups, also while it fills a cache"


def _show_meetings(sets: int, piles: int) -> str:
    """Return how alike two epochs are, and which `mix` makes them less so."""
    from recshuf.piles.epochs import find_meetings

    mix = math.ceil(math.sqrt(piles / sets))
    more = f", with mix={mix} {find_meetings(sets, piles, mix):.3g} times" if mix > 1 else ""
    return f"again in the next epoch {find_meetings(sets, piles, 1):.3g} times as often as by chance{more}"


def _format_time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):  # of another version
        return f"{seconds:.0f} seconds since 1970"


def _verify(store: StorePlace, quiet: bool, verbose: bool) -> None:  # noqa: ARG001 - as above
    from recshuf.piles.kept.upkeep import describe_store, verify_store
    from recshuf.system.units import count_of

    progress = choose_progress(quiet)
    about = describe_store(store)
    progress.start("verify", about["records"], about["bytes"])
    try:
        records = verify_store(store, progress.advance)
    finally:
        progress.stop()
    if not quiet:
        click.echo(
            f"{store.name}: whole, {count_of(records, 'record')} in {count_of(len(about['sets']), 'set')}"
        )


def _drop(store: StorePlace, verbose: bool) -> None:  # noqa: ARG001 - as above
    from recshuf.piles.kept.upkeep import drop_store

    drop_store(store)


def _compact(store: StorePlace, sets: int, quiet: bool, verbose: bool) -> None:  # noqa: ARG001 - as above
    from recshuf.api import runs
    from recshuf.system.units import count_of

    done = runs.compact(cast("Any", store), sets=sets, progress=choose_progress(quiet))
    if not quiet:
        click.echo(f"{store.name}: {count_of(done.num_records, 'record')}, snapshot {done.snapshot}")


scatter_command = GroupedCommand(
    "scatter",
    _run_scatter,
    _SCATTER,
    {
        "Output": [
            make_output_option("STORE", "New folder of the store.", "store"),
            click.Option(
                ["--split"], metavar="NAME=SHARE,...",
                help="Make one store for each share, such as train=0.99,val=0.01: folders of these names in STORE. Default: one store.",
            ),
            *(make_option(name, "scatter") for name in ("split_by", "split_seed")),
        ],
        "General": [
            make_report_option("Write the figures of the scatter as JSON"),
            make_quiet_option(),
            make_verbose_option(),
        ],
    },
)  # fmt: skip
window_command = GroupedCommand(
    "window",
    _run_window,
    _WINDOW,
    {
        "Window": [
            click.Option(["--append"], multiple=True, metavar="INPUT", type=GivenPath(), help="Append this input; may be repeated."),
            click.Option(["--time"], metavar="T", help="Time of what is appended: 2026-01-31, 2026-01-31T12:00:00Z, or seconds since 1970; UTC. Default: now."),
            click.Option(["--expire-before"], metavar="T", help="Remove slices that are older than T, which is written as for --time."),
            click.Option(["--keep-records"], type=int, metavar="N", help="Keep the newest slices that together hold at most N records."),
            click.Option(["--keep-bytes"], metavar="SIZE", help="Keep the newest slices that together hold at most SIZE."),
        ],
        "General": [make_quiet_option(), make_verbose_option()],
    },
)  # fmt: skip
gather_command = GroupedCommand(
    "gather",
    _run_gather,
    _GATHER,
    {
        "Output": [make_output_option("OUTPUT", "Output file or directory.")],
        "Order": make_epoch_options("Write the order of this epoch.", 0),
        "General": [
            make_report_option("Write the figures of the run as JSON"),
            make_quiet_option(),
            make_verbose_option(HELP_OF_DETAILS),
        ],
    },
)


def _run_on(
    run: Callable[..., None],
    store: str,
    endpoint_url: str | None,
    storage_options: tuple[str, ...],
    **options: Any,
) -> None:
    from recshuf.piles.kept.stored import open_place
    from recshuf.storage import parse_storage

    run(open_place(store, parse_storage(endpoint_url, storage_options)), **options)


_SETS = click.Option(
    ["--sets"], type=int, default=16, metavar="N", help="Number of sets at most. Default: 16."
)
_HELP_OF_VERIFY = """Check all records of STORE against its checksums.

Exit code 0: whole; 1: damaged, or a file cannot be read; 2: wrong usage."""
_HELP_OF_DROP = """Delete STORE, also a damaged one.

It is an error while a process reads or writes it."""
_HELP_OF_COMPACT = """Join small sets of STORE.

It then loads faster. Time slices of a window that follow each other become one."""
_AS_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")
_STORE_COMMANDS: dict[Callable[..., None], tuple[str, list[click.Option]]] = {
    _info: ("Print what STORE holds.", [_AS_JSON]),
    _verify: (_HELP_OF_VERIFY, [make_quiet_option(HELP_OF_QUIET_RESULT)]),
    _drop: (_HELP_OF_DROP, []),
    _compact: (_HELP_OF_COMPACT, [_SETS, make_quiet_option()]),
}
store_command = click.Group(
    "store",
    [
        click.Command(
            run.__name__[1:], HELP_SETTINGS, partial(_run_on, run), help=text,
            params=[
                click.Argument(["store"], type=GivenPath()), *options, make_option("endpoint_url"), make_option("storage_options"),
                make_verbose_option(),
            ],
        )
        for run, (text, options) in _STORE_COMMANDS.items()
    ],
    context_settings=HELP_SETTINGS,
    invoke_without_command=True,
    callback=_refuse_nothing,
    help="Print, verify, compact or delete a pile store.",
)  # fmt: skip
