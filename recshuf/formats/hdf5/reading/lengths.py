"""Lengths of datasets that are to be one record."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from recshuf.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import h5py

_MOST_SHOWN = 3
# PyTables keeps its indexes under such names, and more of them than the table has datasets.
_HIDDEN = re.compile(r"(^|/)_[pi]_")


def check_lengths(datasets: Mapping[str, h5py.Dataset], name: str) -> None:
    """Raise `InputError` if datasets, by name, differ in length; it proposes those that may belong together.

    Parameters
    ----------
    name
        Name of the file for messages.
    """
    examples: dict[int, str] = {}
    for path, dataset in datasets.items():
        examples.setdefault(dataset.shape[0], f"{path} {dataset.shape}")
    if len(examples) > 1:
        shown = list(examples.values())[:_MOST_SHOWN]
        problem = f"datasets differ in length: {_shorten(shown, len(datasets), ', ')}"
        raise InputError(name, problem, remedy=_propose(find_commonest(datasets)))


def find_commonest(datasets: Mapping[str, h5py.Dataset]) -> list[str]:
    """Return the names of the datasets of the commonest length; of several such lengths, that with the most bytes.

    Datasets without rows, and those that PyTables hides, count only if there are no others.
    """
    by_length: dict[int, list[str]] = {}
    seen = [path for path, each in datasets.items() if each.shape[0] and not _HIDDEN.search(path)]
    for path in seen or datasets:
        by_length.setdefault(datasets[path].shape[0], []).append(path)
    return max(by_length.values(), key=lambda paths: (len(paths), sum(datasets[one].nbytes for one in paths)))


def _propose(names: list[str]) -> str:
    shown = names[:_MOST_SHOWN]
    remedy = "name those that belong together with --datasets"
    if any("," in one or not one.isprintable() for one in shown):
        return remedy  # the command line cannot name them
    return f"{remedy}, such as --datasets {_shorten([shlex.quote(','.join(shown))], len(names) - len(shown) + 1)}"


def _shorten(shown: list[str], count: int, comma: str = "") -> str:
    rest = count - len(shown)
    return comma.join(shown) + (f" and {rest} more" if rest else "")
