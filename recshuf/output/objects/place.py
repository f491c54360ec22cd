"""What is in a bucket where an output goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.errors import OutputError
from recshuf.output.manifest import Manifest
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from recshuf.output.objects.keys import OutputKeys
    from recshuf.storage.writing.bucket import Bucket

_REQUESTERS = 8


@dataclass(frozen=True, slots=True)
class FoundOutput:
    """What is at a destination before a run."""

    etags: dict[str, str] = field(default_factory=dict)
    """ETags or generations of the objects that the run replaces or deletes, by their keys."""
    manifest_etag: str | None = None


class OutputPlace:
    """The objects of an output, and its manifest, as they are now and as they were before the run.

    Parameters
    ----------
    name
        Name of the output in messages.
    clean_command
        Removes what a run leaves.
    """

    def __init__(self, bucket: Bucket, keys: OutputKeys, name: str, clean_command: str) -> None:
        self.bucket, self.keys, self.name = bucket, keys, name
        self.clean_command = clean_command
        self.before = FoundOutput()
        """What was found before the run."""

    def look(self) -> FoundOutput:
        """Return what is there before the run."""
        self.before = self._find()
        return self.before

    def check_unchanged(self) -> None:
        """Refuse to commit if another program has changed what `look` found.

        Raises
        ------
        OutputError
            Names an object.
        """
        now, before = self._find(), self.before
        if now != before:
            changed = [key for key, _ in sorted(now.etags.items() ^ before.etags.items())]
            raise OutputError(
                f"{self.keys.show(changed[0] if changed else self.keys.manifest)}: was written or deleted by another "
                f"program during this run; remove what this run leaves with {self.clean_command}"
            )

    def _find(self) -> FoundOutput:
        objects = list(self.bucket.list(self.keys.prefix))
        # An object with the name of the prefix stands for an empty folder.
        etags = {
            one.key: one.etag for one in objects if (one.key == self.keys.prefix) != self.keys.is_directory
        }
        manifest = self.read_manifest()
        return FoundOutput(etags, None if manifest is None else manifest[1])

    def read_manifest(self) -> tuple[Manifest, str] | None:
        """Return the manifest of an earlier run and its ETag; None if there is none."""
        found = self.bucket.read(self.keys.manifest) if self.keys.is_directory else None
        if found is None:
            return None
        try:
            return Manifest.parse(Path(self.name), found[0].decode("utf-8-sig")), found[1]
        except ValueError as error:
            shown = self.keys.show(self.keys.manifest)
            raise OutputError(f"{shown}: is not a manifest of recshuf; choose another output") from error


def find_placed(bucket: Bucket, tokens: Mapping[str, str], keys: Collection[str]) -> set[str]:
    """Return those keys at which the shards of a commit are in place, given its tokens by their keys."""
    with Pool(_REQUESTERS, "token") as pool:
        found = pool.map(bucket.find_token, keys)
        return {key for key, token in zip(keys, found, strict=True) if token == tokens[key]}
