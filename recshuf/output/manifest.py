"""The manifest of an output, and in what the files beside it differ from it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats import name_by_suffix
from recshuf.job.report import FileReport
from recshuf.output.destination import MANIFEST_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

_REMEDY = "remove it, so that the folder is compared without one"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an output's manifest says."""

    path: Path
    to: str
    """Format of the shards."""
    input_records: int
    shards: tuple[FileReport, ...]
    added: tuple[str, ...] = ()
    """Columns of the shards that say where records were read, and are not those of the inputs."""

    @property
    def folder(self) -> Path:
        """Where the shards lie."""
        return self.path.parent

    def find_present(self) -> list[str]:
        """Return the paths of the shards that are there."""
        paths = [self.folder / shard.name for shard in self.shards]
        return [str(path) for path in paths if path.is_file()]

    def compare_files(self) -> list[str]:
        """Return in what the files of the folder differ from the manifest; other files than of records are left out."""
        named = {shard.name for shard in self.shards}
        found = []
        for shard in self.shards:
            path = self.folder / shard.name
            size = path.stat().st_size if path.is_file() else None
            if size is None:
                found.append(f"{path}: is missing, and the manifest names it")
            elif size != shard.file_bytes:
                found.append(f"{path}: has {size:,} bytes, and {shard.file_bytes:,} in the manifest")
        others = sorted(name for name in os.listdir(self.folder) if name not in named)  # noqa: PTH208 - names are wanted
        foreign = [name for name in others if not name.startswith(".") and name_by_suffix(name)]
        return found + [f"{self.folder / name}: is not named in the manifest" for name in foreign]

    def compare_format(self, to: str) -> list[str]:
        """Return in what the format of the shards differs from the manifest."""
        return (
            []
            if to == self.to
            else [f"{self.path}: says that the shards are {self.to}, and they are read as {to}"]
        )

    def compare_counts(self, names: Sequence[str], records: Sequence[int], input_records: int) -> list[str]:
        """Return in what the numbers of records, as read, differ from the manifest."""
        found = dict(zip((Path(name).name for name in names), records, strict=True))
        differences = [
            f"{self.folder / shard.name}: has {found[shard.name]:,} records, and {shard.records:,} in the manifest"
            for shard in self.shards
            if found.get(shard.name, shard.records) != shard.records
        ]
        if input_records != self.input_records:
            differences.append(
                f"{self.path}: names inputs of {self.input_records:,} records, and these have {input_records:,}"
            )
        return differences


def read_manifest(output: str) -> Manifest | None:
    """Return the manifest of an output; None where it has none.

    Raises
    ------
    InputError
        When there is one that cannot be understood.
    """
    path = Path(output) / MANIFEST_NAME
    try:
        content = json.loads(path.read_bytes())
        return Manifest(
            path,
            str(content["to"]),
            sum(int(one["records"]) for one in content["inputs"]),
            tuple(_read_shard(one) for one in content["shards"]),
            tuple(str(name) for name in content.get("provenance", ())),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error)) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(str(path), "is not a manifest of recshuf", remedy=_REMEDY) from error


def _read_shard(given: dict[str, object]) -> FileReport:
    name, records, size = given["name"], given["records"], given["bytes"]
    if not isinstance(name, str) or not isinstance(records, int) or not isinstance(size, int):
        raise TypeError(name)
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(name)
    return FileReport(name, records, size)
