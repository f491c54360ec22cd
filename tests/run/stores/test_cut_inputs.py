"""How inputs are divided among sets by ranges of rows, and among the stores of a split."""

import json
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
from recshuf.run.stores import scatter_store
from tests.support.effort import mostly_slow
from tests.support.formats.conversion_data import WRITERS, choose_columns
from tests.support.processes.deaths import fork, join
from tests.support.stores.store_reader import read_sets

ROWS = 6000
COUNTS = {"a": 10, "b": ROWS, "c": 0, "d": 30, "e": ROWS // 2, "f": 0}


def make_inputs(folder: Path, kind: str) -> list[Path]:
    """Write small inputs, empty ones, and some of 3 and 1.5 MB, in records of varying length."""
    rng, paths = np.random.default_rng(5), []
    for name, count in COUNTS.items():
        texts = [f"{name}{row} " + "x" * int(size) for row, size in enumerate(rng.integers(0, 1000, count))]
        paths.append(folder / f"{name}.{kind}")
        if kind == "parquet":
            table = pa.table({"text": pa.array(texts, pa.string()), "n": np.arange(count)})
            pq.write_table(table, paths[-1], row_group_size=700)
        elif kind == "jsonl":
            paths[-1].write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
        else:
            paths[-1].write_text("".join(f"{text}\n" for text in texts))
    return paths


@pytest.mark.parametrize(("kind", "workers"), mostly_slow([("parquet", 3), ("txt", 1)], ("parquet", 3)))
def test_a_store_of_large_inputs_is_that_of_one_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, workers: int
) -> None:
    paths = make_inputs(tmp_path, kind)
    options: dict[str, Any] = {"seed": 7, "piles": 2, "workers": workers}
    order: dict[str, Any] = {"provenance": kind != "txt", "verify": True, "shards": 2}
    report = recshuf.scatter(paths, tmp_path / "cut", **options)
    monkeypatch.setattr(scatter_store, "choose_kept_set_bytes", lambda *_, **__: 1 << 40)
    whole = recshuf.scatter(paths, tmp_path / "whole", **options)
    assert report.set_count > whole.set_count + 1
    for name in ("cut", "whole"):
        recshuf.gather(tmp_path / name, f"{tmp_path}/{name}-out/", **order)
    for shard in sorted((tmp_path / "whole-out").iterdir()):
        assert shard.read_bytes() == (tmp_path / "cut-out" / shard.name).read_bytes()
    recshuf.shuffle(paths, f"{tmp_path}/shuffled/", seed=7, **order)
    assert [one.read_bytes() for one in sorted((tmp_path / "shuffled").iterdir())] == [
        one.read_bytes() for one in sorted((tmp_path / "cut-out").iterdir())
    ]
    found = recshuf.PileStore(tmp_path / "cut")
    assert [name.rpartition("/")[2] for name in found.sources] == [path.name for path in paths]
    # A set holds consecutive rows: those before, in sets before.
    rows = [
        (one.source, one.row)
        for name, part in sorted(read_sets(tmp_path / "cut").items())
        for one in sorted(part, key=lambda one: (one.source, one.row))
    ]
    assert rows == [(source, row) for source, count in enumerate(COUNTS.values()) for row in range(count)]
    recshuf.compact(tmp_path / "cut", sets=2)
    recshuf.gather(tmp_path / "cut", f"{tmp_path}/compacted/", **order)
    for shard in sorted((tmp_path / "cut-out").iterdir()):
        assert shard.read_bytes() == (tmp_path / "compacted" / shard.name).read_bytes()


def test_parts_of_a_split_and_slices_of_a_window_are_cut_too(tmp_path: Path) -> None:
    paths = make_inputs(tmp_path, "parquet")
    report = recshuf.scatter(paths, tmp_path / "parts", seed=7, piles=2, split={"train": 0.6, "val": 0.4})
    assert [part.set_count > 2 for part in report.parts] == [True, True]
    ids = []
    for part in report.parts:
        recshuf.gather(part.path, f"{part.path}.parquet", verify=True)
        loader = recshuf.PileLoader(part.path, 64, columns=["_id"], drop_last=False, epoch=1)
        ids += [tuple(one) for batch in loader for one in batch["_id"].tolist()]
    assert sorted(ids) == [
        (source, row) for source, count in enumerate(COUNTS.values()) for row in range(count)
    ]
    with recshuf.PileWriter(tmp_path / "store", "a", seed=1, piles=2) as writer:
        writer.write(pq.read_table(paths[0]))
    with recshuf.PileStore(tmp_path / "store").update() as update:
        update.append(paths, time=5)
    assert len(list((tmp_path / "store").rglob("append-*"))) > 2
    with recshuf.PileStore(tmp_path / "store").update() as update:
        update.append(paths[:1], time=6)
        update.expire(before=6)
    assert recshuf.PileStore(tmp_path / "store").num_records == COUNTS["a"]


# Lines that do not parse, on their way into a store: an error that names them, or set aside


