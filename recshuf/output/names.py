"""Names of what belongs to an output, in a folder or in a bucket: its shards, its manifest and its work folder."""

from __future__ import annotations

import re

from recshuf.storage.reading.input_names import MANIFEST_SUFFIX
from recshuf.system.paths import shorten_name

_SHARD = re.compile(r"shard-\d{5,}[.\w]*")


def name_shard(number: int, suffix: str) -> str:
    """Return the name of a shard in a directory.

    >>> name_shard(7, ".jsonl.zst")
    'shard-00007.jsonl.zst'
    """
    return f"shard-{number:05d}{suffix}"


def is_shard_name(name: str) -> bool:
    """Tell whether `name_shard` can have returned a name."""
    return _SHARD.fullmatch(name) is not None


def name_manifest(output: str) -> str:
    """Return the name of the manifest, which lies beside an output of this name."""
    return f"{shorten_name(output)}{MANIFEST_SUFFIX}"


def name_work_folder(output: str) -> str:
    """Return the name of the work folder, beside the output, too; in a bucket, of the journal."""
    return f".{shorten_name(output)}.recshuf"
