"""Paths of shards, before and after the commit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from recshuf.output.checksum import find_checksum
from recshuf.output.manifest import manifest_path
from recshuf.output.names import name_shard
from recshuf.system.paths import is_sole_file
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from recshuf.output.journal import Entry, Journal
    from recshuf.output.local.output_path import OutputPath

_READERS = 4
"""So many shards are read at once."""


class ShardFiles:
    """The shards of one run.

    Parameters
    ----------
    folder
        Folder to write them in.
    journal
        Journal of the run, which shows whether an earlier run committed them.
    """

    def __init__(self, folder: Path, output: OutputPath, journal: Journal) -> None:
        self.folder = folder
        self.output = output
        self.target = output.target
        """The output, with links resolved."""
        self._journal = journal

    @property
    def are_committed(self) -> bool:
        """Whether an earlier run committed them."""
        try:
            found = self.target.stat()
        except OSError:
            return False
        return any(entry.get("commit") == [found.st_dev, found.st_ino] for entry in self._journal.entries)

    def path_of(self, shard: int, suffix: str) -> Path:
        """Return the path to write shard number `shard` to."""
        return self.folder / (name_shard(shard, suffix) if self.output.is_directory else self.target.name)

    def find_unchanged(self, entries: Iterable[Entry]) -> set[str]:
        """Return the names of those written shards whose checksum is that in their journal entry."""
        some, written = list(entries), self.written
        paths = [written / entry["name"] if self.output.is_directory else written for entry in some]
        with Pool(_READERS, "checksum") as pool:
            checks = pool.map(_is_unchanged, paths, [entry["xxh3"] for entry in some])
            return {entry["name"] for entry, is_unchanged in zip(some, checks, strict=True) if is_unchanged}

    @property
    def written(self) -> Path:
        """The file or folder that holds the written shards."""
        if self.are_committed:
            return self.target
        return self.folder if self.output.is_directory else self.folder / self.target.name

    def keep_only(self, names: set[str]) -> None:
        """Delete all shards but those with these names, unless they are committed."""
        if not self.are_committed:
            for path in self.folder.iterdir():
                if path.name not in names:
                    path.unlink()

    def place_manifest(self) -> None:
        """Rename a manifest in the work folder to its place beside the output, if there is one.

        Raises
        ------
        OSError
            When that fails.
        """
        written = manifest_path(self.folder)
        if is_sole_file(written):
            written.rename(manifest_path(self.target))

    def list_files(self) -> list[tuple[str, int]]:
        """Return name and size of each shard, in their order."""
        folder = self.written if self.output.is_directory else self.folder
        names = sorted(os.listdir(folder), key=lambda name: (len(name), name))  # noqa: PTH208 - names are wanted
        return [(name, (folder / name).stat().st_size) for name in names]


def _is_unchanged(path: Path, checksum: str) -> bool:
    return is_sole_file(path) and find_checksum(path) == checksum
