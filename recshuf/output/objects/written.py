"""The shards and the manifest of an output in an object store, read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from recshuf.output.manifest import Manifest
from recshuf.output.objects.place import OutputKeys
from recshuf.storage.urls import Url

if TYPE_CHECKING:
    from collections.abc import Collection

    from recshuf.interfaces import Stamp
    from recshuf.storage.reading.objects import Stores


_STEP_BYTES = 1 << 20


class ObjectShards:
    """The shards below a prefix; `WrittenShards`."""

    def __init__(self, url: str, stores: Stores) -> None:
        self.keys = OutputKeys(Url.parse(url), is_directory=True)
        self._stores = stores
        self._stamps: dict[str, Stamp] = {}
        self.manifest = self.keys.show(self.keys.manifest)

    def show(self, name: str) -> str:
        return self.keys.show(self.keys.of_shard(name))

    def find_sizes(self, folders: Collection[str]) -> dict[str, int]:
        entries = self._stores.open(self.keys.url).list(self.keys.prefix)
        self._stamps = {one.key.removeprefix(self.keys.prefix): one.stamp for one in entries}
        return {
            name: stamp.size
            for name, stamp in self._stamps.items()
            if "/" not in name or name.rpartition("/")[0] in folders
        }

    def find_checksum(self, name: str) -> str:
        """Return the checksum of a shard that `find_sizes` found; KeyError if it did not."""
        url = replace(self.keys.url, key=self.keys.of_shard(name))
        handle = self._stores.make_file(str(url), url, self._stamps[name]).open()
        checksum, place = xxhash.xxh3_128(), 0
        while block := handle.read_at(place, _STEP_BYTES):
            checksum.update(block)
            place += len(block)
        return checksum.hexdigest()


def read_object_manifest(url: str, stores: Stores) -> Manifest | None:
    """Return the manifest of an output below a prefix; None if it has none, ValueError if it is no valid one."""
    shards = ObjectShards(url, stores)
    for key in (shards.keys.manifest, shards.keys.old_manifest) if shards.keys.name else ():
        place = replace(shards.keys.url, key=key)
        if (stamp := stores.open(place).find(key)) is not None:
            shards.manifest = shards.keys.show(key)
            break
    else:
        return None
    text = stores.make_file(str(place), place, stamp).open().read_at(0, stamp.size).decode("utf-8-sig")
    return replace(Manifest.parse(Path(url), text), written=shards)
