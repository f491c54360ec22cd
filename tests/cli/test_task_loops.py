"""The loops over tasks in docs/scale.md and in the help of `recshuf task` tell by their exit code whether all stages passed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from recshuf.cli.task_commands import task_command

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
