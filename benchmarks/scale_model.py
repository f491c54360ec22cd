"""Models hours and dollars for a TB on 1, 10 and 100 machines, from measured rates.

    python -m benchmarks.scale_model [--core-seconds 3.6] [--disk 250MB] [--cores 16] [--network 1250MB] [--price 1.0]

Both passes read and write all data once, and use all cores:

    scatter    read the inputs, write the pile sets
    gather     read the pile sets, write the output

A pass takes as long as what is slowest in it: cores, or the disk of one machine, or the network and the file system that
several machines share. Left out: compression, machines that die, planning and the commit.
"""

from __future__ import annotations

from dataclasses import dataclass

import click

from benchmarks.markdown import format_table
from benchmarks.option_types import SIZE
from recshuf.storage import writing as file_parts
from recshuf.storage.reading import read_ahead

TB = 10**12
MACHINES = (1, 10, 100)
PUT_PRICE, GET_PRICE = 0.005 / 1000, 0.0004 / 1000
"""Dollars a request: the list prices of S3 Standard in us-east-1."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine does in a second."""

    core_bytes: float
    """Bytes of records that a core takes through a pass."""
    cores: int
    disk_bytes: float
    """Bytes that its disk reads or writes."""
    network_bytes: float
    price: float
    """Dollars an hour."""


def find_seconds(machine: Machine, machines: int, shared_bytes: float) -> tuple[float, str]:
    """Return the seconds of a pass over a TB, and what limits it.

    Parameters
    ----------
    shared_bytes
        Bytes that the shared file system reads or writes in a second for all machines together.
    """
    times = {"cores": TB / (machine.core_bytes * machine.cores * machines)}
    if machines == 1:
        times["disk"] = 2 * TB / machine.disk_bytes
    else:
        times["network"] = 2 * TB / (machine.network_bytes * machines)
        times["shared file system"] = 2 * TB / shared_bytes
    limit = max(times, key=lambda name: times[name])
    return times[limit], limit


def count_request_dollars() -> float:
    """Return the price of the requests for a TB: read and written in parts."""
    return TB / read_ahead.PART_BYTES * GET_PRICE + TB / file_parts.PART_BYTES * PUT_PRICE


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--core-seconds", default=3.6, show_default=True, help="CPU seconds for a GB, both passes.")
@click.option("--cores", default=16, show_default=True, help="Cores of a machine.")
@click.option(
    "--disk", type=SIZE, default="250MB", show_default=True, help="Of the disk of one machine, a second."
)
@click.option("--network", type=SIZE, default="1250MB", show_default=True, help="Of a machine, a second.")
@click.option("--shared", type=SIZE, default="20GB", show_default=True, help="Of the file system, a second.")
@click.option("--price", default=1.0, show_default=True, help="Dollars for a machine and hour.")
def main(core_seconds: float, cores: int, disk: int, network: int, shared: int, price: float) -> None:
    """Print the table."""
    machine = Machine(2e9 / core_seconds, cores, disk, network, price)
    lines = []
    for machines in MACHINES:
        seconds, limit = find_seconds(machine, machines, shared)
        hours = 2 * seconds / 3600
        dollars = hours * machines * price + count_request_dollars()
        lines.append(
            [f"{machines}", f"{hours:.2f}", f"{TB / (2 * seconds) / 1e9:.2f}", limit, f"{dollars:.2f}"]
        )
    click.echo(format_table(["machines", "hours for a TB", "GB/s", "limit", "dollars for a TB"], lines))


if __name__ == "__main__":
    main()
