"""Runs that are divided into many small tasks, for engines that know nothing of that."""

import resource
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.api import runs
from recshuf.job import sizing as pile_sizing
from recshuf.job.options import ENGINES
from tests.support.numbered_files import make_inputs
from tests.support.small_runs import Listener, change_plans, read_files


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    """Change a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARMS: dict[str, Callable[[Path], None]] = {"cut": cut, "flipped": flip, "deleted": Path.unlink}
"""What can happen to a file that a task has written."""


class ThreadEngine:
    """An engine of tasks in this process, in which tests can change things."""

    def __init__(self, address: str | None, cores: int) -> None: ...

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], workers: int
    ) -> Generator[Any, None, None]:
        yield from map(function, tasks)

    def close(self) -> None: ...


class TwinThreadEngine(ThreadEngine):
    """Runs every task twice at the same time, in threads."""

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], workers: int
    ) -> Generator[Any, None, None]:
        with ThreadPoolExecutor(2) as pool:
            for task in tasks:
                first, second = pool.map(function, [task, task])
                assert first == second
                yield first


class LostError(BaseException):
    """The driver dies."""


class DyingEngine(ThreadEngine):
    """Runs one task after the other, and dies when so many have been run by all engines of the kind."""

    left = 0

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], workers: int
    ) -> Generator[Any, None, None]:
        for task in tasks:
            DyingEngine.left -= 1
            if DyingEngine.left < 0:
                raise LostError
            yield function(task)
        if DyingEngine.left == 0:
            raise LostError


def divide_small(patch: pytest.MonkeyPatch, block_bytes: int = 1000, region_bytes: int = 40) -> None:
    """Have small inputs divided into many tasks, the largest read in parts; and the engines of the tests known."""
    change_plans(patch, block_bytes=lambda plan: plan.block_bytes if plan.resident_bytes else block_bytes)
    for name in ("REGION_BYTES", "OBJECT_REGION_BYTES"):
        patch.setattr(pile_sizing, name, region_bytes)
    for name, kind in (("threads", "ThreadEngine"), ("dying", "DyingEngine")):
        patch.setitem(ENGINES, name, f"tests.support.processes.task_runs:{kind}")


def shuffle(inputs: Sequence[Path | str], output: Path, **options: Any) -> recshuf.ShuffleReport:
    """Shuffle to a folder, or to a file if the output has a suffix."""
    cut = {} if output.suffix else {"shards": 3}
    given = {"seed": 5, "piles": 64, "memory": "300MB"} | cut | options
    return recshuf.shuffle(inputs, output if output.suffix else f"{output}/", **given)


def read_all(output: Path) -> dict[str, bytes]:
    """Return the content of a file or of all files of a folder, by name."""
    paths = output.rglob("*") if output.is_dir() else [output]
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def die_after(count: int, *arguments: Any, **options: Any) -> None:
    """Run until so many tasks are done."""
    DyingEngine.left = count
    try:
        shuffle(*arguments, engine="dying", **options)
    except LostError:
        return
    raise AssertionError("there were not so many tasks")


@contextmanager
def limit_files(byte_count: int) -> Iterator[None]:
    """Let no file grow larger."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (byte_count, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


class SavedPlan:
    """The tasks of a plan, by their numbers."""

    def __init__(self, inputs: Any, output: str, **options: Any) -> None:
        self.run: dict[str, Any] = runs.plan_tasks(inputs, output, **options)[1]
        (self.last,) = self.list("commit")

    def list(self, stage: str) -> range:
        """Return the numbers of the tasks of a stage that are not done."""
        return runs.list_tasks(self.run, stage)

    def do(self, *numbers: int, **options: Any) -> None:
        for number in numbers:
            runs.run_task(self.run, number, **options)

    def do_before_the_commit(self, short: int = 0) -> None:
        """Run all tasks before the commit, but the last few."""
        self.do(*range(self.last - short))

    def commit(self) -> None:
        self.do(self.last)

    def do_all(self) -> None:
        self.do(*range(self.last + 1))


class TwinPlan(SavedPlan):
    """The tasks of a run into ``there``, and what one process has written to ``here``.

    Parameters
    ----------
    spoil
        Makes bad lines of some lines of every other input, which are set aside.
    earlier
        Options of a run whose output is replaced.
    """

    def __init__(
        self,
        folder: Path,
        kind: str = "jsonl",
        name: str = "out/",
        *,
        counts: Sequence[int] = (100, 0, 60),
        spoil: Callable[[bytes], bytes] | None = None,
        earlier: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.folder = folder / "there"
        self.inputs = make_inputs(folder / "in", kind, counts)
        for path in self.inputs[::2] if spoil else ():
            path.write_bytes(spoil(path.read_bytes()))
        for place in (folder / "here", self.folder):
            place.mkdir()
            self.output, self.options = f"{place}/{name}", {"seed": 5, "memory": "300MB"} | options
            if spoil:
                self.options |= {"on_bad_record": f"quarantine:{place}/bad.jsonl"}
            if earlier is not None:
                recshuf.shuffle(self.inputs[0], self.output, **self.options | earlier)
            if place != self.folder:
                self.shuffle(temp_dir=None)
        super().__init__(self.inputs, self.output, **self.options)
        self.work = self.folder / f".{name.rstrip('/')}.recshuf"
        self.whole = read_files(folder / "here")

    def shuffle(self, **options: Any) -> None:
        recshuf.shuffle(self.inputs, self.output, **self.options | options)

    def check(self) -> None:
        """Check that the output is that of the run in one process, and that nothing else is there."""
        assert read_files(self.folder) == self.whole


class Moment(Listener):
    """Does something when a part of a pass is done: from one on, so many times."""

    def __init__(self, name: str, act: Callable[[], object], first: int = 1, times: int = 1) -> None:
        super().__init__(self._note)
        self._name, self._act = name, act
        self._acts = range(first, first + times)
        self._parts = 0

    def _note(self) -> None:
        if self.passes[-1] == self._name:
            self._parts += 1
            if self._parts in self._acts:
                self._act()

    @property
    def has_come(self) -> bool:
        """Whether all of it was done."""
        return self._parts >= self._acts[-1]
