"""The results of tasks in a folder: what cannot be read is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.errors import OutputError
from recshuf.output.local.log import LocalTaskFolder

if TYPE_CHECKING:
    from pathlib import Path


def test_a_damaged_result_is_named(tmp_path: Path):
    for content in [b"", b"{", b"\xff", b"[" * 100_000]:
        (tmp_path / "task-1.json").write_bytes(content)
        with pytest.raises(OutputError) as raised:
            LocalTaskFolder(tmp_path).read("task-1")
        assert str(raised.value) == f"{tmp_path}/task-1.json: is damaged; delete it"


def test_a_result_that_cannot_be_read_is_named(tmp_path: Path):
    (tmp_path / "task-1.json").mkdir()
    with pytest.raises(OutputError) as raised:
        LocalTaskFolder(tmp_path).read("task-1")
    assert (
        str(raised.value)
        == f"{tmp_path}/task-1.json: cannot be read: Is a directory; make it readable, or delete it"
    )
