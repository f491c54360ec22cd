"""The tasks of a saved plan, each a command: together they write the bytes of one run, in any order within a stage."""

import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from recshuf.cli.task_commands import task_command
from recshuf.system.files import lock_folder
from tests.conftest import Run
from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import divide_small, read_all, shuffle

COUNTS = (300, 200, 0, 150)
STAGES = ("count", "scatter", "gather", "commit")


class Tasks:
    """The tasks of the plan in a folder, whose output is ``there/out/``."""

    def __init__(self, call: Run, folder: Path) -> None:
        self.call, self.folder = call, folder
        self.work = folder / "there" / ".out.recshuf"

    def plan(self, name: str = "jsonl", to: str = "jsonl") -> list[Path]:
        """Make the plan, and return its inputs."""
        inputs = make_inputs(self.folder / "in", name, COUNTS)
        options = f"--to {to} --seed 5 --piles 64 --shards 3 --memory 300MB --engine tasks --plan --report"
        command = [*inputs, "-o", f"{self.folder}/there/out/", *options.split(), self.folder / "plan.json"]
        done = self.call(*command)
        assert done.returncode == 0, done.stderr
        assert os.listdir(self.folder / "there") == []
        return inputs

    def read(self) -> dict[str, Any]:
        return json.loads((self.folder / "plan.json").read_text())

    def numbers(self, stage: str) -> list[int]:
        done = self.call("task", self.folder / "plan.json", stage)
        assert (done.returncode, done.stderr) == (0, b"")
        return [int(word) for word in done.stdout.split()]

    def run(self, *numbers: int) -> bytes:
        """Run some tasks, and return what the last one says."""
        said = b""
        for number in numbers:
            done = self.call("task", self.folder / "plan.json", str(number))
            assert (done.returncode, done.stdout) == (0, b""), done.stderr
            said = done.stderr
        return said

    def run_stages(self, *stages: str) -> None:
        for stage in stages:
            self.run(*self.numbers(stage))

    def refuse(self, what: int | str, code: int, *words: str, plan: str = "plan.json", lines: int = 1) -> str:
        """Give a task that is refused in so many lines, and return these."""
        done = self.call("task", self.folder / plan, str(what))
        said = done.stderr.decode()
        assert (done.returncode, said.count("\n")) == (code, lines), said
        assert [word for word in words if word not in said] == [], said
        return said

    def compare(self, inputs: list[Path], **options: Any) -> None:
        """Compare the output with that of one process."""
        shuffle(inputs, self.folder / "here" / "out", **options)
        assert read_all(self.folder / "there") == read_all(self.folder / "here")
        assert os.listdir(self.folder / "there") == os.listdir(self.folder / "here")


@pytest.fixture
def tasks(call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tasks:
    divide_small(monkeypatch, block_bytes=3000)
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    return Tasks(call, tmp_path)


@pytest.mark.parametrize(("name", "to"), [("jsonl", "parquet"), ("hdf5", "hdf5")])
def test_tasks_together_write_the_same_bytes(tasks: Tasks, call: Run, name: str, to: str):
    inputs = tasks.plan(name, to)
    assert tasks.read()["set_count"] == len(tasks.numbers("scatter")) > 1
    for stage in STAGES:
        numbers = tasks.numbers(stage)
        random.Random(3).shuffle(numbers)
        assert not (tasks.folder / "there" / "out").exists()
        assert b"records in" in tasks.run(*numbers) or stage != "commit"
        if stage != "commit":
            assert not call("task", tasks.folder / "plan.json", "0", "-q").stderr
    tasks.compare(inputs, to=to)


def test_a_commit_waits_for_the_end_of_other_tasks(tasks: Tasks):
    tasks.plan()
    tasks.run_stages(*STAGES[:3])
    (last,) = tasks.numbers("commit")
    task = lock_folder(tasks.work, "out", is_shared=True)
    tasks.refuse(last, 1, "out: another run is writing it")
    os.close(task)
    tasks.run(last)


def list_readers(tasks: Tasks, index: int) -> list[int]:
    """Return the tasks that read an input."""
    plan = tasks.read()["run"]["tasks"]
    parts = [[part] for part in plan["counted"]] + plan["sets"]
    return [number for number, own in enumerate(parts) if any(part[0] == index for part in own)]


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("text", "text"),
        pytest.param("csv", "parquet", marks=pytest.mark.slow),
        pytest.param("parquet", "hdf5", marks=pytest.mark.slow),
        pytest.param("hdf5", "jsonl", marks=pytest.mark.slow),
    ],
)
def test_tasks_open_only_the_inputs_that_they_read(tasks: Tasks, name: str, to: str):
    inputs = tasks.plan(name, to)
    tasks.run(list_readers(tasks, 0)[0])
    away = tasks.folder / "away"
    (tasks.folder / "in").rename(away)
    (tasks.folder / "in").mkdir()
    for number in [*tasks.numbers("count"), *tasks.numbers("scatter")]:
        own = [path for index, path in enumerate(inputs) if number in list_readers(tasks, index)]
        for path in own:
            (away / path.name).rename(path)
        tasks.run(number)
        for path in own:
            path.rename(away / path.name)
    tasks.run_stages("gather")
    (tasks.folder / "in").rmdir()
    away.rename(tasks.folder / "in")
    tasks.run_stages("commit")
    tasks.compare(inputs, to=to)


