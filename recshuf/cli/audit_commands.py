"""The commands that look at existing data: verify, check, picture; and the demo, which shuffles some of its own and does all three."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.exceptions import Exit

from recshuf.cli.options import (
    HELP_OF_QUIET_RESULT,
    HELP_SETTINGS,
    GroupedCommand,
    Wording,
    check_loudness,
    choose_progress,
    make_epoch_options,
    make_html_option,
    make_option,
    make_output_option,
    make_quiet_option,
    make_report_option,
    make_verbose_option,
)
from recshuf.cli.result_files import (
    check_new_folder,
    check_report,
    check_spared,
    check_writable,
    make_new_folder,
    say_written,
    write_json,
    write_whole,
)
from recshuf.errors import UsageError
from recshuf.job.options import OrderOptions, VerifyOptions
from recshuf.system.paths import real_path
from recshuf.system.units import count_of, format_size, one_line

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


FAILED = 1
_NOT_UNIFORM = 3
_ONLY_OF_LOADER = ("seed", "epoch", "reshuffle", "mix")
"""Parameters of ``recshuf check`` that need ``--loader``."""
_STORAGE = ("endpoint_url", "storage_options")
_OF_LOADER = {"inputs", "loaders", "as_json", "quiet", "verbose", *_ONLY_OF_LOADER, *_STORAGE}
_VERIFY = Wording(
    description="""
Check that OUTPUT holds the same records as the INPUTs, in any order.

INPUT is files, directories and globs; OUTPUT is the file or directory that recshuf wrote, in the same or another
format. Only the files are read. Give the options of the shuffle again. Exit code 0: equal; 1: different, or a file
cannot be read; 2: wrong usage.
""",
    usage=["INPUT...", "OUTPUT"],
    example="""\
Example:
  recshuf data/ -o shuffled/ --to parquet && recshuf verify data/ shuffled/
""",
    shared=VerifyOptions,
    headings={"Order": "Output"},
)
_CHECK = Wording(
    description="""
Test whether records are in a uniformly random order.

With --against, which takes all words up to the next option, each DATA is a shuffle of the INPUTs by any program;
records are matched by content. With --provenance, the columns source_file and source_row give the input row of
each record, and no input is read. Several DATA are shuffles with different seeds and are tested together. With
--column, the order of one column's values is tested, without the inputs. With --loader, two epochs of a pile store
are tested. More than a million records are sampled. Exit code 0: no evidence against a uniformly random order; 3:
not uniformly random; 1: a file cannot be read; 2: wrong usage, or fewer than 1,000 records.
""",
    usage=["DATA...", "[--against INPUT... | --column NAME | --provenance | --loader STORE]"],
    example="""\
