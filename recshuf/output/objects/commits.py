"""How far the commits have come that the journal of an output names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.output.objects.place import find_placed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from recshuf.output.journal import Entry
    from recshuf.output.objects.keys import OutputKeys
    from recshuf.storage.writing.bucket import Bucket


def has_unfinished(runs: Iterable[Entry], bucket: Bucket, keys: OutputKeys) -> bool:
    """Tell whether a commit has begun that ``--resume`` is to complete, since shards of it may be visible.

    Parameters
    ----------
    runs
        What the runs said of themselves; see `ObjectJournal.runs`.
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
    has_old = any(key not in tokens and etags.get(key) == etag for key, etag in old.items())
    return not has_old and len(find_placed(bucket, tokens, tokens)) == len(tokens)
