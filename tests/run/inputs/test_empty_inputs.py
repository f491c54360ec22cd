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