Examples:
  recshuf data/ -o shuffled/ && recshuf check shuffled/ --against data/
  recshuf check downloaded/*.parquet --column label
  recshuf data/ -o shuffled/ --provenance && recshuf check shuffled/ --provenance
  recshuf scatter data/ -o store && recshuf check --loader store
""",
    shared=OrderOptions,
    headings={"Input": "Data", "Output": "Data"},
)
_PICTURE = Wording(
    description="""
Draw the order of records as points along a Hilbert curve, which keeps neighbours close together.

With --column, the colour of a point is the value of a column. With --against, which takes all words up to the next
option, it is the record's position in the INPUTs, matched by content; with --provenance, the position that the
columns source_file and source_row give. INPUTs and DATA are drawn side by side. If there are more records than
points, they are sampled. The picture is a PNG. It needs recshuf[report].
""",
    usage=["DATA...", "[--against INPUT...]", "[--column NAME]", "[--provenance]", "-o PICTURE.png"],
    example="""\
Examples:
  recshuf data/ -o shuffled/ && recshuf picture shuffled/ --against data/ -o shuffled.png
  recshuf picture downloaded/*.parquet --column label -o labels.png
""",
    shared=OrderOptions,
    headings=_CHECK.headings,
)


class _OrderCommand(GroupedCommand):
    """A command about the order of its ``inputs``, the data."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, ``--against a b`` like ``--against a --against b``."""
        spread: list[str] = []
        is_against = False
        for word in args:
            if word == "--against":
                is_against = True
                continue
            if word.startswith("-") and word != "-":
                is_against = False
            spread += ["--against", word] if is_against else [word]
        return super().parse_args(ctx, spread)


def _run_verify(
    inputs: tuple[str, ...],
    report: str | None,
    overwrite: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    check_loudness(quiet, verbose)
    if len(inputs) < 2:
        raise UsageError("verify needs inputs and an output; usage: recshuf verify [OPTIONS] INPUT... OUTPUT")
    *sources, output = inputs
    if report:
        check_report(report, output, True)
        check_spared(report, [*inputs, options.get("schema")], overwrite=overwrite)
    from recshuf.api import checks
    from recshuf.audit.reports.text import difference_lines, verdict

    progress = choose_progress(quiet)
    done = checks.verify(sources, output, progress=progress, **options)
    if report:
        write_json(report, done.to_json())
    if not quiet and report != "-" and sys.stdout is not None:
        for line in (verdict(done, output), *difference_lines(done)):
            click.echo(one_line(line))
    if not done.is_equal:
        raise Exit(FAILED)


def _run_check(
    inputs: tuple[str, ...],
    as_json: bool,
    html: str | None,
    overwrite: bool,
    quiet: bool,
    verbose: bool,
    loaders: tuple[str, ...],
    **options: Any,
) -> None:
    if quiet and (verbose or as_json):
        raise UsageError("-q contradicts -v and --json; give one of them")
    _check_beside(inputs, loaders)
    of_loader = {name: options.pop(name) for name in _ONLY_OF_LOADER}
    if not inputs and not loaders:
        raise UsageError(
            "no data; usage: recshuf check [OPTIONS] DATA... [--against INPUT... | --column NAME | --provenance]"
        )
    from recshuf.api import checks
    from recshuf.audit.reports.text import check_lines

    progress = choose_progress(quiet)
    if loaders:
        storage = {name: options[name] for name in _STORAGE}
        done = checks.check_loader(loaders[0], progress=progress, **of_loader, **storage)
        inputs = loaders
    elif html:
        check_writable("--html", html, None)
        check_spared(html, [*inputs, *options["against"], options["schema"]], overwrite=overwrite)
        done, page = checks.write_check(inputs, progress=progress, **options)
        write_whole(html, page.encode())
        say_written(html, quiet)
    else:
        done = checks.check(inputs, progress=progress, **options)
    if as_json:
        write_json("-", done.to_json())
    elif not quiet and sys.stdout is not None:
        for line in check_lines(done, inputs, with_all=verbose):
            click.echo(one_line(line))
    if not done.is_uniform:
        raise Exit(_NOT_UNIFORM)


def _check_beside(inputs: tuple[str, ...], loaders: tuple[str, ...]) -> None:
    """Refuse data and its options beside ``--loader``, and the options of a loader without one."""
    if len(loaders) > 1:
        raise UsageError(f"--loader: names {len(loaders)} stores; check one after the other")
    if inputs and loaders:
        raise UsageError("--loader and DATA contradict each other; give one of them")
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        is_refused = name not in _OF_LOADER if loaders else name in _ONLY_OF_LOADER
        if is_refused and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            remedy = "does not go with --loader; leave it out" if loaders else "is for --loader; leave it out"
            raise UsageError(f"{option.opts[0]}: {remedy}")


def _run_picture(
    inputs: tuple[str, ...], output: str | None, quiet: bool, verbose: bool, overwrite: bool, **options: Any
) -> None:
    check_loudness(quiet, verbose)
    if not inputs or output is None:
        what = "no data" if not inputs else "no file for the picture"
        raise UsageError(f"{what}; usage: recshuf picture [OPTIONS] DATA... -o PICTURE.png")
    if output != "-":
        check_writable("-o", output, None)
        check_spared(output, [*inputs, *options["against"], options["schema"]], overwrite=overwrite)
        if real_path(output).suffix.lower() not in ("", ".png"):
            raise UsageError(f"{output}: the picture is a PNG; give a name that ends in .png")
    elif sys.stdout is None:
        raise UsageError("-o -: standard output is closed; name a file")
    elif sys.stdout.isatty():
        raise UsageError(
            "-o -: the picture is a PNG, and standard output is a terminal; redirect it, or name a file"
        )
    from recshuf.api import checks

    picture = checks.picture(inputs, progress=choose_progress(quiet), **options)
    if output == "-":
        click.echo(picture, nl=False)
    else:
        write_whole(output, picture)
        say_written(output, quiet)


verify_command = GroupedCommand(
    "verify",
    _run_verify,
    _VERIFY,
    {
        "General": [
            make_report_option("Write the result as JSON"),
            make_option("overwrite", "verify"),
            make_quiet_option(HELP_OF_QUIET_RESULT),
            make_verbose_option(),
        ]
    },
)
check_command = _OrderCommand(
    "check",
    _run_check,
    _CHECK,
    {
        "Order": [],
        "Loader": [
            click.Option(
                ["--loader", "loaders"], multiple=True, metavar="STORE",
                help="Test what recshuf.PileLoader yields from this store over two epochs, in place of DATA.",
            ),
            make_option("seed", "check"),
            *make_epoch_options("With --loader: first of the two epochs.", 1),
        ],
        "General": [
            click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON."),
            make_html_option("Write a page with pictures and the result. Needs recshuf[report]."),
            make_option("overwrite", "check"),
            make_quiet_option(HELP_OF_QUIET_RESULT),
            make_verbose_option("Print all statistics, and tracebacks of errors."),
        ],
    },
)  # fmt: skip
picture_command = _OrderCommand(
    "picture",
    _run_picture,
    _PICTURE,
    {
        "Order": [],
        "Output": [
            make_output_option("PNG", "File of the picture; - is standard output."),
            click.Option(
                ["--title"], metavar="TEXT", help="Heading of the picture. Default: names of the data."
            ),
            make_option("overwrite", "picture"),
        ],
        "General": [make_quiet_option(), make_verbose_option()],
    },
)


_LABELS = ("cat", "dog")
ROWS_PER_LABEL = 100_000
_MEMORY = "64MB"
_SEED = 7
_TEXT_BYTES = 600
_ROW_GROUP_ROWS = 10_000


def _run_demo(output: str | None, verbose: bool) -> None:  # noqa: ARG001 - `main` reads it
    if output is not None:
        check_new_folder(output)
    import tempfile

    with make_new_folder(output or tempfile.mkdtemp(prefix="recshuf-demo-")) as folder:
        _show_demo(folder)


def _show_demo(folder: Path) -> None:
    """Shuffle labelled records in less memory than they need, and verify, check and draw them."""
    from recshuf.api.checks import check, picture, verify
    from recshuf.api.runs import shuffle
    from recshuf.audit.reports.text import check_lines, duration, verdict

    inputs, output = folder / "sorted", folder / "shuffled"
    _make_inputs(inputs)
    size = sum(path.stat().st_size for path in inputs.iterdir())
    records = count_of(len(_LABELS) * ROWS_PER_LABEL, "record")
    click.echo(f"1. Made {records}, {format_size(size)} of Parquet: all cats, then all dogs, in {inputs}")
    done = shuffle(inputs, f"{output}/", seed=_SEED, memory=_MEMORY)
    click.echo(
        f"2. Shuffled them in {_MEMORY} of memory in {duration(done.seconds)}: {format_size(done.spilled_bytes)} went through "
        f"the disk; seed {_SEED} gives the same files again, with any memory"
    )
    proof = verify(inputs, output)
    click.echo(f"3. Verified, record by record: {verdict(proof, str(output))}")
    order = check(output, against=inputs)
    click.echo("4. Checked the order against the inputs; a score beyond 6 would mean that it is not random:")
    for line in check_lines(order, [str(output)], with_all=True):
        click.echo(f"   {line}")
    if find_spec("PIL") is None:
        click.echo("5. No picture: Pillow is missing; install recshuf[report]")
        return
    path = folder / "picture.png"
    path.write_bytes(picture(output, against=inputs, column="label", title="100,000 cats and 100,000 dogs"))
    click.echo(f"5. Drew the labels before and after: {path}")


def _make_inputs(folder: Path) -> None:
    """Write one file for each label, always with the same bytes."""
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    for number, label in enumerate(_LABELS):
        # Opened here: the library takes no names that are not UTF-8.
        with (folder / f"{number}-{label}s.parquet").open("wb") as file:
            pq.write_table(_make_table(number, label), file, row_group_size=_ROW_GROUP_ROWS)


def _make_table(number: int, label: str) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", np.uint8)
    rows = np.arange(ROWS_PER_LABEL) + number * ROWS_PER_LABEL
    bits = np.random.Philox(number).random_raw(ROWS_PER_LABEL * _TEXT_BYTES // 8).view(np.uint8)
    offsets = np.arange(ROWS_PER_LABEL + 1, dtype=np.int32) * _TEXT_BYTES
    text = pa.StringArray.from_buffers(
        ROWS_PER_LABEL, pa.py_buffer(offsets), pa.py_buffer(letters[bits % len(letters)])
    )
    return pa.table({"id": rows, "label": [label] * ROWS_PER_LABEL, "text": text})


demo_command = click.Command(
    "demo",
    HELP_SETTINGS,
    callback=_run_demo,
    params=[
        make_output_option("DIR", "New folder for the files. Default: a temporary one."),
        make_verbose_option(),
    ],
    help="Write 100,000 records labelled cat and 100,000 labelled dog, shuffle them in 64 MB, verify, check and draw them.",
)
