"""What a gather writes, compares and refuses; see `test_golden_outputs` for the bytes."""

import gc
import json
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import (
    AlreadyCompleteError,
    CheckError,
    ConversionError,
    InputError,
    OutputExistsError,
    RecshufWarning,
    UsageError,
)
from recshuf.formats.parquet.sink import ParquetSink
from recshuf.interfaces import Source, TableDecoder
from recshuf.job.report import PythonWarnings
from recshuf.run.stores.scatter_store import FormObserver
from tests.support.effort import mostly_slow
from tests.support.processes.deaths import fork, join
from tests.support.small_runs import Listener, change_plans, forge_keys, list_tree, read_files
from tests.support.stores.small_stores import append


def test_records_without_a_table_form_can_be_gathered_in_their_own_format(tmp_path: Path) -> None:
    """A conversion names the first file and line that has none."""
    path = tmp_path / "mixed.jsonl"
    path.write_text('{"a": 1}\n{"a": {"b": 2}}\n{"a": 3}\n')
    with pytest.warns(RecshufWarning, match="loaders cannot read .*line 2, field 'a': holds"):
        recshuf.scatter(path, tmp_path / "store", seed=1)
    recshuf.gather(tmp_path / "store", tmp_path / "out.jsonl")
    found = (tmp_path / "out.jsonl").read_text().splitlines()
    assert sorted(found) == sorted(path.read_text().splitlines())
    with pytest.raises(
        ConversionError, match=r"no table form: .*mixed.jsonl.*line.* json .* scatter .* anew$"
    ):
        recshuf.gather(tmp_path / "store", tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()
    recshuf.scatter(path, tmp_path / "other", schema={"a": "json"})
    assert recshuf.gather(tmp_path / "other", tmp_path / "out.parquet", verify=True).records == 3


def test_a_line_that_is_no_json_is_an_error_also_behind_records_without_a_table_form(tmp_path: Path) -> None:
    contents = {"a": '{"c": 1}\n', "b": '{"c": "x"}\n', "z": '{"c" 3}\n'}
    paths = {name: tmp_path / f"{name}.jsonl" for name in contents}
    for name, content in contents.items():
        paths[name].write_text(content)
    for order in permutations(paths.values()):
        with pytest.raises(InputError, match=r"z\.jsonl: line 1: is not valid JSON"):
            recshuf.scatter(order, tmp_path / "store", workers=1)


def test_a_line_that_is_no_json_is_an_error_also_behind_such_records_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    filling = '{"c": 2}\n' * 5000  # more than are parsed at once
    for behind in ("", filling):
        path.write_text('{"c": 1}\n{"c": "x"}\n' + behind + '{"c" 3}\n')
        with pytest.raises(InputError, match=rf"line {3 + behind.count('c')}: is not valid JSON"):
            recshuf.scatter(path, tmp_path / "store", workers=1)


def test_of_records_without_a_table_form_only_the_first_error_is_held() -> None:
    """By its traceback each holds a batch, which together are all records behind the first such one."""
    raised: dict[int, weakref.ref[ConversionError]] = {}

    class Refusing(TableDecoder):
        def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
            error = ConversionError("a", f"row {first_row}")
            raised[first_row] = weakref.ref(error)
            raise error

    batch = pa.record_batch({"a": [1]})
    source = SimpleNamespace(decoder=lambda: Refusing(batch.schema))
    observer = FormObserver(cast("Source", source), sets_bad_aside=False)
    for row in (5, 3, 9):
        observer.observe(batch, 0, row)
    gc.collect()
    assert [row for row, error in raised.items() if error() is not None] == [3]
    with pytest.warns(RecshufWarning, match="own format: field 'a': row 3$"):
        assert observer.finish_form(PythonWarnings()).schema is None


def test_a_gather_gives_records_another_delimiter_and_keeps_their_separator(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n1,x;y\n")
    recshuf.scatter(tmp_path / "in.csv", tmp_path / "csv")
    with pytest.warns(RecshufWarning, match="';' takes the place of ','"):
        recshuf.gather(tmp_path / "csv", tmp_path / "out.csv", delimiter=";", verify=True)
    assert (tmp_path / "out.csv").read_text() == 'a;b\n1;"x;y"\n'
    recshuf.gather(tmp_path / "csv", tmp_path / "out.tsv", verify=True)
    assert (tmp_path / "out.tsv").read_text() == "a\tb\n1\tx;y\n"
    (tmp_path / "in.txt").write_text("a\0b\0")
    recshuf.scatter(tmp_path / "in.txt", tmp_path / "text", zero_terminated=True)
    recshuf.gather(tmp_path / "text", tmp_path / "same.txt", zero_terminated=True, verify=True)
    with pytest.raises(
        UsageError, match=r"^separator \(or zero_terminated=True\): records keep their end, b'.x00'; leave"
    ):
        recshuf.gather(tmp_path / "text", tmp_path / "out.txt", separator="|")


def test_a_record_that_cannot_get_provenance_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' * 50)
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"c": {"source_row": 1}}\n')
    recshuf.scatter([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "store", seed=1)
    with pytest.raises(InputError, match=r"b\.jsonl: line 3: may already have.*leave out provenance"):
        recshuf.gather(tmp_path / "store", tmp_path / "out.jsonl", provenance=True)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "in.txt").write_text("".join(f"{row}\n" for row in range(1000)))
    recshuf.scatter(tmp_path / "in.txt", tmp_path / "store", seed=1, piles=4)
    return tmp_path / "store"


def test_a_shard_that_differs_from_the_store_is_not_put_in_place(store: Path, tmp_path: Path) -> None:
    class Damage(Listener):
        """Changes a shard before it is compared, as a bad disk would."""

        def start(self, name: str, *_: Any) -> None:
            if name not in ("scatter", "gather"):
                for path in tmp_path.rglob("shard-*.txt"):
                    content, found = path.read_bytes(), path.stat()
                    path.write_bytes(content.replace(b"\n17\n", b"\n71\n"))
                    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))

    with pytest.raises(CheckError, match="1 record missing, 1 extra"):
        recshuf.gather(store, tmp_path / "out/", shards=2, verify=True, progress=Damage())
    assert not (tmp_path / "out").exists()