@pytest.mark.parametrize(
    ("suffix", "header", "good", "bad", "place"),
    [
        ("jsonl", "", '{{"a": {}}}\n', '{"a": 1\n', "line 8"),
        ("csv", "a,b\n", "{0},x{0}\n", "7\n", "record 8"),
    ],
)
def test_a_bad_line_is_named_or_set_aside_and_leaves_the_others_as_they_are(
    tmp_path: Path, suffix: str, header: str, good: str, bad: str, place: str
) -> None:
    source, store = tmp_path / f"in.{suffix}", tmp_path / "store"
    lines = [bad if row == 7 else good.format(row) for row in range(100)]
    source.write_text("".join([header, *lines]))
    with pytest.raises(
        InputError, match=f"{place}: .*; correct it, or set .* aside with on_bad_record='quarantine:FILE'"
    ):
        recshuf.scatter(source, store)
    assert list(tmp_path.iterdir()) == [source]
    aside = f"quarantine:{tmp_path / 'bad'}"
    report = recshuf.scatter(source, store, seed=3, on_bad_record=aside)
    assert (report.records, report.quarantined, report.inputs[0].quarantined) == (99, 1, 1)
    assert report.inputs[0].records == 100
    found = [json.loads(line) for line in (tmp_path / "bad").read_text().splitlines()]
    assert [(one["record"] + "\n", one["input"]) for one in found] == [(bad, str(source))]
    assert len(next(iter(recshuf.PileLoader(store, batch_size=99)))["a"]) == 99
    recshuf.gather(store, tmp_path / "gathered.parquet")
    recshuf.shuffle(source, tmp_path / "shuffled.parquet", seed=3, on_bad_record=aside + "2")
    assert (tmp_path / "gathered.parquet").read_bytes() == (tmp_path / "shuffled.parquet").read_bytes()


def test_a_file_of_bad_lines_is_replaced_only_on_demand_and_only_at_the_end(tmp_path: Path) -> None:
    source, bad, store = tmp_path / "in.jsonl", tmp_path / "bad", tmp_path / "store"
    source.write_text('{"a": 1}\n{\n')
    bad.write_text("before")
    with pytest.raises(UsageError, match="exists already"):
        recshuf.scatter(source, store, on_bad_record=f"quarantine:{bad}")
    recshuf.scatter(source, store, on_bad_record=f"quarantine:{bad}", overwrite=True)
    assert '"line":2' in bad.read_text()
    bad.write_text("before")
    with pytest.raises(UsageError, match="would remove what is appended"):
        recshuf.window(store, source, on_bad_record=f"quarantine:{bad}", overwrite=True, keep_bytes=1)
    assert bad.read_text() == "before"
    recshuf.window(store, source, on_bad_record=f"quarantine:{bad}", overwrite=True)
    assert '"line":2' in bad.read_text()
    assert recshuf.PileStore(store).num_records == 2


def test_where_lines_cannot_be_set_aside(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"a": 1}\n')
    aside = f"quarantine:{tmp_path / 'bad'}"
    with pytest.raises(UsageError, match="on_bad_record: not with split alone, whose sizes are known before"):
        recshuf.scatter(source, tmp_path / "store", split={"a": 0.5, "b": 0.5}, on_bad_record=aside)
    recshuf.shuffle(source, tmp_path / "in.parquet")
    with pytest.raises(UsageError, match=r"for inputs of .* only"):
        recshuf.scatter(tmp_path / "in.parquet", tmp_path / "store", on_bad_record=aside)
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "bad").exists()


def test_types_that_conflict_hide_no_bad_line(tmp_path: Path) -> None:
    """Behind a conflict nothing would be looked at, and set aside."""
    first, second = tmp_path / "0.jsonl", tmp_path / "1.jsonl"
    first.write_text('{"a": 1}\n{"a": "x"}\n')
    second.write_text('{"a": 1}\n{\n')
    aside = f"quarantine:{tmp_path / 'bad'}"
    with pytest.raises(InputError, match="line 2, field 'a': holds a string"):
        recshuf.scatter([first, second], tmp_path / "store", workers=1, on_bad_record=aside)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.jsonl", "1.jsonl"]


# A split makes disjoint stores that are exact in count, and as if scattered alone


SHARES = {"train": 0.7, "val": 0.2, "test": 0.1}
SEED = 11
FILES = 3


def make_small(folder: Path, name: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for number in range(FILES):
        WRITERS[name](folder / f"{number}.{'txt' if name == 'text' else name}", choose_columns(name))
    return sorted(folder.iterdir())


def read_ids(store: Path) -> list[tuple[int, int]]:
    """Return source and row of all records, in order."""
    loader = recshuf.PileLoader(store, 50, columns=["_id"], drop_last=False)
    return [(int(source), int(row)) for batch in loader for source, row in batch["_id"]]


@pytest.mark.parametrize("name", ["jsonl", "hdf5"])
def test_parts_are_disjoint_and_keep_the_order_whatever_the_plan(tmp_path: Path, name: str) -> None:
    inputs = make_small(tmp_path / "inputs", name)
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
    inputs = make_small(tmp_path / "inputs", "parquet")
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
    inputs = make_small(tmp_path / "inputs", "text")
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
    inputs = make_small(tmp_path / "inputs", "text")
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

    inputs = make_small(tmp_path / "in", "text")
    with pytest.raises(InputError):
        scatter(tmp_path / "bad.csv")
    with pytest.raises(UsageError, match="a stream is read once; give files"):
        scatter(tmp_path / "pipe", format="text")
    monkeypatch.setattr(Records, "take", take)
    with pytest.raises(CheckError, match=r"in all parts; run again"):
        scatter(inputs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "in", "pipe"]
