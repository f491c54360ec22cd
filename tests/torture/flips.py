"""Single bits that change on the disk: in spilled data between the passes, and in the folder a dead run left.

A change is detected, or it is harmless: it lies where nothing is ever read, in the gaps between regions, or what it
hit is made again. Those are the ones counted as right.
"""

import errno
import random
from pathlib import Path

from tests.support.processes.command_server import Server
from tests.support.processes.faults import Strike, build_faults, find_compiler
from tests.support.tally import Tally
from tests.torture.hooks import flip_bit
from tests.torture.jobs import SMALL, Choice, Recipe, Stage, attack_each, judge, make_folder, resume

KINDS = ("bit flip", "change before --resume")
SPILLING = tuple(recipe for recipe in SMALL if recipe.numbers)
COUNTS = {False: 4, True: 400}
"""Flips in the spilled data of each job, in the short and in the long form."""
KEPT_COUNTS = {False: 2, True: 60}
"""Changes of what a dead run of each job left."""


def attack_flips(folder: Path, choice: Choice) -> list[Tally]:
    """Return tallies of flips and of changes in kept folders, for each job that spills."""
    library = build_faults(folder) if find_compiler() else None

    def attack(server: Server, recipe: Recipe) -> list[Tally]:
        place = make_folder(folder / f"flips-{SPILLING.index(recipe)}")
        stage = Stage(place / "stage", recipe, server).prepare()
        flips, kept = (Tally(f"{kind}: {recipe.name}") for kind in KINDS)
        _flip_between_passes(stage, choice, flips)
        if library is not None:
            _change_kept(stage, choice, kept)
        return [flips, kept]

    wanted = [recipe for recipe in SPILLING if any(choice.wants(f"{one}: {recipe.name}") for one in KINDS)]
    found = attack_each(attack, wanted, library)
    return [tally for tallies in found for tally in tallies if tally.tried]


def _flip_between_passes(stage: Stage, choice: Choice, tally: Tally) -> None:
    for number in choice.numbers(COUNTS) if choice.wants(tally.name) else ():
        ended = stage.run(flip=choice.random(tally.name, number).getrandbits(32))
        damaged = ended.facts.get("damaged", "")
        outcome, note = judge(stage, ended) if damaged else ("crashed", "nothing was damaged")
        stage.reset()
        tally.add(outcome, f"--number {number}: {damaged}: {note}")


def _change_kept(stage: Stage, choice: Choice, tally: Tally) -> None:
    """Let a run die late, change what it left, and let that be resumed."""
    if not choice.wants(tally.name):
        return
    calls = stage.run().facts["calls"]
    stage.reset()
    for number in choice.numbers(KEPT_COUNTS):
        chance = choice.random(tally.name, number)
        strike = Strike(int(calls * chance.uniform(0.5, 1)), chance.choice(("once", "kill")), errno.EIO)
        stage.run(strike=strike)
        done = _change_something(stage, chance)
        if done:
            outcome, note = _resume_changed(stage)
            tally.add(outcome, f"--number {number}: {strike}: {done}: {note}")
        stage.reset()


def _resume_changed(stage: Stage) -> tuple[str, str]:
    """Return ``right`` if a resumed run comes to the right bytes, ``detected`` if it refuses what was changed."""
    was_complete = stage.state() == stage.after
    outcome, note = resume(stage)
    if outcome == "crashed" and not was_complete:
        outcome, refused = judge(stage, stage.run(stage.arguments("--resume")))
        note = f"{note}; {refused}"
    return outcome, note


def _change_something(stage: Stage, chance: random.Random) -> str:
    """Flip a bit of one of the files beside the output, cut it or delete it; return what was done."""
    folders = [path for path in (*stage.place.iterdir(), *stage.temp.iterdir()) if path != stage.output]
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    if not files:
        return ""
    path, kind = chance.choice(files), chance.choice(("flip", "flip", "cut", "delete"))
    name, size = path.relative_to(stage.folder), path.stat().st_size
    if kind == "delete":
        path.unlink()
        return f"{name} deleted"
    if kind == "cut" or not size:
        with path.open("r+b") as file:
            file.truncate(chance.randint(0, size))
        return f"{name} cut"
    return f"{name}: {flip_bit(path, chance)}"
