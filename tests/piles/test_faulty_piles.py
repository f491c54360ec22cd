"""Disks that are full, short writes, flipped bits: what is not the records that were added is found."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from recshuf.errors import CheckError, DiskFullError, OutputError, PileError
from recshuf.piles.codec import FlatCodec
from recshuf.piles.epochs import StoredOrder
from recshuf.piles.groups import Groups
from recshuf.piles.layout import SPILL_COMPRESSIONS, StorePlan
from recshuf.piles.regions import FilledRegions
from recshuf.piles.set_folder import SetFolder
from recshuf.piles.slices import PREFIX_BYTES
from recshuf.piles.store import Store
from recshuf.records.batch import Records
from tests.support.filled_piles import (
    INPUTS,
    SCHEMA,
    describe,
    fill,
    make_store,
    read,
    seal_all,
)
from tests.support.formats.format_tools import find_open_files

if TYPE_CHECKING:
    from pathlib import Path


class FaultyCodec(FlatCodec):
    """Changes a key of what it unpacks."""

    def unpack(self, slices: Any) -> Records:
        """Return other records."""
        return self._change(super().unpack(slices))

    def unpack_ordered(self, slices: Any, *order: Any) -> Records:
        """Return other records."""
        return self._change(super().unpack_ordered(slices, *order))

    @staticmethod
    def _change(records: Records) -> Records:
        keys = records.keys.copy()
        keys[0] ^= np.uint64(1)
        return Records(keys, records.batch)


def test_records_that_are_others_than_those_added_are_found(scratch: SetFolder) -> None:
    store = Store(StorePlan(2, (None,) * INPUTS, 0), FaultyCodec(SCHEMA), scratch)
    fill(store, 100)
    regions = FilledRegions(store, " of this")
    groups, cells = Groups(regions, StoredOrder()), [(0, 1)]
    fault = "gather: pile 1 of this of pile set 0: .* records as given, but not the same ones"
    for load in (
        lambda: regions.load(cells),
        lambda: groups.load([1]),
        lambda: groups.load_parts([1], [0, 5]),
        lambda: regions.split(1, 2),
    ):
        with pytest.raises(CheckError, match=fault):
            load()
    store.close()


def spill_to(scratch: SetFolder, compression: str = "none") -> tuple[Store, Path]:
    store = make_store(scratch, set_sizes=(500.0,), set_prefix="set", compression=compression)
    fill(store, 500)
    (path,) = scratch.parent.rglob("*.piles")
    return store, path


@pytest.mark.parametrize("compression", SPILL_COMPRESSIONS)
def test_a_flipped_bit_is_found_wherever_it_is(scratch: SetFolder, compression: str) -> None:
    """In the header of a slice, in its checksum, and in the records."""
    store, path = spill_to(scratch, compression)
    whole = path.read_bytes()
    ((start, used),) = store._sets[0]._regions.parts(3)
    # Up to 7 bytes of padding follow the payload.
    for place in (*range(PREFIX_BYTES), PREFIX_BYTES, used // 2, used - 8):
        content = bytearray(whole)
        content[start + place] ^= 1 << place % 8
        path.write_bytes(content)
        with pytest.raises(
            PileError,
            match=r"region 3 does not read back as it was written: .*; run again with another --temp-dir$",
        ):
            FilledRegions(store).load([(0, 3)])
        assert FilledRegions(store).load([(0, 2)]) is not None
    os.truncate(path, start + used - 8)
    with pytest.raises(PileError, match="ends at byte"):
        FilledRegions(store).load([(0, 3)])
    store.close()


def test_a_damaged_set_is_not_adopted_and_one_that_is_whole_again_is(scratch: SetFolder) -> None:
    """Wherever the damage is: in records that are read later only, or in what ends the file."""
    store, path = spill_to(scratch)
    store.complete(0, store.digests_of(0).sum(), describe(0))
    assert seal_all(store) == {0}
    ((start, _),) = store._sets[0]._regions.parts(6)
    store.close()
    whole = path.read_bytes()
    for place in (start + PREFIX_BYTES, *range(len(whole) - 400, len(whole), 7)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        later = make_store(scratch, set_sizes=(500.0,), set_prefix="set")
        with pytest.raises(PileError, match=path.name):
            later.adopt(0)
        later.close()
    for content in (whole[:-1], whole[:100], b""):
        path.write_bytes(content)
        with pytest.raises(PileError, match=path.name):
            make_store(scratch, set_sizes=(500.0,), set_prefix="set").adopt(0)
    path.write_bytes(whole)
    later = make_store(scratch, set_sizes=(500.0,), set_prefix="set")
    assert later.adopt(0) == describe(0)
    later.close()


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EIO, OutputError)])
def test_a_full_disk_names_the_folder_and_the_option(
    scratch: SetFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[OutputError]
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwritev", refuse)
    store = make_store(scratch)
    with pytest.raises(kind, match=rf"{tmp_path}.*--temp-dir"):
        fill(store, 10)
    store.close()


def test_short_writes_are_continued(scratch: SetFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, place: whole(fd, [b"".join(buffers)[:11]], place))
    store = make_store(scratch)
    expected = fill(store, 300)
    assert read(store) == expected
    store.close()


def test_closing_a_store_keeps_the_files_that_have_a_name(scratch: SetFolder, tmp_path: Path) -> None:
    store, path = spill_to(scratch)
    assert find_open_files(tmp_path) == [path]
    assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    store.close()
    store.close()
    assert find_open_files(tmp_path) == []
    scratch.close()
    scratch.close()
    assert path.exists()


@pytest.mark.parametrize("nameless", [True, False])
def test_files_without_a_name_are_seen_by_nobody(
    scratch: SetFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool
) -> None:
    """Also on file systems that cannot create them at once."""
    if not nameless:
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_CREAT)  # refused as invalid
    store = make_store(scratch)
    expected = fill(store, 300)
    assert store.spilled_bytes > 0
    assert list(tmp_path.iterdir()) == []
    assert read(store) == expected
    store.close()


def test_a_scratch_folder_that_cannot_be_made_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="--temp-dir"):
        SetFolder(tmp_path / "missing").create()