def test_a_pile_set_that_a_machine_lacks_is_named_and_can_be_written_again(tasks: Tasks):
    inputs = tasks.plan()
    tasks.run_stages("count", "scatter")
    lost = sorted((tasks.work / "piles").iterdir())[0]
    lost.unlink()
    shared = "; share its folder between all machines; if it is lost, "
    said = tasks.refuse(tasks.numbers("gather")[0], 1, f"error: {lost}: cannot be opened", shared)
    again = int(said.split("run recshuf task ")[1].split()[0])
    assert again == tasks.numbers("scatter")[0]
    tasks.run(again)
    tasks.run_stages("gather", "commit")
    tasks.compare(inputs)


def test_what_is_no_task_or_no_plan_is_refused(tasks: Tasks):
    remedy = "No such file or directory; give the file that --plan --report FILE --engine tasks wrote"
    tasks.refuse("count", 1, remedy)
    tasks.plan()
    for what, message in (
        ("99", "there is no task 99; the plan has tasks 0 to"),
        ("9" * 5000, "there is no task 999999999999999999...; the plan has tasks 0 to"),
        ("all", "all: is no number of a task and no stage"),
        ("\u00b2", "\u00b2: is no number of a task and no stage"),
    ):
        tasks.refuse(what, 2, message)
    for content in ("x", "[]", "{}"):
        (tasks.folder / "other.json").write_text(content)
        tasks.refuse(0, 2, "make it with --plan --report", plan="other.json")


# The loops over tasks in docs/scale.md and in the help of `recshuf task` tell by their exit code whether all stages passed

SCALE = Path(__file__).resolve().parents[2] / "docs" / "scale.md"
LOOP = re.compile(r"^ *set -o pipefail\n *for stage in .*?^ *done$", re.MULTILINE | re.DOTALL)
PROGRAMS = {
    "recshuf": """
[ -e "$2" ] || exit 1
case $3 in
count) ;;
scatter) echo 0; echo 1 ;;
gather) echo 2; echo 3 ;;
commit) echo 4 ;;
*) echo $3 >> done; [ $3 != "$FAILING" ] ;;
esac
""",
    "sbatch": """
code=0
for number in $(echo $2 | sed 's/--array=//; s/,/ /g'); do
  SLURM_ARRAY_TASK_ID=$number bash -c "$4" || code=1
done
exit $code
""",
    "parallel": """
code=0
while read number; do "${@:5}" $number || code=1; done
exit $code
""",
}
"""Stand-ins: five tasks, of which one may fail."""


def find_loops() -> list[str]:
    """Return the loops of the page and of the help text."""
    return LOOP.findall(SCALE.read_text(encoding="utf-8")) + LOOP.findall(task_command.help or "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a plan, a Makefile and stand-ins of the programs."""
    (tmp_path / "plan.json").touch()
    (tmp_path / "Makefile").write_text("%:; recshuf task plan.json $@\n")
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run(loop: str, folder: Path, failing: str = "") -> tuple[int, list[int]]:
    """Return the exit code of a loop, and the tasks that it ran."""
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "FAILING": failing}
    code = subprocess.run(
        ["bash", "-c", loop], cwd=folder, env=environment, capture_output=True, check=False
    ).returncode
    log = folder / "done"
    return code, sorted(map(int, log.read_text().split())) if log.exists() else []


def test_every_loop_over_stages_is_checked():
    texts = SCALE.read_text(encoding="utf-8") + (task_command.help or "")
    assert len(find_loops()) == texts.count("for stage in") == 5


@pytest.mark.parametrize("loop", find_loops())
def test_a_loop_runs_all_tasks_and_ends_where_one_fails(loop: str, folder: Path):
    if " make " in loop and not shutil.which("make"):
        pytest.skip("make is not installed")
    assert run(loop, folder) == (0, [0, 1, 2, 3, 4])
    for failing, most in (("1", 1), ("2", 3), ("4", 4)):
        (folder / "done").unlink()
        code, tasks = run(loop, folder, failing)
        assert code == 1
        assert int(failing) in tasks
        assert max(tasks) <= most
    (folder / "done").unlink()
    (folder / "plan.json").unlink()
    assert run(loop, folder) == (1, [])
