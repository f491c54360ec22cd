"""``kill -9`` and the signals that a program can catch, at random moments of a run.

After a kill the output holds what it held before or the complete new set; ``--resume`` with other memory and
workers completes to the bytes of an undisturbed run. A signal that can be caught ends the run within two seconds,
or twice the time of an undisturbed run where that is longer, as on a slow machine, with 128 + n, and either nothing is
left or the message says how to resume.
"""

import random
import signal
from collections.abc import Callable
from pathlib import Path

from recshuf.piles.layout import SPILL_COMPRESSIONS
from tests.support.processes.command_server import Server
from tests.support.tally import Tally
from tests.torture.jobs import (
    LARGE,
    MIDDLE,
    Choice,
    Recipe,
    Stage,
    attack_each,
    describe,
    is_clean_end,
    is_named,
    make_folder,
    resume,
    tail,
)

CATCHABLE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_SECONDS = 2.0
COUNTS = {False: 2, True: 100}
"""Kills of each job, in the short and in the long form; and as many signals."""


def attack_kills(folder: Path, choice: Choice) -> list[Tally]:
    """Return a tally of kills for each job."""
    return _attack(folder, choice, "kill -9", _attempt_kill)


def attack_signals(folder: Path, choice: Choice) -> list[Tally]:
    """Return a tally of signals for each job."""
    return _attack(folder, choice, "signal", _attempt_signal)


def _attack(
    folder: Path, choice: Choice, kind: str, attempt: Callable[[Stage, random.Random], tuple[str, str]]
) -> list[Tally]:
    recipes = LARGE if choice.is_long else MIDDLE

    def attack(server: Server, recipe: Recipe) -> Tally:
        tally = Tally(f"{kind}: {recipe.name}")
        place = make_folder(folder / f"{kind[:4]}-{recipes.index(recipe)}")
        stage = Stage(place / "stage", recipe, server).prepare()
        for number in choice.numbers(COUNTS):
            chance = choice.random(tally.name, number)
            stage.reset(overwrites=chance.random() < 0.5)
            outcome, note = attempt(stage, chance)
            tally.add(outcome, f"--number {number}: {note}")
        make_folder(place)
        return tally

    return attack_each(attack, [one for one in recipes if choice.wants(f"{kind}: {one.name}")])


def _draw_resources(stage: Stage, chance: random.Random) -> tuple[str, ...]:
    least = stage.recipe.least_memory
    workers = chance.randint(1, stage.recipe.most_workers)
    memory = f"{chance.randint(least, 2 * least)}MB"
    spill = chance.choice(SPILL_COMPRESSIONS)
    return ("--memory", memory, "--workers", str(workers), "--spill-compression", spill)


def _draw_moment(stage: Stage, chance: random.Random) -> float:
    return chance.uniform(0, 1.1 * stage.seconds)


def _attempt_kill(stage: Stage, chance: random.Random) -> tuple[str, str]:
    """Kill a run, sometimes kill the run that resumes it as well, and let that be resumed."""
    killed = False
    resources = _draw_resources(stage, chance)
    piles = ("--piles", str(chance.randint(1, 200))) if chance.random() < 0.5 else ()
    more: tuple[str, ...] = ()
    notes = []
    for _ in range(chance.choice((1, 1, 2))):
        moment = _draw_moment(stage, chance)
        ended = stage.run(stage.arguments(*piles, *more, resources=resources), signal.SIGKILL, moment)
        notes.append(
            f"after {moment:.3f} s: {' '.join((*resources, *piles, *more))}; left {stage.leftovers()}"
        )
        if stage.state() not in (stage.before, stage.after):
            return "silent", f"{notes}: {describe(stage, stage.state())}"
        if ended.status not in (0, -signal.SIGKILL):
            return "crashed", f"{notes}: exit {ended.status}: {tail(ended)}"
        killed = killed or ended.status != 0
        more, resources = ("--resume",), _draw_resources(stage, chance)
        if ended.status == 0 or stage.state() == stage.after:
            break
    if not killed:
        return (
            ("right", "") if stage.state() == stage.after else ("silent", f"{notes}: exit 0 without output")
        )
    outcome, note = resume(stage, resources)
    return ("detected", "") if outcome == "right" else (outcome, f"{notes}; {resources}: {note}")


def _attempt_signal(stage: Stage, chance: random.Random) -> tuple[str, str]:
    number, moment = chance.choice(CATCHABLE), _draw_moment(stage, chance)
    resources = _draw_resources(stage, chance)
    ended = stage.run(stage.arguments(resources=resources), number, moment)
    note = f"{number.name} after {moment:.3f} s, {resources}"
    if stage.state() not in (stage.before, stage.after):
        return "silent", f"{note}: {describe(stage, stage.state())}"
    if ended.status and ended.seconds > max(STOP_SECONDS, 2 * stage.seconds):
        return "hung", f"{note}: it took {ended.seconds:.1f} s to end"
    if ended.status == 0:
        return ("right", "") if stage.state() == stage.after else ("silent", f"{note}: exit 0 without output")
    if ended.status == -number and not stage.leftovers():
        return "detected", ""  # so early that nothing was there to catch it
    if ended.status != 128 + number or not is_clean_end(ended.stderr):
        return "crashed", f"{note}: exit {ended.status}: {tail(ended)}"
    if not is_named(stage, ended):
        return "crashed", f"{note}: left {stage.leftovers()} and did not say so: {tail(ended)}"
    outcome, more = resume(stage, _draw_resources(stage, chance))
    return ("detected", "") if outcome == "right" else (outcome, f"{note}: {more}")
