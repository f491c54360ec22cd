"""Packages that register formats: folders of a distribution's metadata, put on `sys.path`."""

from pathlib import Path

import pytest

from recshuf import formats

ROWS_FORMAT = "tests.support.formats.foreign_rows:FORMAT"


def install(folder: Path, package: str, **entries: str) -> Path:
    """Write the metadata of a package whose formats are `entries`, and return the folder for `sys.path`."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}\n" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("".join(["[recshuf.formats]\n", *lines]))
    return folder


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process see the packages of a folder."""
    monkeypatch.syspath_prepend(folder)
    forget_formats()


def forget_formats() -> None:
    """Let formats be looked up again."""
    for cached in (formats.load_format, formats._list_others, formats.list_owners, formats.find_paired):
        cached.cache_clear()
