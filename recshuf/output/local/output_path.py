"""Where an output lies on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recshuf.output.manifest import work_folder_path
from recshuf.system.paths import real_path

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class OutputPath:
    """The path of a directory of shards, or of one file."""

    path: Path
    is_directory: bool
    shown: str = ""
    """Name in messages. Default: the path."""

    def __str__(self) -> str:
        """Return its name in messages."""
        return self.shown or str(self.path)

    @property
    def target(self) -> Path:
        """The output, with links resolved."""
        return real_path(self.path)

    @property
    def work_folder(self) -> Path:
        """The work folder, beside the output."""
        return work_folder_path(self.path)
