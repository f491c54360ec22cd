"""Packed records: those of several slices, as they lie in memory, until their order is known."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import PileError
from recshuf.piles.encoding.planes import Order
from recshuf.records.digests import digest_records
from recshuf.records.provenance import shift_origins, shift_sources
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from recshuf.piles.encoding.codec import RecordCodec
    from recshuf.piles.encoding.slices import Slice
    from recshuf.records.batch import Records
    from recshuf.records.digests import Digest
    from recshuf.system.buffers import Allocate


class PackedRecords:
    """The records of one or more slices, one after the other.

    Parameters
    ----------
    slices
        Each with what to add to the numbers of the sources of its records. If that is not 0, they have provenance.
    given, place
        Digest of the records that were written, and where. Default: it is not compared.
    """

    def __init__(
        self,
        codec: RecordCodec,
        slices: Sequence[tuple[int, Slice]],
        given: Digest | None = None,
        place: str = "",
    ) -> None:
        self._codec = codec
        self._given, self._place = given, place
        self._payloads = [(piece.payload, piece.record_count) for _, piece in slices]
        bases = [base for base, _ in slices]
        self._added = np.repeat(bases, [count for _, count in self._payloads]) if any(bases) else None

    @cached_property
    def keys(self) -> NDArray[np.uint64]:
        """Their keys, shape ``(n,)``."""
        return self._codec.unpack_keys(self._payloads)

    @cached_property
    def origins(self) -> NDArray[np.uint64]:
        """Their provenance, as `find_origins` returns it."""
        origins = self._codec.unpack_provenance(self._payloads)
        return origins if self._added is None else shift_origins(origins, self._added)

    def __len__(self) -> int:
        return len(self.keys)

    def join(self) -> Records:
        """Return them in their order; they may be views of the slices.

        Raises
        ------
        PileError
            When they are not those that were written.
        """
        records = self._check(self._codec.unpack(self._payloads))
        return records if self._added is None else shift_sources(records, self._added)

    def take(self, index: NDArray[np.intp], memory: Allocate = allocate) -> Records:
        """Return them in the order of a permutation, copied. Frees the slices: it can be called once.

        Parameters
        ----------
        memory
            Where columns of a fixed size lie afterwards, and others are joined before.

        Raises
        ------
        PileError
            When they are not those that were written.
        """
        records = self._check(self._codec.unpack_ordered(self._payloads, Order(index), memory))
        return records if self._added is None else shift_sources(records, self._added[index])

    def _check(self, records: Records) -> Records:
        if self._given is not None and digest_records(records) != self._given:
            raise PileError(
                f"{self._place}: does not hold the records that were written; its files have changed"
            )
        return records
