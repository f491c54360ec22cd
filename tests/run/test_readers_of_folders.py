"""A folder of shards, and one of such folders, is opened by the readers it is made for."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.json
import pyarrow.parquet as pq
import pytest

import recshuf


def count_with_polars(folder: Path, name: str) -> int:
    polars = pytest.importorskip("polars")
    scan = polars.scan_parquet if name == "parquet" else polars.scan_ndjson
    return int(scan(folder if name == "parquet" else folder / "*").collect().height)


def count_with_duckdb(folder: Path, name: str) -> int:
    connection = pytest.importorskip("duckdb").connect()
    [(count,)] = connection.execute(f"SELECT count(*) FROM read_{name}('{folder}/*')").fetchall()
    return int(count)


def count_with_datasets(folder: Path, path: str, **options: str) -> int:
    datasets = pytest.importorskip("datasets")
    cache = str(folder.parents[1] / "cache")
    return len(datasets.load_dataset(path, split="train", cache_dir=cache, **options))


READERS: dict[str, Callable[[Path, str], int]] = {
    "pyarrow.dataset": lambda folder, name: ds.dataset(folder, format=name).count_rows(),
    "pyarrow.parquet": lambda folder, _: pq.read_table(folder).num_rows,
    "pyarrow.json": lambda folder, _: sum(pa.json.read_json(one).num_rows for one in folder.iterdir()),
    "pandas": lambda folder, _: len(pytest.importorskip("pandas").read_parquet(folder)),
    "polars": count_with_polars,
    "duckdb": count_with_duckdb,
    "datasets": lambda folder, _: count_with_datasets(folder, str(folder)),
    "datasets, data_dir": lambda folder, name: count_with_datasets(folder, name, data_dir=str(folder)),
}
ONE_FORMAT = {"pyarrow.parquet": "parquet", "pandas": "parquet", "pyarrow.json": "json"}
PASS_OVER_NO_NAME = ("pyarrow.json", "polars", "duckdb")


@pytest.fixture(scope="module", params=[("parquet", 1000), ("json", 1000), ("parquet", 2)], ids=str)
def shards(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """Two folders of four shards in one, format and records of each; of two records two shards have none."""
    place, (name, count) = tmp_path_factory.mktemp("shards"), request.param
    (place / "in.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in range(count)))
    for output in ("one", "two"):
        to = "parquet" if name == "parquet" else "jsonl"
        recshuf.shuffle(place / "in.jsonl", place / "data" / output, to=to, shards=4, seed=1)
    return place / "data", name, count


@pytest.mark.parametrize(
    "reader", [pytest.param(one, marks=() if "pyarrow" in one else pytest.mark.slow) for one in READERS]
)
def test_shards_are_read_whole(
    shards: tuple[Path, str, int], reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests have names that most readers pass over."""
    folder, name, count = shards
    if ONE_FORMAT.get(reader, name) != name:
        pytest.skip(f"{reader} reads another format")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert READERS[reader](folder / "one", name) == count
    if reader not in PASS_OVER_NO_NAME:
        assert READERS[reader](folder, name) == 2 * count
    assert len(os.listdir(folder / "one")) == 4
    assert (folder / ".one.recshuf.json").is_file()
