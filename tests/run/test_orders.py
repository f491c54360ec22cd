"""The order is that of the seed, whatever a run decides by itself and does besides: compared with slow oracles."""

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import UsageError
from recshuf.job.plan import Plan
from recshuf.records.keys import draw_keys
from tests.support.effort import TRIES_ALL, examples, mostly_slow, some
from tests.support.group_oracle import (
    cut_groups,
    expect_copies,
    expect_groups,
    expect_parts,
    expect_parts_of_values,
)
from tests.support.processes.killed_runs import Killed, kill_after
from tests.support.small_runs import change_plans, forge_keys, list_shards, sort_places

UNLIMITED = 1 << 40
SEED = 5


def alternate(plan: Plan) -> tuple[int, ...]:
    """Return the pile set of each input, of three in turn."""
    return tuple(index % 3 for index in range(len(plan.set_of_input)))


WAYS: dict[str, dict[str, Any]] = {
    "in memory": {},
    "one pile": {"pile_count": 1},
    "split in memory": {"pile_count": 2, "pile_bytes": 60},
    "evicted midway": {"pile_count": 9, "resident_bytes": 3000},
    "evicted midway, many piles": {"pile_count": 1000, "resident_bytes": 2000},
    "on disk": {"pile_count": 8, "resident_bytes": 0},
    "on disk, split": {"pile_count": 2, "pile_bytes": 90, "resident_bytes": 0},
    "three sets": {"pile_count": 5, "resident_bytes": 0, "set_of_input": alternate},
    "some of three sets on disk": {"pile_count": 50, "resident_bytes": 2000, "set_of_input": alternate},
    "parallel": {
        "pile_count": 7,
        "scatter_workers": 4,
        "gather_workers": 4,
        "shard_writers": 3,
        "resident_bytes": 2500,
    },
    "one at a time": {"pile_count": 7, "units_in_flight": 1, "pile_bytes": 150, "resident_bytes": 1500},
}


def write_rows(folder: Path, counts: Sequence[int]) -> list[Path]:
    """Write files whose lines are their input and row, each of its own length."""
    paths = [folder / f"{index:04}.txt" for index in range(len(counts))]
    for index, (path, count) in enumerate(zip(paths, counts, strict=True)):
        path.write_text("".join(f"{index} {row} {'x' * (row % 7)}\n" for row in range(count)))
    return paths


def read_rows(shards: Sequence[Path]) -> list[tuple[int, int]]:
    """Return input and row of each line."""
    words = [line.split(" ") for path in shards for line in path.read_text().splitlines()]
    assert all(word[2] == "x" * (int(word[1]) % 7) for word in words)
    return [(int(word[0]), int(word[1])) for word in words]


# Plans

Record = tuple[str | None, str | None]
VALUE = st.none() | st.sampled_from(["", "a", "a\0", "ab", "7", "é"]) | st.text(max_size=2)
FIELDS = st.sampled_from([("a",), ("a", "b")])
COPIES = st.tuples(st.sampled_from([1, "0.3", 2.5]), *[st.sampled_from([0, 0.75, 1, 3])] * 3)
SHARES = {"a": "0.5", "b": "0.35", "c": "0.15"}
FEATURES = st.one_of(
    st.fixed_dictionaries({}, optional={"head_count": st.integers(0, 100)}),
    st.fixed_dictionaries({"group_by": FIELDS, "group_order": st.sampled_from(["input", "random"])}),
    st.fixed_dictionaries({"dedup": FIELDS | st.just("record")}),
    st.fixed_dictionaries({"copies": COPIES}),
    st.fixed_dictionaries({"split": st.just(SHARES)}),
    st.fixed_dictionaries(
        {"split": st.just(SHARES), "split_by": FIELDS, "split_seed": st.integers(0, 2**128 - 1)}
    ),
)


def expect_order(
    inputs: Sequence[Sequence[Record]], lines: Sequence[Sequence[str]], seed: int, feature: dict[str, Any]
) -> list[list[int]]:
    """Return the numbers of the records that are written, those of a group or of a part together."""
    counts = [len(records) for records in inputs]
    places = sort_places(counts, seed)[: feature.get("head_count")]
    fields = feature.get("group_by", feature.get("dedup", feature.get("split_by")))
    texts: list[list[tuple[bytes | None, ...]]] = []
    for records, own in zip(inputs, lines, strict=True):
        values = (
            [(f"{line}\n",) for line in own]
            if fields == "record"
            else [one[: len(fields or ())] for one in records]
        )
        texts.append([tuple(None if one is None else one.encode() for one in record) for record in values])
    if "group_by" in feature or "dedup" in feature:
        groups = expect_groups(texts, seed, feature.get("group_order", "input"))
        return groups if "group_by" in feature else [group[:1] for group in groups]
    if "copies" in feature:
        exact = [Fraction(str(one)) * count for one, count in zip(feature["copies"], counts, strict=True)]
        sources = [[count] for count in counts]
        places = expect_copies(seed, sources, [int(one + Fraction(1, 2)) for one in exact])
    if "split" in feature:
        shares = [*map(Fraction, SHARES.values())]
        parts = expect_parts(counts, shares, seed)
        if fields:
            parts = expect_parts_of_values(texts, shares, feature["split_seed"])
        return [
            [sum(counts[:index]) + row for index, row in places if (index, row) in part] for part in parts
        ]
    return [[sum(counts[:index]) + row] for index, row in places]


