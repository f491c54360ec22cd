"""A store to train from."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf

pytest.importorskip("torch", reason="PyTorch is not installed")

# Most of the time of such workers goes into this import; they import recshuf themselves.
multiprocessing.set_forkserver_preload(["torch"])


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of 1000 records, of many types, in nine piles."""
    folder = tmp_path_factory.mktemp("store")
    for number in range(4):
        ids = range(250 * number, 250 * (number + 1))
        table = pa.table(
            {
                "id": ids,
                "vector": pa.array([[index, -index, 0.5] for index in ids], pa.list_(pa.float32(), 3)),
                "text": [f"text {index}" for index in ids],
                "flag": [index % 3 == 0 for index in ids],
                "maybe": [index if index % 7 else None for index in ids],
                "class": pa.array([str(index % 5) for index in ids]).dictionary_encode(),
                "tokens": [list(range(index % 4)) for index in ids],
            }
        )
        pq.write_table(table, folder / f"{number}.parquet")
    recshuf.scatter(sorted(folder.glob("*.parquet")), folder / "store", seed=7, piles=9)
    return folder / "store"
