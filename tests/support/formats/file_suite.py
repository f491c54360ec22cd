"""The conformance tests of formats that write their inputs one by one, and shuffles that are refused."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.formats.compression import split_suffix
from recshuf.interfaces import InputFile, Stamp
from recshuf.testing import FormatSuite


class FileSuite(FormatSuite):
    """The tests of a format that writes one input after the other, around the code under test."""

    compressed = ""
    """The suffix of their compression."""

    @abstractmethod
    def write_input(self, path: Path, index: int, count: int) -> None:
        """Write input number `index` with so many records."""

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        files = []
        for index, count in enumerate(row_counts):
            path = folder / f"input {index}{self.format.traits.suffixes[0]}{self.compressed}"
            self.write_input(path, index, count)
            stamp, suffix = Stamp.of(path.stat()), split_suffix(path.name)
            files.append(InputFile(str(path), path, stamp=stamp, suffix=suffix))
        return files


def refused(kind: type[Exception], said: str, *arguments: Any, **options: Any) -> None:
    """Check that a shuffle is refused in words that match."""
    with pytest.raises(kind, match=said):
        recshuf.shuffle(*arguments, **options)
