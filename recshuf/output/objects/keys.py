"""The keys of one output in a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recshuf.output.names import is_shard_name, name_manifest, name_shard, name_work_folder
from recshuf.output.task_folder import TASK_FOLDER

if TYPE_CHECKING:
    from recshuf.storage.urls import Url


@dataclass(frozen=True, slots=True)
class OutputKeys:
    """Keys of a set of shards under a prefix, or of one object.

    For the prefix ``a/out/``, the manifest is ``a/out.recshuf.json``, and the journal is under ``a/.out.recshuf/``.
    """

    url: Url
    is_directory: bool

    @property
    def name(self) -> str:
        """Last part of the key."""
        return self.url.key.rstrip("/").rpartition("/")[2]

    @property
    def _parent(self) -> str:
        return self.url.key.rstrip("/").removesuffix(self.name)

    @property
    def prefix(self) -> str:
        """What the keys of all shards begin with."""
        key = self.url.key.rstrip("/")
        return f"{key}/" if self.is_directory else key

    @property
    def journal(self) -> str:
        """Prefix of the journal."""
        return f"{self._parent}{name_work_folder(self.name)}/"

    @property
    def tasks(self) -> str:
        """Prefix of the results of tasks."""
        return f"{self.journal}{TASK_FOLDER}/"

    @property
    def manifest(self) -> str:
        """Key of the manifest; an output of one object has none."""
        return f"{self._parent}{name_manifest(self.name)}"

    def name_shard(self, shard: int, suffix: str) -> str:
        """Return the name of shard number `shard`."""
        return name_shard(shard, suffix) if self.is_directory else self.name

    def of_shard(self, name: str) -> str:
        """Return the key of a shard."""
        return f"{self.prefix}{name}" if self.is_directory else self.prefix

    def is_shard(self, key: str) -> bool:
        """Tell whether a key is one that a run gives to a shard."""
        if not self.is_directory:
            return key == self.prefix
        return key.startswith(self.prefix) and is_shard_name(key.removeprefix(self.prefix))

    def show(self, key: str) -> str:
        """Return a key as a URL."""
        return f"{self.url.scheme}://{self.url.bucket}/{key}"
