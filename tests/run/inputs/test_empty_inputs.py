"""Inputs without records give a valid empty output, or are refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import h5py
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import RecshufError
from tests.support.numbered_files import FORMATS, SUFFIXES, read_ids, write_hdf5
from tests.support.output_trees import list_shards

if TYPE_CHECKING:
    from pathlib import Path


def write_empty(path: Path, name: str) -> None:
    if name == "parquet":
        pq.write_table(pa.table({"id": pa.array([], pa.int64()), "tag": pa.array([], pa.string())}), path)
    elif name == "hdf5":
        write_hdf5(path, 0, 0)
    elif name == "csv":
        path.write_bytes(b"id,text,fields\n")
    else:
        path.write_bytes(b"")


@pytest.mark.parametrize("name", FORMATS)
def test_inputs_without_records_give_an_empty_valid_output(tmp_path: Path, name: str):
    inputs = [tmp_path / f"{index}{SUFFIXES[name]}" for index in range(3)]
    for path in inputs:
        write_empty(path, name)
    output = tmp_path / f"out{SUFFIXES[name]}"
    report = recshuf.shuffle(inputs, output, seed=0)
    assert report.records == 0
    assert read_ids(output) == []
    recshuf.shuffle(inputs, tmp_path / "shards", seed=0, shards=2)
    assert [read_ids(shard) for shard in list_shards(tmp_path / "shards")] == [[], []]


@pytest.mark.parametrize("name", ["parquet", "jsonl"])
def test_an_empty_parquet_shard_has_the_schema_and_no_row_group(tmp_path: Path, name: str):
    """`datasets` fails on a row group without rows."""
    path = tmp_path / f"in{SUFFIXES[name]}"
    pq.write_table(
        pa.table({"id": [1, 2], "tag": ["a", "b"]}), path
    ) if name == "parquet" else path.write_bytes(b'{"id": 1, "tag": "a"}\n{"id": 2, "tag": "b"}\n')
    recshuf.shuffle(path, tmp_path / "out", seed=0, shards=4, to="parquet", verify=True)
    shards = [pq.read_metadata(shard) for shard in list_shards(tmp_path / "out")]
    assert [(shard.num_rows, shard.num_row_groups) for shard in shards] == [(1, 1), (1, 1), (0, 0), (0, 0)]
    assert all(shard.schema.equals(shards[0].schema) for shard in shards)
    assert all(shard.metadata == shards[0].metadata for shard in shards)


@pytest.mark.parametrize("name", FORMATS)
def test_inputs_without_records_are_converted_or_refused(tmp_path: Path, name: str):
    """An empty JSONL file has no fields, so that a table of it may be refused; the others have a schema.

    CSV does not hold the image of the HDF5 file.
    """
    path = tmp_path / f"in{SUFFIXES[name]}"
    write_empty(path, name)
    for to in {*FORMATS} - {name}:
        output = tmp_path / f"out{SUFFIXES[to]}"
        try:
            report = recshuf.shuffle(path, output, seed=0, to=to)
        except RecshufError:
            assert not output.exists()
            assert name == "jsonl" or to == "text" or (name, to) == ("hdf5", "csv")
            continue
        assert report.records == 0
        if to == "parquet":
            assert pq.read_metadata(output).num_rows == 0
        elif to == "hdf5":
            h5py.File(output).close()
        else:
            assert output.read_bytes().count(b"\n") == (to == "csv")  # its header
        output.unlink()
    assert os.listdir(tmp_path) == [path.name]
