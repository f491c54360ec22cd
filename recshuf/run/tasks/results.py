"""Results of tasks, in the task folder of a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import xxhash

from recshuf.engines.finished import describe_missing
from recshuf.errors import OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from recshuf.output.task_folder import TaskFolder

RUN = "run"
"""Name of the file of the run."""
_SEAL = "xxh3"
_UNSEALED = ("storage", _SEAL)
"""Keys of what users may change, and of the checksum."""


def seal(values: dict[str, Any]) -> dict[str, Any]:
    """Return JSON values with a checksum of all but the storage options, which users renew."""
    return values | {_SEAL: _sum(values)}


def is_sealed(values: dict[str, Any]) -> bool:
    """Tell whether JSON values are as `seal` returned them."""
    try:
        return bool(values.get(_SEAL) == _sum(values))
    except (ValueError, TypeError, RecursionError):
        return False


def _sum(values: dict[str, Any]) -> str:
    sealed = {name: value for name, value in values.items() if name not in _UNSEALED}
    return xxhash.xxh3_128_hexdigest(json.dumps(sealed, sort_keys=True).encode())


def read_run(tasks: TaskFolder) -> dict[str, Any] | None:
    """Return the run in a task folder, and its job; None if there is none.

    Raises
    ------
    OutputError
        When it is damaged.
    """
    found = tasks.read(RUN)
    if found is not None and not (isinstance(found, dict) and is_sealed(found)):
        raise OutputError(f"{tasks.address}: the file of the run is damaged; {tasks.removal}")
    return found


def name_result(run_id: str, number: int) -> str:
    """Return the name of the result of a task of a run; those of other runs have others.

    >>> name_result("8d41be0720cc913f", 3)
    'task-8d41be0720cc913f-000003'
    """
    return f"task-{run_id}-{number:06d}"


def find_results(tasks: TaskFolder, run_id: str, numbers: Iterable[int]) -> dict[int, Any]:
    """Return the results of some tasks, by number; None for those that are not done."""
    some = list(numbers)
    return dict(zip(some, tasks.read_all(name_result(run_id, number) for number in some), strict=True))


def read_results(tasks: TaskFolder, run_id: str, numbers: range) -> dict[int, Any]:
    """Return the results of some tasks, by number.

    Raises
    ------
    UsageError
        When one is missing.
    """
    found = find_results(tasks, run_id, numbers)
    missing = [f"task {number}" for number, result in found.items() if result is None]
    if missing:
        raise UsageError(f"{describe_missing(missing)}: not done; run recshuf task with these numbers first")
    return found
