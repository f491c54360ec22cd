"""Lengths of datasets that are to be one record."""

from __future__ import annotations

import re
import shlex
from math import prod
from typing import TYPE_CHECKING

from recshuf.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import h5py

_MOST_SHOWN = 3
# PyTables keeps its indexes under such names, and more of them than the table has datasets; pandas keeps categories so.
_HIDDEN = re.compile(r"(^|/)(_[pi]_|meta/[^/]+/meta/)")

_OBSERVATIONS = re.compile(r"(obs|obsm|layers)/(?!.*/categories$)|(raw/)?X$")
"""Datasets of AnnData whose rows are observations, unless they have another length."""


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
        problem = f"datasets differ in length: {shorten(list(examples.values()), len(datasets))}"
        raise InputError(name, problem, remedy=_propose(find_commonest(datasets)))


def find_commonest(datasets: Mapping[str, h5py.Dataset]) -> list[str]:
    """Return the names of the datasets of the commonest length; of several such lengths, that with the most bytes.

    In files of AnnData, only datasets of observations count. Datasets of one row or none, indexes of PyTables, and
    categories of pandas count only if there are no others.
    """
    by_length: dict[int, list[str]] = {}
    seen = [path for path, each in datasets.items() if each.shape[0] > 1 and not _HIDDEN.search(path)]
    if is_anndata(datasets[next(iter(datasets))]):
        seen = [path for path in seen if _OBSERVATIONS.match(path)]
    for path in seen or datasets:
        by_length.setdefault(datasets[path].shape[0], []).append(path)
    return max(
        by_length.values(), key=lambda paths: (len(paths), sum(_count_bytes(datasets[one]) for one in paths))
    )


def _count_bytes(dataset: h5py.Dataset) -> int:
    # h5py's own count needs a type of NumPy.
    return int(prod(dataset.shape) * dataset.id.get_type().get_size())


def is_anndata(dataset: h5py.Dataset) -> bool:
    """Tell whether a dataset is in a file of AnnData."""
    return bool(dataset.file.attrs.get("encoding-type") == "anndata")


def may_have_observations(dataset: h5py.Dataset, path: str) -> bool:
    """Tell whether rows of a dataset may be those of the record, if they are as many: in AnnData, not those of variables."""
    return not is_anndata(dataset) or path.startswith("obsp/") or bool(_OBSERVATIONS.match(path))


def shorten(names: Sequence[str], count: int | None = None) -> str:
    """Return the first names and the number of further ones, of `count` in all, for a message."""
    shown = names[:_MOST_SHOWN]
    rest = (len(names) if count is None else count) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _propose(names: list[str]) -> str:
    shown = names[:_MOST_SHOWN]
    remedy = "for HDF5 output, --keep-others copies those of other lengths unchanged; else name those that belong together with --datasets"
    if any("," in one or not one.isprintable() for one in shown):
        return remedy  # the command line cannot name them
    example = shorten([shlex.quote(",".join(shown))], len(names) - len(shown) + 1)
    return f"{remedy}, such as --datasets {example}"
