"""Processes that train together, which have ranks, and the workers of each.

Workers share the memory that says where iterations begin with the process that trains, and end with it.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from contextlib import suppress
from functools import cache
from mmap import MAP_POPULATE, MAP_SHARED, mmap
from multiprocessing.connection import wait
from multiprocessing.resource_sharer import DupFd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import distributed

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch.distributed import ProcessGroup

GIVEN, _ALL, _GROUP = "the arguments", "torch.distributed", "the process group"


class Ranks(NamedTuple):
    """What a process is among those that train together."""

    rank: int = 0
    world_size: int = 1
    told_by: str = "no launcher"

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"

    def may_have(self, others: Ranks) -> bool:
        """Tell whether this process may have the records of other ranks.

        A process of rank 0 may read all, to give the others their parts. Workers may not know what their parent was told.
        """
        is_whole = others.told_by == GIVEN and (self.rank, *others[:2]) == (0, 0, 1)
        return (
            self[:2] == others[:2]
            or is_whole
            or (others.told_by in (_ALL, _GROUP) and self.told_by != others.told_by)
        )


def find_ranks(group: ProcessGroup | None, *, is_needed: bool) -> Ranks | None:
    """Return those of `torch.distributed` if it is initialized, else of the environment, as torchrun sets it; None without.

    If they are needed, an environment that tells of several processes, but not which this one is, is refused.
    """
    if distributed.is_available() and distributed.is_initialized():
        told_by = _ALL if group is None else _GROUP
        return Ranks(distributed.get_rank(group), distributed.get_world_size(group), told_by)
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if world_size is None or (rank is None and world_size.strip() == "1"):
        return None
    try:
        found = Ranks(int(rank or ""), int(world_size), "the environment")
    except ValueError:
        found = Ranks(-1)
    if 0 <= found.rank < found.world_size:
        return found
    if is_needed:
        raise UsageError(
            f"WORLD_SIZE={world_size} and RANK={'' if rank is None else rank} in the environment tell no rank; initialize "
            "torch.distributed first, or give rank and world_size"
        )
    return None


MOST_WORKERS = 2048
"""Of one iteration. More than 32 KB would be copied by threads of PyTorch, for which a process that was forked waits for ever."""
TRAINER = MOST_WORKERS
"""Stands for the process that trains, where workers have numbers."""
_NOBODY = -1
_OVERTAKEN = (
    "DataLoader: a later iteration has begun before all workers of this one had started; call set_epoch and seek between "
    "iterations, or use recshuf.torch.PileDataLoader"
)


class SharedPosition:
    """Where the next iteration begins, in memory that worker processes share, however long they have been running.

    The first iteration after `move` begins there, in whatever processes; later ones begin at the first batch.
    """

    _EPOCH, _STEP, _MOVE, _CLAIMED, _CLAIMED_BY, _IN_WORKERS = range(6)

    def __init__(self, epoch: int) -> None:
        self._shared = torch.zeros(6, dtype=torch.int64).share_memory_()
        self._claims = torch.zeros(MOST_WORKERS + 1, dtype=torch.int64).share_memory_()
        """The last move that each worker has claimed, and the process that trains."""
        self._process, self._begun = os.getpid(), 0
        self.move(epoch, 0)

    def copy(self) -> SharedPosition:
        """Return a position of this process, where the one that made it stood when this one was forked."""
        epoch, step, _ = self._here
        copied = SharedPosition(epoch)
        copied._shared[self._MOVE] = self._here[-1]
        copied.move(epoch, step)
        return copied

    def move(self, epoch: int, step: int) -> None:
        """Let the next iteration begin at a step of an epoch."""
        self._shared[self._EPOCH] = epoch
        self._shared[self._STEP] = step
        self._shared[self._IN_WORKERS] = False
        self._shared[self._MOVE] += 1
        self._here = epoch, step, self.moves
        """Of this process; a worker that starts has what its iteration began with."""

    def claim(self, iteration: int, worker: int, at_start: bool = False) -> tuple[int, int]:
        """Return epoch and step for an iteration to begin at.

        Parameters
        ----------
        iteration
            The same number for all workers of one iteration. Those of another one may have it, too, if torch is seeded.
        worker
            Number of the worker, or `TRAINER`.
        at_start
            Whether a worker that has not yet claimed anything is in the iteration that it was started for. The position
            may have moved since.
        """
        shared = self._shared
        epoch, step, move = latest = tuple(shared[: self._CLAIMED].tolist())
        if at_start and self._process != os.getpid():
            epoch, step, move = self._here
        self._process = os.getpid()
        if shared[self._CLAIMED] > move:
            raise UsageError(_OVERTAKEN)
        if shared[self._CLAIMED] < move:
            shared[self._CLAIMED_BY] = iteration
            shared[self._CLAIMED] = move
        is_first = int(shared[self._CLAIMED_BY]) == iteration and int(self._claims[worker]) < move
        self._claims[worker] = move
        if move == latest[-1]:
            shared[self._IN_WORKERS] = worker != TRAINER
        return epoch, step if is_first else 0

    def begin(self, in_workers: bool) -> tuple[int, int, int]:
        """Return epoch and step for the next iteration to begin at, and its move.

        One that is not in workers claims it later.
        """
        epoch, step, move, claimed, *_ = self._shared.tolist()
        step = 0 if move in (self._begun, claimed) else step
        self.move(epoch, step)
        self._begun = self.moves
        if in_workers:
            self._shared[self._CLAIMED], self._shared[self._CLAIMED_BY] = self._begun, _NOBODY
            self._shared[self._IN_WORKERS] = True
        return epoch, step, self._begun

    @property
    def moves(self) -> int:
        return int(self._shared[self._MOVE])

    @property
    def is_in_workers(self) -> bool:
        """Whether the latest iteration is in worker processes."""
        return bool(self._shared[self._IN_WORKERS])


_MOST_COPIED = 1 << 16
"""Bytes of a tensor that are sent by value. A trainer would wait for the rest of a larger one if a kill cut it."""


class WorkerBatch(dict[Any, Any]):
    """A batch in the worker that made it. It is sent as a plain dictionary.

    Large tensors lie in files without names: a kill would leave those of PyTorch's shared memory.
    """

    def __copy__(self) -> WorkerBatch:
        return WorkerBatch(self)  # PyTorch's default `collate_fn` copies it

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, ({name: _pack(value) for name, value in self.items()},)


class _Sent(NamedTuple):
    """A tensor on its way."""

    content: NDArray[Any] | DupFd
    """The tensor, or its file."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def share(batch: Any) -> Any:
    """Return a batch as it is sent best."""
    return WorkerBatch(batch) if type(batch) is dict else batch


