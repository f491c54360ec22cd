"""The batches of a pile store as a data set of PyTorch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any, Self

from torch.utils.data import IterableDataset, get_worker_info

from recshuf.errors import RecshufWarning, UsageError
from recshuf.loader import cache_files
from recshuf.system.units import check_number
from recshuf.torch.processes import (
    GIVEN,
    MOST_WORKERS,
    TRAINER,
    Ranks,
    SharedPosition,
    end_with_parent,
    find_ranks,
    share,
)
from recshuf.train.loader import PileLoader
from recshuf.train.packing import PackedLoader
from recshuf.train.schedule import MOST_STEPS
from recshuf.train.state import Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.distributed import ProcessGroup

    from recshuf.job.options import Paths
    from recshuf.job.report import Progress
    from recshuf.piles.epochs import Reshuffle
    from recshuf.train.blocks import Transform
    from recshuf.train.weights import Unit


_WORKERS_COUNT = (
    "state_dict: worker processes make the batches, and this process cannot count those that the training loop has "
    "received; use recshuf.torch.PileDataLoader, or count the steps and call seek(epoch, step)"
)
_OF_LOADER = signature(PileLoader).parameters.keys()


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
        Default: those of `group`. They are read when they are needed first: at the first iteration, or by `len`,
        `state_dict`, `load_state_dict` or a `seek` to a step. Frameworks that divide batches among ranks themselves need
        ``rank=0, world_size=1``.
    group
        The processes of `torch.distributed` that divide the records. Default: all of them if it is initialized, else those of
        the environment variables ``RANK`` and ``WORLD_SIZE``, as torchrun sets them, else this process alone.
    store
        A store, or a mix: a dict of stores with weights, or a schedule of such; see `recshuf.MixLoader`.
    batch_size, columns, seed, epoch, reshuffle, lanes, mix, drop_last, prefetch, transform, limit, filter, weight_by, schedule_by, cache, cache_bytes
        See `recshuf.PileLoader` and `recshuf.MixLoader`. A transform runs in the worker that makes the batch. Workers
        have no threads that load ahead: they are ahead of the training loop themselves.

    Raises
    ------
    UsageError
        When an argument is not valid. At an iteration: when `torch.distributed` or the environment has other ranks than were
        given, or than it had before.
    """

    def __init__(
        self,
        store: Any,
        batch_size: int,
        *,
        columns: Sequence[str] | None = None,
        seed: int | None = None,
        epoch: int = 0,
        reshuffle: Reshuffle = "rotate",
        rank: int | None = None,
        world_size: int | None = None,
        group: ProcessGroup | None = None,
        lanes: int = 1,
        mix: int = 1,
        drop_last: bool = True,
        prefetch: int = 1,
        transform: Transform | None = None,
        limit: int | None = None,
        filter: Any = None,  # noqa: A002
        weight_by: str | None = None,
        schedule_by: Unit = "step",
        endpoint_url: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        given = {name: one for name, one in locals().items() if name in _OF_LOADER}
        self._given = _join_ranks(rank, world_size, group)
        self._group, self._ranks = group, self._given
        # While they are not known, any number of ranks that fits the lanes stands for them.
        here = self._given or Ranks(0, check_number("lanes", lanes, MOST_STEPS, least=1))
        self._any_loader: PileLoader | PackedLoader = PileLoader(
            **given | {"rank": here.rank, "world_size": here.world_size, "output": "torch"}
        )
        self._position, self._process = SharedPosition(epoch), os.getpid()
        # Of a worker: the step of its next batch, and the epoch and step that were loaded for its next iteration.
        self._next_step = 0
        self._resumed: tuple[int, int] | None = None

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
        """Return a data set of the records of files, whose store is made on first use; see `PileLoader.from_files`."""
        store, own = cache_files(inputs, cache, local_cache, progress, arguments)
        return cls(store, batch_size, **own)

    def packed(self, tokens: int = 2048, **options: Any) -> Self:
        """Return a data set of packed sequences, without end; see `PileLoader.packed`, which has the same options.

        It begins with the epoch of this one. Workers and states are as before, but it has no length, and no other epoch
        than that to set: call `seek` to begin elsewhere.
        """
        if isinstance(self._any_loader, PackedLoader):
            raise UsageError("packed: these are packed sequences; call packed of the data set of records")
        own: dict[str, Any] = {"_any_loader": self._any_loader.packed(tokens, **options)}
        own |= {"_position": SharedPosition(self.epoch), "_process": os.getpid()}
        packed = type(self).__new__(type(self))
        packed.__dict__.update(self.__dict__ | own)
        return packed

    def __repr__(self) -> str:
        return self._any_loader.show(type(self).__name__, with_rank=self._ranks is not None)

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self._any_loader.epoch

    @property
    def is_endless(self) -> bool:
        """Whether there is no last batch."""
        return isinstance(self._any_loader, PackedLoader)

    @property
    def _loader(self) -> PileLoader | PackedLoader:
        """The loader of this rank, which is found out at the latest now."""
        if self._ranks is None:
            self._check_ranks()
        return self._any_loader

    def _check_ranks(self) -> None:
        """Find out the rank, or check that it is still the one by which the records are divided."""
        found = find_ranks(self._group, is_needed=self._ranks is None)
        if self._ranks is None:
            self._ranks = found or Ranks()
            self._any_loader.shard(self._ranks.rank, self._ranks.world_size)
        if found is None or found.may_have(self._ranks):
            return
        if self._given is not None:
            raise UsageError(
                f"rank={self._given.rank} with world_size={self._given.world_size}: {found.told_by} has {found}; leave out "
                "both, or give group=, the process group of torch.distributed that divides the records"
            )
        raise UsageError(
            f"PileDataset: records were divided as for {self._ranks}, told by {self._ranks.told_by}, and {found.told_by} now "
            f"has {found}; iterate, call len, state_dict, load_state_dict and seek after torch.distributed is initialized, or "
            "give rank and world_size"
        )

    def _begin_here(self) -> PileLoader | PackedLoader:
        """Return the loader for an iteration of this process, or of its workers."""
        self._check_ranks()
        self._own_position()
        return self._loader

    def _own_position(self) -> None:
        """Take a position of its own in a process that trains beside the one that made the dataset: each moves by itself."""
        if self._process != os.getpid() and get_worker_info() is None:
            self._position, self._process = self._position.copy(), os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        if find_ranks(self._group, is_needed=False) is not None:
            self._check_ranks()  # the process that gets it may be a worker, where nobody tells
        return vars(self) | {"_group": None}

    def __len__(self) -> int:
        """Return the number of batches of the epoch that all workers together yield.

        Raises
        ------
        TypeError
            When sequences are packed: they have no end.
        """
        loader = self._loader
        if isinstance(loader, PackedLoader):
            raise TypeError(
                f"{type(self).__name__}: packed sequences have no end; count the steps that you train"
            )
        return len(loader)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of this process: all of them, or a worker's part."""
        worker, loader = get_worker_info(), self._begin_here()
        if worker is None:
            loader.seek(*self._position.claim(os.getpid(), TRAINER))
            return iter(loader)
        end_with_parent()
        if worker.num_workers > MOST_WORKERS:
            raise UsageError(f"num_workers={worker.num_workers}: give at most {MOST_WORKERS:,}")
        # Now, since the position may have moved when the first batch is asked for. What wraps the dataset may call this late.
        at_start = worker.dataset is self
        epoch, step = self._position.claim(worker.seed - worker.id, worker.id, at_start)
        resumed, self._resumed = self._resumed, None
        epoch, self._next_step = resumed or (epoch, step + worker.id)
        with warnings.catch_warnings():
            if worker.id:  # the first worker tells what all of them find
                warnings.simplefilter("ignore", RecshufWarning)
            loader.seek(epoch, 0)
            batches = self.read_share(epoch, self._next_step, worker.num_workers)
        return self._count(batches, worker.num_workers)

    def _count(self, batches: Iterator[Any], workers: int) -> Iterator[Any]:
        """Yield batches of a worker, and count the steps of all workers."""
        for batch in batches:
            self._next_step += workers
            yield batch

    def read_share(self, epoch: int, first_step: int, every: int) -> Iterator[Any]:
        """Return an iterator over one of `every` batches of an epoch, from a step on, for a worker."""
        return map(share, self._loader.read_share(epoch, first_step, every))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, also of workers that are running.

        Raises
        ------
        UsageError
            When it is not the number of an epoch, or sequences are packed.
        """
        if epoch != self.epoch:
            if self.is_endless:
                raise UsageError(
                    f"set_epoch({epoch}): packed sequences go on from epoch to epoch by themselves; train for a number of "
                    "steps in one epoch of the trainer, or call seek(epoch, step) to begin elsewhere"
                )
            self.seek(epoch, 0)

    def seek(self, epoch: int, step: int) -> None:
        """Choose the epoch of the next iteration, and how many of its global batches to skip.

        Raises
        ------
        UsageError
            When the epoch does not have so many batches.
        """
        (self._loader if step else self._any_loader).seek(epoch, step)
        self._own_position()
        self._position.move(epoch, step)

    @property
    def moves(self) -> int:
        """How often an iteration was begun by `begin`, or the position was moved."""
        return self._position.moves

    def begin(self, in_workers: bool) -> tuple[int, Position]:
        """Prepare the next iteration for somebody else to count; return its number in `moves`, and where it begins.

        In workers, it is not begun by `iter`, but by what is asked for.
        """
        loader = self._begin_here()
        epoch, step, move = self._position.begin(in_workers)
        loader.seek(epoch, step)
        return move, Position(epoch, step)

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
        state = self._loader.describe(self.epoch, self._next_step)
        return state | {"worker": worker.id, "workers": worker.num_workers}

    def describe(self, epoch: int, step: int) -> dict[str, Any]:
        return self._loader.describe(epoch, step)

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
            self._own_position()
            self._position.move(state["epoch"], state["step"])
        else:
            # The step after the last of a worker's own may lie behind the end.
            self._resumed = self._loader.find_position(state)


def _join_ranks(rank: int | None, world_size: int | None, group: object) -> Ranks | None:
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank={rank} with world_size={world_size}: give both, or neither")
    if rank is None or world_size is None:
        return None
    if group is not None:
        raise UsageError(f"rank={rank} with group={group!r:.80}: give one of them")
    return Ranks(rank, world_size, GIVEN)


def _explain_worker(state: Mapping[str, Any], mine: tuple[int | None, int | None]) -> str:
    def describe(worker: int | None, workers: int | None) -> str:
        return "the main process" if worker is None else f"worker {worker} of {workers}"

    return (
        f"load_state_dict: the state is that of {describe(state.get('worker'), state.get('workers'))}, and this is "
        f"{describe(*mine)}; use the same number of workers, or call seek or load_state_dict of the dataset before the "
        "first iteration"
    )