def dies_after(parts: int, *given: Any, **options: Any) -> bool:
    """Return whether a run died when so many of its pile sets and shards were finished, and not later."""
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, parts)
        try:
            recshuf.shuffle(*given, **options)
        except Killed:
            return True
    return False


def read_shard(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]


@settings(max_examples=examples(360), deadline=None)
@given(
    inputs=st.lists(st.lists(st.tuples(VALUE, VALUE), max_size=40), min_size=1, max_size=4),
    feature=FEATURES,
    seed=st.integers(0, 2**128 - 1),
    numbers=st.fixed_dictionaries(
        {
            "pile_count": st.integers(1, 40) | st.sampled_from([255, 1000]),
            "pile_bytes": st.sampled_from([1, 60, 500, UNLIMITED]),
            "resident_bytes": st.sampled_from([0, UNLIMITED]) | st.integers(1, 4000),
            "scatter_workers": st.integers(1, 4),
            "gather_workers": st.integers(1, 4),
            "shard_writers": st.integers(1, 3),
            "units_in_flight": st.integers(1, 5),
            "block_bytes": st.sampled_from([64, 300, 1 << 20]),
            "set_of_input": st.sampled_from([alternate, lambda plan: (0,) * len(plan.set_of_input)]),
        },
        optional={"value_bytes": st.just(2000)},
    ),
    shards=st.integers(1, 9),
    to=st.sampled_from(["jsonl", "parquet"]),
    verify=st.booleans(),
    provenance=st.booleans(),
    in_store=st.booleans(),
    parts=st.none() | st.integers(1, 5),
)
def test_any_plan_and_feature_give_the_order_of_the_formulas(
    inputs: list[list[Record]], feature: dict[str, Any], seed: int, numbers: dict[str, Any], shards: int, to: str, verify: bool, provenance: bool, in_store: bool, parts: int | None,
):  # fmt: skip
    """Also of runs that die and are continued, and of stores."""
    if "copies" in feature:
        feature = {"copies": feature["copies"][: len(inputs)]}
    if "split" in feature:
        shards += 2
    total = sum(map(len, inputs))
    own = iter([{} if feature.get("dedup") == "record" else {"id": k, "pad": "x" * (k % 7)} for k in range(total)])  # fmt: skip
    lines = [[json.dumps({"a": a, "b": b} | next(own)) for a, b in records] for records in inputs]
    options = feature | {
        "seed": seed,
        "shards": shards,
        "to": to if total else "jsonl",
        "verify": verify,
        "provenance": provenance,
    }
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        paths = [folder / f"{index}.jsonl" for index in range(len(inputs))]
        for path, texts in zip(paths, lines, strict=True):
            path.write_text("".join(f"{text}\n" for text in texts))
        change_plans(patch, **numbers)
        fields = feature.get("group_by", feature.get("dedup", feature.get("split_by", ())))
        records = [record for records in inputs for record in records]
        if records and fields != "record" and any({one[k] for one in records} == {None} for k in range(len(fields))):  # fmt: skip
            with pytest.raises(UsageError, match=r"no record has a value of '[ab]'"):
                recshuf.shuffle(paths, f"{folder}/out/", **options)
            return
        in_store &= bool(total) and feature.keys() <= {"head_count"}  # which a gather knows, too
        if in_store:
            recshuf.scatter(paths, folder / "store", seed=options.pop("seed"))
            patch.undo()
            report = recshuf.gather(folder / "store", f"{folder}/out/", **options)
        elif parts is None or not dies_after(parts, paths, f"{folder}/out/", **options):
            report = recshuf.shuffle(paths, f"{folder}/out/", **options, overwrite=True)
        else:
            report = recshuf.shuffle(paths, f"{folder}/out/", **options, resume=True)
        shards_made = list_shards(folder / "out")
        found = [read_shard(path) for path in shards_made]
        left = sorted(path.name for path in folder.iterdir() if path not in paths)
    rows = [
        json.loads(text) | ({"source_file": str(path), "source_row": row} if provenance else {})
        for path, texts in zip(paths, lines, strict=True)
        for row, text in enumerate(texts)
    ]
    groups = expect_order(inputs, lines, seed, feature)
    assert [row for shard in found for row in shard] == [rows[number] for group in groups for number in group]
    if "split" in feature:
        places = [[*SHARES].index(path.parent.name) for path in shards_made]
        sizes = [
            sum(len(shard) for shard, at in zip(found, places, strict=True) if at == k) for k in range(3)
        ]
        assert (places, sizes) == (sorted(places), [len(part) for part in groups])
    elif "dedup" not in feature:  # of repeats nobody knows before how many there are
        assert found == [[rows[number] for number in shard] for shard in cut_groups(groups, shards)]
    assert [len(shard) for shard in found] == [shard.records for shard in report.shards]
    assert [one.records for one in report.inputs] == [len(records) for records in inputs]
    assert (report.records, report.records_written) == (total, sum(map(len, groups)))
    assert left == [".out.recshuf.json", "out", *(["store"] if in_store else [])]


