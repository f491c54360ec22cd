"""Batches cut from the blocks of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from recshuf.train.blocks import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.train.blocks import Block
    from recshuf.train.schedule import Phase


class LoadedGroup(NamedTuple):
    """A group in memory."""

    block: Block
    """It may hold other groups, too."""
    begin: int
    """Where the records of the group begin in the block."""


class Cutter:
    """Cuts the batches of consecutive phases from groups that come in the order of `Phase.find_groups`."""

    def __init__(self, groups: Iterator[LoadedGroup]) -> None:
        self._groups = groups

    def cut(self, phase: Phase, first_step: int) -> Iterator[Any]:
        """Yield the batches of a phase, from one of its steps on."""
        held: dict[int, LoadedGroup] = {}
        for tracks in phase.walk(first_step):
            parts: list[Part] = []
            for track, pieces in enumerate(tracks):
                for piece in pieces:
                    if piece.is_next:
                        held.pop(track, None)  # to be freed before the next one is there
                        held[track] = next(self._groups)
                    block, begin = held[track]
                    _add_part(parts, Part(block, begin + piece.start, begin + piece.stop))
            yield parts[0].block.cut(parts)


def _add_part(parts: list[Part], part: Part) -> None:
    """Append a part, joined to the last one if it follows that in its block."""
    if parts and parts[-1].block is part.block and parts[-1].stop == part.start:
        part = parts.pop()._replace(stop=part.stop)
    parts.append(part)
