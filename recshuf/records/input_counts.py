"""Counts and digests of each input, as read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recshuf.records.digests import Digest, Digests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class InputCount(NamedTuple):
    """Bytes and digest of one input, as read."""

    byte_count: int
    """Bytes of the records, for lines and fixed rows without keys and offsets."""
    digest: Digest


class InputCounts:
    """Counts of all inputs, as columns, because there may be thousands."""

    def __init__(self, input_count: int) -> None:
        self._byte_counts: NDArray[np.int64] = np.zeros(input_count, np.int64)
        self._digests = Digests(input_count)

    def __getitem__(self, index: int) -> InputCount:
        """Return the counts of one input."""
        return InputCount(int(self._byte_counts[index]), self.digest([index]))

    def add(self, inputs: Sequence[int], byte_counts: NDArray[np.int64], digests: Digests) -> None:
        """Add to the counts of some inputs; an input may occur more than once."""
        np.add.at(self._byte_counts, inputs, byte_counts)
        self._digests.add_to(inputs, digests)

    def put(self, index: int, count: InputCount) -> None:
        """Set the counts of an input."""
        self._byte_counts[index] = count.byte_count
        self._digests.put(index, count.digest)

    def include(self, index: int, count: InputCount) -> None:
        """Add to the counts of an input."""
        before = self[index]
        self.put(index, InputCount(before.byte_count + count.byte_count, before.digest + count.digest))

    def digest(self, inputs: Sequence[int]) -> Digest:
        """Return the digest of all records of some inputs."""
        return self._digests.sum(inputs)

    @property
    def records(self) -> NDArray[np.int64]:
        """Number of records of each input, shape ``(n,)``."""
        return self._digests.counts

    @property
    def record_count(self) -> int:
        """Number of records of all inputs."""
        return int(self.records.sum())

    @property
    def byte_count(self) -> int:
        """Bytes of the records of all inputs, as `InputCount` has them."""
        return int(self._byte_counts.sum())
