"""Batches cut from the blocks of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recshuf.records.batch import concat_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from recshuf.train.columns import Block
    from recshuf.train.schedule import Phase, Piece


class Cutter:
    """Cuts the batches of consecutive phases from blocks that come in the order of `Phase.find_groups`.

    Parameters
    ----------
    blocks
        A block for each group. A group that comes twice has two, since trainers may have changed the first.
    make_block
        Makes the block of the records of one batch.
    """

    def __init__(self, blocks: Iterator[Block], make_block: Callable[[pa.RecordBatch], Block]) -> None:
        self._blocks = blocks
        self._make_block = make_block

    def cut(self, phase: Phase, first_step: int) -> Iterator[Any]:
        """Yield the batches of a phase, from one of its steps on."""
        held: dict[int, Block] = {}
        for tracks in phase.walk(first_step):
            parts = []
            for track, pieces in enumerate(tracks):
                for piece in pieces:
                    if piece.is_next:
                        held.pop(track, None)  # to be freed before the next one is there
                        held[track] = next(self._blocks)
                    parts.append((held[track], piece))
            yield self._join(parts)

    def _join(self, parts: Sequence[tuple[Block, Piece]]) -> Any:
        """Return one batch of all parts."""
        if len(parts) == 1:
            block, piece = parts[0]
            return block.cut(piece.start, piece.stop)
        slices = [block.records.slice(piece.start, piece.stop - piece.start) for block, piece in parts]
        records = concat_batches(slices)
        return self._make_block(records).cut(0, records.num_rows)
