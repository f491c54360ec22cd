"""Small pile stores: written, changed and read by their public names."""

from contextlib import closing
from pathlib import Path
from typing import Any

import recshuf
from recshuf.piles.kept.stored import StoredPiles
from recshuf.records.batch import Records


def write(store: Path | str, name: str, *data: Any, **options: Any) -> None:
    """Write one thing after the other under a name."""
    with recshuf.PileWriter(store, name, **{"piles": 4, "seed": 1} | options) as writer:
        for one in data:
            writer.write(one)


def append(store: Path, data: Any, **options: Any) -> None:
    """Append one slice in an update of its own."""
    with recshuf.PileStore(store).update() as update:
        update.append(data, **options)


def expire(store: Path, **limits: Any) -> None:
    with recshuf.PileStore(store).update() as update:
        update.expire(**limits)


def read_records(store: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Return every record, by the name of its source and its row."""
    sources, found = recshuf.PileStore(store).sources, {}
    columns = ["_id", *recshuf.PileLoader(store, 1).schema.names]
    for batch in recshuf.PileLoader(store, 100, columns=columns, output="arrow", drop_last=False):
        for record in batch.to_pylist():
            ids = record.pop("_id")
            key = sources[ids["source"]], ids["row"]
            assert key not in found
            found[key] = record
    return found


def load_all(store: Path) -> Records:
    """Return every record as it is stored, with its key and provenance, set by set."""
    with closing(StoredPiles(store)) as piles:
        records = piles.load([(k, j) for k in range(len(piles.names)) for j in range(piles.info.pile_count)])
    assert records is not None
    return records


def read_ids(store: Path, **options: Any) -> list[int]:
    """Return the column ``id`` of all records, in order."""
    return ids_of(recshuf.PileLoader(store, 1024, **{"columns": ["id"], "drop_last": False} | options))


def batch_ids(batches: Any) -> list[list[int]]:
    """Return the column ``id`` of each batch, of arrays or tensors."""
    return [batch["id"].tolist() for batch in batches]


def ids_of(batches: Any) -> list[int]:
    """Return the column ``id`` of batches of arrays."""
    return [number for batch in batches for number in batch["id"].tolist()]


def list_sets(store: Path) -> set[str]:
    """Return the names of all files of sets, and of locks."""
    return {path.name for path in (store / "sets").iterdir()}
