"""What is changed in a program about to be attacked: numbers of its plan, and spilled data between its passes."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from recshuf.system.files import exchange
from tests.support.processes.command_server import note
from tests.support.processes.faults import Faults, Strike
from tests.support.processes.killed_runs import refuse_exchange
from tests.support.small_runs import change_plans, put_in_place


def run_command(arguments: list[str], folder: str, how: dict[str, Any]) -> NoReturn:
    """Become the program, changed: see `Stage.run`. What is done to it is noted."""
    from recshuf import cli

    sys.argv = ["recshuf", *arguments]
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # before the program begins it ends the process, as the others do
    patch = pytest.MonkeyPatch()  # for the rest of the process
    if numbers := how.get("numbers"):
        change_plans(
            patch, **{name: tuple(one) if isinstance(one, list) else one for name, one in numbers.items()}
        )
    if (seed := how.get("flip")) is not None:
        _flip_before_gather(random.Random(seed))
    if not how.get("exchanges", True):
        put_in_place(patch, exchange, refuse_exchange)
    if largest := how.get("largest_file"):
        sys.dont_write_bytecode = True  # compiled modules would be cut, too
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    if "LD_PRELOAD" in os.environ:
        strike = Strike(**how.get("strike") or {"call": 0})
        cli.main = partial(_strike_main, cli.main, folder, strike)
    cli.run()


def _strike_main(whole: Callable[[], int], folder: str, strike: Strike) -> int:
    """Be the program's main function with calls struck."""
    faults = Faults()
    faults.arm(folder, strike)
    code = whole()
    fired, struck = faults.struck()
    note(fired=fired, struck=struck)
    if strike.mode != "from":  # that goes on to the end of the process
        note(calls=faults.disarm())
    return code


def _flip_before_gather(chance: random.Random) -> None:
    """Change one bit of the spilled data between the passes, when all of it is written and nothing of it read."""
    from recshuf.run.gather import Gather

    original = Gather.run

    def run(self: Gather, *given: Any) -> Any:
        # By way of a path, also for a file that has no name.
        spilled = self._groups._regions._store._sets.values()  # type: ignore[attr-defined]
        paths = [Path(f"/proc/self/fd/{pile_set._descriptor}") for pile_set in spilled]
        note(spilled_files=len(paths))
        if paths:
            (path,) = chance.choices(paths, [path.stat().st_size for path in paths])
            note(damaged=f"{path.name}, {flip_bit(path, chance)}")
        return original(self, *given)

    Gather.run = run  # type: ignore[method-assign]


def flip_bit(path: Path, chance: random.Random) -> str:
    """Change one bit of a file, and return which."""
    place, bit = chance.randrange(path.stat().st_size), chance.randrange(8)
    with path.open("r+b", buffering=0) as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))
    return f"bit {bit} of byte {place}"
