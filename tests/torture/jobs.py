"""Jobs to be attacked, the folder each is laid out in, and the judgement of what an attack left there."""

from __future__ import annotations

import hashlib
import random
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from recshuf.output.manifest import manifest_path
from tests.support.processes.command_server import Ended, Server
from tests.torture.hooks import run_command

Numbers = Mapping[str, int | tuple[int, ...]]
State = dict[str, str] | None
"""Digest of each file of an output, by its name; None where there is no output."""

FAILED = 1
Result = TypeVar("Result")


class CannotAttackError(Exception):
    """This machine lacks what an attack needs."""


@dataclass(frozen=True)
class Recipe:
    """A job, wherever it is laid out."""

    name: str
    format: str
    output: str = "out/"
    options: tuple[str, ...] = ()
    """Those that the output may depend on."""
    resources: tuple[str, ...] = ("--memory", "64MB", "--workers", "2", "--piles", "6")
    """Those that it may not depend on."""
    least_memory: int = 64
    """MB with which it runs."""
    most_workers: int = 4
    """With which it runs in that memory."""
    numbers: Numbers = field(default_factory=dict)
    """Fields of the plan that are overruled."""
    overwrites: bool = False
    """There is an old output, which the run replaces."""
    temp_dir: bool = False
    exchanges: bool = True
    """Directories can be exchanged in one step; else a kill may leave one without a manifest."""
    files: int = 2
    rows: int = 600
    """Of each file."""
    row_bytes: int = 100


@dataclass(frozen=True)
class Choice:
    """Which attacks are to be made."""

    seed: int = 1
    is_long: bool = False
    only: str = ""
    """Those whose name contains this."""
    number: int | None = None
    """That one alone: the number of a call, a kill, a flip."""

    def wants(self, name: str) -> bool:
        """Tell whether attacks of this name are wanted."""
        return self.only in name

    def numbers(self, counts: Mapping[bool, int]) -> Sequence[int]:
        """Return the numbers of the attacks to make, by how many there are in the short and in the long form."""
        return range(counts[self.is_long]) if self.number is None else (self.number,)

    def random(self, *parts: object) -> random.Random:
        """Return a generator for an attack: the same, whatever others were made before it."""
        return random.Random(f"{self.seed} {parts}")


SPILLING: Numbers = {
    "resident_bytes": 0,
    "block_bytes": 16_000,
    "pile_bytes": 40_000,
    "set_of_input": (0, 1),
}
SHARDS = ("--shards", "3")
ROOMY = ("--memory", "300MB", "--workers", "2", "--piles", "6")

SMALL = (
    Recipe("jsonl in memory", "jsonl", options=SHARDS),
    Recipe("jsonl out of core, over an old set", "jsonl", options=SHARDS, numbers=SPILLING, overwrites=True),
    Recipe(
        "jsonl in memory, over an old set, file by file",
        "jsonl",
        options=SHARDS,
        overwrites=True,
        exchanges=False,
    ),
    Recipe("parquet out of core", "parquet", options=SHARDS, numbers=SPILLING),
    Recipe("hdf5 out of core, over an old file", "hdf5", "out.h5", numbers=SPILLING, overwrites=True),
    Recipe("text.zst out of core, own --temp-dir", "text", options=SHARDS, numbers=SPILLING, temp_dir=True),
    Recipe(
        "jsonl to parquet out of core, one file", "jsonl", "out.parquet", resources=ROOMY, numbers=SPILLING
    ),
)

MIDDLE = tuple(
    replace(
        recipe,
        rows=8_000,
        row_bytes=500,
        numbers={**SPILLING, "block_bytes": 200_000, "pile_bytes": 2_000_000, **recipe.numbers},
    )
    for recipe in (
        Recipe("jsonl", "jsonl", options=("--shards", "5")),
        Recipe("parquet", "parquet", options=("--shards", "5"), least_memory=200),
        Recipe("hdf5", "hdf5", options=("--shards", "2")),
        Recipe("text.zst", "text", options=("--shards", "5"), temp_dir=True, most_workers=2),
        Recipe("jsonl to one parquet file", "jsonl", "out.parquet", resources=ROOMY, least_memory=220),
    )
)
"""Jobs of some tenths of a second."""
LARGE = tuple(replace(recipe, rows=45_000, row_bytes=1_000, numbers={}) for recipe in MIDDLE)
"""Jobs that leave memory by themselves at the least limit, and take some seconds."""


def attack_each(
    function: Callable[[Server, Recipe], Result], recipes: Sequence[Recipe], library: Path | None = None
) -> list[Result]:
    """Return the results of a function of a server and a recipe, called for several recipes at once."""
    own = threading.local()

    def begin() -> None:
        own.server = stack.enter_context(Server(library=library))

    with ExitStack() as stack, ThreadPoolExecutor(2, initializer=begin) as pool:
        return list(pool.map(lambda recipe: function(own.server, recipe), recipes))


