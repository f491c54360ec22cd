"""recshuf: exact, reproducible shuffles of training data larger than memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.version import __version__

__all__ = [
    "CheckOptions",
    "CheckReport",
    "GatherOptions",
    "MixLoader",
    "Options",
    "OrderOptions",
    "PileLoader",
    "PileStore",
    "PileWriter",
    "Plan",
    "Progress",
    "ScatterOptions",
    "ScatterReport",
    "ShuffleReport",
    "VerifyOptions",
    "VerifyReport",
    "__version__",
    "check",
    "check_loader",
    "compact",
    "errors",
    "gather",
    "picture",
    "plan",
    "scatter",
    "shuffle",
    "verify",
    "window",
]

if TYPE_CHECKING:
    from recshuf import errors
    from recshuf.api import (
        check,
        check_loader,
        compact,
        gather,
        picture,
        plan,
        scatter,
        shuffle,
        verify,
        window,
    )
    from recshuf.audit.order.check import CheckReport
    from recshuf.audit.verify.verification import VerifyReport
    from recshuf.job.options import (
        CheckOptions,
        GatherOptions,
        Options,
        OrderOptions,
        ScatterOptions,
        VerifyOptions,
    )
    from recshuf.job.plan import Plan
    from recshuf.job.progress import Progress
    from recshuf.job.report import ScatterReport, ShuffleReport
    from recshuf.loader import PileLoader
    from recshuf.piles.store.set_writer import PileWriter
    from recshuf.run.stores.pile_store import PileStore
    from recshuf.train.mixing import MixLoader

_HOMES = {
    "CheckOptions": "recshuf.job.options",
    "CheckReport": "recshuf.audit.order.check",
    "check": "recshuf.api",
    "check_loader": "recshuf.api",
    "picture": "recshuf.api",
    "GatherOptions": "recshuf.job.options",
    "ScatterOptions": "recshuf.job.options",
    "ScatterReport": "recshuf.job.report",
    "compact": "recshuf.api",
    "window": "recshuf.api",
    "gather": "recshuf.api",
    "scatter": "recshuf.api",
    "Options": "recshuf.job.options",
    "OrderOptions": "recshuf.job.options",
    "MixLoader": "recshuf.train.mixing",
    "PileLoader": "recshuf.loader",
    "PileStore": "recshuf.run.stores.pile_store",
    "PileWriter": "recshuf.piles.store.set_writer",
    "Plan": "recshuf.job.plan",
    "Progress": "recshuf.job.progress",
    "shuffle": "recshuf.api",
    "plan": "recshuf.api",
    "verify": "recshuf.api",
    "ShuffleReport": "recshuf.job.report",
    "VerifyOptions": "recshuf.job.options",
    "VerifyReport": "recshuf.audit.verify.verification",
}


def __getattr__(name: str) -> object:
    """Import the public names on first access, since `recshuf --version` needs none of them."""
    from importlib import import_module

    if name == "errors":
        return import_module("recshuf.errors")
    if name in _HOMES:
        # No folder or module here may have one of these names: it would shadow the function.
        home = import_module(_HOMES[name])
        value = getattr(home, name)
        if home.__name__ == "recshuf.api":
            value = home.speak_python(value)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
