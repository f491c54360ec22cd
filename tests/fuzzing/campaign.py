"""Mutated files of every format given to the command line: it gives the right records, or says what is wrong.

A mutant follows from its format, seed and number alone::

    python -m tests.fuzzing parquet --count 2000            # the table, and what failed
    python -m tests.fuzzing parquet --only 117 --keep DIR   # one mutant again, its files kept
"""

import argparse
import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from recshuf.output.manifest import manifest_path
from tests.fuzzing import oracle
from tests.fuzzing.mutate import mutate
from tests.fuzzing.seeds import FORMATS, Seed, make_seeds
from tests.support.processes.command_server import Ended, Server
from tests.support.tally import Tally, format_table

RIGHT, DETECTED, SILENT, CRASHED, HUNG = "right", "detected", "silent", "crashed", "hung"
LIMITS = {"seconds": 20, "memory_bytes": 4 << 30}
_CLEAN_LINE = re.compile(r"recshuf: error: \S.*")
_WARNING = "recshuf: warning: "


@dataclass(frozen=True)
class Attempt:
    """What came of one mutant."""

    name: str
    seed: int
    number: int
    attack: str
    """Role, seed file and mutation."""
    outcome: str
    problem: str
    message: str
    """What the command said."""

    def __str__(self) -> str:
        again = f"python -m tests.fuzzing {self.name} --seed {self.seed} --only {self.number} --keep DIR"
        return f"{self.problem} [{self.attack}] ({again})"


