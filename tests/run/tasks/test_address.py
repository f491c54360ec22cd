"""A process that is handed a task of a run runs it as the run would."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from recshuf.job.options import ENGINES
from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import ThreadEngine, shuffle

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_RUN = """
import pickle, sys
function, task = pickle.load(sys.stdin.buffer)
result = function(task)
import pyarrow as pa
pickle.dump((result, pa.default_memory_pool().backend_name), sys.stdout.buffer)
"""
_CHOOSE = """
from recshuf.system.memory import choose_allocators
choose_allocators(300_000_000)
import pyarrow as pa
print(pa.default_memory_pool().backend_name)
"""


def run_child(code: str, given: bytes = b"") -> bytes:
    return subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=True).stdout


class ChildEngine(ThreadEngine):
    """Hands each task to a new process, which knows nothing else."""

    backends: ClassVar[set[str]] = set()

    def run(self, function: Any, tasks: Any, workers: int) -> Generator[Any, None, None]:
        for task in tasks:
            result, backend = pickle.loads(run_child(_RUN, pickle.dumps((function, task))))
            self.backends.add(backend)
            yield result


@pytest.mark.slow
def test_a_process_that_is_handed_a_task_chooses_the_allocators_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(ENGINES, "children", f"{__name__}:ChildEngine")
    shuffle(make_inputs(tmp_path / "few", "jsonl", [9]), tmp_path / "out", engine="children", shards=1)
    assert ChildEngine.backends == {run_child(_CHOOSE).decode().strip()}
