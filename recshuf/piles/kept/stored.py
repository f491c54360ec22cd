"""A pile store where it lies, a folder or a bucket: the piles of its snapshot, read region by region, and new sets in it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recshuf.errors import PileError, RecshufError, UsageError
from recshuf.piles.groups import Regions
from recshuf.piles.kept.folder import StoreFolder
from recshuf.piles.kept.place import StorePlace
from recshuf.piles.kept.region_cache import AHEAD_BYTES, RegionCache
from recshuf.piles.layout import join_nulls
from recshuf.piles.pile_set import PileSet
from recshuf.piles.set_folder import remake_store
from recshuf.piles.slices import PackedRecords, RecordCodec
from recshuf.records.digests import sum_table
from recshuf.storage import StorageOptions, Url, is_url, refuse_unknown_scheme
from recshuf.system.buffers import Slab, allocate
from recshuf.system.paths import check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import ExitStack

    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.piles.footer import Footer, SetDescription
    from recshuf.piles.groups import Cells
    from recshuf.piles.kept.snapshots import Snapshot
    from recshuf.piles.layout import SealedSet, StorePlan
    from recshuf.piles.set_folder import SetFolder
    from recshuf.piles.slices import Slice
    from recshuf.piles.store import Store
    from recshuf.records.digests import Digest
    from recshuf.system.buffers import Allocate


def open_place(store: Any, options: StorageOptions | None = None) -> StorePlace:
    """Return the place of a store, given its path or URL, or a place. Options are for URLs."""
    if isinstance(store, StorePlace):
        return store
    if not isinstance(store, str | os.PathLike):
        raise UsageError(f"{store!r} is no path; give text or a pathlib.Path")
    check_name(store)
    name = os.fspath(store)
    if not isinstance(store, str) or not is_url(name):
        refuse_unknown_scheme(name)
        return StoreFolder(Path(name))
    from recshuf.storage.writing import WRITTEN_SCHEMES, check_prefix

    url = Url.parse(name)
    if url.scheme not in WRITTEN_SCHEMES:
        raise UsageError(f"{name}: a pile store cannot lie there; give s3://, gs://, az:// or a local folder")
    check_prefix(url, name, "store")
    from recshuf.piles.kept.bucket import StoreBucket  # most stores are folders

    return StoreBucket(url, options or StorageOptions())


def is_store(name: str, options: StorageOptions) -> bool:
    """Tell whether there is a pile store at a path or URL; False if nobody can tell."""
    with suppress(RecshufError):
        return open_place(name, options).is_store
    return False


def open_new_sets(
    place: StorePlace, plan: StorePlan, schema: pa.Schema, cleanup: ExitStack, needed_bytes: int = 0
) -> Store:
    """Return the store of new sets, open until `cleanup`; sealed sets are synced to disk, or uploaded.

    The caller holds the plan's `set_prefix` as a name. The schema has provenance. `needed_bytes` are for messages.
    """
    from recshuf.piles.store import Store  # who reads stores needs none

    sets = place.open_sets(needed_bytes=needed_bytes)
    cleanup.callback(sets.close)
    store = Store(replace(plan, syncs_sets=True), RecordCodec(schema), sets)
    cleanup.callback(store.close)
    return store


def _number_sources(sets: Iterable[SetDescription], inputs: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return for each set what to add to the numbers of its sources, and the names of all sources.

    Sets of one stream number their sources together. Streams follow in the order of their first sets, after the one of
    the `inputs` that the store was made of, some of which may have no records.
    """
    given = list(sets)
    ends: dict[tuple[int, ...], int] = {(): len(inputs)}
    for one in given:
        ends[one.stream] = max(ends.get(one.stream, 0), *(source.index + 1 for source in one.sources), 0)
    firsts: dict[tuple[int, ...], int] = {}
    end = 0
    for stream, count in ends.items():
        firsts[stream], end = end, end + count
    names = dict(enumerate(inputs))
    for one in given:
        names |= {firsts[one.stream] + source.index: source.name for source in one.sources}
    return [firsts[one.stream] for one in given], [names.get(index, "") for index in range(end)]