class Case:
    """One mutant in its folder: ``in/`` holds the inputs, and nothing but ``out`` may come beside it."""

    def __init__(self, name: str, seed: int, number: int, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.rng = np.random.default_rng([seed, crc32(name.encode()), number])
        self.arguments = ["--format", name, "--seed", "1", "--memory", "300MB", "--workers", "2", "-q"]
        if name == "csv":  # what a mutant shows is not what its shards show
            self.arguments += ["--header", "1", "--delimiter", ","]
        self.inputs: list[str] = []
        self.stdin: str | None = None
        self.to = name
        self.attack = ""
        self.may_repeat = name != "webdataset"
        """Whether a run takes the same records twice: keys of samples are unique."""
        (folder / "in").mkdir(parents=True)

    def add(self, file: str, data: bytes) -> None:
        """Put a file among the inputs."""
        (self.folder / "in" / file).write_bytes(data)
        self.inputs.append(f"in/{file}")

    def add_mutant(self, file: Seed, *, beside: tuple[Seed, ...] = ()) -> None:
        """Put a mutant among the inputs, and intact files around it."""
        data, steps = mutate(self.rng, file, make_seeds(self.name))
        self.attack += f" {file.name}: {steps}"
        place = int(self.rng.integers(len(beside) + 1))
        for index, good in enumerate(beside[:place]):
            self.add(f"before{index}-{good.name}", good.data)
        self.add(file.name, data)
        for index, good in enumerate(beside[place:]):
            self.add(f"behind{index}-{good.name}", good.data)

    def draw_seed(self) -> Seed:
        """Return one of the seed files."""
        files = make_seeds(self.name)
        return files[int(self.rng.integers(len(files)))]


def fuzz(
    name: str, numbers: range, seed: int, folder: Path, server: Server, *, keep: bool = False
) -> Iterator[Attempt]:
    """Yield what comes of mutants with these numbers; `folder` is for their files, which are deleted unless they are to be kept."""
    for number in numbers:
        place = folder / f"{name}-{seed}-{number}"
        case = Case(name, seed, number, place)
        _choose_role(case)(case, server)
        outcome, problem, message = _judge(case, server)
        yield Attempt(name, seed, number, case.attack, outcome, problem, message)
        if not keep:
            shutil.rmtree(place)


def _choose_role(case: Case) -> Callable[[Case, Server], None]:
    roles = [_alone] * 10 + [_among] * 5 + [_converted] * 4 + [_old_manifest]
    if case.name in ("jsonl", "csv", "text"):
        roles += [_streamed] * 4
    role = roles[int(case.rng.integers(len(roles)))]
    case.attack = role.__name__[1:]
    return role


def _alone(case: Case, _: Server) -> None:
    case.add_mutant(case.draw_seed())


def _among(case: Case, _: Server) -> None:
    file = case.draw_seed()
    case.add_mutant(file, beside=(file, file) if case.may_repeat else ())


def _streamed(case: Case, _: Server) -> None:
    """Standard input tells its compression by its content, as a file named ``bare`` does."""
    file = case.draw_seed()
    case.add_mutant(Seed("bare", file.data, file.edges))
    case.stdin = case.inputs[0]


def _converted(case: Case, _: Server) -> None:
    targets = [name for name in ("parquet", "hdf5", "jsonl", "csv") if name != case.name]
    case.to = targets[int(case.rng.integers(len(targets)))]
    case.arguments += ["--to", case.to]
    case.add_mutant(case.draw_seed())


def _old_manifest(case: Case, server: Server) -> None:
    """The manifest of an earlier run, mutated, in a folder that is to be overwritten."""
    good = make_seeds(case.name)[0]
    for index in range(1 + case.may_repeat):
        case.add(f"{index}-{good.name}", good.data)
    ended = server.run([*case.arguments, *case.inputs, "-o", "out/"], case.folder)
    assert ended.status == 0, ended
    manifest = manifest_path(case.folder / "out")
    text = manifest.read_bytes()
    if case.rng.integers(2):
        names = b". .. /etc/hostname out.recshuf.json a/b \\u0000 \\ud800".split()
        names += [b"", b"../in/" + case.inputs[0][3:].encode()]
        text = text.replace(b"shard-00001", names[int(case.rng.integers(len(names)))], 1)
        case.attack += " renamed"
    else:
        edges = tuple(match.start() for match in re.finditer(rb'"(name|shards|version)"', text))
        text, steps = mutate(case.rng, Seed("manifest", text, edges), [Seed("manifest", text, ())])
        case.attack += f": {steps}"
    manifest.write_bytes(text)
    case.arguments.append("--overwrite")


def _judge(case: Case, server: Server) -> tuple[str, str, str]:
    """Run the case; return outcome, problem and message."""
    before = _snapshot(case.folder)
    given = ["-"] if case.stdin else case.inputs
    ended = server.run([*case.arguments, *given, "-o", "out/"], case.folder, case.stdin)
    after = _snapshot(case.folder)
    message = " | ".join(line for line in ended.stderr.splitlines() if not line.startswith(_WARNING))
    if ended.hung:
        return HUNG, "no end within the time limit", message
    if problem := _find_crash(ended):
        return CRASHED, f"{problem}: {ended.stderr[-300:]!r}", message
    if ended.status != 0:
        if after != before:
            return SILENT, f"files changed in spite of the error: {_differences(before, after)}", message
        return DETECTED, "", message
    strangers = {
        path
        for path in after
        if after[path] != before.get(path) and path.split("/")[0] not in ("out", ".out.recshuf.json")
    }
    if strangers:
        return SILENT, f"files changed beside the output: {sorted(strangers)}", message
    problem = _compare(case, server)
    return (SILENT, problem, message) if problem else (RIGHT, "", message)


def _find_crash(ended: Ended) -> str:
    lines = [line for line in ended.stderr.splitlines() if not line.startswith(_WARNING)]
    if ended.status not in (0, 1):
        return f"exit code {ended.status}"
    if ended.status == 0:
        return "noise" if lines else ""
    return "" if len(lines) == 1 and _CLEAN_LINE.fullmatch(lines[0]) else "not one clean line"


def _compare(case: Case, server: Server) -> str:
    """Return what is wrong with the output of a run that ended well."""
    out = case.folder / "out"
    inputs, shards = [str(case.folder / name) for name in case.inputs], sorted(map(str, out.iterdir()))
    calls: list[tuple[Any, list[Any]]] = [
        (oracle.compare, [case.name, inputs, shards])
        if case.to == case.name
        else (oracle.count, [case.name, inputs, shards, case.to]),
        (oracle.check_manifest, [str(out)]),
    ]
    for function, given in calls:
        ended = server.call(function, *given)
        if ended.status:
            return f"the independent reader ends with {ended.status}: {ended.stderr[-200:]!r}"
        if ended.facts["answer"]:
            return str(ended.facts["answer"])
    return ""


def _snapshot(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in folder.rglob("*")
    }


def _differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def _show(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def main() -> int:
    """Run mutants as the command line says, print the table and the failures."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing")
    parser.add_argument("formats", nargs="*", default=FORMATS)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of a single mutant")
    parser.add_argument("--keep", type=Path, help="folder for the files, which stay there")
    options = parser.parse_args()
    numbers = range(options.count) if options.only is None else range(options.only, options.only + 1)
    folder = options.keep or Path(tempfile.mkdtemp())
    tallies = []
    with Server(**LIMITS) as server:
        for name in options.formats:
            tally = Tally(f"fuzz: {name}")
            for attempt in fuzz(name, numbers, options.seed, folder, server, keep=options.keep is not None):
                tally.add(attempt.outcome, str(attempt))
                if options.only is not None:
                    _show(attempt.attack, attempt.message)
            tallies.append(tally)
    _show(*(failure for tally in tallies for failure in tally.failures), format_table(tallies))
    return 0 if all(tally.is_clean for tally in tallies) else 1