class Stage:
    """A folder in which a job is laid out, run by a server, attacked, and laid out anew.

    ``inputs/`` and ``temp/`` are what they are called, ``place/`` holds the output and what is beside it.
    """

    def __init__(self, folder: Path, recipe: Recipe, server: Server) -> None:
        self.folder, self.recipe, self.server = folder, recipe, server
        self.seconds = 0.0
        """How long an undisturbed run takes."""
        self.inputs, self.place, self.temp = folder / "inputs", folder / "place", folder / "temp"
        self.output = self.place / recipe.output.rstrip("/")
        self.manifest = manifest_path(self.output)
        self._old = folder.with_name(folder.name + "-old")
        self.old: State = None
        """What an earlier run wrote."""
        self.before: State = None
        """What the output holds now, before the attack: that or nothing."""
        self.after: State = None
        for made in (self.inputs, self.place, self.temp):
            made.mkdir(parents=True)
        make_inputs(self.inputs, recipe)
        self.input_facts = self.look_at_inputs()

    def run(
        self, arguments: tuple[str, ...] | None = None, signal: int = 0, after: float = 0.0, **how: Any
    ) -> Ended:
        """Run the job once.

        Parameters
        ----------
        how
            A ``strike`` at a call, the seed of a ``flip`` of spilled data, or the ``largest_file`` that may be written.
        """
        changes = {"numbers": self.recipe.numbers, "exchanges": self.recipe.exchanges}
        changes |= {name: asdict(one) if is_dataclass(one) else one for name, one in how.items()}
        given = self.arguments() if arguments is None else arguments
        return self.server.call(run_command, given, str(self.folder), changes, signal=signal, after=after)

    def prepare(self) -> Stage:
        """Find out by undisturbed runs what the old output is, and what the new one has to be."""
        ended = self.run(self.arguments("-n", "50", seed=1))
        self.old = self.state()
        assert self.old, f"{self.recipe.name}: the undisturbed run failed: {ended.stderr}"
        self.output.rename(self._old)
        if self.manifest.exists():
            self.manifest.rename(manifest_path(self._old))
        ended = self.run()
        assert ended.status == 0, f"{self.recipe.name}: the undisturbed run failed: {ended.stderr}"
        self.seconds, self.after = ended.seconds, self.state()
        assert self.after not in (None, self.old)
        self.reset()
        return self

    def arguments(
        self, *more: str, seed: int = 7, resources: tuple[str, ...] | None = None
    ) -> tuple[str, ...]:
        """Return the arguments of the command line."""
        recipe = self.recipe
        output = ("-o", f"{self.place}/{recipe.output}", *(["--overwrite"] if self.before else []))
        temp = ("--temp-dir", str(self.temp)) if recipe.temp_dir else ()
        resources = recipe.resources if resources is None else resources
        return (str(self.inputs), *output, "--seed", str(seed), *recipe.options, *temp, *resources, *more)

    def reset(self, *, overwrites: bool | None = None) -> None:
        """Lay out everything as it is to be before a run, with the old output in place or without."""
        for folder in (self.place, self.temp):
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        overwrites = self.recipe.overwrites if overwrites is None else overwrites
        self.before = self.old if overwrites else None
        if overwrites and self._old.is_dir():
            shutil.copytree(self._old, self.output)
            shutil.copyfile(manifest_path(self._old), self.manifest)
        elif overwrites:
            shutil.copyfile(self._old, self.output)

    def state(self) -> State:
        """Return what the output holds, and the manifest beside it."""
        if self.output.is_dir():
            manifest = [self.manifest] if self.manifest.exists() else []
            return {path.name: _digest(path) for path in [*sorted(self.output.iterdir()), *manifest]}
        return {"": _digest(self.output)} if self.output.exists() else None

    def is_whole(self) -> bool:
        """Tell whether the output holds what it held before, or the complete new set.

        The manifest follows its folder; a folder that cannot be exchanged is away for a moment.
        """
        shards = self._shards(self.state())
        is_away = not self.recipe.exchanges and shards is None
        return shards in (self._shards(self.before), self._shards(self.after)) or is_away

    def _shards(self, state: State) -> State:
        return state and {name: digest for name, digest in state.items() if name != self.manifest.name}

    def leftovers(self) -> list[str]:
        """Return the names of what lies beside the output and in the temporary folder."""
        found = {*self.place.iterdir(), *self.temp.iterdir()} - {self.output, self.manifest}
        return sorted(str(path.relative_to(self.folder)) for path in found)

    def look_at_inputs(self) -> dict[str, tuple[int, int, int]]:
        looks = {path.name: path.stat() for path in self.inputs.iterdir()}
        return {name: (one.st_ino, one.st_size, one.st_mtime_ns) for name, one in looks.items()}


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.is_file() else "no file"


