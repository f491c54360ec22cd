"""A split scatter makes disjoint stores that are exact in count, and as if scattered alone."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import CheckError, InputError, OutputError, OutputExistsError, UsageError
from recshuf.records.batch import Records
from recshuf.records.keys import RowRange, Split
from tests.support.effort import mostly_slow
from tests.support.formats.conversion_data import WRITERS, choose_columns
from tests.support.processes.deaths import fork, join

SHARES = {"train": 0.7, "val": 0.2, "test": 0.1}
SEED = 11
FILES = 3


def make_inputs(folder: Path, name: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for number in range(FILES):
        WRITERS[name](folder / f"{number}.{'txt' if name == 'text' else name}", choose_columns(name))
    return sorted(folder.iterdir())


def read_ids(store: Path) -> list[tuple[int, int]]:
    """Return source and row of all records, in order."""
    loader = recshuf.PileLoader(store, 50, columns=["_id"], drop_last=False)
    return [(int(source), int(row)) for batch in loader for source, row in batch["_id"]]


@pytest.mark.parametrize("name", mostly_slow(WRITERS, "jsonl", "hdf5"))
def test_parts_are_disjoint_and_keep_the_order_whatever_the_plan(tmp_path: Path, name: str) -> None:
    inputs = make_inputs(tmp_path / "inputs", name)
    given: dict[str, Any] = {"seed": SEED, "format": name}
    whole = recshuf.scatter(inputs, tmp_path / "whole", **given)
    found = recshuf.scatter(inputs, tmp_path / "split", **given, split=SHARES)
    recshuf.scatter(inputs, tmp_path / "other", **given, split=SHARES, memory="64MB", piles=3, workers=4)
    total = whole.records
    sizes = [one.records for one in found.parts]
    assert sum(sizes) == found.records == total
    assert all(abs(size - total * share) < 1 for size, share in zip(sizes, SHARES.values(), strict=True))
    assert [one.records for one in found.inputs] == [one.records for one in whole.inputs]
    split = Split.find(SEED, [one.records for one in whole.inputs], sizes)
    order = read_ids(tmp_path / "whole")
    part_of = {
        (index, row): part
        for index, one in enumerate(whole.inputs)
        for row, part in enumerate(split.find_parts([RowRange(index, 0, one.records)]).tolist())
    }
    for part, share in enumerate(SHARES):
        own = read_ids(tmp_path / "split" / share)
        assert own == [id_ for id_ in order if part_of[id_] == part]
        assert own == read_ids(tmp_path / "other" / share)
        assert found.parts[part].path == str(tmp_path / "split" / share)


def test_a_part_is_gathered_as_a_store(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path / "inputs", "parquet")
    recshuf.scatter(inputs, tmp_path / "split", seed=SEED, split=SHARES)
    shown = ", ".join(f"{tmp_path}/split/{share}" for share in sorted(SHARES))
    for ask in (recshuf.PileStore, lambda folder: recshuf.gather(folder, tmp_path / "out")):
        with pytest.raises(UsageError, match=rf"split: is no pile store, but holds some; name one: {shown}$"):
            ask(tmp_path / "split")
    tables = []
    for share in SHARES:
        output = tmp_path / f"{share}.parquet"
        recshuf.gather(tmp_path / "split" / share, output)
        tables.append(pq.read_table(output))
        assert recshuf.PileStore(tmp_path / "split" / share).num_records == tables[-1].num_rows
    given = pa.concat_tables([pq.read_table(path) for path in inputs])
    keys = [(name, "ascending") for name in ("text", "id")]
    found = pa.concat_tables(tables).select(["text", "id"]).sort_by(keys)
    assert found.equals(given.select(["text", "id"]).sort_by(keys))


def test_a_field_that_no_record_has_tells_no_parts(tmp_path: Path) -> None:
    for number in range(2):  # each is more than is read at once
        (tmp_path / f"{number}.jsonl").write_text(f'{{"a": "{"x" * 1000}"}}\n' * 2000)
    with pytest.raises(
        UsageError, match=r"^split_by: no record has a value of 'user'; name a field that some have$"
    ):
        recshuf.scatter(
            tmp_path / "*.jsonl", tmp_path / "split", split=SHARES, split_by="user", memory="64MB", workers=2
        )
    assert not (tmp_path / "split").exists()


def test_what_stands_there_is_kept(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path / "inputs", "text")
    (tmp_path / "split").mkdir()
    with pytest.raises(OutputExistsError, match="exists already; choose another folder"):
        recshuf.scatter(inputs, tmp_path / "split", split=SHARES)
    mine = tmp_path / ".other.scatter" / "train" / "mine"
    mine.parent.mkdir(mode=0o700, parents=True)
    mine.touch()
    with pytest.raises(OutputError, match="train: is not a pile store, and not empty; choose another folder"):
        recshuf.scatter(inputs, tmp_path / "other", split=SHARES)
    assert mine.exists()


@pytest.mark.parametrize("dies", [False, True], ids=["before it", "at the rename"])
def test_what_a_process_left_that_died_is_replaced(tmp_path: Path, dies: bool) -> None:
    """One that dies at the rename leaves nothing else."""
    inputs = make_inputs(tmp_path / "inputs", "text")
    rename = type(tmp_path).rename

    def rename_and_die(path: Path, target: Path) -> None:
        rename(path, target)
        if target == tmp_path / "split":
            os._exit(9)

    def scatter() -> None:
        type(tmp_path).rename = rename_and_die  # type: ignore[method-assign, assignment]
        recshuf.scatter(inputs, tmp_path / "split", seed=SEED, split=SHARES)

    recshuf.scatter(inputs, tmp_path / ".split.scatter" / "earlier", seed=SEED)
    if dies:
        assert join(fork(scatter)) == 9
    else:
        recshuf.scatter(inputs, tmp_path / "split", seed=SEED, split=SHARES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inputs", "split"]
    assert sorted(path.name for path in (tmp_path / "split").iterdir()) == sorted(SHARES)


def test_an_error_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of records that get lost between the parts: one comes twice in place of another, so that sizes are right."""
    (tmp_path / "bad.csv").write_text('a,b\n0,"1"\n1,"2\n')
    os.mkfifo(tmp_path / "pipe")
    whole = Records.take

    def take(records: Records, index: np.ndarray) -> Records:
        is_part = 1 < len(index) < len(records)
        return whole(records, np.append(index[:-1], index[0]) if is_part else index)

    def scatter(inputs: Any, **options: Any) -> None:
        recshuf.scatter(inputs, tmp_path / "split", seed=SEED, split=SHARES, **options)

    inputs = make_inputs(tmp_path / "in", "text")
    with pytest.raises(InputError):
        scatter(tmp_path / "bad.csv")
    with pytest.raises(UsageError, match="a stream is read once; give files"):
        scatter(tmp_path / "pipe", format="text")
    monkeypatch.setattr(Records, "take", take)
    with pytest.raises(CheckError, match=r"in all parts; run again"):
        scatter(inputs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "in", "pipe"]
