"""Provenance: each record says where it was read, in every format; a run without room for that is refused."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import RecshufError, UsageError
from recshuf.formats.parquet import FORMAT
from recshuf.interfaces import InputFile, ReadOptions, WriteOptions
from recshuf.output.manifest import manifest_path
from recshuf.records.provenance import ProvenanceDecoder
from tests.conftest import Run
from tests.support.numbered_files import make_inputs, order_of
from tests.support.small_runs import list_shards, spill

COUNTS = (300, 200, 0, 251)
NAMES = ["source_file", "source_row"]


# What is written


def test_outputs_are_compared_with_their_places_or_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spill(monkeypatch, block_bytes=300)
    inputs, options = make_inputs(tmp_path / "in", "text", COUNTS), {"to": "parquet", "provenance": True}
    report = recshuf.shuffle(
        inputs, f"{tmp_path}/out/", shards=1, seed=5, workers=3, piles=5, verify=True, **options
    )
    assert report.spilled_bytes > 0
    (shard,) = list_shards(tmp_path / "out")
    found = pq.read_table(shard, columns=NAMES).to_pylist()
    every = [(str(path), row) for path, count in zip(inputs, COUNTS, strict=True) for row in range(count)]
    assert [(one["source_file"], one["source_row"]) for one in found] == [
        every[k] for k in order_of(COUNTS, 5)
    ]
    assert recshuf.verify(inputs, tmp_path / "out").is_equal
    compared = recshuf.verify(inputs[0], shard, provenance=True)
    assert (compared.missing, compared.extra) == (0, sum(COUNTS) - COUNTS[0])


def test_columns_of_parquet_stay_as_they_are_stored(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "parquet", COUNTS)
    recshuf.shuffle(inputs, tmp_path / "with.parquet", seed=5, provenance=True)
    recshuf.shuffle(inputs, tmp_path / "without.parquet", seed=5)
    given, made = (pq.ParquetFile(tmp_path / f"{name}.parquet") for name in ("without", "with"))
    assert list(made.schema_arrow)[:-2] == list(given.schema_arrow)
    assert made.metadata.num_row_groups == given.metadata.num_row_groups
    for column in range(2):
        before, after = (file.metadata.row_group(0).column(column) for file in (given, made))
        assert (after.compression, after.encodings) == (before.compression, before.encodings)
    encodings = [made.metadata.row_group(0).column(column).encodings for column in (2, 3)]
    assert ["RLE_DICTIONARY" in one for one in encodings] == [True, False]


def test_plan_and_manifest_tell_of_it(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "jsonl", COUNTS)
    without, plan = recshuf.plan(inputs), recshuf.plan(inputs, provenance=True)
    assert (without.added_bytes, plan.added_bytes) == (0, 8)
    assert plan.byte_count == without.byte_count + 8 * plan.record_count
    assert plan.peak_memory_bytes > without.peak_memory_bytes
    for options, names in (({}, None), ({"provenance": True}, NAMES)):
        recshuf.shuffle(inputs, f"{tmp_path}/out/", overwrite=True, **options)
        assert json.loads(manifest_path(tmp_path / "out").read_text()).get("provenance") == names


def test_columns_cost_memory_until_a_row_group_is_written(tmp_path: Path):
    files = [InputFile(str(path), path) for path in make_inputs(tmp_path, "parquet", COUNTS)]
    source = FORMAT.open_source(files, ReadOptions())
    schema = ProvenanceDecoder(source.decoder(), ["x"], as_dictionary=True).finish()
    without, found = (
        FORMAT.open_target(one, source.layout, WriteOptions()).sink_bytes(1)
        for one in (source.schema, schema)
    )
    assert found >= without + 2 * 12 * source.layout.row_group_rows


def test_lines_that_cannot_get_fields_are_refused_by_place(tmp_path: Path, call: Run):
    for line in (
        *(
            '{"source_file": 1}',
            '{"a": {"source_row"\t: 1}}',
            '{"source\\u005ffile": 1}',
            '{"\\u0073ource_row": 1}',
        ),
        *('{"sourc\\u0065_row" : 1}', "[]", "", "3", '"}', "\ufeff{}"),
    ):
        (tmp_path / "in.jsonl").write_text('{"b": "source_file"}\n' * 4 + line + "\n{}\n")
        result = call(tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "--provenance")
        assert result.returncode == 1
        assert b"in.jsonl: line 5: " in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(("to", "column"), [("parquet", NAMES[0]), ("jsonl", NAMES[1]), ("hdf5", NAMES[0])])
def test_names_that_are_taken_are_refused(tmp_path: Path, to: str, column: str):
    pq.write_table(pa.table({"n": [1], column: ["x"]}), tmp_path / "in.parquet")
    (tmp_path / "in.jsonl").write_text(f'{{"{column}": 1}}\n')
    for name in ("in.parquet", "in.jsonl"):
        with pytest.raises(RecshufError, match=column):
            recshuf.shuffle(tmp_path / name, tmp_path / "out", to=to, provenance=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "in.parquet"]


def test_a_path_that_a_store_was_filled_from_twice_is_refused_while_it_holds_both(tmp_path: Path):
    [path] = make_inputs(tmp_path / "in", "parquet", [1000])
    store, output = tmp_path / "store", tmp_path / "out.parquet"
    recshuf.scatter(path, store, piles=4)
    recshuf.window(store, path, time=1)
    message = "the store holds records of 2 inputs named .*; leave it out, and give what is appended later"
    with pytest.raises(UsageError, match=message):
        recshuf.gather(store, output, provenance=True)
    assert recshuf.window(store, expire_before=1).num_records == 1000
    recshuf.gather(store, output, provenance=True, verify=True)
    assert {*pq.read_table(output)["source_file"].to_pylist()} == {str(path)}
    assert recshuf.check(output, provenance=True).is_uniform
