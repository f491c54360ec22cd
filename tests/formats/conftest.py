"""Which tests of formats are slow."""

from __future__ import annotations

import pytest

WITH_RUNS_ELSEWHERE = ("text", "jsonl", "csv", "parquet", "hdf5")
"""Formats that tests/run crosses with all else."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the whole runs of the conformance suite as slow where other tests run the same."""
    for item in items:
        module = getattr(getattr(item, "function", None), "__module__", "")
        if module == "recshuf.testing.runs" and item.path.parent.name in WITH_RUNS_ELSEWHERE:
            item.add_marker(pytest.mark.slow)
