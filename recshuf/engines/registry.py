"""The engines by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from recshuf.engines.engine import Engine

LOCAL = "local"
"""The engine that is this process."""
ENGINES = {
    LOCAL: "recshuf.engines.local:OneByOne",
    "ray": "recshuf.engines.ray:RayEngine",
    "tasks": "recshuf.engines.finished:FinishedTasks",
}
"""Module and class of each engine of tasks. The class takes an address, None for the default, and the cores of a task."""


def check_engine(name: str) -> None:
    """Refuse a name of no engine.

    Raises
    ------
    UsageError
        Names those that there are.
    """
    if name not in ENGINES:
        raise UsageError(f"--engine {name!r} is not possible; choose one of {', '.join(ENGINES)}")


def open_engine(name: str, address: str | None, cores: int) -> Engine:
    """Return an engine of tasks, importing its library only now.

    Raises
    ------
    UsageError
        When the library is missing, or nothing answers at the address.
    """
    module, _, kind = ENGINES[name].partition(":")
    return cast("Engine", getattr(import_module(module), kind)(address, cores))
