"""Gather writes the order of any epoch: that of a loader with the same arguments."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import AlreadyCompleteError, OutputExistsError, UsageError
from tests.support.effort import mostly_slow
from tests.support.small_runs import change_plans, forge_keys
from tests.support.stores.small_stores import append

ROWS = 3000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("epochs")
    rows = np.arange(ROWS)
    for number, part in enumerate(np.array_split(rows, 3)):
        table = pa.table({"id": part, "text": [f"row {row}" * (row % 9) for row in part]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=100)
    recshuf.scatter(folder / "*.parquet", folder / "store", seed=5, piles=16)
    return folder / "store"


@pytest.mark.parametrize(
    ("epoch", "reshuffle", "mix"),
    [
        (0, "rotate", 3),
        (1, "rotate", 1),
        (2**32 - 1, "rotate", 3),
        (1, "piles", 3),
        (2, "piles", 1),
        (1, "none", 1),
    ],
)
def test_an_epoch_is_that_of_a_loader(
    store: Path, tmp_path: Path, epoch: int, reshuffle: str, mix: int
) -> None:
    recshuf.gather(store, tmp_path / "out/", epoch=epoch, reshuffle=reshuffle, mix=mix, shards=4)
    loader = recshuf.PileLoader(
        store, 7, epoch=epoch, reshuffle=reshuffle, mix=mix, drop_last=False, output="arrow"
    )
    expected = pa.Table.from_batches(list(loader))
    assert pq.read_table(tmp_path / "out").equals(expected)
    assert sorted(expected["id"].to_pylist()) == list(range(ROWS))


def test_epoch_0_of_mixed_piles_is_another_one_and_says_so(store: Path, tmp_path: Path) -> None:
    for mix in (1, 4):
        recshuf.gather(store, f"{tmp_path}/mix{mix}/", mix=mix, verify=True)
    first, mixed = (pq.read_table(tmp_path / f"mix{mix}")["id"].to_pylist() for mix in (1, 4))
    assert sum(map(int.__eq__, first, mixed)) < 12
    texts = [next(tmp_path.glob(f"*mix{mix}*.json")).read_text() for mix in (1, 4)]
    assert "epoch" not in json.loads(texts[0])
    assert [json.loads(texts[1])[name] for name in ("epoch", "mix")] == [0, 4]


def test_groups_that_exceed_the_memory_limit_are_refused(tmp_path: Path) -> None:
    with recshuf.PileWriter(tmp_path / "store", "a", piles=1) as writer:
        writer.write({"id": np.zeros((300_000, 16), np.int64)})
    with pytest.raises(recshuf.errors.MemoryLimitError, match=r"raise memory, lower mix") as told:
        recshuf.gather(tmp_path / "store", tmp_path / "out.jsonl", epoch=1, memory="64MB")
    assert not (tmp_path / "out.jsonl").exists()
    [named] = re.findall(r"needs ([\d.]+) MB of memory", str(told.value))
    assert float(named) * 10**6 > 4 * 300_000 * 16 * 8  # ordered, and then converted
    recshuf.gather(tmp_path / "store", tmp_path / "out.jsonl", epoch=1, memory=f"{named}MB")


def test_another_seed_shuffles_the_records_of_a_store_anew(store: Path, tmp_path: Path) -> None:
    for name, seed, memory in (("a", 8, "64MB"), ("b", 8, "1GB"), ("c", 9, "1GB")):
        report = recshuf.gather(store, tmp_path / f"{name}/", seed=seed, shards=2, memory=memory, verify=True)
        assert (report.seed, report.records_written) == (seed, ROWS)
    found = {name: pq.read_table(tmp_path / name) for name in "abc"}
    assert found["a"].equals(found["b"])
    rows = [found[name]["id"].to_pylist() for name in "ac"]
    assert [sorted(ids) for ids in rows] == [list(range(ROWS))] * 2
    # By chance two orders agree in about one place.
    assert sum(map(int.__eq__, *rows)) < 12
    text = pa.array([f"row {row}" * (row % 9) for row in rows[0]])
    assert found["a"]["text"].combine_chunks().equals(text)
    with pytest.raises(AlreadyCompleteError):
        recshuf.gather(store, tmp_path / "a/", seed=8, shards=2, resume=True)
    with pytest.raises(OutputExistsError, match="another command"):
        recshuf.gather(store, tmp_path / "a/", shards=2, resume=True)
    for option in ({"epoch": 1}, {"provenance": True}, {"mix": 4}):
        with pytest.raises(UsageError, match=r"needs the keys of the store, and seed 8 draws new ones"):
            recshuf.gather(store, tmp_path / "out/", seed=8, **option)
    assert not (tmp_path / "out").exists()
    recshuf.gather(store, tmp_path / "out/", seed=5, epoch=1, provenance=True)


@pytest.mark.parametrize("provenance", mostly_slow([False, True], True))
def test_a_pile_that_is_too_large_is_split(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provenance: bool
) -> None:
    recshuf.gather(store, tmp_path / "whole.parquet", provenance=provenance)
    change_plans(monkeypatch, pile_bytes=2000)
    recshuf.gather(store, tmp_path / "split.parquet", provenance=provenance)
    assert pq.read_table(tmp_path / "split.parquet").equals(pq.read_table(tmp_path / "whole.parquet"))


@pytest.mark.parametrize("pile_bytes", mostly_slow([1 << 20, 200], 200))
def test_equal_keys_of_several_writers_come_by_source_and_row_also_after_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pile_bytes: int
) -> None:
    forge_keys(monkeypatch, 3, 0)
    for name in "ab":
        with recshuf.PileWriter(tmp_path / "store", name, piles=2, seed=1, buffer_bytes=1) as writer:
            for first in range(0, 20, 10):
                writer.write({"name": [name] * 10, "row": range(first, first + 10)})
    append(tmp_path / "store", {"name": ["0"] * 10, "row": range(10)}, name="0", time=1)  # first, and newest
    change_plans(monkeypatch, pile_bytes=pile_bytes)
    for name in ("out", "compacted"):
        recshuf.gather(tmp_path / "store", tmp_path / f"{name}.parquet")
        loader = recshuf.PileLoader(tmp_path / "store", 50, output="arrow")
        assert pq.read_table(tmp_path / f"{name}.parquet").equals(pa.Table.from_batches(list(loader)))
        recshuf.compact(tmp_path / "store", sets=1)
    assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "compacted.parquet").read_bytes()
