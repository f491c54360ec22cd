"""The generated test data: the same seed gives the same bytes, and the files are what they claim to be."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.data import make_data
from benchmarks.out_of_core import CASES
from tests.support.effort import mostly_slow
from tests.support.formats.format_tools import decompress_file

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["lines140 .jsonl", "lines140 .jsonl.zst", "lines20 .txt.gz", "documents .jsonl"]
FOLDERS = [("parquet", "zstd"), ("hdf5", "lzf")]


def sizes_match(content_bytes: int, size: int) -> bool:
    return 0.8 * size < content_bytes < 1.25 * size


@pytest.mark.parametrize("case", mostly_slow(TEXTS, TEXTS[1]))
def test_text_is_deterministic_and_of_the_size_asked_for(tmp_path: Path, case: str) -> None:
    kind, suffix = case.split()
    first, second, other = (
        make_data(kind, 1_000_000, tmp_path / f"{name}{suffix}", seed=seed)[0]
        for name, seed in [("first", 1), ("second", 1), ("other", 2)]
    )
    assert first.read_bytes() == second.read_bytes()
    content = decompress_file(first)
    assert content != decompress_file(other)
    assert sizes_match(len(content), 1_000_000)
    lines = content.splitlines()
    ids = [json.loads(line)["id"] if ".jsonl" in suffix else int(line.split()[0]) for line in lines]
    assert ids == list(range(len(lines)))
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize(("kind", "codec"), FOLDERS)
def test_folders_are_deterministic_and_cut_into_files(tmp_path: Path, kind: str, codec: str) -> None:
    first, second = (
        make_data(kind, 3_000_000, tmp_path / name, seed=3, codec=codec, file_bytes=1_200_000)
        for name in "ab"
    )
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert len(first) == 3


def test_lines_in_many_files_are_in_order(tmp_path: Path) -> None:
    files = make_data("lines20", 2_000_000, tmp_path / "many", file_bytes=700_000)
    assert len(files) == 3
    lines = [line for path in files for line in path.read_bytes().splitlines()]
    assert [int(line.split()[0]) for line in lines] == list(range(100_000))


def test_parquet_is_sorted_by_id_and_label(tmp_path: Path) -> None:
    files = make_data("parquet", 3_000_000, tmp_path, file_bytes=1_200_000)
    tables = [pq.ParquetFile(path).read() for path in files]
    ids = np.concatenate([table["id"].to_numpy() for table in tables])
    labels = [label for table in tables for label in table["label"].to_pylist()]
    assert np.array_equal(ids, np.arange(ids.size))
    assert labels == sorted(labels)
    assert len(set(labels)) > 900
    assert sizes_match(sum(table.nbytes for table in tables), 3_000_000)


def test_hdf5_holds_the_same_rows_in_any_compression(tmp_path: Path) -> None:
    made = {
        codec: make_data("hdf5", 1_000_000, tmp_path / codec, codec=codec, file_bytes=600_000)
        for codec in ("none", "gzip", "lzf")
    }
    for codec, paths in made.items():
        for path, plain_path in zip(paths, made["none"], strict=True):
            with h5py.File(path) as file, h5py.File(plain_path) as plain_file:
                assert np.array_equal(file["images"][:], plain_file["images"][:])
                assert np.all(np.diff(file["labels"][:]) >= 0)
                assert file["images"].compression == (None if codec == "none" else codec)


@pytest.mark.slow
def test_the_out_of_core_benchmark_runs_at_a_small_size(tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks.out_of_core", tmp_path, "--size", "2MB", "--memory", "300MB"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(result.stdout.splitlines()) == 2 + len(CASES)