class StoredPiles(Regions):
    """All regions of the sets in a snapshot, by default the newest. Used by many threads.

    Sets and their order are those of the snapshot. An instance can be pickled, and used after a fork. If it `checks_footers`,
    those of sets are read, and compared with the snapshot, also where it has them.
    """

    def __init__(self, store: Any, snapshot: int | None = None, *, checks_footers: bool = False) -> None:
        self.place = open_place(store)
        self.path = self.place.name
        """Path or URL of the store."""
        found, self._lease = self.place.open(snapshot)
        # Other processes may work in other folders: those of `spawn` begin where Python was started.
        self._anchor = self.place.anchor()
        self.info: Snapshot = found
        self.store_id, self.snapshot, self.seed = found.store, found.number, found.seed
        self.content = found.content
        self.names: tuple[str, ...] = tuple(one.name for one in found.sets)
        """Names of the K sets."""
        self._knows_footers = (
            self.place.are_objects and not checks_footers and all(one.footer for one in found.sets)
        )
        """Whether those in the snapshot are taken, so that no set is asked before a region of it is read."""
        self._folder = self.open_sets()
        self.ahead_bytes = self._folder.ahead_bytes
        self._cache: RegionCache | None = None
        try:
            opened = [
                self._open_set(one, one.footer_bytes if self._knows_footers else b"") for one in found.sets
            ]
        except RecshufError:
            self.close()
            raise
        self._sets = [one for one, _ in opened]
        self._footers: list[Footer] = [footer for _, footer in opened]
        table = np.zeros((5, len(opened), found.pile_count), np.int64)
        for index, footer in enumerate(self._footers):
            table[:, index] = *footer.sums, *footer.digests.table
        self.counts: NDArray[np.int64] = table[0]
        """Records of each region, shape ``(K, M)``."""
        self.byte_counts: NDArray[np.int64] = table[1]
        """Bytes of each region's slices, shape ``(K, M)``."""
        self._digests = table[2:]
        self._bases, sources = _number_sources(
            (footer.description for footer in self._footers), (found.origin or {}).get("names", [])
        )
        self.sources: tuple[str, ...] = tuple(sources)
        """Names of the sources, by their numbers in the provenance of records."""

    def open_sets(self, parent: Path | None = None) -> SetFolder:
        """Return the folder of the sets, which the caller closes; `parent` is one for files without a name."""
        sets, info = self.place.open_sets(parent), self.info
        sets.tail_bytes = 0 if self._knows_footers else info.footer_bytes // max(1, len(info.sets))
        sets.know({one.file_name: one.file_bytes for one in info.sets})
        return sets

    def _open_set(self, entry: SealedSet, footer: bytes) -> tuple[PileSet, Footer]:
        """Open a set, which must be the very one that the snapshot refers to, and fit the others.

        Its footer is read if it is not given.
        """
        found, known = PileSet.open(
            self._folder,
            entry.file_name,
            reads_all=False,
            remedy=f"put it back, or {remake_store(self.path)}",
            footer=footer,
        )
        path = self._folder.show(entry.file_name)
        if entry.checksum != known.checksum:
            raise PileError(
                f"{path}: is another pile set than was written under this name; "
                f"put that back, or {remake_store(self.path)}"
            )
        form = (known.description.seed, len(known.digests.counts), known.schema)
        if form != (self.seed, self.info.pile_count, self.info.schema):
            raise PileError(
                f"{path}: has another seed, other columns or another number of piles than the store; "
                f"{remake_store(self.path)}"
            )
        return found, known

    @property
    def pile_schema(self) -> pa.Schema:
        """Schema of what `load` returns, with the provenance as its last column."""
        schema = self.info.schema
        if schema is None:
            raise PileError(
                f"{self.path}: holds no records yet; append some with recshuf window, or write them with recshuf.PileWriter"
            )
        return schema

    @property
    def schema(self) -> pa.Schema:
        """Schema of the records, without provenance."""
        schema = self.pile_schema
        return schema.remove(len(schema) - 1)

    @property
    def descriptions(self) -> list[tuple[int, SetDescription]]:
        """What each set says about itself, and the number of its stream's first source."""
        return [(base, footer.description) for base, footer in zip(self._bases, self._footers, strict=True)]

    @property
    def record_count(self) -> int:
        return int(self.counts.sum())

    def pack(self, cells: Cells, memory: Allocate = allocate) -> PackedRecords | None:
        """Return the records of some regions, those of a region by source and row; None if there are none."""
        try:
            return self._pack(cells, memory)
        except PileError:
            if self._knows_footers:
                self._look_at_sets({index for index, _ in cells})
            raise

    def _look_at_sets(self, indices: Iterable[int]) -> None:
        """Raise what is wrong if sets are not those of the snapshot, which nobody has looked at yet."""
        try:
            self.place.open(self.snapshot)
        except UsageError as error:
            raise PileError(str(error)) from error
        for index in indices:
            self._open_set(self.info.sets[index], b"")

    def _pack(self, cells: Cells, memory: Allocate) -> PackedRecords | None:
        pieces: list[tuple[int, Slice]] = []
        if self.ahead_bytes:
            self.expect(cells)
        sizes = [size for set_index, pile in cells for size in self._sets[set_index].part_sizes(pile)]
        slab = Slab(sizes, memory)
        for set_index, pile in cells:
            found = sorted(self._sets[set_index].read(pile, slab.allocate), key=attrgetter("origin"))
            pieces += [(self._bases[set_index], piece) for piece in found]
        if not pieces and not any(self.counts[cell] for cell in cells):
            return None
        return PackedRecords(self._codec, pieces)

    def blame(self, _: Cells) -> PileError:
        return PileError(f"{self.path}: does not hold the records that were written; its files have changed")

    def expect(self, cells: Cells) -> None:
        wanted: dict[int, list[int]] = {}
        for set_index, pile in cells:
            wanted.setdefault(set_index, []).append(pile)
        for set_index, piles in wanted.items():
            self._sets[set_index].expect(piles)

    def hasten(self) -> None:
        (self._cache or self._folder).hasten()

    @property
    def region_bytes(self) -> int:
        """Bytes of a region in the middle by size, of those with records; 0 without any."""
        filled = self.byte_counts[self.counts > 0]
        return int(np.median(filled)) if filled.size else 0

    def forget(self) -> None:
        for one in self._sets:
            one.forget()

    def digest(self, cells: Cells) -> Digest:
        sets, piles = zip(*cells, strict=True) if cells else ((), ())
        return sum_table(self._digests[:, sets, piles])

    @property
    def nulls(self) -> tuple[str, ...] | None:
        """Names of the columns of numbers that have a null; None if that is not known."""
        return join_nulls(self.info.sets)

    def lengths(self, column: int) -> NDArray[np.int64]:
        """Return the sum of the lengths in a column of text, binary, lists or maps for each region, shape ``(K, M)``."""
        found = [one.lengths[one.variable_columns.index(column)] for one in self._footers]
        return np.stack(found) if found else np.zeros_like(self.counts)

    def use_cache(self, cache: RegionCache) -> None:
        """Keep regions in a cache from now on, and read those that are there from it."""
        self._cache, self.ahead_bytes = cache, max(self.ahead_bytes, AHEAD_BYTES)
        for one, entry in zip(self._sets, self.info.sets, strict=True):
            one.read_through(partial(cache.wrap, store=self.store_id, name=f"{entry.name}.{entry.checksum}"))

    def close(self) -> None:
        """Close the files, and give back the lease of the snapshot. Idempotent."""
        if self._cache is not None:
            self.forget()
        self._folder.close()
        self._lease.close()

    @cached_property
    def _codec(self) -> RecordCodec:
        return RecordCodec(self.pile_schema)

    def __getstate__(self) -> dict[str, Any]:
        place = {"place": self._anchor, "snapshot": self.snapshot, "store": self.store_id}
        return place | {"cache": self._cache}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["place"], state["snapshot"])  # type: ignore[misc] # it is the constructor
        if self.store_id != state["store"]:
            self.close()
            raise UsageError(f"{self.path}: was made anew since it was opened; open it again")
        if state["cache"] is not None:
            self.use_cache(state["cache"])
