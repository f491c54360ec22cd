"""Loaders of files: the store is made once, and again when the inputs or the options change."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import UsageError
from recshuf.run.stores import cached_store
from tests.support.stores.small_stores import ids_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of two files."""
    folder = tmp_path / "data"
    folder.mkdir()
    for index in range(2):
        pq.write_table(pa.table({"id": range(50 * index, 50 * index + 50)}), folder / f"{index}.parquet")
    return folder


def open_loader(data: Path, **arguments: Any) -> recshuf.PileLoader:
    return recshuf.PileLoader.from_files(
        data, 5, **{"cache": data.parent / "cache", "seed": 7, "piles": 3} | arguments
    )


def list_stores(data: Path) -> set[str]:
    return {path.name for path in (data.parent / "cache").iterdir()}


@pytest.mark.slow
def test_trainers_do_not_import_what_makes_a_store() -> None:
    code = (
        "import sys; from recshuf import PileLoader; print({'recshuf.api', 'recshuf.job'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"


def test_epoch_0_is_the_shuffle_of_the_files(data: Path, tmp_path: Path) -> None:
    recshuf.shuffle(data, tmp_path / "out.parquet", seed=7)
    assert ids_of(open_loader(data)) == pq.read_table(tmp_path / "out.parquet")["id"].to_pylist()


def test_the_store_is_taken_again_while_nothing_changes(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_loader(data, memory="100MB")
    monkeypatch.setattr(cached_store, "scatter_store", None)
    again = open_loader(data, epoch=1, columns=["id", "_id"], output="arrow", workers=1)
    assert again.state_dict()["store"] == first.state_dict()["store"]
    assert len(list_stores(data)) == 1


def test_other_inputs_or_options_make_another_store(data: Path) -> None:
    open_loader(data)
    open_loader(data, seed=8)
    open_loader(data, piles=4)
    os.utime(data / "1.parquet", (1, 1))
    open_loader(data)
    pq.write_table(pa.table({"id": [1000]}), data / "2.parquet")
    assert max(ids_of(open_loader(data, drop_last=False))) == 1000
    assert len(list_stores(data)) == 5


WRONG: list[tuple[dict[str, Any], str]] = [
    *(
        (options, f"^{next(iter(options))}=")
        for options in (
            {"mix": 0}, {"prefetch": -1}, {"output": "jax"}, {"rank": 3, "world_size": 2}, {"lanes": 2}, {"epoch": -1},
            {"reshuffle": "all"}, {"columns": "id"}, {"batch_size": 0},
        )
    ),
    ({"memory": 1}, "^memory 1 is out of range"),
    ({"inputs": "-"}, "standard input"),
]  # fmt: skip


def test_arguments_are_checked_before_anything_is_written(data: Path) -> None:
    whole: dict[str, Any] = {"inputs": data, "batch_size": 5, "cache": data.parent / "cache"}
    for options, message in WRONG:
        with pytest.raises(UsageError, match=message):
            recshuf.PileLoader.from_files(**whole | options)
    with pytest.raises(TypeError, match="lane"):
        open_loader(data, lane=2)
    assert not (data.parent / "cache").exists()


def test_objects_show_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with recshuf.PileWriter(path, "a", seed=1, piles=2) as writer:
        writer.write({"tokens": np.zeros((7, 3), np.int32)})
        assert repr(writer) == f"PileWriter('{path}', name='a', num_records=7)"
    assert repr(recshuf.PileStore(path)) == f"PileStore('{path}', snapshot=2, num_records=7, num_bytes=84)"
    loader = recshuf.PileLoader(path, 2, epoch=3, mix=2, rank=1, world_size=2)
    shown = f"PileLoader('{path}', batch_size=2, rank=1, world_size=2, epoch=3, mix=2, num_records=7)"
    assert repr(loader) == shown
    packed = f"PackedLoader('{path}', tokens=4, column='tokens', batch_size=2)"
    assert repr(loader.packed(4, column="tokens")) == packed
    mixed = recshuf.MixLoader({recshuf.PileStore(path): 2}, 2)
    assert repr(mixed) == f"MixLoader({{'{path}': 2}}, batch_size=2, epoch=0, counts=[6])"
