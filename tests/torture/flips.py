"""Single bits that change on the disk: in spilled data between the passes, and in the folder a dead run left.

A change is detected, or it is harmless: it lies where nothing is ever read, in the gaps between regions, or what it
hit is made again. Those are the ones counted as right.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from tests.support.processes.faults import Strike, build_faults, find_compiler
from tests.support.tally import Tally
from tests.torture.hooks import Damage, flip_bit
from tests.torture.jobs import SMALL, Choice, Recipe, Stage, judge, make_folder, resume
from tests.torture.server import Ending, Request, Server, Servers

if TYPE_CHECKING:
    import random
    from pathlib import Path

KINDS = ("bit flip", "truncation", "change before --resume")
SPILLING = tuple(recipe for recipe in SMALL if recipe.numbers)
COUNTS = {False: 4, True: 400}
"""Flips in the spilled data of each job, in the short and in the long form."""
KEPT_COUNTS = {False: 2, True: 60}
"""Changes of what a dead run of each job left."""


def attack_flips(folder: Path, choice: Choice) -> list[Tally]:
    """Return tallies of flips, of truncations and of changes in kept folders, for each job that spills."""
    library = build_faults(folder) if find_compiler() else None
    with Servers(library) as servers:
        found = servers.map(
            lambda server, recipe: _attack_job(folder, server, recipe, choice, strikes=library is not None),
            [recipe for recipe in SPILLING if any(choice.wants(f"{one}: {recipe.name}") for one in KINDS)],
        )
    return [tally for tallies in found for tally in tallies if tally.tried]


class _Bench:
    """A stage with a server of its own."""

    def __init__(self, folder: Path, server: Server, recipe: Recipe) -> None:
        self.stage, self.server = Stage(folder, recipe), server
        self.stage.prepare(self.run)

    def run(
        self, arguments: tuple[str, ...], damage: Damage | None = None, strike: Strike | None = None
    ) -> Ending:
        """Run the job once."""
        numbers, folder = self.stage.recipe.numbers, str(self.stage.folder)
        return self.server.run(
            Request(arguments, numbers, folder=folder, strike=strike or Strike(0), damage=damage)
        )


def _attack_job(
    folder: Path, server: Server, recipe: Recipe, choice: Choice, *, strikes: bool
) -> list[Tally]:
    place = make_folder(folder / f"flips-{SPILLING.index(recipe)}")
    bench = _Bench(place / "stage", server, recipe)
    flips, cuts, kept = (Tally(f"{kind}: {recipe.name}") for kind in KINDS)
    _flip_between_passes(bench, choice, flips)
    _cut_between_passes(bench, choice, cuts)
    if strikes:
        _change_kept(bench, choice, kept)
    return [flips, cuts, kept]


def _flip_between_passes(bench: _Bench, choice: Choice, tally: Tally) -> None:
    for number in choice.numbers(COUNTS) if choice.wants(tally.name) else ():
        seed = choice.random(tally.name, number).getrandbits(32)
        tally.add(*_run_damaged(bench, Damage("flip", seed), number))


def _cut_between_passes(bench: _Bench, choice: Choice, tally: Tally) -> None:
    """Truncate at every edge of every region, and one byte before and behind it."""
    if not choice.wants(tally.name):
        return
    edges = bench.run(bench.stage.arguments(), Damage("look")).edges
    bench.stage.reset()
    cuts = [(file, place + by) for file, place in edges for by in (-1, 0, 1) if place + by >= 0]
    chosen = range(len(cuts)) if choice.is_long else choice.random(tally.name).sample(range(len(cuts)), 4)
    for number in chosen:
        if choice.number in (None, number):
            tally.add(*_run_damaged(bench, Damage("cut", edge=cuts[number]), number))


def _run_damaged(bench: _Bench, damage: Damage, number: int) -> tuple[str, str]:
    ending = bench.run(bench.stage.arguments(), damage)
    outcome, note = judge(bench.stage, ending)
    if not ending.damaged:
        outcome, note = "crashed", f"nothing was damaged: {note}"
    bench.stage.reset()
    return outcome, f"--number {number}: {ending.damaged}: {note}"


def _change_kept(bench: _Bench, choice: Choice, tally: Tally) -> None:
    """Let a run die late, change what it left, and let that be resumed."""
    if not choice.wants(tally.name):
        return
    calls = bench.run(bench.stage.arguments(), strike=Strike(0)).calls
    bench.stage.reset()
    for number in choice.numbers(KEPT_COUNTS):
        chance = choice.random(tally.name, number)
        strike = Strike(int(calls * chance.uniform(0.5, 1)), chance.choice(("once", "kill")), errno.EIO)
        bench.run(bench.stage.arguments(), strike=strike)
        done = _change_something(bench.stage, chance)
        if done:
            outcome, note = _resume_changed(bench)
            tally.add(outcome, f"--number {number}: {strike}: {done}: {note}")
        bench.stage.reset()


def _resume_changed(bench: _Bench) -> tuple[str, str]:
    """Return ``right`` if a resumed run comes to the right bytes, ``detected`` if it refuses what was changed."""
    stage = bench.stage
    was_complete = stage.state() == stage.after
    outcome, note = resume(stage, bench.run)
    if outcome == "crashed" and not was_complete:
        outcome, refused = judge(stage, bench.run(stage.arguments("--resume")))
        note = f"{note}; {refused}"
    return outcome, note


def _change_something(stage: Stage, chance: random.Random) -> str:
    """Flip a bit of one of the files beside the output, cut it or delete it; return what was done."""
    folders = [path for path in (*stage.place.iterdir(), *stage.temp.iterdir()) if path != stage.output]
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    if not files:
        return ""
    path = chance.choice(files)
    name, kind, size = (
        path.relative_to(stage.folder),
        chance.choice(("flip", "flip", "cut", "delete")),
        path.stat().st_size,
    )
    if kind == "delete":
        path.unlink()
        return f"{name} deleted"
    if kind == "cut" or not size:
        with path.open("r+b") as file:
            file.truncate(chance.randint(0, size))
        return f"{name} cut"
    return f"{name}: {flip_bit(path, chance)}"
