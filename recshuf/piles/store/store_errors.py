"""Errors of a store's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import OutputError, PileError, UsageError
from recshuf.system.paths import find_existing

if TYPE_CHECKING:
    from pathlib import Path


def explain_damage(file: Path) -> PileError:
    """Return the error for a damaged snapshot where something is to be written or deleted."""
    return PileError(
        f"{file}: is damaged; put it back, or delete it, and the store is that of the snapshot before"
    )


def explain_gone(path: Path) -> OutputError:
    """Return the error for a store that is deleted while something is written."""
    return OutputError(f"{path}: another process has deleted it meanwhile; run again")


def explain_missing(path: Path, number: int | None) -> UsageError:
    """Return the error for a folder without a snapshot, or without that of a number."""
    if number is not None:
        return UsageError(
            f"{path}: has no snapshot {number}; it was replaced since, or another store is meant; open the store again"
        )
    if not path.exists():
        return UsageError(f"{path}: no such pile store; make one with recshuf scatter INPUT... -o {path}")
    return UsageError(
        f"{path}: is no pile store: it holds no snapshot; check the path, or run recshuf scatter again"
    )


def explain_unsynced(file: Path, error: OSError) -> OutputError:
    """Return the error for a snapshot whose name may not be on disk yet."""
    return OutputError(
        f"{file}: is in place, but may be lost in a power cut: {error.strerror}; "
        "check the disk, and do not write the records again"
    )


def explain_file(path: Path) -> OutputError:
    """Return the error for a store whose path is that of a file, or leads through one."""
    file = find_existing(path)  # nothing exists below a file
    other = "name for the store" if file == path else "folder"
    return OutputError(f"{file}: is a file; choose another {other}")
