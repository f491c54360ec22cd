"""The lengths in the footers of a store are those of the records in each region, however they came there."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import PileError
from recshuf.piles.footer import Footer
from recshuf.piles.kept import upkeep
from recshuf.piles.kept.stored import StoredPiles
from tests.piles.encoding.test_planes import WORDS, measure

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


NAMES = ("list", "text", "map", "words")


def make_table(rows: range) -> pa.Table:
    """Return records with nulls; `kind` is a dictionary."""
    texts = [None if row % 5 == 0 else "ü" * (row % 4) for row in rows]
    lists = [None if row % 7 == 0 else list(range(row % 6)) for row in rows]
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "list": pa.array(lists, pa.list_(pa.int32())),
            "text": pa.array(texts, pa.string()).dictionary_encode(),
            "pair": pa.array([[row, row] for row in rows], pa.list_(pa.int8(), 2)),
            "map": pa.array([[("k", row)] * (row % 3) for row in rows], pa.map_(pa.string(), pa.int64())),
            "words": WORDS.wrap_array(pa.array(lists, pa.list_(pa.int16()))),
        }
    )


def count_slowly(regions: StoredPiles, name: str) -> NDArray[np.int64]:
    """Return the lengths of a column's values in each region, counted one by one."""
    counts = np.zeros_like(regions.counts)
    for region in np.ndindex(counts.shape):
        if regions.counts[region]:
            packed = regions.pack([region])
            assert packed is not None
            counts[region] = sum(map(measure, packed.join().batch.column(name).to_pylist()))
    return counts


def check_store(store: Path) -> None:
    with closing(StoredPiles(store)) as piles:
        assert (piles.counts == 0).any(), "some regions should be empty"
        for name in NAMES:
            expected = count_slowly(piles, name)
            assert expected.any()
            assert np.array_equal(piles.lengths(piles.pile_schema.get_field_index(name)), expected)
    assert upkeep.verify_store(store, lambda *_: None) == piles.record_count


def write_sets(store: Path, sizes: list[int], **options: Any) -> None:
    for index, size in enumerate(sizes):
        with recshuf.PileWriter(store, f"w{index}", seed=3, piles=40, **options) as writer:
            for start in range(0, size, 7):
                writer.write(make_table(range(start, min(start + 7, size))).slice(1))


def test_lengths_are_those_of_what_a_program_wrote_also_after_a_compaction(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_sets(store, [20, 30, 2, 25], buffer_bytes=300)
    check_store(store)
    with closing(StoredPiles(store)) as piles:
        before = piles.lengths(1).sum(axis=0)
    recshuf.compact(store, sets=2)
    check_store(store)
    with closing(StoredPiles(store)) as piles:
        assert len(piles.names) == 2
        assert piles.lengths(1).sum(axis=0).tolist() == before.tolist()


def test_verify_finds_other_lengths_than_those_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Footer.pack

    def pack_wrongly(self: Footer, offset: int) -> bytes:
        self.lengths[2, np.flatnonzero(self.sums[0])[0]] += 1
        return whole(self, offset)

    monkeypatch.setattr(Footer, "pack", pack_wrongly)
    write_sets(tmp_path / "store", [40])
    with pytest.raises(
        PileError, match=r"set w0-00000: its footer has other lengths than the records of pile 2;"
    ):
        upkeep.verify_store(tmp_path / "store", lambda *_: None)
