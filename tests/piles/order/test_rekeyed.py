"""Exact epochs: new keys for every record, written to a file that nobody sees, in pieces of bounded size."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import recshuf
from recshuf.errors import DiskFullError, OutputError, PileError
from recshuf.piles import rekeyed
from recshuf.piles.epochs import EpochOrder
from recshuf.piles.rekeyed import RekeyedPiles
from recshuf.piles.set_folder import LocalPileFile
from recshuf.train.loader import PileLoader
from tests.support.stores.epoch_oracle import Rules, flatten, group_records
from tests.support.stores.fake_piles import FakePiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from recshuf.piles.groups import CheckedRegions

ORDER = EpochOrder(seed=7, epoch=3, reshuffle="exact", store_seed=7)


def make_store() -> FakePiles:
    return FakePiles({"a": [200, 0], "b": [300], "c": [0]}, 12)


def make_loader(store: FakePiles) -> PileLoader:
    return PileLoader(store, 8, reshuffle="exact", epoch=3, columns=["_id"], drop_last=False)


@pytest.mark.parametrize("read_bytes", [1, 1000])
def test_every_region_is_read_once_in_pieces_of_a_limited_size(
    read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rekeyed, "_READ_BYTES", read_bytes)
    store = make_store()
    found = [tuple(one) for batch in make_loader(store) for one in batch["_id"].tolist()]
    groups = group_records(store.records(), list(store.names), 12, Rules(epoch=3, reshuffle="exact"))
    assert found == [record.id for record in flatten(groups)]
    assert sorted(flatten(store.loads)) == sorted(zip(*np.nonzero(store.counts), strict=True))
    sizes = [sum(store.byte_counts[region] for region in regions) for regions in store.loads]
    assert all(
        size <= read_bytes or len(regions) == 1 for size, regions in zip(sizes, store.loads, strict=True)
    )


def count_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_the_temporary_file_goes_with_the_iterator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = count_open_files()
    batches = iter(make_loader(make_store()))
    next(batches)
    assert count_open_files() > before
    assert list(tmp_path.iterdir()) == [], "the file has a name"
    del batches
    assert count_open_files() == before


REASONS = {
    errno.ENOSPC: (DiskFullError, "no space left for .*; set TMPDIR to another folder with more space$"),
    errno.EIO: (OutputError, "cannot hold the records of an epoch .*: Input/output error; set TMPDIR to another folder$"),
}  # fmt: skip


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_file_that_cannot_be_written_names_the_folder_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    error = OSError(number, os.strerror(number))
    monkeypatch.setattr(os, "pwritev", lambda *_: (_ for _ in ()).throw(error))
    before = count_open_files()
    kind, said = REASONS[number]
    with pytest.raises(kind, match=f"^{tmp_path}: {said}"):
        list(make_loader(make_store()))
    assert count_open_files() == before


def damage_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every region of a local file read back with other bytes."""
    read = LocalPileFile.read

    def read_others(file: LocalPileFile, offset: int, size: int, *memory: Any) -> Any:
        return ~read(file, offset, size, *memory)

    monkeypatch.setattr(LocalPileFile, "read", read_others)


def test_a_damaged_file_names_what_chooses_the_folder_of_a_gather(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "spilled"
    folder.mkdir()
    (tmp_path / "in.txt").write_text("a\n" * 100)
    recshuf.scatter(tmp_path / "in.txt", tmp_path / "store")
    fill = RekeyedPiles.fill

    @contextmanager
    def fill_badly(*given: Any) -> Iterator[CheckedRegions]:
        with fill(*given) as filled, monkeypatch.context() as patch:
            damage_regions(patch)
            yield filled

    monkeypatch.setattr(RekeyedPiles, "fill", fill_badly)
    with pytest.raises(PileError, match=f"^{folder}: region .*; choose another temp_dir, on another disk$"):
        recshuf.gather(tmp_path / "store", tmp_path / "out.txt", epoch=1, reshuffle="exact", temp_dir=folder)
