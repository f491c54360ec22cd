"""Plans a run of a million million records, and tells what that takes.

    python -m benchmarks.planning [--records 1e12] [--files 1e7] [--piles 1e5] [--memory 64GB] [--workers 16]

The inputs do not exist: the planner gets numbers, of the size that `recshuf --plan` gives it. Beside the plan with so many
piles, it makes the one with as many as it chooses.
"""

from __future__ import annotations

import time

import click
import numpy as np

from benchmarks.markdown import format_table
from benchmarks.option_types import SIZE
from recshuf.job.plan import Costs, Cut, InputSizes, Limits, Plan
from recshuf.job.planner import make_plan
from recshuf.system.memory import peak_bytes
from recshuf.system.units import format_size

RECORD_BYTES = 100
SHARD_BYTES = 1 << 30
MOST_SECONDS, MOST_BYTES = 120, 10**9


def make_inputs(records: int, files: int) -> InputSizes:
    """Return inputs of half to one and a half times the mean number of records."""
    chance = np.random.default_rng(1)
    counts = chance.integers(records // files // 2, 3 * records // files // 2, files, endpoint=True)
    sizes = counts * RECORD_BYTES
    return InputSizes(np.stack([counts, sizes, sizes]), np.ones(files, np.bool_))


def describe(plan: Plan) -> list[str]:
    """Return the numbers of a plan."""
    total = plan.byte_count or 0
    return [
        f"{plan.pile_count:,}",
        format_size(total // plan.pile_count),
        format_size(total // plan.pile_count // plan.set_count),
        f"{plan.set_count:,}",
        f"{plan.set_count * plan.pile_count:,}",
        f"{plan.shard_count or 0:,}",
        f"{plan.count_parts():,}",
    ]


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--records", type=float, default=1e12, show_default=True, help="Number of records.")
@click.option("--files", type=float, default=1e7, show_default=True, help="Number of input files.")
@click.option(
    "--piles", type=float, default=1e5, show_default=True, help="Number of piles of the first plan."
)
@click.option("--memory", type=SIZE, default="64GB", show_default=True, help="Memory limit of the run.")
@click.option("--workers", default=16, show_default=True, help="Threads of the run.")
def main(records: float, files: float, piles: float, memory: int, workers: int) -> None:
    """Print the plans, and what they took."""
    start = time.perf_counter()
    inputs = make_inputs(int(records), int(files))
    costs = Costs(lambda block: 2 * block, lambda threads: (64 << 20) * threads)
    head = ["piles", "of", "regions of", "sets", "regions", "shards", "parts of a pile"]
    lines = [
        describe(
            make_plan(inputs, Limits(memory, workers, 1 << 30, count), costs, Cut(shard_bytes=SHARD_BYTES))
        )
        for count in (int(piles), None)
    ]
    seconds, peak = time.perf_counter() - start, peak_bytes()
    click.echo(format_table(head, lines))
    click.echo(
        f"\n{len(inputs):,} inputs, {inputs.record_count or 0:,} records, {format_size(inputs.byte_count or 0)}: "
        f"{seconds:.1f} s (at most {MOST_SECONDS}), peak {format_size(peak)} (at most {format_size(MOST_BYTES)})"
    )
    if seconds > MOST_SECONDS or peak > MOST_BYTES:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
