"""The k-th call fails: every system call of a small job, one at a time and all from there on; or a signal comes with it.

After each the output holds what it held before or the complete new set, the message is clean, and a run with
``--resume`` completes to the bytes of an undisturbed run.
"""

import errno
import signal
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from tests.support.processes.command_server import Server
from tests.support.processes.faults import Strike, build_faults, find_compiler
from tests.support.tally import Tally
from tests.torture.jobs import (
    SMALL,
    CannotAttackError,
    Choice,
    Recipe,
    Stage,
    attack_each,
    describe,
    is_clean_end,
    is_named,
    judge,
    make_folder,
    resume,
    tail,
)

KINDS = (
    ("once", errno.EIO),
    ("once", errno.ENOSPC),
    ("from", errno.EIO),
    ("from", errno.ENOSPC),
    ("short", 0),
    ("kill", 0),
    ("term", 0),
)
SAMPLE = 2
"""Calls of each job and kind in the short form."""
BEYOND = 5
"""Calls that are tried beyond the number counted: it varies a little from run to run."""


def attack_calls(folder: Path, choice: Choice) -> list[Tally]:
    """Return a tally for each small job and kind of strike: every call, or some spread evenly over them."""
    if find_compiler() is None:
        raise CannotAttackError("there is no C compiler")
    recipes = [recipe for recipe in SMALL if _find_wanted(recipe, choice)]
    found = attack_each(
        lambda server, recipe: _attack_job(folder, server, recipe, choice), recipes, build_faults(folder)
    )
    return [tally for tallies in found for tally in tallies]


def _find_wanted(recipe: Recipe, choice: Choice) -> dict[tuple[str, int], Tally]:
    tallies = {kind: Tally(f"call {_name(kind)}: {recipe.name}") for kind in KINDS}
    return {kind: tally for kind, tally in tallies.items() if choice.wants(tally.name)}


def _attack_job(folder: Path, server: Server, recipe: Recipe, choice: Choice) -> list[Tally]:
    tallies = _find_wanted(recipe, choice)
    place = make_folder(folder / f"calls-{SMALL.index(recipe)}")
    stage = Stage(place / "stage", recipe, server).prepare()
    calls = stage.run().facts["calls"]
    stage.reset()
    assert calls > BEYOND, f"{recipe.name}: no calls were counted"
    for kind, tally in tallies.items():
        for call in _choose_calls(calls + BEYOND, choice, tally.name):
            outcome, note = attempt(stage, Strike(call, *kind))
            tally.add(outcome, f"--number {call}: {note}")
    return list(tallies.values())


def _name(kind: tuple[str, int]) -> str:
    mode, error = kind
    return f"{mode} {errno.errorcode[error]}" if error else mode


def _choose_calls(last: int, choice: Choice, name: str) -> Iterable[int]:
    """Return all of 1 to `last`, or one from each of some equal parts."""
    if choice.number is not None:
        return [choice.number]
    if choice.is_long or last <= SAMPLE:
        return range(1, last + 1)
    chance = choice.random(name)
    edges = [last * part // SAMPLE for part in range(SAMPLE + 1)]
    return [chance.randint(low + 1, high) for low, high in pairwise(edges)]


def attempt(stage: Stage, strike: Strike) -> tuple[str, str]:
    """Strike one run, then let it be resumed; return the outcome of both and what there is to say."""
    ended = stage.run(strike=strike)
    struck = ended.facts.get("struck", "")
    if (strike.mode == "kill" and ended.status == -9) or (
        strike.mode == "term" and ended.status == 128 + signal.SIGTERM and is_clean_end(ended.stderr)
    ):
        outcome, note = ("detected", "") if stage.is_whole() else ("silent", describe(stage, stage.state()))
    else:
        outcome, note = judge(stage, ended)
    if strike.mode == "short" and outcome == "detected":
        outcome, note = "crashed", f"fewer bytes are no failure: {tail(ended)}"
    cleans_up = strike.mode in ("once", "short", "term") and not struck.startswith(("unlink", "rmdir"))
    if outcome == "detected" and cleans_up and not is_named(stage, ended):
        outcome, note = "crashed", f"left {stage.leftovers()} and did not say so: {tail(ended)}"
    if outcome == "detected" and strike.mode in ("once", "from") and str(stage.folder) not in ended.stderr:
        outcome, note = "crashed", f"the message names no path: {tail(ended)}"
    if outcome in ("right", "detected") and ended.status:
        resumed, note = resume(stage)
        outcome = outcome if resumed == "right" else resumed
    stage.reset()
    return outcome, f"{struck or 'beyond the last call'}: {note}"
