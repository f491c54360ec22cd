"""What is left of an epoch from a step on: groups to load, in bundles, and batches to cut from them."""

from __future__ import annotations

from functools import partial
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recshuf.train.blocks import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.piles.order.groups import Groups
    from recshuf.train.blocks import Block
    from recshuf.train.schedule import Phase

BUNDLE_BYTES = 4 << 20
"""Smaller groups are loaded together, since each load costs about half a millisecond."""


class _LoadedGroup(NamedTuple):
    block: Block
    """It may hold other groups, too."""
    begin: int
    """Where the records of the group begin in the block."""


class BatchCutter:
    """Cuts the batches of one rank.

    Parameters
    ----------
    phases
        The phases that are left, each with the first of its steps to take.
    """

    def __init__(self, groups: Groups, phases: list[tuple[Phase, int]]) -> None:
        self._groups = groups
        self._phases = phases

    def find_bundles(self) -> Iterator[list[int]]:
        """Yield the groups to load, in order; those of a list are loaded together, into one block."""
        wanted = chain.from_iterable(phase.find_groups(step) for phase, step in self._phases)
        return self._groups.bundle(wanted, BUNDLE_BYTES)

    def cut(self, blocks: Iterator[Block]) -> Iterator[Any]:
        """Return an iterator over the batches.

        Parameters
        ----------
        blocks
            The blocks of all bundles, in order.
        """
        groups = self._find_groups(blocks)
        return chain.from_iterable(starmap(partial(_cut_phase, groups), self._phases))

    def _find_groups(self, blocks: Iterator[Block]) -> Iterator[_LoadedGroup]:
        """Yield the groups in blocks."""
        for bundle in self.find_bundles():
            block = next(blocks)
            for begin in np.cumsum([0, *self._groups.sizes[bundle[:-1]]]).tolist():
                yield _LoadedGroup(block, begin)
            del block  # to be freed before the next one is there


def _cut_phase(groups: Iterator[_LoadedGroup], phase: Phase, first_step: int) -> Iterator[Any]:
    """Yield the batches of a phase, from one of its steps on."""
    held: dict[int, _LoadedGroup] = {}
    for tracks in phase.walk(first_step):
        parts: list[Part] = []
        for track, pieces in enumerate(tracks):
            for piece in pieces:
                if piece.is_next:
                    held.pop(track, None)  # to be freed before the next one is there
                    held[track] = next(groups)
                block, begin = held[track]
                _add_part(parts, Part(block, begin + piece.start, begin + piece.stop))
        batch = parts[0].block.cut(parts)
        parts.clear()  # to free a block that is used up
        yield batch
        del batch


def _add_part(parts: list[Part], part: Part) -> None:
    """Append a part, joined to the last one if it follows that in its block."""
    if parts and parts[-1].block is part.block and parts[-1].stop == part.start:
        part = parts.pop()._replace(stop=part.stop)
    parts.append(part)
