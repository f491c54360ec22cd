"""``kill -9`` and the signals that a program can catch, at random moments of a run.

After each the output holds what it held before or the complete new set; ``--resume`` with other memory and
workers completes to the bytes of an undisturbed run. A signal that can be caught ends the run within two seconds,
or twice the time of an undisturbed run where that is longer, as on a slow machine, with 128 + n, and either nothing is
left or the message says how to resume.
"""

import random
import signal
from pathlib import Path

from recshuf.piles.layout import SPILL_COMPRESSIONS
from tests.support.processes.command_server import Ended, Server
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

NAMES = {"kill -9": (signal.SIGKILL,), "signal": (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
STOP_SECONDS = 2.0
COUNTS = {False: 2, True: 100}
"""Kills of each job, in the short and in the long form; and as many signals."""


def attack_kills(folder: Path, choice: Choice) -> list[Tally]:
    """Return a tally of kills and one of signals for each job."""
    recipes = LARGE if choice.is_long else MIDDLE

    def attack(server: Server, recipe: Recipe) -> list[Tally]:
        place = make_folder(folder / f"kills-{recipes.index(recipe)}")
        stage, tallies = Stage(place / "stage", recipe, server).prepare(), []
        for name, signals in NAMES.items():
            tally = Tally(f"{name}: {recipe.name}")
            for number in choice.numbers(COUNTS) if choice.wants(tally.name) else ():
                chance = choice.random(tally.name, number)
                stage.reset(overwrites=chance.random() < 0.5)
                outcome, note = _attempt(stage, chance, chance.choice(signals))
                tally.add(outcome, f"--number {number}: {note}")
            tallies.append(tally)
        make_folder(place)
        return tallies

    wanted = [one for one in recipes if any(choice.wants(f"{name}: {one.name}") for name in NAMES)]
    return [tally for tallies in attack_each(attack, wanted) for tally in tallies if tally.tried]


def _draw_resources(stage: Stage, chance: random.Random) -> tuple[str, ...]:
    least = stage.recipe.least_memory
    workers = chance.randint(1, stage.recipe.most_workers)
    memory = f"{chance.randint(least, 2 * least)}MB"
    spill = chance.choice(SPILL_COMPRESSIONS)
    return ("--memory", memory, "--workers", str(workers), "--spill-compression", spill)


def _attempt(stage: Stage, chance: random.Random, number: signal.Signals) -> tuple[str, str]:
    """Send a signal to a run, sometimes kill the run that resumes it as well, and let that be resumed."""
    more = ("--piles", str(chance.randint(1, 200))) if chance.random() < 0.5 else ()
    notes, is_ended = [], False
    for sent in (number, signal.SIGKILL)[: chance.choice((1, 1, 2))]:
        moment, resources = chance.uniform(0, 1.1 * stage.seconds), _draw_resources(stage, chance)
        ended = stage.run(stage.arguments(*more, resources=resources), sent, moment)
        notes.append(
            f"{sent.name} after {moment:.3f} s: {' '.join((*resources, *more))}; left {stage.leftovers()}"
        )
        if stage.state() not in (stage.before, stage.after):
            return "silent", f"{notes}: {describe(stage, stage.state())}"
        if problem := _judge_end(stage, ended, sent):
            return problem[0], f"{notes}: {problem[1]}: {tail(ended)}"
        is_ended = is_ended or ended.status != 0
        more = (*more, "--resume")
        if ended.status == 0 or stage.state() == stage.after:
            break
    if not is_ended:
        is_there = stage.state() == stage.after
        return ("right", "") if is_there else ("silent", f"{notes}: exit 0 without output")
    resources = _draw_resources(stage, chance)
    outcome, note = resume(stage, resources)
    return ("detected", "") if outcome == "right" else (outcome, f"{notes}; {resources}: {note}")


def _judge_end(stage: Stage, ended: Ended, sent: signal.Signals) -> tuple[str, str] | None:
    """Return the outcome of a run that did not end as a signal has to end it, and why; else None."""
    if ended.status == 0 or (sent == signal.SIGKILL and ended.status == -sent):
        return None
    if ended.seconds > max(STOP_SECONDS, 2 * stage.seconds):
        return "hung", f"it took {ended.seconds:.1f} s to end"
    if ended.status == -sent and not stage.leftovers():
        return None  # so early that nothing was there to catch it
    if ended.status != 128 + sent or not is_clean_end(ended.stderr):
        return "crashed", f"exit {ended.status}"
    return None if is_named(stage, ended) else ("crashed", "did not say what it left")
