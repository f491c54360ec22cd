"""Worker processes: what they send to the process that trains, and where they begin.

Where iterations begin, in memory that the process that trains and its workers share.
"""

from __future__ import annotations

import os

import torch

from recshuf.errors import UsageError

MOST_WORKERS = 4096
"""Of one iteration."""
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

        Raises
        ------
        UsageError
            When a later iteration has claimed a later move, so that nobody knows any more whose this one was.
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
        """Number of moves."""
        return int(self._shared[self._MOVE])

    @property
    def is_in_workers(self) -> bool:
        """Whether the latest iteration is in worker processes."""
        return bool(self._shared[self._IN_WORKERS])
