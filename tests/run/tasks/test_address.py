"""Where tasks find their run: what they open there is the folder of the run, also in what it says."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from recshuf.api import runs
from recshuf.run.address import Task
from recshuf.run.header import SharedRun, find_tasks
from recshuf.run.passes import run_task
from recshuf.run.resolve import find_destination
from recshuf.storage.settings import StorageOptions
from tests.support.numbered_files import make_inputs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.objects.object_server import Bucket


@pytest.mark.parametrize("name", ["out/", "out.txt"])
@pytest.mark.parametrize("is_local", [True, False])
def test_the_folder_at_an_address_is_that_of_the_run(
    tmp_path: Path, s3_bucket: Bucket, name: str, is_local: bool
):
    output = f"{tmp_path if is_local else s3_bucket.url}/{name}"
    inputs = make_inputs(tmp_path / "in", "text", (9,))
    storage = StorageOptions(None, {"region": "us-east-1"})
    values = runs.plan_tasks(inputs, output, temp_dir=tmp_path, storage_options=storage.options)[1]
    run = SharedRun.from_json(values, storage)
    tasks = find_tasks(find_destination(run.make_job()))
    found = run.find_address(tasks).open_tasks()
    assert (found.address, found.removal) == (tasks.address, tasks.removal)
    assert output.rstrip("/") in found.removal or is_local


_RUN = """
import pickle, sys
function, task = pickle.load(sys.stdin.buffer)
function(task)
import pyarrow as pa
print(pa.default_memory_pool().backend_name)
"""
_CHOOSE = """
from recshuf.system.memory import choose_allocators
choose_allocators(300_000_000)
import pyarrow as pa
print(pa.default_memory_pool().backend_name)
"""


def test_a_process_that_is_handed_a_task_chooses_the_allocators_of_its_run(tmp_path: Path):
    def run_child(code: str, given: bytes = b"") -> bytes:
        return subprocess.run(
            [sys.executable, "-c", code], input=given, capture_output=True, check=True
        ).stdout

    inputs = make_inputs(tmp_path / "in", "text", (9,))
    values = runs.plan_tasks(inputs, tmp_path / "out.txt", memory="300MB")[1]
    runs.run_task(values, 0)  # begins the run
    run = SharedRun.from_json(values, StorageOptions(None, {}))
    tasks = find_tasks(find_destination(run.make_job()))
    task = Task(run.find_address(tasks), 1)
    assert run_child(_RUN, pickle.dumps((run_task, task))) == run_child(_CHOOSE)
