"""Every run checks itself: what a pass loses, doubles, cuts or misplaces is found; and its own --verify never fails on what it did."""

from __future__ import annotations

import datetime
import decimal
import itertools
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import recshuf
import recshuf.piles.epochs as epochs
import recshuf.records.key_makers as key_makers
import recshuf.run.gather as gather
from recshuf.audit.verify.mismatches import RecordHashing
from recshuf.errors import CheckError, MemoryLimitError, RecshufError, UsageError
from recshuf.formats.hdf5.sink import Hdf5Sink
from recshuf.formats.lines.sink import LineSink
from recshuf.formats.parquet.sink import ParquetSink
from recshuf.piles.pile_set import GrowingPileSet, PileSet
from recshuf.piles.regions import FilledRegions
from recshuf.piles.slices import Slice
from recshuf.piles.store import Store
from recshuf.records.batch import Records
from recshuf.records.digests import Digest
from recshuf.records.keys import Split
from tests.support.effort import examples
from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import divide_small
from tests.support.small_runs import change_plans, spill

if TYPE_CHECKING:
    from collections.abc import Callable

    from recshuf.system.buffers import Allocate

# These tests replace inner functions on purpose: a check is there for what no input brings about.


Patch = pytest.MonkeyPatch


def lose_one(records: Records) -> Records:
    return records.slice(1, len(records))


def double_one(records: Records) -> Records:
    return records.take(np.append(np.arange(len(records) - 1), 0))


def group_wrongly(patch: Patch, fault: Callable[[Records], Records]) -> None:
    class Faulty(Records):
        def take(self, index: Any) -> Records:
            return fault(Records(self.keys, self.batch).take(index))

        def slice(self, start: int, stop: int) -> Records:
            whole = Records(self.keys, self.batch).slice(start, stop)
            return Faulty(whole.keys, whole.batch)

    patch.setattr(key_makers, "Records", Faulty)


def skip_a_slice(patch: Patch) -> None:
    whole, calls = GrowingPileSet.write, iter(range(100))

    def write_less(self: Any, piles: Any, slices: Any, counts: Any, origin: Any, lengths: Any) -> int:
        if next(calls) == 1:
            piles, slices, counts, lengths = piles[1:], slices[1:], counts[1:], lengths[:, 1:]
        return whole(self, piles, slices, counts, origin, lengths)

    patch.setattr(GrowingPileSet, "write", write_less)


def read_slices(patch: Patch, times: int) -> None:
    whole = PileSet.read

    def read_wrong(self: PileSet, pile: int, memory: Allocate) -> list[Slice]:
        found = []
        for piece in whole(self, pile, memory):
            is_hit = pile == 2 and piece.origin.input_index == 1
            found += [piece] * (times if is_hit else 1)
        return found

    patch.setattr(PileSet, "read", read_wrong)


def forget_the_last_slice(patch: Patch) -> None:
    whole = Store.find
    patch.setattr(Store, "find", lambda self, pile: whole(self, pile)[:-1])


def order_one_twice(patch: Patch) -> None:
    whole = epochs.sort_by_words

    def sort_wrong(words: Any) -> Any:
        index = whole(words)
        index[0] = index[-1]
        return index

    patch.setattr(epochs, "sort_by_words", sort_wrong)


def write_less(patch: Patch, sink: Any) -> None:
    whole, calls = sink.write, iter(range(1000))
    patch.setattr(sink, "write", lambda self, batch: whole(self, batch.slice(next(calls) == 2)))


def split_without_the_last_part(patch: Patch) -> None:
    change_plans(patch, pile_bytes=500)
    whole = FilledRegions._parts
    patch.setattr(FilledRegions, "_parts", lambda self, pile: iter(list(whole(self, pile))[:-1]))


