"""A `DataLoader` of PyTorch whose state counts the batches that the training loop has received."""

from __future__ import annotations

import multiprocessing
from functools import partial
from itertools import count
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import DataLoader, Dataset, get_worker_info

from recshuf.errors import UsageError
from recshuf.torch.dataset import PileDataset
from recshuf.torch.processes import end_with_parent
from recshuf.train.state import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_LATER_HAS_WORKERS = (
    "persistent_workers=True: a later iterator has the workers of this one; leave it out to use both in turn"
)
_SECONDS_TO_END = 5
_OF_DATASET = ("batch_size", "drop_last")


class PileDataLoader(DataLoader[Any]):
    """The batches of a `PileDataset`, made by worker processes and counted where the training loop receives them.

    `state_dict` is that of `PileLoader`: the same on every rank, and right for any number of workers and ranks. Each
    iteration keeps its epoch and position, whatever is set meanwhile.

    Parameters
    ----------
    dataset
        The dataset. Its position is also that of the loader.
    options
        Of `torch.utils.data.DataLoader`: ``num_workers``, ``prefetch_factor``, ``pin_memory``, ``persistent_workers``,
        ``multiprocessing_context``, ``collate_fn`` (called with each batch) ... They count when it is made.

    Raises
    ------
    UsageError
        When an option would change the order of batches, or `dataset` is not a `PileDataset`.
    """

    dataset: PileDataset
    # accelerate takes a loader with this mark as it is. It would divide the batches of another one a second time.
    _is_accelerate_prepared = True

    def __init__(self, dataset: PileDataset, **options: Any) -> None:
        if not isinstance(dataset, PileDataset):
            raise UsageError(
                f"PileDataLoader: {dataset!r:.200} is no dataset; give a PileDataset: PileDataset(store, batch_size)"
            )
        for name in ("batch_size", "drop_last", "shuffle", "sampler", "batch_sampler"):
            if options.pop(name, None):
                remedy = "give it there" if name in _OF_DATASET else "leave it out, every epoch is shuffled"
                raise UsageError(f"{name}: PileDataset makes the batches; {remedy}")
        if not options.get("in_order", True):
            raise UsageError("in_order=False: batches would come in another order; leave it out")
        options = {"collate_fn": _return_unchanged} | options
        super().__init__(dataset, batch_size=None, **options)
        # What has the method `set_epoch`. Lightning looks for it here.
        self.__dict__["sampler"] = dataset
        self._options = options
        self._inner: DataLoader[Any] | None = None
        self._requests = _Requests(dataset)
        self._move, self._position = 0, Position(0, 0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset!r}, num_workers={self.num_workers})"

    def __len__(self) -> int:
        """Return the number of batches of the epoch."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of the epoch, once from where `load_state_dict` or `seek` went."""
        if self._inner is None:
            self._inner = self._make_inner()
        self._move, self._position = self.dataset.begin(self.num_workers > 0)
        self._requests.iteration = self._move, self._position.epoch, self._position.step
        return self._count(iter(self._inner), self._move, self._position)

    def _make_inner(self) -> DataLoader[Any]:
        """Return what makes the batches: in workers, those that this process asks for."""
        if not self.num_workers:
            return DataLoader(self.dataset, batch_size=None, **self._options)
        start = partial(_start_worker, self.worker_init_fn)
        options = self._options | {"sampler": self._requests, "worker_init_fn": start}
        return DataLoader(_RequestedBatches(self.dataset), batch_size=None, **options)

    def _count(self, batches: Iterator[Any], move: int, position: Position) -> Iterator[Any]:
        """Yield and count what workers send as long as they serve the iteration of a move."""
        sentinels = [child.sentinel for child in multiprocessing.active_children()]
        while True:
            if self.persistent_workers and move != self._move:
                raise UsageError(_LATER_HAS_WORKERS)
            try:
                batch = next(batches)
            except StopIteration:
                return
            except ConnectionError as error:
                # Connections of a worker go a moment before it ends. With fork, PyTorch's handler of the signal raises here.
                if wait(sentinels, _SECONDS_TO_END):
                    raise RuntimeError("DataLoader worker has exited, and its batches are lost") from error
                raise
            position.step += 1
            yield batch
            del batch  # to be freed before the next one is there

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. Another epoch than the present one starts at its first batch.

        Raises
        ------
        UsageError
            When it is not the number of an epoch.
        """
        self.dataset.set_epoch(epoch)

    def seek(self, epoch: int, step: int) -> None:
        """Choose the epoch of the next iteration, and how many of its global batches to skip."""
        self.dataset.seek(epoch, step)

    def state_dict(self) -> dict[str, Any]:
        """Return the position: the number of batches that the latest iterator yielded."""
        if self.dataset.moves != self._move:
            return self.dataset.state_dict()
        return self.dataset.describe(self._position.epoch, self._position.step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called, with the next iteration; see `PileLoader`."""
        self.dataset.load_state_dict(state)


class _Request(NamedTuple):
    """What a worker is asked for. It tells all of its iteration, since the worker may have been busy with another one."""

    move: int
    """Of the iteration: another one for each."""
    epoch: int
    step: int
    """Of the batch."""


class _Requests:
    """The sampler of a `DataLoader`: what is to be asked for, in order, in the iteration that was begun last."""

    def __init__(self, dataset: PileDataset) -> None:
        self._dataset = dataset
        self.iteration = 0, 0, 0
        """Its move, its epoch, and its first step."""

    def __iter__(self) -> Iterator[_Request]:
        move, epoch, first_step = self.iteration
        steps = count(first_step) if self._dataset.is_endless else range(first_step, len(self._dataset))
        return map(partial(_Request, move, epoch), steps)


class _RequestedBatches(Dataset[Any]):
    """The batches that a worker is asked for: of an iteration, one of as many as there are workers, in order."""

    def __init__(self, dataset: PileDataset) -> None:
        self._dataset = dataset
        self._move = 0
        self._batches: Iterator[Any] = iter(())

    def __getitem__(self, request: _Request) -> Any:
        if request.move != self._move:
            workers = get_worker_info().num_workers
            self._batches = self._dataset.read_share(request.epoch, request.step, workers)
            self._move = request.move
        return next(self._batches)


def _start_worker(start: Callable[[int], None] | None, number: int) -> None:
    """Start a worker, also one that will not be asked for anything."""
    end_with_parent()
    if start is not None:
        start(number)


def _return_unchanged(batch: Any) -> Any:
    return batch
