"""Shards: where the output goes, how its files are named, staged and put in place, and the manifest.

Everything is written in a staging folder beside the output, under a name that begins with a dot, and renamed
when it is complete; the manifest comes last.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.errors import DiskFullError, OutputError
from recshuf.memory import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

MANIFEST_NAME = "recshuf.json"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the output goes: a directory of shards or one file."""

    path: Path
    is_directory: bool

    @classmethod
    def of(cls, output: str, *, wants_shards: bool) -> Destination:
        """Return what an OUTPUT argument means: a directory if it ends in ``/``, is one, or gets shards."""
        path = Path(output)
        return cls(path, is_directory=wants_shards or output.endswith("/") or path.is_dir())

    @property
    def is_stream(self) -> bool:
        """Tell whether the path is a device or a pipe: it is written to, and never replaced."""
        return self.path.exists() and not self.path.is_file() and not self.path.is_dir()

    def open_stream(self) -> BinaryIO:
        """Open a device or a pipe for writing.

        Raises
        ------
        OutputError
            When that fails.
        """
        try:
            return self.path.open("wb", buffering=0)
        except OSError as error:
            raise write_error(error, str(self.path)) from error

    def check(self, *, overwrite: bool) -> None:
        """Refuse an output that would be damaged.

        Raises
        ------
        OutputError
            When the output exists and may not be replaced, or its folder does not exist.
        """
        if self.is_directory and self.path.is_dir():
            self._check_directory(overwrite=overwrite)
        elif self.path.exists() or self.path.is_symlink():
            if self.is_directory:
                raise OutputError(
                    f"{self.path}: is a file, and the output is a directory of shards; remove it first"
                )
            if not overwrite and not self.is_stream:
                raise OutputError(f"{self.path}: exists already; give --overwrite to replace it")
        elif not self.is_directory and not self.path.parent.is_dir():
            raise OutputError(f"{self.path.parent}: no such directory; create it first")

    def _check_directory(self, *, overwrite: bool) -> None:
        names = sorted(os.listdir(self.path))  # noqa: PTH208 - names are wanted
        if names and not overwrite:
            raise OutputError(f"{self.path}: is not empty; give --overwrite to replace the shards in it")
        foreign = sorted(set(names) - self.previous_names())
        if foreign:
            raise OutputError(
                f"{self.path}: holds {foreign[0]!r}, which is not from an earlier run; remove it or choose another "
                "output"
            )

    def previous_names(self) -> set[str]:
        """Return the names of the files that an earlier run put into the directory, by its manifest."""
        manifest = self.path / MANIFEST_NAME
        try:
            content = json.loads(manifest.read_bytes())
            # A name is taken for one in this very folder, whatever the manifest says.
            return {Path(shard["name"]).name for shard in content["shards"]} | {MANIFEST_NAME}
        except FileNotFoundError:
            return set()
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise OutputError(f"{manifest}: is not a manifest of recshuf; choose another output") from error


class Staging:
    """A folder beside the destination in which the shards are written before they are put in place.

    Raises
    ------
    OutputError
        When the folder cannot be made.
    """

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self._made: list[Path] = []
        self.folder: Path | None = None
        parent = destination.path.absolute().parent
        try:
            self._make_parents(parent)
            prefix = f".{destination.path.absolute().name}.recshuf-"
            self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            self._files = self.folder / "shards"
            self._files.mkdir()
        except OSError as error:
            self.remove()
            raise write_error(error, str(parent), parent) from error

    def _make_parents(self, parent: Path) -> None:
        missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir()
            self._made.append(folder)

    def path_of(self, shard: int, suffix: str) -> Path:
        """Return where shard number `shard` is to be written."""
        if not self.destination.is_directory:
            return self._files / self.destination.path.name
        return self._files / f"shard-{shard:05d}{suffix}"

    def list_files(self) -> list[tuple[str, int]]:
        """Return name and size of each file written so far, in the order of the shards."""
        names = sorted(os.listdir(self._files), key=lambda name: (len(name), name))  # noqa: PTH208 - see above
        return [(name, (self._files / name).stat().st_size) for name in names]

    def commit(self, manifest: dict[str, object]) -> None:
        """Put everything in place; a directory gets the manifest as well, last.

        Raises
        ------
        OutputError
            When that fails; what the destination held before is put back.
        """
        path = self.destination.path
        try:
            if not self.destination.is_directory:
                (self._files / path.name).rename(path.resolve() if path.is_symlink() else path)
                return
            names = [name for name, _ in self.list_files()]
            text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
            (self._files / MANIFEST_NAME).write_text(text, encoding="utf-8", errors="surrogateescape")
            if path.exists():
                self._replace(path, [*names, MANIFEST_NAME])
            else:
                self._files.rename(path)
            self._made.clear()
        except OSError as error:
            raise write_error(error, str(path), path.absolute().parent) from error

    def _replace(self, path: Path, names: Sequence[str]) -> None:
        """Put files into an existing directory instead of those of an earlier run."""
        if self.folder is None:
            raise RuntimeError("the staging folder has been removed")
        old = self.folder / "old"
        old.mkdir()
        moved: list[tuple[Path, Path]] = []
        # The manifest goes first and comes last: a directory that has one is whole.
        previous = sorted(self.destination.previous_names(), key=lambda name: name != MANIFEST_NAME)
        steps = [(path / name, old / name) for name in previous if (path / name).exists()]
        steps += [(self._files / name, path / name) for name in names]
        try:
            for source, target in steps:
                source.rename(target)
                moved.append((source, target))
        except BaseException:
            for source, target in reversed(moved):
                with suppress(OSError):
                    target.rename(source)
            raise

    def remove(self) -> None:
        """Delete the folder, what is in it, and parents that were made and not used. Idempotent."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None
        for folder in reversed(self._made):
            with suppress(OSError):
                folder.rmdir()
        self._made.clear()


def write_error(error: OSError, name: str, folder: Path | None = None) -> OutputError:
    """Return the error to raise when writing to an output failed, which lies in `folder` if it is a file."""
    if isinstance(error, OutputError):
        return error
    if error.errno == errno.EFBIG:
        return DiskFullError(
            f"{name}: the file may not grow this large; raise ulimit -f, or write more shards"
        )
    if error.errno in _FULL:
        free = f" ({format_size(shutil.disk_usage(folder).free)} free)" if folder and folder.is_dir() else ""
        return DiskFullError(f"{name}: no space left for the output{free}; free some, or choose another")
    return OutputError(f"{name}: cannot be written: {error.strerror or error}")
