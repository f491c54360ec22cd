"""A folder of shards is opened, as a folder, by the readers it is made for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.json
import pyarrow.parquet as pq
import pytest

import recshuf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def count_with_pandas(folder: Path) -> int:
    return len(pytest.importorskip("pandas").read_parquet(folder))


def count_with_polars(folder: Path) -> int:
    polars = pytest.importorskip("polars")
    scan = polars.scan_parquet if is_parquet(folder) else polars.scan_ndjson
    return int(scan(folder if is_parquet(folder) else folder / "*").collect().height)


def count_with_duckdb(folder: Path) -> int:
    read = "read_parquet" if is_parquet(folder) else "read_json"
    connection = pytest.importorskip("duckdb").connect()
    [(count,)] = connection.execute(f"SELECT count(*) FROM {read}('{folder}/*')").fetchall()
    return int(count)


def count_with_datasets(folder: Path, **options: str) -> int:
    datasets = pytest.importorskip("datasets")
    cache = str(folder.parent / "cache")
    return len(datasets.load_dataset(**options, split="train", cache_dir=cache))


def is_parquet(folder: Path) -> bool:
    return any(folder.rglob("*.parquet"))


def name_of(folder: Path) -> str:
    return "parquet" if is_parquet(folder) else "json"


READERS: dict[str, Callable[[Path], int]] = {
    "pyarrow.dataset": lambda folder: ds.dataset(folder, format=name_of(folder)).count_rows(),
    "pyarrow.parquet": lambda folder: pq.read_table(folder).num_rows,
    "pyarrow.json": lambda folder: sum(pa.json.read_json(one).num_rows for one in folder.iterdir()),
    "pandas": count_with_pandas,
    "polars": count_with_polars,
    "duckdb": count_with_duckdb,
    "datasets": lambda folder: count_with_datasets(folder, path=str(folder)),
    "datasets, data_dir": lambda folder: count_with_datasets(
        folder, path=name_of(folder), data_dir=str(folder)
    ),
}
OF_PARQUET, OF_JSON = {"pyarrow.parquet", "pandas"}, {"pyarrow.json"}


@pytest.fixture(scope="module", params=[("parquet", 1000), ("jsonl", 1000), ("parquet", 2)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards, of two records two without any."""
    place, (to, count) = tmp_path_factory.mktemp("shards"), request.param
    (place / "in.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in range(count)))
    recshuf.shuffle(place / "in.jsonl", place / "out", to=to, shards=4, seed=1)
    return place / "out"


FAST = ("pyarrow.dataset", "pyarrow.parquet", "pyarrow.json")


@pytest.mark.parametrize(
    "reader", [pytest.param(one, marks=() if one in FAST else pytest.mark.slow) for one in READERS]
)
def test_a_folder_of_shards_is_read_whole(folder: Path, reader: str, monkeypatch: pytest.MonkeyPatch):
    if reader in (OF_JSON if is_parquet(folder) else OF_PARQUET):
        pytest.skip(f"{reader} reads another format")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert READERS[reader](folder) == (folder.parent / "in.jsonl").read_bytes().count(b"\n")


READERS_OF_PARENTS = [one for one in READERS if one not in ("pyarrow.json", "polars", "duckdb")]
"""The others pass over no name."""


@pytest.mark.parametrize(
    "reader", [pytest.param(one, marks=() if one in FAST else pytest.mark.slow) for one in READERS_OF_PARENTS]
)
@pytest.mark.parametrize("to", ["parquet", "jsonl"])
def test_a_folder_of_outputs_is_read_whole(
    tmp_path: Path, to: str, reader: str, monkeypatch: pytest.MonkeyPatch
):
    """Manifests and work folders have names that readers pass over."""
    if to == "jsonl" and reader in OF_PARQUET:
        pytest.skip(f"{reader} reads another format")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "in.jsonl").write_text('{"id": 1}\n' * 100)
    for name in ("one", "two"):
        recshuf.shuffle(tmp_path / "in.jsonl", tmp_path / "data" / name, to=to, shards=2)
    assert READERS[reader](tmp_path / "data") == 200


def test_a_folder_of_shards_holds_nothing_else(folder: Path):
    assert len(os.listdir(folder)) == 4
    assert (folder.parent / ".out.recshuf.json").is_file()