def test_a_user_who_may_only_read_a_store_can_gather_and_load_it(store: Path) -> None:
    if os.getuid():
        pytest.skip("only root can become another user")
    nobody = 65534

    def gather(name: str) -> None:
        recshuf.gather(kept, f"{folder}/{name}/", shards=3, workers=1)

    def read() -> None:
        os.setuid(nobody)
        gather("out")
        loader = recshuf.PileLoader(kept, 100, columns=["_id"])
        assert sum(len(batch["_id"]) for batch in loader) == 1000

    # pytest makes its own folders private whenever it starts, also beside this one.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        kept = Path(shutil.copytree(store, folder / "store"))
        for path in (kept, *kept.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        gather("expected")
        files = list_tree(kept)
        assert join(fork(read)) == 0
        assert read_files(folder / "out") == read_files(folder / "expected")
        assert list_tree(kept) == files


# The order of any epoch: that of a loader with the same arguments


ROWS = 3000


@pytest.fixture(scope="module")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    large_store: Path, tmp_path: Path, epoch: int, reshuffle: str, mix: int
) -> None:
    recshuf.gather(large_store, tmp_path / "out/", epoch=epoch, reshuffle=reshuffle, mix=mix, shards=4)
    loader = recshuf.PileLoader(
        large_store, 7, epoch=epoch, reshuffle=reshuffle, mix=mix, drop_last=False, output="arrow"
    )
    expected = pa.Table.from_batches(list(loader))
    assert pq.read_table(tmp_path / "out").equals(expected)
    assert sorted(expected["id"].to_pylist()) == list(range(ROWS))


def test_epoch_0_of_mixed_piles_is_another_one_and_says_so(large_store: Path, tmp_path: Path) -> None:
    for mix in (1, 4):
        recshuf.gather(large_store, f"{tmp_path}/mix{mix}/", mix=mix, verify=True)
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


def test_another_seed_shuffles_the_records_of_a_store_anew(large_store: Path, tmp_path: Path) -> None:
    for name, seed, memory in (("a", 8, "64MB"), ("b", 8, "1GB"), ("c", 9, "1GB")):
        report = recshuf.gather(
            large_store, tmp_path / f"{name}/", seed=seed, shards=2, memory=memory, verify=True
        )
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
        recshuf.gather(large_store, tmp_path / "a/", seed=8, shards=2, resume=True)
    with pytest.raises(OutputExistsError, match="another command"):
        recshuf.gather(large_store, tmp_path / "a/", shards=2, resume=True)
    for option in ({"epoch": 1}, {"provenance": True}, {"mix": 4}):
        with pytest.raises(UsageError, match=r"needs the keys of the store, and seed 8 draws new ones"):
            recshuf.gather(large_store, tmp_path / "out/", seed=8, **option)
    assert not (tmp_path / "out").exists()
    recshuf.gather(large_store, tmp_path / "out/", seed=5, epoch=1, provenance=True)


