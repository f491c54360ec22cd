"""Options of formats that hold several arrays."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from recshuf.interfaces import FormatOption

if TYPE_CHECKING:
    from collections.abc import Sequence


_MOST_SHOWN = 3
MOST_LISTED = 12
"""Names that a message lists, or proposes."""
_COMMONEST = "the datasets of the commonest length, or those of --datasets"
_REFUSED = "Default: datasets of several lengths are refused."
DATASETS = FormatOption(
    "datasets",
    "HDF5, NumPy archives: datasets to read; * in a name stands for any letters. Default: all that have a first axis.",
    "A,B", group="Input", is_list=True,
)  # fmt: skip
KEEP_OTHERS = FormatOption(
    "keep_others",
    f"HDF5 and NumPy archives, each to the same format: shuffle {_COMMONEST}, and copy datasets of other lengths unchanged into "
    f"every shard. {_REFUSED}",
    side="native", group="Input",
    elsewhere=(("*", f"HDF5, NumPy archives: the records are {_COMMONEST}; others are kept as wholes. {_REFUSED}"),),
)  # fmt: skip
OTHERS = FormatOption("others", "", "A,B")
"""Paths of the datasets that are copied, if that is known."""
CHOOSE_ONE = "choose one with --columns, or --datasets (HDF5, npz)"
"""Remedy where a format holds one column."""


def shorten(names: Sequence[str], count: int | None = None, most: int = _MOST_SHOWN) -> str:
    """Return the first names and the number of further ones, of `count` in all, for a message."""
    shown = names[:most]
    rest = (len(names) if count is None else count) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")


def write_flag(names: Sequence[str]) -> str | None:
    """Return an option that names datasets, as a shell takes it; None if that is not possible, or too long."""
    if len(names) > MOST_LISTED or any("," in name or not name.isprintable() for name in names):
        return None
    return f"--datasets {shlex.quote(','.join(names))}"
