"""Snapshots of a pile store: which sets it holds."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pyarrow as pa
import xxhash

from recshuf.errors import PileError, UsageError
from recshuf.piles.layout import SealedSet
from recshuf.records.arrays import pack_schema, unpack_schema
from recshuf.records.keys import ORDER_VERSION
from recshuf.system.files import format_line, parse_line

STORE_VERSION = 1
BUCKET_VERSION = 2
"""That of a store in a bucket: the footers of sets are in the snapshot, and other rules about when what is deleted."""


_HEADER_BYTES = 32 << 10
_REGION_BYTES = 96
"""Bytes in a footer for each region and pile, besides sums of lengths: about enough for the header, and for parts, sums and
digests."""


def find_writer(set_name: str) -> str:
    """Return the name under which a set was written.

    >>> find_writer("worker-1-00000")
    'worker-1'
    """
    return set_name.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a store holds at one time."""

    store: str
    """Identifier of the store, 32 hexadecimal digits."""
    seed: int
    pile_count: int
    number: int = 0
    schema: pa.Schema | None = None
    """Schema of the records in the sets, provenance included; None while there are none."""
    origin: dict[str, Any] | None = None
    """How the inputs were stored, as the formats describe it; None if a program wrote the records."""
    sets: tuple[SealedSet, ...] = field(default=())
    """The sets, in the order of their names."""
    joined: dict[str, list[str]] = field(default_factory=dict)
    """For each set that a compaction has made, the names under which its records were written, which decide their keys."""
    mark: str | None = None
    """In a bucket: while the mark beside the store has this content, the snapshot does not count."""

    @classmethod
    def new(cls, seed: int | None, pile_count: int) -> Snapshot:
        """Return an empty snapshot of a new store; the default seed is random."""
        return cls(secrets.token_hex(16), secrets.randbits(128) if seed is None else seed, pile_count)

    @property
    def record_count(self) -> int:
        return sum(one.records for one in self.sets)

    @property
    def byte_count(self) -> int:
        return sum(one.byte_count for one in self.sets)

    @property
    def content(self) -> str:
        """What tells the sets of copies apart that were changed apart: 16 hexadecimal digits."""
        return xxhash.xxh3_64_hexdigest(" ".join(f"{one.name} {one.checksum}" for one in self.sets).encode())

    @property
    def footer_bytes(self) -> int:
        """About the bytes of the footers of all sets, rather more."""
        fields = 0 if self.schema is None else len(self.schema)
        return len(self.sets) * (_HEADER_BYTES + self.pile_count * (_REGION_BYTES + 8 * fields))

    @property
    def names(self) -> set[str]:
        """The names under which the records and the sets were written."""
        return {*(find_writer(one.name) for one in self.sets), *chain.from_iterable(self.joined.values())}

    def add(self, sets: tuple[SealedSet, ...], schema: pa.Schema) -> Snapshot:
        held = {one.name for one in self.sets}
        for one in sets:
            if one.name in held:
                raise UsageError(f"{one.name}: the store has a pile set of this name; choose another name")
        self.check_schema(schema)
        ordered = tuple(sorted((*self.sets, *sets), key=lambda one: one.name))
        return replace(self, schema=self.schema or schema, sets=ordered)

    def join(self, names: list[str], entry: SealedSet) -> Snapshot:
        """Return a snapshot with one set in place of those with these names, whose records it holds."""
        written = {one for name in names for one in self.joined.get(name, [find_writer(name)])}
        left = self.drop(set(names))
        sets = tuple(sorted((*left.sets, entry), key=lambda one: one.name))
        return replace(left, sets=sets, joined=left.joined | {entry.name: sorted(written)})

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise `UsageError` if records have other columns than those of the store."""
        if self.schema is not None and not self.schema.equals(schema, check_metadata=False):
            raise UsageError(describe_drift(self.schema, schema))

    def drop(self, names: set[str]) -> Snapshot:
        joined = {name: written for name, written in self.joined.items() if name not in names}
        return replace(self, sets=tuple(one for one in self.sets if one.name not in names), joined=joined)

    def pack(self, version: int = STORE_VERSION) -> bytes:
        """Return the content of the file, or of the object, which has the footers of the sets that are known."""
        fields: dict[str, Any] = {
            "version": version,
            "order": ORDER_VERSION,
            "store": self.store,
            "seed": str(self.seed),
            "pile_count": self.pile_count,
            "snapshot": self.number,
            "schema": self.schema and pack_schema(self.schema),
            "origin": self.origin,
            "sets": [
                entry.describe() | ({"footer": entry.footer} if version == BUCKET_VERSION else {})
                for entry in self.sets
            ],
            "joined": self.joined,
        }
        return format_line(fields if self.mark is None else fields | {"mark": self.mark})


def describe_drift(expected: pa.Schema, found: pa.Schema) -> str:
    """Return a sentence about the first difference between two schemas."""
    for name in [*expected.names, *found.names]:
        if name not in found.names:
            return f"column {name!r} is missing; the store has it as {expected.field(name).type}"
        if name not in expected.names:
            return f"column {name!r} is not in the store; leave it out, or begin a new store"
        if expected.field(name).type != found.field(name).type:
            return _describe_type_drift(name, expected.field(name).type, found.field(name).type)
    return "the columns are in another order, or may hold nulls where those of the store may not"


def _describe_type_drift(name: str, expected: pa.DataType, found: pa.DataType) -> str:
    if pa.types.is_null(expected):
        return (
            f"column {name!r} is {found}, and null in the store, which began with no value there; begin a new store, "
            "with a schema= that names its type"
        )
    return f"column {name!r} is {found}, and {expected} in the store; cast it"


def parse_snapshot(content: bytes, store: str) -> Snapshot | None:
    """Return the snapshot in a file; None if it is damaged. The name of the store is for messages."""
    fields = parse_line(content.removesuffix(b"\n"))
    if fields is None:
        return None
    if fields["version"] not in (STORE_VERSION, BUCKET_VERSION) or fields["order"] != ORDER_VERSION:
        raise PileError(
            f"{store}: the store has version {fields['version']} and order {fields['order']}; this recshuf reads "
            f"{STORE_VERSION} or {BUCKET_VERSION}, and {ORDER_VERSION}; open it with the version that wrote it"
        )
    schema = fields["schema"]
    return Snapshot(
        fields["store"],
        int(fields["seed"]),
        fields["pile_count"],
        fields["snapshot"],
        None if schema is None else unpack_schema(schema),
        fields["origin"],
        tuple(SealedSet.from_json(entry) for entry in fields["sets"]),
        fields.get("joined", {}),
        fields.get("mark"),
    )
