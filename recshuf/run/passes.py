"""The passes by the number of a task, on any machine. What does the work is imported once allocators are chosen."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from recshuf.output.run_log import name_result
from recshuf.system.memory import choose_allocators

if TYPE_CHECKING:
    from recshuf.run.address import Task
    from recshuf.run.resolve import Run


def run_task(task: Task) -> dict[str, Any]:
    """Run a task, and return its result, which is then in the folder of results. If it has been run, return that result."""
    results = task.run.open_tasks()
    result: dict[str, Any] | None = results.read(name_result(task.run.run_id, task.number))
    if result is not None:
        return result
    # The work imports Arrow, which reads its settings then.
    choose_allocators(task.run.memory_bytes)
    from recshuf.run.open_run import join_address

    return do_work(join_address(task.run), task.number)


def do_work(run: Run, number: int) -> dict[str, Any]:
    """Run a task that has no result yet, and return its result: the entries of what it has finished.

    Of two processes that do this at the same time, one deletes what it has written.
    """
    from recshuf.run.scatter_pass import count_part, scatter_set
    from recshuf.run.shards import gather_range

    results, tasks = run.results, run.tasks
    assert results is not None  # noqa: S101 - it is a task
    with ExitStack() as cleanup:
        if number in tasks.gather:
            entries = [shard.to_json() for shard in gather_range(run, number, cleanup)]
        elif number in tasks.scatter:
            entries = [scatter_set(run, number - tasks.scatter.start, cleanup).to_json()]
        else:
            entries = [count_part(run, number).to_json()]
        result = {"task": number, "by": secrets.token_hex(8), "entries": entries}
        placed: dict[str, Any] = results.place(name_result(run.header.id, number), result)
        if placed["by"] == result["by"]:
            cleanup.pop_all()
    return placed