def cut_one_too_early(patch: Patch) -> None:
    """One record comes twice and another one not at all, so that every shard has as many as it should."""
    whole = gather._find_edges

    def find_edges(run: gather.GroupRange, bounds: Any) -> list[int]:
        edges = whole(run, bounds)
        return [edge - 1 for edge in edges] if edges[0] else edges

    patch.setattr(gather, "_find_edges", find_edges)


def choose_another_part(patch: Patch) -> None:
    whole = Split.find_parts

    def find_parts(split: Split, ranges: Any) -> Any:
        parts = whole(split, ranges)
        parts[:1] = (parts[:1] + 1) % 2
        return parts

    patch.setattr(Split, "find_parts", find_parts)


LOST = r"gather: pile \d of pile set [01]: \d+ records, \d+ given"
TWICE = "gather: piles? .* read or ordered wrongly once"
SHORT = r"gather: shard \d: \d+ records written, \d+ planned"
BORDER = r"gather: all shards: .*; run again, and report this as a fault"
EDGE: dict[str, Any] = {"piles": 32, "shards": 4}
# Where the piles are, the format, what goes wrong, what is found, and options.
FAULTS: list[tuple[str, str, Callable[[Patch], None], str, dict[str, Any]]] = [
    ("memory", "jsonl", partial(group_wrongly, fault=double_one), r"scatter: pile set [01]: .*(not the same ones|bytes)", {}),
    ("disk", "jsonl", partial(group_wrongly, fault=double_one), r"scatter: pile set [01]: .*(not the same ones|bytes)", {}),
    # The bounds then no longer fit, and the last pile is short.
    ("memory", "parquet", partial(group_wrongly, fault=lose_one), r"scatter: pile set [01]: ", {}),
    ("disk", "parquet", partial(group_wrongly, fault=lose_one), r"scatter: pile set [01]: ", {}),
    ("disk", "text", skip_a_slice, r"set-\d+\.piles: region \d: 0 records spilled, \d+ given", {}),
    ("disk", "hdf5", skip_a_slice, r"set-\d+\.piles: region \d: 0 records spilled, \d+ given", {}),
    ("disk", "csv", partial(read_slices, times=0), r"gather: pile 2 of pile set 1: \d+ records, \d+ given", {}),
    ("disk", "parquet", partial(read_slices, times=2), r"gather: pile 2 of pile set 1: \d+ records, \d+ given", {}),
    ("memory", "jsonl", forget_the_last_slice, LOST, {}),
    ("memory", "text", order_one_twice, TWICE, {"workers": 1}),
    ("disk", "hdf5", order_one_twice, TWICE, {"workers": 3}),
    ("memory", "text", partial(write_less, sink=LineSink), SHORT, {}),
    ("memory", "csv", partial(write_less, sink=LineSink), SHORT, {"head_count": 50}),
    ("memory", "parquet", partial(write_less, sink=ParquetSink), SHORT, {"head_count": 50}),
    ("memory", "hdf5", partial(write_less, sink=Hdf5Sink), SHORT, {}),
    ("memory", "text", split_without_the_last_part, r"gather: pile \d", {}),
    ("disk", "text", split_without_the_last_part, r"gather: pile \d", {}),
    ("memory", "text", cut_one_too_early, BORDER, EDGE),
    ("tasks", "text", cut_one_too_early, BORDER, EDGE | {"engine": "threads"}),
    ("memory", "text", choose_another_part, r"records in the parts of the split, .* planned; run again", {"split": "a=0.7,b=0.3"}),
]  # fmt: skip


@pytest.mark.parametrize(("place", "name", "plant", "found", "options"), FAULTS)
def test_what_a_pass_gets_wrong_is_found_and_nothing_is_put_in_place_or_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    name: str,
    plant: Callable[[Patch], None],
    found: str,
    options: dict[str, Any],
):
    inputs = make_inputs(tmp_path / "in", name, [400, 300])
    if place == "tasks":
        divide_small(monkeypatch)
    elif place == "disk":
        spill(monkeypatch)
    else:
        change_plans(monkeypatch, set_of_input=(0, 1))
    plant(monkeypatch)
    with pytest.raises(CheckError, match=found):
        recshuf.shuffle(inputs, f"{tmp_path}/out/", **({"piles": 4, "shards": 3, "seed": 1} | options))
    assert not [left for left in os.listdir(tmp_path) if "out" in left]


