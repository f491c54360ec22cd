"""``recshuf clean``: what dead runs left in an object store."""

from __future__ import annotations

import click

from recshuf.cli.common_options import WIDE_HELP_SETTINGS, make_verbose_option
from recshuf.cli.shuffle_options import make_option
from recshuf.errors import UsageError
from recshuf.storage.settings import StorageOptions, parse_storage_options
from recshuf.storage.urls import Url, is_url, refuse_unknown_scheme

_HELP = """
List what dead runs left in an object store: open uploads and the journal of the output URL, and spilled records below
the URL, if it was a --temp-dir.

With --yes, remove it. Shards that were put in place stay. A run that still uses what is removed fails.
"""


def make_clean_command() -> click.Command:
    """Return the clean command."""
    options = [
        click.Option(
            ["--yes"], is_flag=True, help="Abort the uploads, and delete the journal and spilled records."
        ),
        make_option("endpoint_url"),
        make_option("storage_options"),
        make_verbose_option(),
    ]
    url = click.Argument(["url"], metavar="URL")
    return click.Command("clean", WIDE_HELP_SETTINGS, _run_clean, [url, *options], help=_HELP)


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
    from recshuf.output.objects.remains import Remains

    remains = Remains(Url.parse(url), StorageOptions(endpoint_url, parse_storage_options(storage_options)))
    if not remains.find():
        click.echo(f"{url}: no run left anything")
        return
    for line in remains.describe():
        click.echo(line)
    if yes:
        remains.remove()
        click.echo("removed")
        return
    way = (
        "the commit of a run has begun, complete it with the same command and --resume"
        if remains.has_commit()
        else "give --yes to remove this, or continue the run with --resume"
    )
    click.echo(f"nothing was removed; {way}")
