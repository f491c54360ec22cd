"""Pile sets of parts of inputs: what the plan has as one set becomes several, by ranges of rows."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from recshuf.piles.slices import Origin
from recshuf.piles.store import disagreement
from recshuf.records.digests import Digest, Digests, InputCount, sum_digests
from recshuf.records.provenance import find_origins, unpack_provenance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.piles.footer import SetDescription
    from recshuf.piles.sealed_set import SealedSet
    from recshuf.piles.store import Store
    from recshuf.records.batch import Records


class CutStore:
    """A store for many threads that gives the records of a planned set to several of its own. Records have provenance.

    Parameters
    ----------
    begins
        Provenance with which each set of the store begins, ascending, shape ``(S,)``.
    firsts
        Number of the first set of each planned one, and S, shape ``(P + 1,)``.
    """

    def __init__(self, store: Store, begins: NDArray[np.uint64], firsts: NDArray[np.int64]) -> None:
        self.codec = store.codec
        self._store = store
        self._begins, self._firsts = begins, firsts
        self._counts: list[dict[int, InputCount]] = [{} for _ in begins]
        """Counts of each source in each set, of those that are parts of planned ones."""
        self._lock = threading.Lock()
        """Guards the counts; no other lock is taken under it."""

    def add(self, set_index: int, origin: Origin, records: Records) -> None:
        """Add a copy of some records of a planned set, in the order of their provenance, to the sets that they belong to."""
        first, stop = self._firsts[set_index : set_index + 2].tolist()
        if stop - first == 1:
            self._store.add(first, origin, records)
            return
        origins = find_origins(records.batch)
        inside = np.searchsorted(origins, self._begins[first + 1 : stop])
        edges = [0, *inside.tolist(), len(origins)]
        for number in range(first, stop):
            start, end = edges[number - first : number - first + 2]
            if start < end:
                source, row = (int(one[0]) for one in unpack_provenance(origins[start : start + 1]))
                self._add(number, Origin(source, row), records.slice(start, end), origins[start:end])

    def _add(self, number: int, origin: Origin, records: Records, origins: NDArray[np.uint64]) -> None:
        sources, _ = unpack_provenance(origins)
        edges = np.flatnonzero(np.diff(sources, prepend=-1, append=-1))
        sizes = self.codec.count_bytes(records.batch, edges).tolist()
        digests = list(Digests.find(records, edges))
        self._store.add(number, origin, records)
        with self._lock:
            own = self._counts[number]
            for source, size, digest in zip(sources[edges[:-1]].tolist(), sizes, digests, strict=True):
                own[source] = own.get(source, InputCount(0, Digest())) + InputCount(size, digest)

    def complete(self, set_index: int, given: Digest, description: SetDescription) -> None:
        """Declare a planned set complete, and check the digest of its records."""
        first, stop = self._firsts[set_index : set_index + 2].tolist()
        if stop - first == 1:
            self._store.complete(first, given, description)
            return
        counts = self._counts[first:stop]
        digests = [sum_digests(count.digest for count in own.values()) for own in counts]
        if (found := sum_digests(digests)) != given:
            raise disagreement(f"scatter: pile set {set_index}", found, given)
        # Sources without records are of the first set.
        known = set().union(*counts[1:])
        for number, own, digest in zip(range(first, stop), counts, digests, strict=True):
            sources = tuple(
                replace(source, count=own.get(source.index, InputCount(0, Digest())))
                for source in description.sources
                if source.index in own or (number == first and source.index not in known)
            )
            self._store.complete(number, digest, replace(description, sources=sources))

    def seal_next(self) -> SealedSet | None:
        """Seal a complete pile set, and return its entry; None if there is none."""
        return self._store.seal_next()
