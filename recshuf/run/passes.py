"""The passes by the number of a task, on any machine. What does the work is imported once allocators are chosen."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from recshuf.output.run_log import name_result
from recshuf.system.memory import choose_allocators

if TYPE_CHECKING:
    from recshuf.run.address import Task
    from recshuf.run.open_run import OpenRun


def run_task(task: Task) -> dict[str, Any]:
    """Run a task, and return its result, which is then in the task folder. If it has been run, return that result."""
    tasks = task.run.open_tasks()
    result: dict[str, Any] | None = tasks.read(name_result(task.run.run_id, task.number))
    if result is not None:
        return result
    # The work imports Arrow, which reads its settings then.
    choose_allocators(task.run.memory_bytes)
    from recshuf.run.open_run import open_run

    return do_work(open_run(task.run), task.number)


def do_work(opened: OpenRun, number: int) -> dict[str, Any]:
    """Run a task that has no result yet, and return its result.

    Of two processes that do this at the same time, one deletes what it has written.
    """
    from recshuf.run.scatter_task import count_part, scatter_set
    from recshuf.run.shards import gather_shards

    plan = opened.run.tasks
    with ExitStack() as cleanup:
        if number in plan.gather:
            result = gather_shards(opened, number, cleanup)
        elif number in plan.scatter:
            result = scatter_set(opened, number, cleanup)
        else:
            result = count_part(opened, number)
        result |= {"task": number, "by": secrets.token_hex(8)}
        placed: dict[str, Any] = opened.tasks.place(name_result(opened.run.id, number), result)
        if placed["by"] == result["by"]:
            cleanup.pop_all()
    return placed
