"""Names of inputs: their order, which of a folder are inputs, and what folders say about them."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from recshuf.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from recshuf.interfaces import NameSuffix


class NameRules(Protocol):
    """How file names are read, and which of a folder's files are inputs."""

    def split(self, name: str) -> NameSuffix:
        """Return the suffixes of a file name."""

    @property
    def wanted(self) -> str:
        """What the inputs of a folder are, in messages."""

    def accepts(self, name: str, suffix: NameSuffix) -> bool | None:
        """Tell whether a file of a folder is an input; None if its name does not say."""


TABLES = (("_delta_log", "Delta Lake"), ("metadata/*.metadata.json", "Iceberg"), (".hoodie", "Hudi"))
"""What the folder of a table holds, as a pattern, and the name of its format."""
ONLY_OTHERS = "matches only folders, hidden files and markers"
_DIGITS = re.compile(r"(\d+)")
MANIFEST_SUFFIX = ".recshuf.json"  # files of this suffix describe outputs, and are no inputs
_PARTITION = re.compile(r"([^=/]+)=([^/]*)")


def natural_key(path: str) -> tuple[tuple[str | int, ...], ...]:
    """Return a sort key that puts ``file2`` before ``file10``, folder by folder.

    >>> sorted(["b/1", "a10", "a9", "a/2"], key=natural_key)
    ['a/2', 'a9', 'a10', 'b/1']
    """
    cut = path.rfind("/")
    return (*_folder_key(path[:cut]), _part_key(path[cut + 1 :])) if cut >= 0 else (_part_key(path),)


@lru_cache
def _folder_key(folder: str) -> tuple[tuple[str | int, ...], ...]:
    return tuple(map(_part_key, folder.split("/")))


def _part_key(part: str) -> tuple[str | int, ...]:
    pieces: list[str | int] = [*_DIGITS.split(part)]
    pieces[1::2] = map(int, pieces[1::2])
    return tuple(pieces)


def choose_files(
    folder: str, names: Sequence[str], rules: NameRules, warn: Callable[[str], None]
) -> Iterator[tuple[str, NameSuffix]]:
    """Yield the names, and their suffixes, of those files of a folder that are inputs, in natural order.

    Raises
    ------
    InputError
        When there are none.
    """
    paths = sorted(names, key=natural_key)
    if not paths:
        raise InputError(folder, "no files in this directory", remedy="check the path")
    suffixes = [rules.split(path) for path in paths]
    verdicts = [rules.accepts(*one) for one in zip(paths, suffixes, strict=True)]
    wanted = True if True in verdicts else None
    others = [path for path, verdict in zip(paths, verdicts, strict=True) if verdict is not wanted]
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    if len(others) == len(paths):
        raise InputError(
            folder,
            f"holds no {rules.wanted}, only {', '.join(others[:3])}{more}",
            remedy="give another --format, or name the files one by one",
        )
    if others:
        warn(
            f"{folder}: passed over {', '.join(others[:3])}{more}, of another format by name; "
            "to read such a file, name it"
        )
    for path, suffix, verdict in zip(paths, suffixes, verdicts, strict=True):
        if verdict is wanted:
            yield path, suffix


def refuse_table(pattern: str, kind: str, folder: str) -> InputError:
    """Return the error for files of a table."""
    return InputError(
        pattern,
        f"has files of the {kind} table {folder!r}, which also hold rows that were removed",
        remedy=f"export the rows with a reader of {kind}, or name the files one by one",
    )


def is_hidden(name: str) -> bool:
    """Tell whether a file or folder of this name is left out."""
    # A folder such as _year=2020 is a partition, not a marker.
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


@lru_cache
def find_partitions(folder: str, root: Path | None) -> tuple[tuple[str, str], ...]:
    """Return the Hive partitions in a folder's path, below `root` if it lies there."""
    parents = Path(folder).parts
    if root is not None and root.parts == parents[: len(root.parts)]:
        parents = parents[len(root.parts) :]
    partitions: list[tuple[str, str]] = []
    for part in reversed(parents):
        match = _PARTITION.fullmatch(part)
        if match is None:
            break  # partition folders are the innermost ones
        partitions.insert(0, (match[1], match[2]))
    return tuple(partitions)
