"""`recshuf formats` lists what there is, and names packages that do not work."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from recshuf.formats import OWN_FORMATS
from tests.support.other_packages import ROWS_FORMAT, forget_formats, install, use

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run


@pytest.mark.parametrize("is_broken", [False, True])
def test_formats_are_listed_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Run, is_broken: bool
):
    gone = {"gone": "no_such_module:FORMAT"} if is_broken else {}
    use(install(tmp_path / "site", "recshuf-rows", rows=ROWS_FORMAT, **gone), monkeypatch)
    try:
        listed, shown = call("formats", "--json"), call("formats")
    finally:
        monkeypatch.undo()
        forget_formats()
    found = {one["name"]: one for one in json.loads(listed.stdout)}
    assert [*found] == [*OWN_FORMATS, "rows"]
    assert found["rows"]["package"] == {"name": "recshuf-rows", "version": "1.0"}
    assert found["hdf5"] | {"compressions": []} == {
        "name": "hdf5",
        "suffixes": [".h5", ".hdf5", ".hdf", ".he5", ".h5ad"],
        "companions": [],
        "compressions": [],
        "options": ["--datasets", "--keep-others", "--widen", "--first-metadata"],
        "libraries": {"h5py": version("h5py"), "deflate": version("deflate")},
        "package": None,
    }
    rows = {line.split()[0]: line for line in shown.stdout.decode().splitlines()}
    assert [*rows] == ["FORMAT", *found]
    assert "recshuf-rows 1.0" in rows["rows"]
    assert rows["text"].endswith(
        "--header --separator --zero-terminated --record-lines --record-start --schema"
    )
    assert rows["megatron"].split()[1] == ".bin+.idx"
    assert (listed.returncode, shown.returncode) == (2, 2) if is_broken else (0, 0)
    problem = "the format 'gone' of the package recshuf-rows cannot be imported"
    assert (problem in shown.stderr.decode()) == is_broken
