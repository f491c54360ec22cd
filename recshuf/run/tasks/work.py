"""The work of a task."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from recshuf.run.tasks.gather_task import gather_shards
from recshuf.run.tasks.results import name_result
from recshuf.run.tasks.scatter_task import count_part, scatter_set

if TYPE_CHECKING:
    from recshuf.run.tasks.open_run import OpenRun


def do_work(opened: OpenRun, number: int) -> dict[str, Any]:
    """Run a task that has no result yet, and return its result.

    Of two processes that do this at the same time, one deletes what it has written.

    Raises
    ------
    RecshufError
        When it fails.
    """
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
