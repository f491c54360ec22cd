"""Rank and world size of this process, as `torch.distributed` or the launcher has them when they are asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from torch import distributed

from recshuf.errors import UsageError

if TYPE_CHECKING:
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
