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
    "StreamOptions",
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
    "stream",
    "verify",
    "window",
]

if TYPE_CHECKING:
    from pyarrow import RecordBatchReader as RecordBatchReader

    from recshuf import errors
    from recshuf.api.checks import check, check_loader, picture, verify
    from recshuf.api.runs import compact, gather, plan, scatter, shuffle, stream, window
    from recshuf.audit.order.check import CheckReport
    from recshuf.audit.verify.verification import VerifyReport
    from recshuf.job.options import (
        CheckOptions,
        GatherOptions,
        Options,
        OrderOptions,
        ScatterOptions,
        StreamOptions,
        VerifyOptions,
    )
    from recshuf.job.plan import Plan
    from recshuf.job.report import Progress, ScatterReport, ShuffleReport
    from recshuf.loader import MixLoader, PileLoader
    from recshuf.run.stores.pile_store import PileStore
    from recshuf.run.stores.writer import PileWriter

_NAMES = {
    "pyarrow": ("RecordBatchReader",),  # what `stream` returns
    "recshuf.api.checks": ("check", "check_loader", "picture", "verify"),
    "recshuf.api.runs": ("compact", "gather", "plan", "scatter", "shuffle", "stream", "window"),
    "recshuf.audit.order.check": ("CheckReport",),
    "recshuf.audit.verify.verification": ("VerifyReport",),
    "recshuf.job.options": (
        "CheckOptions", "GatherOptions", "Options", "OrderOptions", "ScatterOptions", "StreamOptions",
        "VerifyOptions",
    ),
    "recshuf.job.plan": ("Plan",),
    "recshuf.job.report": ("Progress", "ScatterReport", "ShuffleReport"),
    "recshuf.loader": ("MixLoader", "PileLoader"),
    "recshuf.run.stores.pile_store": ("PileStore",),
    "recshuf.run.stores.writer": ("PileWriter",),
}  # fmt: skip
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


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
        if name.endswith("Options"):
            home.add_texts(value)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
