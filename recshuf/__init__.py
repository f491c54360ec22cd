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
    from recshuf.api.checks import check, check_loader, picture, verify
    from recshuf.api.runs import compact, gather, plan, scatter, shuffle, window
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
    from recshuf.job.report import Progress, ScatterReport, ShuffleReport
    from recshuf.loader import PileLoader
    from recshuf.run.stores.pile_store import PileStore
    from recshuf.run.stores.writer import PileWriter
    from recshuf.train.mixing import MixLoader

_HOMES = {
    "CheckOptions": "recshuf.job.options",
    "CheckReport": "recshuf.audit.order.check",
    "check": "recshuf.api.checks",
    "check_loader": "recshuf.api.checks",
    "picture": "recshuf.api.checks",
    "GatherOptions": "recshuf.job.options",
    "ScatterOptions": "recshuf.job.options",
    "ScatterReport": "recshuf.job.report",
    "compact": "recshuf.api.runs",
    "window": "recshuf.api.runs",
    "gather": "recshuf.api.runs",
    "scatter": "recshuf.api.runs",
    "Options": "recshuf.job.options",
    "OrderOptions": "recshuf.job.options",
    "MixLoader": "recshuf.train.mixing",
    "PileLoader": "recshuf.loader",
    "PileStore": "recshuf.run.stores.pile_store",
    "PileWriter": "recshuf.run.stores.writer",
    "Plan": "recshuf.job.plan",
    "Progress": "recshuf.job.report",
    "shuffle": "recshuf.api.runs",
    "plan": "recshuf.api.runs",
    "verify": "recshuf.api.checks",
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
        if home.__name__.startswith("recshuf.api."):
            value = import_module("recshuf.api").speak_python(value)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
