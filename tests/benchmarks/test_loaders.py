"""The loaders of the benchmark yield every row once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.loaders import KINDS, LOADERS, has_module, make_data

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 1000


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    make_data(path, request.param, ROWS)
    return path


@pytest.mark.parametrize("name", LOADERS)
def test_every_row_comes_once(folder: Path, name: str) -> None:
    if not has_module(name):
        pytest.skip(f"{LOADERS[name].module} is not installed")
    ids = np.concatenate([np.atleast_1d(batch["id"]) for batch in LOADERS[name].load(folder)])
    assert np.array_equal(np.sort(ids), np.arange(ROWS))
    if "in order" in name:
        assert np.array_equal(ids, np.arange(ROWS))
