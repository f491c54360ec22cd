"""Where lanes stand after so many tokens, found from the number of tokens of each region.

Lane l is the groups l, l + L, l + 2 L ... of an epoch, and then those of the next one:

    tokens of groups    0: 5   1: 9   2: 4   3: 2        lane 0 of 2 has 9, lane 1 has 11
    after 7 tokens      lane 0 is at token 2 of group 2, lane 1 at token 7 of group 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recshuf.train.packing.documents import LanePosition
from recshuf.train.packing.lane_tokens import lack_tokens

if TYPE_CHECKING:
    from recshuf.train.packing.documents import DocumentSource, EpochGroups, TokenCounter
    from recshuf.train.stores import EpochPiles


@dataclass(frozen=True, slots=True)
class LaneFinder:
    """Finds positions in the lanes of a source.

    Parameters
    ----------
    count
        Counts the tokens of regions.
    lanes
        Number of all lanes.
    """

    source: DocumentSource
    epochs: EpochPiles
    count: TokenCounter
    lanes: int

    def find(
        self, wanted: range, epoch: int, tokens: int
    ) -> tuple[dict[int, LanePosition], list[EpochGroups]]:
        """Return the position of each wanted lane so many tokens after the beginning of an epoch.

        Returns
        -------
        positions
            By lane.
        opened
            The epochs that they are in: while these are kept, piles with new keys need not be written again.

        Raises
        ------
        UsageError
            When an epoch has no tokens.
        """
        passed, tokens = self._pass_epochs(tokens)
        rest, first = dict.fromkeys(wanted, tokens), epoch
        epoch += passed
        positions: dict[int, LanePosition] = {}
        opened: list[EpochGroups] = []
        while rest:
            groups = self.source.open(self.epochs, epoch)
            counts = groups.groups.sum(self.count(groups.regions))
            for lane in list(rest):
                numbers = groups.find_lane(lane, self.lanes)
                ends = np.cumsum(counts[numbers])
                if rest[lane] < ends[-1]:
                    at = int(np.searchsorted(ends, rest[lane], side="right"))
                    begin = int(ends[at]) - int(counts[numbers[at]])
                    positions[lane] = LanePosition(epoch, int(numbers[at]), rest.pop(lane) - begin)
                    opened.append(groups)
                elif not ends[-1] and epoch > first:
                    raise lack_tokens()
                else:
                    rest[lane] -= int(ends[-1])
            del groups  # its piles may go before those of the next epoch are written
            epoch += 1
        return positions, opened

    def _pass_epochs(self, tokens: int) -> tuple[int, int]:
        """Return how many whole epochs lie before a token, if all have as many, and its number in the next one."""
        total = int(self.count(self.source.piles).sum()) if self.lanes == 1 else 0
        return divmod(tokens, total) if total else (0, tokens)
