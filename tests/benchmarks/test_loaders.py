"""The loaders of the benchmark yield every row once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.loaders import LOADERS, has_module, make_data
from benchmarks.loading.rows import KINDS

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 1000


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    make_data(path, request.param, ROWS, (LOADERS[name].folder for name in LOADERS if has_module(name)))
    return path


@pytest.mark.slow
def test_every_row_comes_once_from_each_loader(folder: Path) -> None:
    """From those whose libraries are installed: recshuf's own at least."""
    present = [name for name in LOADERS if has_module(name)]
    assert present
    for name in present:
        batches = LOADERS[name].load(folder / LOADERS[name].folder)
        ids = np.concatenate([np.atleast_1d(batch["id"]) for batch in batches])
        assert np.array_equal(np.sort(ids), np.arange(ROWS))
        if "in order" in name:
            assert np.array_equal(ids, np.arange(ROWS))
