"""The commands on pile stores: scatter, gather, window, store."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from recshuf.cli.options import (
    HELP_OF_VERBOSE,
    HELP_SETTINGS,
    GivenPath,
    SiblingCommand,
    Wording,
    check_loudness,
    choose_progress,
    make_epoch_options,
    note_verbose,
)
from recshuf.cli.result_files import check_report, check_spared, may_replace, refuse_stdout, write_json
from recshuf.errors import UsageError
from recshuf.job.options import GatherOptions, ScatterOptions

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
    general=("report", "overwrite", "quiet", "verbose"),
    help={
        "keep_others": "HDF5: scatter the datasets of the commonest length, or those of --datasets, and keep the others for gather, which copies them into every HDF5 shard. Default: datasets of several lengths are refused.",
        "schema": "Schema file for the fields of JSONL, CSV or text. Default: inferred types.",
        "piles": "Number of piles, 1 to 65,536. Default: one for each 8 MB of records.",
        "spill_compression": "Compression of the records: none, lz4 or zstd. Default: none.",
        "report": "Write the figures of the scatter as JSON; - is standard output.",
        "overwrite": "Replace an existing report. Default: it is an error.",
    },
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
    general=("quiet", "verbose"),
    help={
        "seed": "Must be the seed of the store; another one is an error. Default: that of the store.",
        "keep_others": "HDF5: append the datasets of the commonest length, or those of --datasets. Default: datasets of several lengths are refused.",
        "schema": "Has no effect: inputs are read with the columns of the store, which never change.",
        "piles": "Must be the number of piles of the store. Default: that of the store.",
        "spill_compression": "Compression of the records: none, lz4 or zstd. Default: none.",
    },
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
    headings={},
    general=("report", "quiet", "verbose"),
    help={
        "seed": "Must be the seed of the store; another one is an error. Default: that of the store.",
        "to": "Output format. Default: from the suffix of OUTPUT, else that of the inputs of the store.",
        "shards": "Number of shards. Default: one per input of the store, in a directory.",
        "verify": "Compare the output with the store before it is put in place; in an object store, after that.",
        "overwrite": "Replace an existing output or report. Default: it is an error.",
        "temp_dir": "Folder for spilled records. Default: beside the output.",
        "verbose": "Print details, and tracebacks of errors.",
        "report": "Write the figures of the run as JSON; - is standard output.",
    },
)


def make_scatter_command() -> SiblingCommand:
    """Return the scatter command."""
    output = click.Option(
        ["-o", "--output", "store"], type=GivenPath(), metavar="STORE", help="New folder of the store."
    )
    split = click.Option(
        ["--split"], metavar="NAME=SHARE,...",
        help="Make one store for each share, such as train=0.99,val=0.01: folders of these names in STORE. Default: one store.",
    )  # fmt: skip
    return SiblingCommand("scatter", _run_scatter, _SCATTER, {"Output": [output, split]})


def make_window_command() -> SiblingCommand:
    """Return the window command; the only one of its ``inputs`` is the store."""
    own = [
        click.Option(["--append"], multiple=True, metavar="INPUT", type=GivenPath(), help="Append this input; may be repeated."),
        click.Option(["--time"], metavar="T", help="Time of what is appended: 2026-01-31, 2026-01-31T12:00:00Z, or seconds since 1970; UTC. Default: now."),
        click.Option(["--expire-before"], metavar="T", help="Remove slices that are older than T, which is written as for --time."),
        click.Option(["--keep-records"], type=int, metavar="N", help="Keep the newest slices that together hold at most N records."),
        click.Option(["--keep-bytes"], metavar="SIZE", help="Keep the newest slices that together hold at most SIZE."),
    ]  # fmt: skip
    return SiblingCommand("window", _run_window, _WINDOW, {"Window": own})


def make_gather_command() -> SiblingCommand:
    """Return the gather command; the only one of its ``inputs`` is the store."""
    output = click.Option(
        ["-o", "--output"], type=GivenPath(), metavar="OUTPUT", help="Output file or directory."
    )
    order = make_epoch_options("Write the order of this epoch.", 0)
    return SiblingCommand("gather", _run_gather, _GATHER, {"Output": [output], "Order": order})


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
    refuse_stdout("-o", store)
    if report:
        check_report(report, store, False)
        check_spared(report, [*inputs, options["schema"]], overwrite=overwrite)
    from recshuf.api import runs
    from recshuf.audit.reports.terminal import say
    from recshuf.audit.reports.text import scatter_summary
    from recshuf.records.split import parse_shares

    shares = None if split is None else parse_shares(split)
    done = runs.scatter(inputs, store, split=shares, progress=choose_progress(quiet), **options)
    for one in () if quiet else done.parts or (done,):
        say(scatter_summary(one))
    if report:
        write_json(report, done.to_json())


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
    from recshuf.audit.reports.terminal import say
    from recshuf.audit.reports.text import detail_lines, summary

    progress = choose_progress(quiet, writes_records=output == "-")
    done = runs.gather(inputs[0], output, progress=progress, **options)
    for line in detail_lines(done) if verbose else ():
        say(line)
    if not quiet:
        say(summary(done, output))
    if report:
        write_json(report, done.to_json())


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
    from recshuf.audit.reports.terminal import say
    from recshuf.audit.reports.text import count_of

    done = runs.window(inputs[0], append, progress=choose_progress(quiet), seed=seed, piles=piles, **options)
    if not quiet:
        say(f"{done.path}: {count_of(done.num_records, 'record')}, snapshot {done.snapshot}")


_verbose = click.option("-v", "--verbose", is_flag=True, help=HELP_OF_VERBOSE, callback=note_verbose)
_store = click.argument("store", type=click.Path(path_type=Path))


@click.group("store", context_settings=HELP_SETTINGS, invoke_without_command=True)
@click.pass_context
def store_group(context: click.Context) -> None:
    """Print, verify, compact or delete a pile store."""
    if context.invoked_subcommand is None:
        raise UsageError("no command; usage: recshuf store info|verify|compact|drop STORE")


@store_group.command("info", context_settings=HELP_SETTINGS)
@_store
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_verbose
def _info(store: Path, as_json: bool, verbose: bool) -> None:  # noqa: ARG001 - `main` reads it
    """Print what STORE holds."""
    from recshuf.audit.reports.text import one_line
    from recshuf.piles.kept.upkeep import describe_store
    from recshuf.system.units import format_size

    found = describe_store(store)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    times = sorted(one["time"] for one in found["sets"] if one["time"] is not None)
    lines = {
        "store": f"{found['store']}, snapshot {found['snapshot']}",
        "seed": found["seed"],
        "records": f"{found['records']:,}, {format_size(found['bytes'])}",
        "on disk": format_size(found["disk_bytes"]),
        "sets": f"{len(found['sets']):,}",
        "piles": f"{found['piles']:,}",
        "format": found["format"],
        "sources": f"{len(found['sources']):,}",
        "columns": ", ".join(f"{name}: {kind}" for name, kind in found["columns"].items()) or "none yet",
    }
    if times:
        lines["times"] = f"{_format_time(times[0])} to {_format_time(times[-1])}"
    for name, text in lines.items():
        click.echo(one_line(f"{name:<8}  {text}"))


def _format_time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):  # of another version
        return f"{seconds:.0f} seconds since 1970"


@store_group.command("verify", context_settings=HELP_SETTINGS)
@_store
@click.option("-q", "--quiet", is_flag=True, help="Print errors only; the exit code is the result.")
@_verbose
def _verify(store: Path, quiet: bool, verbose: bool) -> None:  # noqa: ARG001 - as above
    """Check all records of STORE against its checksums.

    Exit code 0: whole; 1: damaged, or a file cannot be read; 2: wrong usage.
    """
    from recshuf.piles.kept.upkeep import describe_store, verify_store

    progress = choose_progress(quiet)
    found = describe_store(store)
    progress.start("verify", found["records"], found["bytes"])
    try:
        records = verify_store(store, progress.advance)
    finally:
        progress.stop()
    if not quiet:
        click.echo(f"{store}: whole, {records:,} records in {len(found['sets']):,} sets")


@store_group.command("drop", context_settings=HELP_SETTINGS)
@_store
@_verbose
def _drop(store: Path, verbose: bool) -> None:  # noqa: ARG001 - as above
    """Delete STORE, also a damaged one.

    It is an error while a process reads or writes it.
    """
    from recshuf.piles.kept.upkeep import drop_store

    drop_store(store)


@store_group.command("compact", context_settings=HELP_SETTINGS)
@_store
@click.option("--sets", type=int, default=16, metavar="N", help="Number of sets at most. Default: 16.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@_verbose
def _compact(store: Path, sets: int, quiet: bool, verbose: bool) -> None:  # noqa: ARG001 - as above
    """Join small sets of STORE.

    It then loads faster. Time slices of a window that follow each other become one.
    """
    from recshuf.api import runs

    done = runs.compact(store, sets=sets, progress=choose_progress(quiet))
    if not quiet:
        click.echo(f"{store}: {done.num_records:,} records, snapshot {done.snapshot}")