# Digests; see also `tests/records/test_digests.py`


def test_a_digest_tells_what_is_different():
    assert Digest(2, 10, 7).compare(Digest(3, 10, 9)) == "2 records, 3 given"
    assert Digest(2, 10, 7).compare(Digest(2, 11, 9)) == "10 bytes, 11 given"
    assert "not the same ones" in Digest(2, 10, 7).compare(Digest(2, 10, 9))


# A run's own `--verify` never fails on what the run did: over generated schemas, conversions and options

FLOATS = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 5e-324])
TEXTS = st.sampled_from(["", "a", 'é"\\\n\0', "2020-01-01", "12", "null", "a long text with 𝄞"])
BYTES = st.sampled_from([b"", b"a", b"\0\xff\n", b"YQ=="])
DECIMALS = st.sampled_from([decimal.Decimal(text) for text in ("0.00", "-1.25", "999.99")])
SMALL = st.integers(-100, 100)
LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): SMALL,
    pa.uint64(): st.sampled_from([0, 2**53 + 1, 2**64 - 1]),
    pa.int64(): st.sampled_from([0, -(2**63), 2**63 - 1]),
    pa.float16(): FLOATS.map(np.float16),
    pa.float32(): FLOATS,
    pa.float64(): FLOATS,
    pa.decimal32(5, 2): DECIMALS,
    pa.decimal64(12, 2): DECIMALS,
    pa.decimal128(20, 2): DECIMALS,
    pa.decimal256(50, 2): DECIMALS,
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.string_view(): TEXTS,
    pa.binary(): BYTES,
    pa.binary_view(): BYTES,
    pa.binary(3): st.sampled_from([b"abc", b"\0\0\0"]),
    pa.date32(): st.sampled_from([datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)]),
    pa.time64("ns"): st.sampled_from([0, 86_399_999_999_999]),
    pa.duration("ms"): SMALL,
    pa.timestamp("s"): SMALL,
    pa.timestamp("ns", "UTC"): SMALL,
    pa.null(): st.none(),
}
Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def nullable(kind: pa.DataType, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Not every format holds nulls among lists of one length."""
    return values if pa.types.is_fixed_size_list(kind) else st.none() | values


@st.composite
def nested_types(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    """Return a type one level around others, and its values."""
    kind, values = draw(inner)
    items = nullable(kind, values)
    form = draw(st.sampled_from(["list", "large list", "pair", "map", "struct"]))
    if form == "struct":
        names = draw(st.sampled_from([["a"], ["b", "a"], ["key", "value"], ["value", "key"], ["a.b", "[]"]]))
        parts = {name: draw(inner) for name in names}
        fields = {name: nullable(*part) for name, part in parts.items()}
        return pa.struct({name: part[0] for name, part in parts.items()}), st.fixed_dictionaries(fields)
    if form == "map":
        key = draw(st.sampled_from([pa.string(), pa.int8(), pa.float64()]))
        return pa.map_(key, kind), st.lists(st.tuples(LEAVES[key], items), max_size=2)
    if form == "pair":
        return pa.list_(kind, 2), st.lists(items, min_size=2, max_size=2)
    return (pa.list_ if form == "list" else pa.large_list)(kind), st.lists(items, max_size=3)


TYPES = st.recursive(st.sampled_from(list(LEAVES.items())), nested_types, max_leaves=3)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    count, columns = draw(st.integers(1, 4)), list[pa.Array]()
    for _ in range(draw(st.integers(1, 3))):
        kind, values = draw(TYPES)
        values = values if draw(st.booleans()) else nullable(kind, values)
        columns.append(pa.array(draw(st.lists(values, min_size=count, max_size=count)), kind))
    return pa.table({f"c{index}": column for index, column in enumerate(columns)})


OUTPUTS = ("x.jsonl", "x.parquet", "x.h5", "x.txt")


def shuffle_verified(source: Path, output: Path, **options: Any) -> bool:
    """Shuffle, again with `--verify` if that is possible, and return whether it is."""
    try:
        recshuf.shuffle(source, output, seed=1, memory="300MB", workers=1, overwrite=True, **options)
    except RecshufError:
        return False
    recshuf.shuffle(source, output, seed=1, memory="300MB", workers=1, overwrite=True, verify=True, **options)
    return True


@settings(max_examples=examples(60))
@given(tables(), st.sampled_from(list(itertools.permutations(OUTPUTS, 2))), st.booleans(), st.booleans())
def test_what_a_run_writes_it_verifies(
    tmp_path_factory: pytest.TempPathFactory,
    table: pa.Table,
    outputs: tuple[str, str],
    nan_as_null: bool,
    provenance: bool,
):
    folder = tmp_path_factory.mktemp("run")
    source = folder / "in.parquet"
    try:
        pq.write_table(table, source)
    except pa.ArrowNotImplementedError:  # pyarrow cannot write every type inside every other one
        reject()
    for step, name in enumerate(outputs):
        (folder / str(step)).mkdir()
        options = {"nan_as_null": nan_as_null and name == "x.jsonl", "provenance": provenance and not step}
        if shuffle_verified(source, folder / str(step) / name, **options):
            source = folder / str(step) / name


@pytest.mark.parametrize("output", ["x.jsonl", "x.parquet"])
def test_names_of_map_entries_do_not_matter(tmp_path: Path, output: str):
    kind = pa.map_(pa.string(), pa.int64())
    inner = [{"m": [("a", 1)]}, {"m": []}, None]
    table = pa.table(
        {"s": pa.array(inner, pa.struct([("m", kind)])), "t": pa.array([[("b", 2)], [], None], kind)}
    )
    path = tmp_path / "in.parquet"
    pq.write_table(table, path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"key", b"kez").replace(b"value", b"valuf"))
    assert "kez" in str(pq.read_schema(path))
    assert shuffle_verified(path, tmp_path / output)


def test_names_of_fields_do_matter(tmp_path: Path):
    for name in "ab":
        kind = pa.list_(pa.struct([(name, pa.int64())]))
        pq.write_table(pa.table({"c": pa.array([[{name: 1}]], kind)}), tmp_path / f"{name}.parquet")
    assert not recshuf.verify(tmp_path / "a.parquet", tmp_path / "b.parquet")


def test_memory_that_verify_lacks_is_told_before_the_run(tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_bytes(b"a,b\n" + b"1,x\n" * 1000)
    options: dict[str, Any] = {"memory": "16MB", "workers": 1}
    for call in (recshuf.shuffle, recshuf.plan):
        with pytest.raises(
            MemoryLimitError, match=r"^verify=True: reading needs at least .*; raise memory or"
        ) as told:
            call(source, output, verify=True, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]
    recshuf.shuffle(source, output, **options)
    [least] = re.findall(r"at least ([\d.]+ MB)", str(told.value))
    recshuf.shuffle(source, output, verify=True, workers=1, memory=least.replace(" ", ""), overwrite=True)


def test_an_output_that_cannot_be_read_again_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reads the output again, which /dev/null does not allow"):
        recshuf.shuffle(tmp_path / "none.txt", "/dev/null", verify=True)


# What only `--verify` finds: values. The inputs are hashed while they are scattered; where they are not, they are read again

TWO = {"text": LineSink, "csv": LineSink, "jsonl": LineSink, "parquet": ParquetSink, "hdf5": Hdf5Sink}
HASHED: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in TWO),
    ("text", {"workers": 2, "memory": "300MB"}),
    ("jsonl", {"group_by": "id"}),
    ("parquet", {"split": "a=0.6,b=0.4"}),
    ("parquet", {"provenance": True}),
]
READ_AGAIN: list[tuple[str, dict[str, Any]]] = [
    ("text", {"memory": "30MB", "workers": 1}),
    ("jsonl", {"dedup": "id"}),
    ("jsonl", {"to": "parquet"}),
    ("parquet", {"split": "a=0.6,b=0.4", "split_by": "id"}),
    ("parquet", {"head_count": 600}),
    ("csv", {"copies": "1,2"}),
    ("text", {"engine": "threads"}),
]


def write_one_in_place_of_another(patch: Patch, sink: Any) -> None:
    """As many records of the same lengths are written, so that nothing but their values tells."""
    whole, calls = sink.write, iter(range(1000))

    def write(self: Any, batch: Any) -> None:
        index = list(range(batch.num_rows))
        if next(calls) == 0:
            index[0] = index[1]
        whole(self, batch.take(pa.array(index)))

    patch.setattr(sink, "write", write)


def watch_hashing(
    patch: Patch, change: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch
) -> list[int]:
    """Return how many records each batch has that is hashed while it is scattered, and hash others in place of these."""
    counts, whole = list[int](), RecordHashing.add

    def add(self: RecordHashing, batch: pa.RecordBatch, ranges: Any) -> None:
        counts.append(batch.num_rows)
        whole(self, change(batch), ranges)

    patch.setattr(RecordHashing, "add", add)
    return counts


@pytest.mark.parametrize(("name", "options"), [*HASHED, *READ_AGAIN])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_record_written_in_place_of_another_is_found_by_verify_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any], place: str
):
    inputs = make_inputs(tmp_path / "in", name, [400, 300])
    if "engine" in options:
        divide_small(monkeypatch)
    elif place == "disk":
        spill(monkeypatch)
    hashed = watch_hashing(monkeypatch)
    arguments: dict[str, Any] = {
        "seed": 1,
        "piles": 4,
        "memory": "300MB",
        "workers": 1,
        "verify": True,
    } | options
    recshuf.shuffle(inputs, f"{tmp_path}/right/", **arguments)
    assert sum(hashed) == (700 if (name, options) in HASHED else 0)
    write_one_in_place_of_another(monkeypatch, ParquetSink if "to" in options else TWO[name])
    found = r"verify: 1 record missing, 1 extra; such as record \d+ of .*input"
    if "head_count" in options:  # any record may be missing of a sample
        found = "verify: .* 1 extra"
    with pytest.raises(CheckError, match=found):
        recshuf.shuffle(inputs, f"{tmp_path}/out/", **arguments)
    assert not [left for left in os.listdir(tmp_path) if "out" in left]


def test_what_the_first_pass_has_hashed_wrongly_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    inputs = make_inputs(tmp_path / "in", "jsonl", [400, 300])

    def double_one(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.take(pa.array([1, *range(1, batch.num_rows)]))

    hashed = watch_hashing(monkeypatch, double_one)
    recshuf.shuffle(inputs, tmp_path / "out.jsonl", seed=1, verify=True, workers=1)
    assert sum(hashed) == 700
    assert recshuf.verify(inputs, tmp_path / "out.jsonl")


@pytest.mark.parametrize(
    ("name", "options"),
    [("in.csv", {"to": "jsonl"}), ("in.csv", {"to": "hdf5"}), ("in.jsonl", {"provenance": True})],
)
def test_records_and_chunks_longer_than_a_record_of_the_inputs_may_be_are_read_back(
    tmp_path: Path, name: str, options: dict[str, Any]
):
    (tmp_path / "in.csv").write_text("id,text\n" + "".join(f"{number},abc\n" for number in range(50)))
    (tmp_path / "in.jsonl").write_text('{"id":1}\n' * 50)
    recshuf.shuffle(tmp_path / name, f"{tmp_path}/out/", max_record_bytes=20, verify=True, **options)