def _pack(value: Any) -> Any:
    if type(value) is not torch.Tensor:
        return value
    with suppress(RuntimeError, TypeError):  # NumPy does not hold all; PyTorch sends those
        array: NDArray[Any] = value.numpy()
        content = array if array.nbytes <= _MOST_COPIED else _write(array)
        return _Sent(content, array.dtype, array.shape)
    return value


def _write(array: NDArray[Any]) -> DupFd:
    descriptor = os.memfd_create("recshuf")
    with open(descriptor, "wb") as file:  # noqa: PTH123 - it has no path
        file.write(np.ascontiguousarray(array).data)
        file.flush()
        return DupFd(descriptor)


def _receive(batch: dict[Any, Any]) -> dict[Any, Any]:
    return {name: _unpack(value) if isinstance(value, _Sent) else value for name, value in batch.items()}


def _unpack(sent: _Sent) -> torch.Tensor:
    content, dtype, shape = sent
    if isinstance(content, DupFd):
        descriptor = content.detach()
        memory = mmap(descriptor, 0, MAP_SHARED | MAP_POPULATE)
        os.close(descriptor)
        content = np.frombuffer(memory, dtype).reshape(shape)
    return torch.from_numpy(content)


@cache
def end_with_parent() -> None:
    """End this process when the one that made it ends, however that does.

    PyTorch's workers look every 5 s whether their parent lives, which with forkserver is not the one that made them.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_after, args=(parent.sentinel,), name="recshuf-parent", daemon=True
        ).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
