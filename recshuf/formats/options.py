"""Options of formats that hold several arrays."""

from __future__ import annotations

from recshuf.interfaces import FormatOption

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
