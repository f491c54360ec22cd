"""Loaders as trainers get them: `PileLoader` from a store, or from files, and `MixLoader` from several stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Self, cast

from recshuf.errors import UsageError
from recshuf.train.loader import PileLoader as StoreLoader
from recshuf.train.loading import open_piles

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from recshuf.job.options import Paths
    from recshuf.job.report import Progress
    from recshuf.piles.kept.place import StorePlace
    from recshuf.piles.kept.stored import StoredPiles
    from recshuf.train.mix_reader import MixReader


class PileLoader(StoreLoader):
    """The loader of a store, which files can be made into."""

    __doc__ = StoreLoader.__doc__

    @classmethod
    def from_files(
        cls,
        inputs: Paths,
        batch_size: int,
        *,
        cache: str | os.PathLike[str],
        local_cache: str | os.PathLike[str] | None = None,
        progress: Progress | bool | None = None,
        **arguments: Any,
    ) -> Self:
        """Return a loader of the records of files, whose store is made on first use.

        The store is taken again as long as the names, sizes, times and inodes of the inputs, the options and the version
        of recshuf are the same. One of several processes makes it, and the others wait for it.

        Parameters
        ----------
        inputs
            Files, directories (searched at any depth) and globs; no pipes, and no URL whose server sends neither ETag nor
            Last-Modified, since a change could not be noticed. Names count as they are found: ``data`` and ``data/*`` name
            the same files, ``./data`` others.
        cache
            Folder of the stores, or URL of a prefix of s3://, gs:// or az://. Nothing in it is deleted: ``recshuf store drop``
            deletes a store.
        local_cache
            What `cache` is to `PileLoader`: a folder for regions of the store.
        progress
            As for `recshuf.shuffle`; names other stores of the same inputs.
        **arguments
            `recshuf.ScatterOptions`, and arguments of `PileLoader`. `columns` is that of the loader; the store holds all.
            `seed` is that of the store, so that epoch 0 is what `recshuf.shuffle` writes with it; another seed makes
            another store. Default: drawn at random when the store is made.

        Raises
        ------
        TypeError
            When an argument is unknown.
        RecshufError
            As `recshuf.scatter` does.
        """
        store, own = cache_files(inputs, cache, local_cache, progress, arguments)
        return cls(store, batch_size, **own)


class MixLoader(StoreLoader):
    """Yields batches of several stores, each of which gives an exact share.

    An epoch has as many records as the stores together, rounded down to whole global batches. The records of a store come
    epoch after epoch of its own, so that those of a small store with a large weight come several times, and a large store
    goes on in the next epoch. The order within a global batch is random.

    With n > 1 stores, the number of records of each in a lane of a global batch, and in all of its batches so far, is off
    its part of `counts` by less than n - 1. With `weight_by`, the tokens of two stores so far in a lane, each divided by the
    weight of its store, differ by less than the longest document of either, divided by its weight.

    Parameters
    ----------
    weights
        Weight of each store, by path or `PileStore`. All have the same columns. The order of the stores matters. Or a
        schedule: a dict from numbers of steps or epochs, one of them 0, to the weights from there on. Each store goes on
        where it was. A store that is not named rests. The stores of 0 give the length of an epoch.
    weight_by
        Column of lists or text whose elements or bytes the weights share, as far as whole documents allow. Default: weights
        share records.
    schedule_by
        ``"step"`` or ``"epoch"``: what the numbers of a schedule count. Steps are global batches since epoch 0.
    seed
        Default: each store's own, and for the order within batches that of the first store.
    columns
        See `PileLoader`; ``"_store"`` adds the number of the store in `weights`.
    batch_size, **options
        See `PileLoader`. `lanes` are those of each store. `prefetch` is that of each lane of a store. A mix has no
        ``drop_last=False``: what does not fill a batch comes in the next epoch. `limit` is the length of its epochs, and
        the next one goes on there. A filter is that of each store.

    Raises
    ------
    UsageError
        When an argument is not valid, a store is empty, or the columns of two stores differ.
    """

    def __init__(self, weights: Mapping[Any, Any], batch_size: int, **options: Any) -> None:
        if not isinstance(weights, Mapping):
            raise UsageError(f"weights={weights!r}: give a dict from stores to their weights")
        super().__init__(weights, batch_size, **options)

    @property
    def counts(self) -> list[int]:
        """Number of records that each store gives to the present epoch.

        Raises
        ------
        UsageError
            When weights are not those of records: only reading tells.
        """
        return cast("MixReader", self._reader).count_records(self.epoch)


def cache_files(
    inputs: Paths,
    cache: str | os.PathLike[str],
    local_cache: str | os.PathLike[str] | None,
    progress: Progress | bool | None,
    arguments: Mapping[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """Return the store of some files, and those of the arguments that are not of it but of its loader."""
    # A trainer that has its store should not wait for what makes one.
    from recshuf.api import speak_python
    from recshuf.api.runs import cache_store
    from recshuf.job.options import ScatterOptions, find_own

    of_store = ScatterOptions.__annotations__.keys() - {"columns"}
    others = arguments.keys() - of_store - signature(StoreLoader).parameters.keys()
    of_store |= find_own(others, ScatterOptions).keys()
    options = {name: value for name, value in arguments.items() if name in of_store}
    own = {name: value for name, value in arguments.items() if name not in of_store}
    make = partial(speak_python(cache_store), inputs, cache, progress=progress, **options)
    return _CachedStore(make), own | {"cache": local_cache}


@dataclass(frozen=True)
class _CachedStore:
    """A store that is made, or found in the cache, when it is opened: after the loader has checked its arguments."""

    make: Callable[[], StorePlace]

    def piles(self) -> StoredPiles:
        return open_piles(self.make())[0]