@pytest.mark.parametrize("provenance", [False, True])
def test_a_pile_that_is_too_large_is_split(
    large_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provenance: bool
) -> None:
    recshuf.gather(large_store, tmp_path / "whole.parquet", provenance=provenance)
    change_plans(monkeypatch, pile_bytes=2000)
    recshuf.gather(large_store, tmp_path / "split.parquet", provenance=provenance)
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


# Stores that a program has written: empty ones have columns, and types that Parquet changes keep their values


EXTENSIONS = [".parquet", ".jsonl", ".csv", ".h5"]


def write_store(path: Path, array: pa.Array) -> Path:
    with recshuf.PileWriter(path, "a", schema=pa.schema([("x", array.type)])) as writer:
        writer.write(pa.table({"x": array}))
    return path


def read_columns(path: Path) -> set[str]:
    if path.suffix == ".parquet":
        return {*pq.read_schema(path).names}
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            return {*file}
    return {name.strip('"') for name in path.read_text().strip().split(",")}


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_provenance_of_no_records_is_empty_columns(tmp_path: Path, extension: str) -> None:
    recshuf.PileWriter(tmp_path / "store", "start", schema=pa.schema({"x": pa.int64()})).close()
    output = (tmp_path / "out").with_suffix(extension)
    report = recshuf.gather(tmp_path / "store", output, provenance=True, verify=True)
    assert report.records == 0
    names = {""} if extension == ".jsonl" else {"x", "source_file", "source_row"}
    assert read_columns(output) == names


LEAF = pa.array([0, None, -(2**33)], pa.timestamp("s", "Europe/Berlin"))
NESTINGS: list[Callable[[pa.DataType], pa.DataType]] = [
    lambda kind: kind,
    lambda kind: pa.dictionary(pa.int8(), kind),
    pa.list_,
    pa.large_list,
    lambda kind: pa.list_(kind, 1),
    lambda kind: pa.struct([("a", kind)]),
    lambda kind: pa.map_(pa.string(), kind),
    lambda kind: pa.list_(pa.struct([("a", pa.list_(kind))])),
]


def nest(leaf: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values of a leaf, each alone in a value of a type around its own."""

    def wrap(value: Any, kind: pa.DataType) -> Any:
        if pa.types.is_struct(kind):
            return {field.name: wrap(value, field.type) for field in kind}
        if pa.types.is_map(kind):
            return [("k", value)]
        return [wrap(value, kind.value_type)] if pa.types.is_nested(kind) else value

    if pa.types.is_dictionary(kind):
        return leaf.dictionary_encode().cast(kind)
    return pa.array([wrap(value, kind) for value in leaf.to_pylist()], kind)


def test_types_that_parquet_lacks_keep_their_values_at_any_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [nest(LEAF, make(LEAF.type)) for make in NESTINGS]
    stores = [write_store(tmp_path / f"store {index}", array) for index, array in enumerate(arrays)]
    for store, array in zip(stores, arrays, strict=True):
        output = tmp_path / f"{store.name}.parquet"
        recshuf.gather(store, output, verify=True)
        assert sorted(map(str, pq.read_table(output)["x"].to_pylist())) == sorted(map(str, array.to_pylist()))
    # Without a wrong output nothing tells that values of such types are compared at all.
    whole = ParquetSink.write
    monkeypatch.setattr(ParquetSink, "write", lambda sink, batch: whole(sink, batch.take([0] * len(batch))))
    for store in stores:
        with pytest.raises(CheckError, match=r"verify: [12] records missing, [12] extra; such as"):
            recshuf.gather(store, tmp_path / "wrong.parquet", verify=True)


def lost(ticks: int, kind: pa.DataType) -> pa.Array:
    return pa.array([0, ticks], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


@pytest.mark.parametrize(
    ("ticks", "kind"),
    [
        (2**60, pa.timestamp("s")),
        (-(2**60), pa.timestamp("s", "UTC")),
        (1, pa.date64()),
        (2**62 // 86_400_000 * 86_400_000, pa.date64()),
        (2**31 - 1, pa.time32("s")),
    ],
    ids=str,
)
def test_values_that_parquet_would_change_are_refused_by_name(
    tmp_path: Path, ticks: int, kind: pa.DataType
) -> None:
    array = lost(ticks, kind)
    for index, nested in enumerate([array, pa.ListArray.from_arrays([0, 1, 2], array)]):
        store = write_store(tmp_path / f"store {index}", nested)
        with pytest.raises(ConversionError, match=r"^field 'x': .*; cast the column to another type first$"):
            recshuf.gather(store, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()