def judge(stage: Stage, ended: Ended) -> tuple[str, str]:
    """Return the outcome of an attacked run, as `Tally` counts them, and what there is to say of it."""
    state = stage.state()
    if ended.hung:
        return "hung", ""
    if stage.look_at_inputs() != stage.input_facts:
        return "silent", "the inputs have changed"
    if not stage.is_whole():
        what = "half-written" if ended.status else "wrong"
        return "silent", f"{what}: {describe(stage, state)}; {tail(ended)}"
    if ended.status == 0:
        return ("right", "") if state == stage.after else ("silent", "exit 0, and the output is not there")
    if ended.status != FAILED or not is_clean(ended.stderr):
        return "crashed", f"exit {ended.status}: {tail(ended)}"
    return "detected", ""


def is_named(stage: Stage, ended: Ended) -> bool:
    """Tell whether a failed run left nothing behind, or said how to go on from there."""
    return not stage.leftovers() or "--resume" in ended.stderr


def is_clean(text: str) -> bool:
    """Tell whether a failed run said in one line what was wrong; how to go on may be said in another."""
    errors = [line for line in text.splitlines() if line.startswith("recshuf: error: ")]
    return len(errors) == 1 and is_clean_end(text)


def is_clean_end(text: str) -> bool:
    """Tell whether all that a run said are messages of its own, and none of them is a failure of its own."""
    is_own = all(line.startswith("recshuf: ") for line in text.splitlines())
    return is_own and "internal error" not in text


def tail(ended: Ended) -> str:
    """Return the end of what a run printed, in one line."""
    return ended.stderr.strip().replace("\n", " | ")[-400:]


def resume(stage: Stage, resources: tuple[str, ...] | None = None) -> tuple[str, str]:
    """Let an attacked run be resumed; return ``right``, or what went wrong."""
    was_complete = stage.state() == stage.after
    ended = stage.run(stage.arguments("--resume", resources=resources))
    if was_complete and not stage.before and stage.state() == stage.after:
        return "right", ""  # an output that exists is refused
    if ended.hung:
        return "hung", "resumed"
    if ended.status or stage.state() != stage.after:
        kind = "crashed" if ended.status else "silent"
        return kind, f"resumed: exit {ended.status}, {describe(stage, stage.state())}: {tail(ended)}"
    if left := stage.leftovers():
        return "crashed", f"resumed, and left behind {left}"
    return "right", ""


def describe(stage: Stage, state: State) -> str:
    """Return in which way an output is neither the old nor the new one."""
    if state is None:
        return "the old output is gone"
    new, old = stage.after or {}, stage.before or {}
    kinds = {
        name: "new" if new.get(name) == one else "old" if old.get(name) == one else "neither"
        for name, one in state.items()
    }
    missing = sorted({*new, *old} - {*state})
    return ", ".join(
        [f"{name or 'file'} {kind}" for name, kind in kinds.items()] + [f"no {n}" for n in missing]
    )


def make_inputs(folder: Path, recipe: Recipe) -> None:
    """Write the input files of a job."""
    maker = {"jsonl": _make_lines, "text": _make_lines, "parquet": _make_parquet, "hdf5": _make_hdf5}
    for number in range(recipe.files):
        maker[recipe.format](folder, recipe, number)


def _draw_texts(recipe: Recipe, number: int) -> list[bytes]:
    """Return texts of varying length that no compression makes much smaller."""
    random = np.random.default_rng([number, recipe.rows])
    lengths = random.integers(recipe.row_bytes // 2, recipe.row_bytes * 3 // 2, recipe.rows)
    letters = random.integers(97, 123, int(lengths.sum()), np.uint8).tobytes()
    ends = np.cumsum(lengths).tolist()
    return [letters[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]


def _make_lines(folder: Path, recipe: Recipe, number: int) -> None:
    import zstandard

    texts = _draw_texts(recipe, number)
    if recipe.format == "jsonl":
        lines = [b'{"id": %d, "text": "%s"}\n' % (row, text) for row, text in enumerate(texts)]
        (folder / f"part-{number}.jsonl").write_bytes(b"".join(lines))
        return
    content = b"".join(b"%d %s\n" % (row, text) for row, text in enumerate(texts))
    cut = len(content) // 2
    frames = map(partial(zstandard.compress, level=1), (content[:cut], content[cut:]))
    (folder / f"part-{number}.txt.zst").write_bytes(b"".join(frames))


def _make_parquet(folder: Path, recipe: Recipe, number: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "id": pa.array(np.arange(recipe.rows)),
        "text": pa.array(_draw_texts(recipe, number), pa.binary()),
    }
    rows = max(1, recipe.rows // 4)
    pq.write_table(pa.table(columns), folder / f"part-{number}.parquet", row_group_size=rows)


def _make_hdf5(folder: Path, recipe: Recipe, number: int) -> None:
    import h5py

    width = max(1, recipe.row_bytes // 4)
    values = np.random.default_rng(number).integers(0, 1 << 30, (recipe.rows, width), np.int32)
    with h5py.File(folder / f"part-{number}.h5", "w") as file:
        file.create_dataset("values", data=values, chunks=(max(1, recipe.rows // 16), width))
        file.create_dataset("id", data=np.arange(recipe.rows))


def make_folder(folder: Path) -> Path:
    """Return a folder that is new, where one of an attack before may be left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
