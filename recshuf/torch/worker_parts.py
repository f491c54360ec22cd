"""What worker processes of a `PileDataLoader` are asked for, and what they give."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import Dataset, get_worker_info

from recshuf.train.workers.sharing import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from recshuf.torch.dataset import PileDataset


def start_worker(given: Callable[[int], None] | None, number: int) -> None:
    """Start a worker, also one that will not be asked for anything."""
    end_with_parent()
    if given is not None:
        given(number)


class PartRequest(NamedTuple):
    """What a worker is asked for. It tells all of its iteration, since the worker may have been busy with another one."""

    move: int
    """Of the iteration: another one for each."""
    epoch: int
    first_step: int
    """Of the iteration."""
    number: int
    """Of the bundle or batch, from those of the first step on."""


class PartSampler:
    """The sampler of a `DataLoader`: what is to be asked for, in order, in the iteration that was begun last."""

    def __init__(self, dataset: PileDataset, in_bundles: bool) -> None:
        self._dataset = dataset
        self._in_bundles = in_bundles
        self._iteration = 0, 0, 0

    def begin(self, move: int, epoch: int, first_step: int) -> None:
        """Begin an iteration."""
        self._iteration = move, epoch, first_step

    def __iter__(self) -> Iterator[PartRequest]:
        numbers = self._dataset.count_parts(self._iteration[-1], self._in_bundles)
        return map(partial(PartRequest, *self._iteration), numbers)


class Parts(Dataset[Any]):
    """The bundles or batches of a `PileDataset` that a `PartSampler` asks for: in each worker one of as many as there are."""

    def __init__(self, dataset: PileDataset, in_bundles: bool) -> None:
        self._dataset = dataset
        self._in_bundles = in_bundles
        self._move = 0
        self._parts: Iterator[Any] = iter(())

    def __getitem__(self, request: PartRequest) -> Any:
        if request.move != self._move:
            self._parts = self._begin(request)
            self._move = request.move
        return next(self._parts)

    def _begin(self, request: PartRequest) -> Iterator[Any]:
        _, epoch, step, number = request
        workers = get_worker_info().num_workers
        if self._in_bundles:
            return self._dataset.share_bundles(epoch, step, number, workers)
        return self._dataset.share_batches(epoch, step + number, workers)
