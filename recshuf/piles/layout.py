"""How records are divided into piles, regions and pile sets, and the entry of a sealed set in a list.

A list is the log of a run, the result of a task, or a snapshot of a store. Must not import pyarrow: allocators are chosen later.
"""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recshuf.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable


SPILL_COMPRESSIONS = ("none", "lz4", "zstd")
"""Compressions of spilled records; pile sets store the index, so the order is fixed."""


@dataclass(frozen=True, slots=True)
class PileLayout:
    """How an earlier run divided its records; a run that continues it keeps this."""

    pile_count: int
    set_of_input: tuple[int, ...]
    record_counts: tuple[int, ...] | None = None
    """Number of records of each input; None unless the run needs it before it reads them."""


@dataclass(frozen=True, slots=True)
class StorePlan:
    """The settings of a pile store."""

    pile_count: int
    set_sizes: tuple[float | None, ...]
    """Records expected in each pile set; None if unknown."""
    resident_bytes: int
    """Most bytes of piles in memory."""
    output_count: int | None = None
    """Number of records wanted, those of the smallest keys; None for all."""
    compression: str = "none"
    """Compression of spilled slices, one of `SPILL_COMPRESSIONS`."""
    adapts: bool = False
    """Whether it becomes lz4 once threads wait for the disk."""
    set_prefix: str | None = None
    """Beginning of the names of the files in which complete sets are sealed for a later run; None if none are."""
    syncs_sets: bool = False
    """Whether sealed sets are synced to disk, and kept for others."""


def region_bytes(record_count: float, mean_bytes: float, mean_square_bytes: float) -> int:
    """Return the bytes to reserve for the records of one region, 6 sigma above the mean.

    `record_count` is the mean number s of records in the region, itself nearly Poisson, so that the bytes
    are a compound Poisson sum of mean ``s E[b]`` and variance ``s E[b^2]``. For records of one byte this is
    ``s + 6 sqrt(s)``.

    >>> region_bytes(100, 1, 1)
    160
    """
    return math.ceil(record_count * mean_bytes + 6 * math.sqrt(record_count * mean_square_bytes))


SET_SUFFIX = ".piles"


@dataclass(frozen=True, slots=True)
class SealedSet:
    """A pile set that has all its records, and is read by its footer."""

    name: str
    """Name of its file or object, without the suffix; empty if it has none, since a sample needs none of its records."""
    records: int
    byte_count: int
    """Bytes of the records, as `InputCount` has them."""
    file_bytes: int
    checksum: str = ""
    """That of the file's footer, which no other set has; see `Footer`."""
    time: float | None = None
    """Seconds since 1970, UTC; None if it has no time."""
    nulls: tuple[str, ...] | None = None
    """Names of the columns of numbers that have a null; None if that is not known. Others may be among them."""
    number: int = 0
    """Number in a run."""
    base: int = 0
    """What to add to the numbers of its sources."""
    spilled_bytes: int = 0
    """Bytes that another process has written for it, after compression."""
    state: Any = None
    """What the decoder of another process has learned; see `Decoder.state`."""
    counts: tuple[tuple[int, ...], ...] = ()
    """Number, bytes and digest of each source of a set without a file; else its footer has them."""
    missing: tuple[int, ...] = ()
    """How many of its records have no value of all fields that give keys, and of each; empty if there are none."""
    squares: str = ""
    """Counters of the values of its records, packed; empty without values. See `count_values`."""
    bad: dict[str, Any] | None = None
    """The file of bad records beside it; None if there are none, or they are set aside already."""
    footer: str = ""
    """Its footer in Base64, in the snapshot of a store in a bucket; empty if it is to be read."""

    @property
    def age_key(self) -> float:
        """What orders sets by age; without a time, a set is older than all others."""
        return float("-inf") if self.time is None else self.time

    @property
    def file_name(self) -> str:
        return f"{self.name}{SET_SUFFIX}"

    def describe(self) -> dict[str, Any]:
        """Return its entry in a snapshot, as JSON values."""
        known = {} if self.nulls is None else {"nulls": self.nulls}
        return {name: getattr(self, name) for name in _SNAPSHOT_FIELDS} | known

    @property
    def footer_bytes(self) -> bytes:
        return base64.b64decode(self.footer)

    def knowing(self, footer: bytes | memoryview) -> SealedSet:
        """Return the same with its footer, or, of no bytes, without."""
        return replace(self, footer=base64.b64encode(footer).decode())

    def to_json(self) -> dict[str, Any]:
        """Return its entry in the log of a run, as JSON values."""
        return {
            "set": self.number,
            **self.describe(),
            "spilled_bytes": self.spilled_bytes,
            "state": self.state,
            "counts": self.counts,
            "bad": self.bad,
            **({"missing": self.missing} if self.missing else {}),
            **({"squares": self.squares} if self.squares else {}),
        }

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> SealedSet:
        """Return the set of an entry in a log or a snapshot."""
        fields = dict(entry)
        number, counts = fields.pop("set", 0), tuple(map(tuple, fields.pop("counts", ())))
        nulls, missing = fields.pop("nulls", None), tuple(fields.pop("missing", ()))
        known = None if nulls is None else tuple(nulls)
        return cls(number=number, counts=counts, nulls=known, missing=missing, **fields)


def join_nulls(sets: Iterable[SealedSet]) -> tuple[str, ...] | None:
    """Return the columns that have a null in any of some sets; None if that is not known of one.

    >>> join_nulls([SealedSet("a", 1, 1, 1, nulls=("x",)), SealedSet("b", 1, 1, 1, nulls=())])
    ('x',)
    """
    known = [one.nulls for one in sets]
    return None if None in known else tuple(sorted({name for names in known for name in names or ()}))


_SNAPSHOT_FIELDS = ("name", "records", "byte_count", "file_bytes", "checksum", "time")
