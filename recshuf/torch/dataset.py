"""The batches of a pile store as a data set of PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import distributed
from torch.utils.data import IterableDataset, get_worker_info

from recshuf.errors import UsageError
from recshuf.torch.workers import MOST_WORKERS, TRAINER, SharedPosition, end_with_parent, share
from recshuf.train.loader import PileLoader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recshuf.train.blocks import Transform


_WORKERS_COUNT = (
    "state_dict: worker processes make the batches, and this process cannot count those that the training loop has "
    "received; use recshuf.torch.PileDataLoader, or count the steps and call seek(epoch, step)"
)


class PileDataset(IterableDataset[dict[str, Any]]):
    """Batches of tensors for ``DataLoader(dataset, batch_size=None, num_workers=n)``, in the same order for every n.

    Worker w yields batches w, w + n, w + 2 n ... of this rank, which `DataLoader` puts in order (do not set `in_order`
    to false). Each worker reads all of the rank's piles, and sends large tensors in
    memory without a name.

    Call `set_epoch` before each epoch; workers that persist follow it. `state_dict` counts where batches are made in this
    process. With workers, use `PileDataLoader`, or count steps and call `seek`. `StatefulDataLoader` of torchdata resumes
    with the same number of workers only; for another number, call `seek` or `load_state_dict` of the dataset.

    Parameters
    ----------
    rank, world_size
        Default: those of `torch.distributed` if it is initialized when the dataset is made, else 0 and 1. Frameworks that
        divide batches among ranks themselves need ``rank=0, world_size=1``.
    store, batch_size, columns, seed, epoch, reshuffle, lanes, mix, drop_last, prefetch, transform
        See `recshuf.PileLoader`. A transform runs in the worker that makes the batch. Workers
        have no threads that load ahead: they are ahead of the training loop themselves.

    Raises
    ------
    UsageError
        When an argument is not valid.
    """

    def __init__(
        self,
        store: Any,
        batch_size: int,
        *,
        columns: Sequence[str] | None = None,
        seed: int | None = None,
        epoch: int = 0,
        reshuffle: str = "rotate",
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int = 1,
        mix: int = 1,
        drop_last: bool = True,
        prefetch: int = 1,
        transform: Transform | None = None,
    ) -> None:
        rank, world_size = _find_rank(rank, world_size)
        self._loader = PileLoader(
            store,
            batch_size,
            columns=columns,
            seed=seed,
            epoch=epoch,
            reshuffle=reshuffle,
            rank=rank,
            world_size=world_size,
            lanes=lanes,
            mix=mix,
            drop_last=drop_last,
            prefetch=prefetch,
            output="torch",
            transform=transform,
        )
        self._transform = transform
        self._position = SharedPosition(epoch)
        # Of a worker: the step of its next batch, and the epoch and step that were loaded for its next iteration.
        self._next_step = 0
        self._resumed: tuple[int, int] | None = None

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._loader.epoch

    def __len__(self) -> int:
        """Return the number of batches of the epoch that all workers together yield."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of this process: all of them, or a worker's part."""
        worker = get_worker_info()
        if worker is None:
            self._loader.seek(*self._position.claim(os.getpid(), TRAINER))
            return iter(self._loader)
        end_with_parent()
        if worker.num_workers > MOST_WORKERS:
            raise UsageError(f"num_workers={worker.num_workers}: give at most {MOST_WORKERS:,}")
        # Now, since the position may have moved when the first batch is asked for. What wraps the dataset may call this late.
        at_start = worker.dataset is self
        epoch, step = self._position.claim(worker.seed - worker.id, worker.id, at_start)
        resumed, self._resumed = self._resumed, None
        epoch, self._next_step = resumed or (epoch, step + worker.id)
        self._loader.set_epoch(epoch)
        batches = self.read_share(epoch, self._next_step, worker.num_workers)
        return self._count(batches, worker.num_workers)

    def _count(self, batches: Iterator[Any], workers: int) -> Iterator[Any]:
        """Yield batches of a worker, and count the steps of all workers."""
        for batch in batches:
            self._next_step += workers
            yield batch

    def read_share(self, epoch: int, first_step: int, every: int) -> Iterator[Any]:
        """Return an iterator over one of `every` batches of an epoch, from a step on, for a worker."""
        batches = self._loader.reader.read(
            epoch, first_step, "torch", self._transform, prefetch=0, every=every
        )
        return map(share, batches)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, also of workers that are running.

        Raises
        ------
        UsageError
            When it is not the number of an epoch.
        """
        if epoch != self.epoch:
            self.seek(epoch, 0)

    def seek(self, epoch: int, step: int) -> None:
        """Choose the epoch of the next iteration, and how many of its global batches to skip.

        Raises
        ------
        UsageError
            When the epoch does not have so many batches.
        """
        self._loader.seek(epoch, step)
        self._position.move(epoch, step)

    @property
    def moves(self) -> int:
        """How often an iteration was begun by `begin`, or the position was moved."""
        return self._position.moves

    def begin(self, in_workers: bool) -> tuple[int, dict[str, Any]]:
        """Prepare the next iteration for somebody else to count; return its number in `moves`, and its state.

        In workers, it is not begun by `iter`, but by what is asked for.
        """
        epoch, step, move = self._position.begin(in_workers)
        self._loader.seek(epoch, step)
        return move, self._loader.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return the position: see `PileLoader.state_dict`. In a worker, that of the worker's own batches.

        Raises
        ------
        UsageError
            When the batches are made in worker processes, and this is not one of them.
        """
        worker = get_worker_info()
        if worker is None:
            if self._position.is_in_workers:
                raise UsageError(_WORKERS_COUNT)
            return self._loader.state_dict()
        state = self._loader.state_dict() | {"step": self._next_step}
        return state | {"worker": worker.id, "workers": worker.num_workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called, with the next iteration.

        Raises
        ------
        UsageError
            When the state is of another store, of other batches, or of another worker.
        """
        worker = get_worker_info()
        mine = (None, None) if worker is None else (worker.id, worker.num_workers)
        if not isinstance(state, Mapping):
            raise UsageError(f"load_state_dict: {state!r:.80} is no state; give what state_dict returned")
        if (state.get("worker"), state.get("workers")) != mine:
            raise UsageError(_explain_worker(state, mine))
        state = {name: value for name, value in state.items() if name not in ("worker", "workers")}
        if worker is None:
            self._loader.load_state_dict(state)
            self._position.move(state["epoch"], state["step"])
        else:
            # The step after the last of a worker's own may lie behind the end.
            self._loader.load_state_dict(state | {"step": 0})
            self._resumed = state["epoch"], state["step"]


def _find_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank={rank} with world_size={world_size}: give both, or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _explain_worker(state: Mapping[str, Any], mine: tuple[int | None, int | None]) -> str:
    def describe(worker: int | None, workers: int | None) -> str:
        return "the main process" if worker is None else f"worker {worker} of {workers}"

    return (
        f"load_state_dict: the state is that of {describe(state.get('worker'), state.get('workers'))}, and this is "
        f"{describe(*mine)}; use the same number of workers, or call seek or load_state_dict of the dataset before the "
        "first iteration"
    )
