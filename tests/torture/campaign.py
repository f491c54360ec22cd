"""Attacks runs in every way known, and prints a table of what came of it.

    python -m tests.torture [--short | --long] [--seed N] [KIND...]

Every attack follows from the seed. To run one that failed again, give its kind, its name to ``--only``, and its
number to ``--number``.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.support.tally import COLUMNS, Tally, format_table
from tests.torture.calls import attack_calls
from tests.torture.flips import attack_flips
from tests.torture.jobs import CannotAttackError, Choice
from tests.torture.kills import attack_kills
from tests.torture.space import attack_space

KINDS = {
    "calls": attack_calls,
    "kills": attack_kills,
    "flips": attack_flips,
    "space": attack_space,
}


def attack(kind: str, folder: Path, choice: Choice) -> list[Tally]:
    """Return the tallies of a kind of attack; none, and say why, where it cannot be made."""
    try:
        return KINDS[kind](folder, choice)
    except CannotAttackError as reason:
        sys.stderr.write(f"{kind}: skipped: {reason}\n")
        return []


def run_kinds(kinds: list[str], folder: Path, choice: Choice) -> list[Tally]:
    """Return the tallies of some kinds of attack."""
    tallies = []
    for kind in kinds:
        started = time.monotonic()
        found = attack(kind, folder, choice)
        tried, seconds = sum(one.tried for one in found), time.monotonic() - started
        failures = [failure for one in found for failure in one.failures]
        sys.stderr.write("\n".join([f"{kind}: {tried} tried in {seconds:.0f} s", *failures]) + "\n")
        tallies += found
    return tallies


def merge(tallies: list[Tally]) -> list[Tally]:
    """Return one tally for all jobs of each attack: what stands before the colon in the names."""
    merged: dict[str, Tally] = {}
    for tally in tallies:
        name = tally.name.partition(":")[0]
        whole = merged.setdefault(name, Tally(name))
        for column in COLUMNS:
            setattr(whole, column, getattr(whole, column) + getattr(tally, column))
    return list(merged.values())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--short", action="store_true", help="about a minute; the default")
    length.add_argument("--long", action="store_true", help="every call, hundreds of kills: an hour and more")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="attacks whose name contains this")
    parser.add_argument("--number", type=int, help="that attempt alone, as a failure names it")
    parser.add_argument(
        "--folder", type=Path, help="work here, and leave what there is; default: a temporary one"
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    given = parser.parse_args()
    if unknown := set(given.kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="torture-") as temporary:
        folder = (given.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        choice = Choice(given.seed, given.long, given.only, given.number)
        tallies = run_kinds(given.kinds or list(KINDS), folder, choice)
    sys.stdout.write(format_table(merge(tallies)) + "\n")
    return 0 if all(tally.is_clean for tally in tallies) else 1