@pytest.mark.parametrize(
    "way",
    mostly_slow(WAYS, "split in memory", "some of three sets on disk", "parallel"),
)
def test_equal_keys_are_ordered_by_input_and_row(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch):
    """Also those of small inputs, which are read together."""
    change_plans(monkeypatch, block_bytes=200, **WAYS[way])
    for name, counts, forged in (
        ("large", (90, 30, 0, 41), ((0, 0), (3, 20), (2, 62)) if TRIES_ALL else ((0, 0), (3, 20))),
        ("small", [*(k % 5 for k in range(50)), 90], ((2, 0),)),
    ):
        (tmp_path / name).mkdir()
        inputs = write_rows(tmp_path / name, counts)
        for bits, place in forged:
            with pytest.MonkeyPatch.context() as patch:
                draw = forge_keys(patch, bits, place)
                output = tmp_path / f"{name}{bits}"
                recshuf.shuffle(inputs, output, seed=SEED, shards=3)
            assert read_rows(list_shards(output)) == sort_places(counts, SEED, draw), (name, bits)


@pytest.mark.parametrize(
    "way",
    mostly_slow(["evicted midway", "some of three sets on disk", "on disk, split"], "evicted midway"),
)
def test_a_sample_of_any_size_is_the_first_records(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch):
    """Sizes around the ends of piles, where a pile is wanted or not; and among equal keys."""
    counts = [70, 20]
    inputs = write_rows(tmp_path, counts)
    whole = sort_places(counts, SEED)
    keys = draw_keys(SEED, [(0, 0, 70), (1, 0, 20)])
    piles = WAYS[way].get("pile_count", 8)
    places = (keys >> np.uint64(32)) * np.uint64(piles) >> np.uint64(32)
    ends = np.cumsum(np.bincount(places.astype(np.int64)))
    change_plans(monkeypatch, **{"pile_count": 8} | WAYS[way])
    for size in sorted(
        {0, 1, 89, 90, 91, *(end + more for end in some(ends[:8].tolist()) for more in (-1, 0, 1))}
    ):
        report = recshuf.shuffle(inputs, tmp_path / "out.txt", seed=SEED, head_count=size, overwrite=True)
        assert read_rows([tmp_path / "out.txt"]) == whole[:size]
        assert (report.records, report.records_written) == (90, min(size, 90))
    draw = forge_keys(monkeypatch, 2, 0)
    recshuf.shuffle(inputs, tmp_path / "out.txt", seed=SEED, head_count=40, overwrite=True)
    assert read_rows([tmp_path / "out.txt"]) == sort_places(counts, SEED, draw)[:40]


def test_records_go_to_disk_exactly_where_they_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    inputs = write_rows(tmp_path, [300])
    for way in WAYS:
        with pytest.MonkeyPatch.context() as patch:
            change_plans(patch, **WAYS[way])
            report = recshuf.shuffle(inputs, tmp_path / "out.txt", seed=SEED, overwrite=True)
        assert (report.spilled_bytes > 0) == ("resident_bytes" in WAYS[way])


@pytest.mark.parametrize("to", ["arrow", "jsonl"])
def test_shards_of_some_bytes_do_not_depend_on_batches(
    tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
):
    """Neither where few of them have nulls, nor where their truth values are no whole bytes."""
    path, rows = tmp_path / "in.parquet", np.arange(4001)
    columns = {f"c{at}": pa.array(rows % 2 == 0, mask=rows == at * 371) for at in range(10)}
    lists = pa.array([[None, True] if row == 7 else [row % 3 == 0] for row in rows.tolist()])
    shared = pa.array(["x" * (row % 5) for row in rows.tolist()]).dictionary_encode()
    pq.write_table(pa.table({"id": rows, "l": lists, "s": shared, **columns}), path)
    found = set()
    for block_bytes in (50, 999, 1 << 20):
        with monkeypatch.context() as patch:
            change_plans(patch, block_bytes=block_bytes)
            report = recshuf.shuffle(path, tmp_path / "out/", seed=1, to=to, shard_bytes=100, overwrite=True)
        found.add(tuple(shard.records for shard in report.shards))
    assert len(found) == 1
