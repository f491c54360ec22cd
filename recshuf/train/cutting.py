"""Batches cut from the blocks of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from recshuf.records.batch import concat_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from recshuf.train.columns import Block
    from recshuf.train.schedule import Phase


class _Part(NamedTuple):
    """Consecutive records of a block."""

    block: Block
    start: int
    stop: int


class Cutter:
    """Cuts the batches of consecutive phases from blocks that come in the order of `Phase.find_groups`.

    Parameters
    ----------
    blocks
        For each group a block that holds it, and where it begins there; the next groups may lie in the same block. A
        group that comes twice has two blocks, since trainers may have changed the first.
    make_block
        Makes the block of the records of one batch.
    """

    def __init__(
        self, blocks: Iterator[tuple[Block, int]], make_block: Callable[[pa.RecordBatch], Block]
    ) -> None:
        self._blocks = blocks
        self._make_block = make_block

    def cut(self, phase: Phase, first_step: int) -> Iterator[Any]:
        """Yield the batches of a phase, from one of its steps on."""
        held: dict[int, tuple[Block, int]] = {}
        for tracks in phase.walk(first_step):
            parts: list[_Part] = []
            for track, pieces in enumerate(tracks):
                for piece in pieces:
                    if piece.is_next:
                        held.pop(track, None)  # to be freed before the next one is there
                        held[track] = next(self._blocks)
                    block, begin = held[track]
                    _add_part(parts, _Part(block, begin + piece.start, begin + piece.stop))
            yield self._join(parts)

    def _join(self, parts: Sequence[_Part]) -> Any:
        """Return one batch of all parts."""
        if len(parts) == 1:
            return parts[0].block.cut(parts[0].start, parts[0].stop)
        slices = [part.block.records.slice(part.start, part.stop - part.start) for part in parts]
        records = concat_batches(slices)
        return self._make_block(records).cut(0, records.num_rows)


def _add_part(parts: list[_Part], part: _Part) -> None:
    """Append a part, joined to the last one if it follows that in its block."""
    if parts and parts[-1].block is part.block and parts[-1].stop == part.start:
        part = parts.pop()._replace(stop=part.stop)
    parts.append(part)
