"""A `DataLoader` of PyTorch whose state counts the batches that the training loop has received.

What worker processes of a `PileDataLoader` are asked for, and what they give.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import DataLoader, Dataset, get_worker_info

from recshuf.errors import UsageError
from recshuf.torch.dataset import PileDataset
from recshuf.train.sharing import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


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


_LATER_HAS_WORKERS = (
    "persistent_workers=True: a later iterator has the workers of this one; leave it out to use both in turn"
)


class PileDataLoader:
    """The batches of a `PileDataset`, made by worker processes and counted where the training loop receives them.

    `state_dict` is that of `PileLoader`: the same on every rank, and right for any number of workers and ranks.

    Parameters
    ----------
    dataset
        The dataset. Its position is also that of the loader.
    options
        Of `torch.utils.data.DataLoader`: ``num_workers``, ``prefetch_factor``, ``pin_memory``, ``persistent_workers``,
        ``multiprocessing_context``, ``collate_fn`` (called with each batch) ...

    Raises
    ------
    UsageError
        When an option would change the order of batches, or `dataset` is not a `PileDataset`.
    """

    def __init__(self, dataset: PileDataset, **options: Any) -> None:
        if not isinstance(dataset, PileDataset):
            raise UsageError(
                f"PileDataLoader: {dataset!r:.200} is no dataset; give a PileDataset: PileDataset(store, batch_size)"
            )
        for name in ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"):
            if name in options:
                raise UsageError(f"{name}: PileDataset makes the batches; give it there, or leave it out")
        if not options.get("in_order", True):
            raise UsageError("in_order=False: batches would come in another order; leave it out")
        self.dataset = dataset
        given: Dataset[Any] = dataset
        self._in_workers = options.get("num_workers", 0) != 0
        # What changes batches runs where they are made.
        self._in_bundles = self._in_workers and not (dataset.has_transform or options.get("collate_fn"))
        self._sampler = PartSampler(dataset, self._in_bundles)
        if self._in_workers:
            given = Parts(dataset, self._in_bundles)
            options["sampler"] = self._sampler
            options["worker_init_fn"] = partial(start_worker, options.get("worker_init_fn"))
        self._loader = DataLoader(given, batch_size=None, **({"collate_fn": _return_unchanged} | options))
        self._move, self._state = 0, dict[str, Any]()

    def __len__(self) -> int:
        """Return the number of batches of the epoch."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of the epoch, once from where `load_state_dict` or `seek` went."""
        self._move, self._state = self.dataset.begin(self._in_workers)
        self._sampler.begin(self._move, self._state["epoch"], self._state["step"])
        batches = iter(self._loader)
        if self._loader.persistent_workers:
            batches = self._receive(batches, self._move)
        if self._in_bundles:
            batches = self.dataset.cut_bundles(self._state["step"], batches)
        return _count(batches, self._state)

    def _receive(self, parts: Iterator[Any], move: int) -> Iterator[Any]:
        """Yield what workers send as long as they serve the iteration of a move."""
        while True:
            if move != self._move:
                raise UsageError(_LATER_HAS_WORKERS)
            try:
                part = next(parts)
            except StopIteration:
                return
            yield part
            del part  # to be freed before the next one is there

    @property
    def sampler(self) -> PileDataset:
        """What has the method `set_epoch`. Lightning looks for it here."""
        return self.dataset

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. Another epoch than the present one starts at its first batch.

        Raises
        ------
        UsageError
            When it is not the number of an epoch.
        """
        self.dataset.set_epoch(epoch)

    def seek(self, epoch: int, step: int) -> None:
        """See `PileDataset.seek`."""
        self.dataset.seek(epoch, step)

    def state_dict(self) -> dict[str, Any]:
        """Return the position: the number of batches that the latest iterator yielded."""
        return dict(self._state) if self.dataset.moves == self._move else self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `PileDataset.load_state_dict`."""
        self.dataset.load_state_dict(state)


def _count(batches: Iterator[Any], state: dict[str, Any]) -> Iterator[Any]:
    for batch in batches:
        state["step"] += 1
        yield batch


def _return_unchanged(batch: Any) -> Any:
    return batch
