"""What a pass has finished: the entries of the log of a run, and of the results of its tasks."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from recshuf.dataclass import dataclass
from recshuf.output.manifest import WrittenFile
from recshuf.output.run_log import TaskResults, read_results
from recshuf.piles.layout import SealedSet
from recshuf.records.digests import Digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """A shard whose file or stream has been closed. It is in the log once it is durable."""

    number: int
    name: str
    digest: Digest
    """Digest of its records in native form."""
    schema: str | None
    """Checksum of the table schema of its records; None if they were not converted."""
    byte_count: int = 0
    """Bytes of its file; known once it is durable, as are the next two."""
    checksum: str = ""
    """xxh3 of 128 bits of its file, as hexadecimal digits."""
    place: Mapping[str, Any] = field(default_factory=dict)
    """Where its bytes are, if not in the file of its name in the stage: the upload, or the folder of a task."""
    companions: tuple[WrittenFile, ...] = ()
    values: int = 0
    """Number of different values that give its keys; 0 if keys are those of rows."""
    dropped: Digest = field(default_factory=Digest)
    """Digest of the records that were dropped for it, because they repeat others."""
    basis: str = ""
    """Tells the records in piles that its bounds count, if another attempt may have others."""

    @property
    def files(self) -> list[WrittenFile]:
        return [WrittenFile(self.name, self.byte_count, self.checksum), *self.companions]

    @property
    def records(self) -> int:
        return self.digest.records

    @property
    def total(self) -> Digest:
        """Digest of its records, and of those dropped, as they are in piles."""
        return self.digest + self.dropped

    def to_json(self) -> dict[str, Any]:
        return {
            "shard": self.number,
            "name": self.name,
            "bytes": self.byte_count,
            "xxh3": self.checksum,
            "digest": self.digest,
            "schema": self.schema,
            **({"companions": self.companions} if self.companions else {}),
            **({"values": self.values} if self.values else {}),
            **({"dropped": self.dropped, "basis": self.basis} if self.basis else {}),
            **self.place,
        }

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> FinishedShard:
        place = dict(entry)
        number, name, byte_count, checksum, digest, schema = map(place.pop, _SHARD_KEYS)
        companions = tuple(WrittenFile(*one) for one in place.pop("companions", ()))
        values, basis = place.pop("values", 0), place.pop("basis", "")
        dropped = Digest(*place.pop("dropped", ()))
        found = cls(number, name, Digest(*digest), schema, byte_count, checksum, place, companions, values)
        return replace(found, dropped=dropped, basis=basis)


_SHARD_KEYS = ("shard", "name", "bytes", "xxh3", "digest", "schema")


def find_shards(entries: Iterable[dict[str, Any]]) -> dict[int, FinishedShard]:
    """Return the shards in some entries by number; of several of one number the last."""
    return {entry["shard"]: FinishedShard.from_json(entry) for entry in entries if "shard" in entry}


def find_sets(entries: Iterable[dict[str, Any]]) -> list[SealedSet]:
    """Return the sets in some entries, ordered by number; of several of one number the last."""
    found = {entry["set"]: SealedSet.from_json(entry) for entry in entries if "set" in entry}
    return [found[number] for number in sorted(found)]


def find_rows(entries: Iterable[dict[str, Any]]) -> dict[int, int]:
    """Return the rows of the counted parts in some entries, by number."""
    return {entry["count"]: entry["rows"] for entry in entries if "count" in entry}


def read_entries(results: TaskResults, run_id: str, numbers: range) -> list[dict[str, Any]]:
    return [
        entry for result in read_results(results, run_id, numbers).values() for entry in result["entries"]
    ]
