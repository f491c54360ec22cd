"""The entry of a sealed pile set in a list: the log of a run, the result of a task, or a snapshot of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    bad: dict[str, Any] | None = None
    """The file of bad records beside it; None if there are none, or they are set aside already."""

    @property
    def age_key(self) -> float:
        """What orders sets by age; without a time, a set is older than all others."""
        return float("-inf") if self.time is None else self.time

    @property
    def file_name(self) -> str:
        """Name of its file or object."""
        return f"{self.name}{SET_SUFFIX}"

    def describe(self) -> dict[str, Any]:
        """Return its entry in a snapshot, as JSON values."""
        return {name: getattr(self, name) for name in _SNAPSHOT_FIELDS}

    def to_json(self) -> dict[str, Any]:
        """Return its entry in the log of a run, as JSON values."""
        return {
            "set": self.number,
            **self.describe(),
            "spilled_bytes": self.spilled_bytes,
            "state": self.state,
            "counts": self.counts,
            "bad": self.bad,
        }

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> SealedSet:
        """Return the set of an entry in a log or a snapshot."""
        fields = dict(entry)
        number, counts = fields.pop("set", 0), tuple(map(tuple, fields.pop("counts", ())))
        return cls(number=number, counts=counts, **fields)


_SNAPSHOT_FIELDS = ("name", "records", "byte_count", "file_bytes", "checksum", "time")
