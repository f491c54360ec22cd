"""What lies in output folders, around the code under test."""

from __future__ import annotations

import json
from pathlib import Path

from recshuf.output.manifest import manifest_path


def list_shards(folder: Path) -> list[Path]:
    return [folder / shard["name"] for shard in json.loads(manifest_path(folder).read_text())["shards"]]


def list_tree(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder by path; folders have none, and a slash at the end."""
    return {
        f"{path.relative_to(folder)}{'/' * path.is_dir()}": path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }
