"""Fixtures of piles."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from recshuf.piles.set_folder import SetFolder
from recshuf.piles.store import Store
from tests.support.filled_piles import make_store
from tests.support.formats.format_tools import find_open_files


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[SetFolder]:
    scratch = SetFolder(tmp_path, kept=tmp_path / "kept")
    yield scratch
    scratch.close()
    shutil.rmtree(tmp_path / "kept", ignore_errors=True)
    assert list(tmp_path.iterdir()) == []
    assert find_open_files(tmp_path) == []


@pytest.fixture
def make(scratch: SetFolder) -> Iterator[Callable[..., Store]]:
    """Return what makes stores with the options of a plan, which are closed at the end."""
    with ExitStack() as cleanup:
        yield lambda **options: cleanup.enter_context(closing(make_store(scratch, **options)))
