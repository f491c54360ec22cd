"""What is in a bucket where an output goes: the keys of the output, what is at them, and how far a commit has come.

Shards and manifest are read back from there.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from recshuf.errors import OutputError
from recshuf.output.manifest import (
    Manifest,
    is_shard_name,
    name_manifest,
    name_work_folder,
)
from recshuf.output.run_log import TASK_FOLDER, Entry
from recshuf.storage import Url
from recshuf.storage.requests import ask_at_once

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from recshuf.interfaces import Stamp
    from recshuf.storage import StorageOptions
    from recshuf.storage.reading.objects import Stores
    from recshuf.storage.writing import Bucket


_SHOWN = (
    "region",
    "profile",
    "account_name",
    "endpoint",
    "endpoint_url",
    "base_url",
    "service_account",
    "skip_signature",
)
"""Ends of the names of options whose values are no secrets."""
_STEP_BYTES = 1 << 20


def format_clean_command(output: str, options: StorageOptions) -> str:
    """Return the command for an output, without the values of options that may be secrets.

    >>> from recshuf.storage import StorageOptions
    >>> format_clean_command("s3://b/out/", StorageOptions("http://h:9", {"region": "a", "session_token": "b"}))
    'recshuf clean s3://b/out/ --yes --endpoint-url http://h:9 --storage-option region=a --storage-option session_token=...'
    """
    words = ["recshuf", "clean", output, "--yes"]
    if options.endpoint_url is not None:
        words += ["--endpoint-url", options.endpoint_url]
    for name, value in options.options.items():
        words += ["--storage-option", f"{name}={value if name.lower().endswith(_SHOWN) else '...'}"]
    return shlex.join(words)


class OutputKeys:
    """Keys of a set of shards under a prefix, or of one object; the parts of a split have prefixes of their own.

    For the prefix ``a/out/``, the manifest is ``a/.out.recshuf.json``, and the journal is under ``a/.out.recshuf/``.
    """

    def __init__(self, url: Url, is_directory: bool, parts: tuple[str, ...] = ()) -> None:
        self.url, self.is_directory, self.parts = url, is_directory, parts
        key = url.key.rstrip("/")
        parent, slash, self.name = key.rpartition("/")
        self.prefix = f"{key}/" if is_directory else key
        self.journal = f"{parent}{slash}{name_work_folder(self.name)}/"
        self.tasks = f"{self.journal}{TASK_FOLDER}/"
        self.manifest = f"{parent}{slash}{name_manifest(self.name)}"

    def name_of(self, name: str) -> str:
        return name if self.is_directory else self.name

    def of_shard(self, name: str) -> str:
        return f"{self.prefix}{name}" if self.is_directory else self.prefix

    def is_shard(self, key: str) -> bool:
        if not self.is_directory:
            return key == self.prefix
        part, slash, name = key.removeprefix(self.prefix).rpartition("/")
        return key.startswith(self.prefix) and (not slash or part in self.parts) and is_shard_name(name)

    def show(self, key: str) -> str:
        return f"{self.url.scheme}://{self.url.bucket}/{key}"


@dataclass(frozen=True, slots=True)
class FoundOutput:
    """What is at a destination before a run."""

    etags: dict[str, str] = field(default_factory=dict)
    """ETags or generations of the objects that the run replaces or deletes, by their keys."""
    manifest_etag: str | None = None


class OutputPlace:
    """The objects of an output, and its manifest, as they are now and as they were before the run.

    The name and `clean_command`, which removes what a run leaves, are for messages.
    """

    def __init__(self, bucket: Bucket, keys: OutputKeys, name: str, clean_command: str) -> None:
        self.bucket, self.keys, self.name = bucket, keys, name
        self.clean_command = clean_command
        self.before = FoundOutput()

    def look(self) -> FoundOutput:
        self.before = self._find()
        return self.before

    def check_unchanged(self) -> None:
        """Refuse to commit if another program has changed what `look` found."""
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
        return FoundOutput(etags, self._read_manifest()[1])

    def read_manifest(self) -> Manifest | None:
        return self._read_manifest()[0]

    def _read_manifest(self) -> tuple[Manifest | None, str | None]:
        """Return the manifest of an earlier run and its ETag; None for both if there is none."""
        found = self.bucket.read(self.keys.manifest) if self.keys.is_directory else None
        if found is None:
            return None, None
        try:
            return Manifest.parse(Path(self.name), found[0].decode("utf-8-sig")), found[1]
        except ValueError as error:
            shown = self.keys.show(self.keys.manifest)
            raise OutputError(f"{shown}: is not a manifest of recshuf; choose another output") from error


def find_placed(bucket: Bucket, tokens: Mapping[str, str], keys: Collection[str]) -> set[str]:
    """Return those keys at which the shards of a commit are in place, given its tokens by their keys."""
    found = ask_at_once(bucket.find_token, keys)
    return {key for key, token in zip(keys, found, strict=True) if token == tokens[key]}


def has_unfinished(runs: Iterable[Entry], bucket: Bucket, keys: OutputKeys) -> bool:
    """Tell whether a commit has begun that ``--resume`` is to complete, since shards of it may be visible.

    `runs` is what the runs said of themselves, see `ObjectLog.runs`.
    """
    commits = [run["commit"] for run in runs if "commit" in run]
    if not commits:
        return False
    etags = {one.key: one.etag for one in bucket.list(keys.prefix.rstrip("/"))}
    if _is_done(commits[-1], etags, bucket, keys):
        return False
    return not all(_is_hopeless(commit, etags, bucket) for commit in commits)


def _is_hopeless(commit: Entry, etags: Mapping[str, str], bucket: Bucket) -> bool:
    """Tell whether no shard of a commit is in place, and objects of others have taken its names."""
    others = [key for key in commit["shards"] if key in etags and etags[key] != commit["old"].get(key)]
    return bool(others) and not find_placed(bucket, commit["tokens"], others)


def _is_done(commit: Entry, etags: Mapping[str, str], bucket: Bucket, keys: OutputKeys) -> bool:
    """Tell whether a commit has done all that it says; a run may have died while it deleted its journal."""
    manifest = bucket.read(keys.manifest)
    is_written = manifest is not None and manifest[0] == (commit["manifest"] or "").encode()
    if commit["manifest"] is not None and not is_written:
        return False
    tokens, old = commit["tokens"], commit["old"]
    written = tokens.keys() | commit.get("documents", {}).keys()
    has_old = any(key not in written and etags.get(key) == etag for key, etag in old.items())
    return not has_old and len(find_placed(bucket, tokens, tokens)) == len(tokens)


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
    place = replace(shards.keys.url, key=shards.keys.manifest)
    stamp = stores.open(place).find(place.key) if shards.keys.name else None
    if stamp is None:
        return None
    text = stores.make_file(str(place), place, stamp).open().read_at(0, stamp.size).decode("utf-8-sig")
    return replace(Manifest.parse(Path(url), text), written=shards)
