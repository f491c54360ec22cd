"""`MixLoader`: batches of several stores, by weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recshuf.errors import UsageError
from recshuf.system.units import show_call
from recshuf.train.loader import PileLoader
from recshuf.train.mix_reader import MixReader  # noqa: TC001 - programs evaluate the hints of the class


class MixLoader(PileLoader):
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

    _reader: MixReader

    def __init__(self, weights: Mapping[Any, Any], batch_size: int, **options: Any) -> None:
        if not isinstance(weights, Mapping):
            raise UsageError(f"weights={weights!r}: give a dict from stores to their weights")
        super().__init__(weights, batch_size, **options)

    def __repr__(self) -> str:
        shown: dict[str, Any] = {"batch_size": self._sharding.batch_size, "epoch": self.epoch}
        counts = self._reader.count_records(self.epoch)
        return show_call(
            type(self).__name__, self._reader.name, **shown | ({} if counts is None else {"counts": counts})
        )

    @property
    def counts(self) -> list[int]:
        """Number of records that each store gives to the present epoch.

        Raises
        ------
        UsageError
            When weights are not those of records: only reading tells.
        """
        counts = self._reader.count_records(self.epoch)
        if counts is None:
            raise UsageError(
                "counts: with weight_by, only reading tells how many records a store gives; count _store"
            )
        return counts
