"""A cache of regions of a store in a bucket: a region is asked for once, and what is kept needs no bucket."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import recshuf
from tests.support.stores.small_stores import ids_of, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.objects.object_outputs import AnyBucket

SETS, PILES = r"GET .*\.piles", 6


def test_regions_are_asked_for_once(tmp_path: Path, bucket: AnyBucket) -> None:
    url, count = f"{bucket.url}/store", bucket.proxy.count
    for place in (url, tmp_path / "store"):
        write(place, "a", pa.table({"id": range(600)}), piles=PILES)  # type: ignore[arg-type] # or a URL
    given = [ids_of(recshuf.PileLoader(tmp_path / "store", 50, epoch=epoch)) for epoch in (0, 1)]

    def open_loader(**options: Any) -> recshuf.PileLoader:
        return recshuf.PileLoader(url, 50, **{"cache": tmp_path / "cache"} | options)

    half = open_loader(lanes=2, world_size=2)
    bucket.proxy.clear()
    ids_of(half)
    assert count(SETS) == PILES // 2
    loader = open_loader()
    bucket.proxy.clear()
    assert ids_of(loader) == given[0]
    assert count(SETS) == PILES - PILES // 2
    again = pickle.loads(pickle.dumps(open_loader(epoch=1)))
    for key in bucket.list_keys("store/sets/"):
        bucket.delete(key)
    bucket.proxy.clear()
    loader.set_epoch(1)
    assert ids_of(loader) == ids_of(again) == given[1]
    assert not count(SETS)
