"""Disks that are full for real: small file systems in memory for scratch, for output, for both; limited file sizes.

The attacks run in a child with mounts of its own, which end with it. After each the output holds what it held
before or the complete new set, the message names the folder and the bytes needed and free; with more space
``--resume`` completes to the bytes of an undisturbed run.
"""

import json
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from tests.support.processes.command_server import PROJECT, Server
from tests.support.tally import Tally
from tests.torture.jobs import MIDDLE, CannotAttackError, Choice, Stage, judge, make_folder, resume, tail

PLACES = ("scratch", "output", "both")
COUNTS = {False: 1, True: 12}
"""Attempts for each job and place, in the short and in the long form."""
SIZES = {False: (4, 12), True: (4, 64)}
"""MB of the small file systems: some of the jobs fit."""
MB = 1 << 20
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


def attack_space(folder: Path, choice: Choice) -> list[Tally]:
    """Return a tally for each place, and one for limited files, from a child that may mount."""
    try:
        command = [*NAMESPACE, "mount", "-t", "tmpfs", "none", tempfile.gettempdir()]
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stderr", b"") or error
        raise CannotAttackError(f"no file system can be mounted in a namespace: {told!r}") from error
    given = (str(folder), json.dumps(asdict(choice)))
    command = [*NAMESPACE, sys.executable, "-m", "tests.torture.space", *given]
    done = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, check=True)
    return [Tally(**values) for values in json.loads(done.stdout)]


def _attack_places(folder: Path, choice: Choice) -> list[Tally]:
    tallies = [Tally(f"disk full: {place}") for place in PLACES]
    files = Tally("RLIMIT_FSIZE")
    recipes = MIDDLE if choice.is_long else MIDDLE[:2]
    if choice.is_long:
        recipes = tuple(replace(recipe, rows=3 * recipe.rows) for recipe in recipes)
    with Server() as server:
        for index, recipe in enumerate(recipes):
            # Scratch and output apart only with a folder of its own for scratch.
            for apart, group in ((True, [*tallies[:2], files]), (False, tallies[2:])):
                group = [tally for tally in group if choice.wants(tally.name)]
                if not group:
                    continue
                place = make_folder(folder / f"space-{index}-{apart}")
                stage = Stage(place / "stage", replace(recipe, temp_dir=apart), server).prepare()
                for tally in group:
                    (_attack_files if tally is files else _attack_place)(stage, tally, choice)
                make_folder(place)
    return [tally for tally in (*tallies, files) if tally.tried]


def _attack_place(stage: Stage, tally: Tally, choice: Choice) -> None:
    small = stage.temp if tally.name.endswith("scratch") else stage.place
    for number in choice.numbers(COUNTS):
        chance = choice.random(tally.name, stage.recipe.name, number)
        size = chance.randint(SIZES[choice.is_long][0] * MB, SIZES[choice.is_long][1] * MB)
        note = f"--number {number}: {stage.recipe.name}, {size} bytes"
        _call("mount", "-t", "tmpfs", "-o", f"size={size}", "none", small)
        try:
            stage.reset(overwrites=chance.random() < 0.5)
            outcome, more = _attempt(stage, small, chance)
        finally:
            _call("umount", "--lazy", small)
        stage.reset()
        tally.add(outcome, f"{note}: {more}")


def _attempt(stage: Stage, small: Path, chance: random.Random) -> tuple[str, str]:
    unchecked = ("--no-space-check",) if chance.random() < 0.7 else ()
    ended = stage.run(stage.arguments(*unchecked))
    outcome, note = judge(stage, ended)
    if outcome != "detected":
        return outcome, f"{unchecked}: {note}"
    if missing := [word for word in (str(small), "need", "free") if word not in ended.stderr]:
        return "crashed", f"{unchecked}: the message lacks {missing}: {tail(ended)}"
    _call("mount", "-o", f"remount,size={512 * MB}", small)
    outcome, note = resume(stage)
    return ("detected", "") if outcome == "right" else (outcome, f"{unchecked}: {tail(ended)}: {note}")


def _attack_files(stage: Stage, tally: Tally, choice: Choice) -> None:
    """Limit the size of files as ``ulimit -f`` does."""
    for number in choice.numbers(COUNTS):
        chance = choice.random(tally.name, stage.recipe.name, number)
        limit = int(2 ** chance.uniform(12, 24))
        stage.reset(overwrites=chance.random() < 0.5)
        ended = stage.run(largest_file=limit)
        outcome, note = judge(stage, ended)
        if outcome == "detected" and "ulimit -f" not in ended.stderr:
            outcome, note = "crashed", f"the message does not name the limit: {tail(ended)}"
        elif outcome == "detected":
            resumed, note = resume(stage)
            outcome = outcome if resumed == "right" else resumed
        stage.reset()
        tally.add(outcome, f"--number {number}: {stage.recipe.name}, files of {limit} bytes: {note}")


def _call(*command: str | Path) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    found = _attack_places(Path(sys.argv[1]), Choice(**json.loads(sys.argv[2])))
    sys.stdout.write(json.dumps([asdict(tally) for tally in found]))
