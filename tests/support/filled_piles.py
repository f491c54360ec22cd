"""Stores of piles filled with records of one column, and the order in which all of it is to come back."""

from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from recshuf.piles.epochs import StoredOrder
from recshuf.piles.footer import SetDescription, SetSource
from recshuf.piles.groups import Groups, Regions
from recshuf.piles.layout import SealedSet, StorePlan
from recshuf.piles.pile_set import PileSet
from recshuf.piles.regions import FilledRegions
from recshuf.piles.set_folder import SetFolder
from recshuf.piles.slices import Origin, RecordCodec
from recshuf.piles.store import Store
from recshuf.records.batch import Records
from recshuf.records.digests import Digest, InputCount

SCHEMA = pa.schema([pa.field("record", pa.large_binary(), nullable=False)])
UNLIMITED = 1 << 40
INPUTS = 3


def make_store(scratch: SetFolder, **options: object) -> Store:
    plan = StorePlan(**{"pile_count": 8, "set_sizes": (None,), "resident_bytes": 0} | options)
    return Store(plan, RecordCodec(SCHEMA), scratch)


@dataclass
class Batch:
    """Records of one input, which follow each other; the set of an input has its number."""

    origin: Origin
    keys: np.ndarray
    rows: list[bytes]

    def add_to(self, store: Store) -> None:
        batch = pa.RecordBatch.from_arrays([pa.array(self.rows, pa.large_binary())], schema=SCHEMA)
        store.add(self.origin.input_index, self.origin, Records(self.keys, batch))


@dataclass
class Filling:
    """Batches in the order in which threads happen to add them."""

    counts: list[int]
    inputs: int = 1
    distinct: int = 0
    """Number of different keys; 0 for any."""
    seed: int = 0
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance, first_rows = np.random.default_rng(self.seed), [0] * self.inputs
        pool = chance.integers(0, 2**64, self.distinct, np.uint64)
        for count in self.counts:
            index = int(chance.integers(self.inputs))
            keys = (
                chance.choice(pool, count) if self.distinct else chance.integers(0, 2**64, count, np.uint64)
            )
            first = first_rows[index]
            rows = [b"%d:%d " % (index, first + k) + b"." * (k % 50) for k in range(count)]
            self.batches.append(Batch(Origin(index, first), keys, rows))
            first_rows[index] += count
        chance.shuffle(self.batches)  # type: ignore[arg-type]

    def sorted(self) -> list[bytes]:
        """Return all records by key, input and row: one by one."""
        found = [
            (key, *batch.origin, k, row)
            for batch in self.batches
            for k, (key, row) in enumerate(zip(batch.keys.tolist(), batch.rows, strict=True))
        ]
        return [row for *_, row in sorted(found)]


def fill(store: Store, *counts: int, **options: int) -> list[bytes]:
    """Fill a store, and return what is to come out of it."""
    filling = Filling(list(counts), **options)
    for batch in filling.batches:
        batch.add_to(store)
    return filling.sorted()


def read(store: Store | Regions, wanted: int = UNLIMITED, split: tuple[int, ...] = ()) -> list[bytes]:
    """Return the first records of a store, group by group; groups are split into so many parts in turn, 0 for a whole one."""
    regions = FilledRegions(store) if isinstance(store, Store) else store
    groups = Groups(regions, StoredOrder())
    rows: list[bytes] = []
    for group, size in enumerate(groups.sizes.tolist()):
        if len(rows) >= wanted:
            break
        parts = split[group % len(split)] if split else 0
        if parts:
            with closing(regions.split(group, parts)) as finer:
                assert finer.counts.sum() == size
                rows += read(finer, wanted - len(rows), split[1:])
        elif size:
            found = groups.load([group]).batch.column(0).to_pylist()
            assert len(found) == size
            rows += found
    return rows


def describe(index: int) -> SetDescription:
    count = InputCount(10, Digest(1, 2, 2**64 - 1))
    return SetDescription(5, (SetSource(index, f"{index}\udcff", count),), (7, 8))


def seal_all(store: Store) -> set[int]:
    """Seal every set that can be, and return their numbers. Entries say what `describe` says, and what files are."""
    sealed = list(iter(store.seal_next, None))
    numbers = {entry.number for entry in sealed}
    assert len(numbers) == len(sealed)
    for entry in sealed:
        path = (store.folder.kept or store.folder.parent) / entry.file_name
        assert (entry.records, entry.byte_count, entry.file_bytes) == (1, 10, path.stat().st_size)
        assert entry.checksum == PileSet.open(store.folder, entry.file_name, reads_all=False)[1].checksum
    return numbers


def entry_of(number: int) -> SealedSet:
    """Return the entry of a kept set, as far as adoption reads it."""
    return SealedSet(f"set-{number:05d}", 0, 0, 0, number=number)
