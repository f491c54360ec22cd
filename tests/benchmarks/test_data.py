"""The generated test data: the same seed gives the same bytes, and the files are what they claim to be."""

import json
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.data import make_data
from tests.support.effort import mostly_slow
from tests.support.formats.format_tools import decompress_file

TEXTS = ["lines140 .jsonl", "lines140 .jsonl.zst", "lines20 .txt.gz", "documents .jsonl"]


@pytest.mark.parametrize("case", mostly_slow(TEXTS, TEXTS[2]))
def test_text_is_deterministic_and_of_the_size_asked_for(tmp_path: Path, case: str) -> None:
    kind, suffix = case.split()
    first, second, other = (
        make_data(kind, 300_000, tmp_path / f"{name}{suffix}", seed=seed)[0]
        for name, seed in [("first", 1), ("second", 1), ("other", 2)]
    )
    assert first.read_bytes() == second.read_bytes()
    content = decompress_file(first)
    assert content != decompress_file(other)
    assert 0.8 * 300_000 < len(content) < 1.25 * 300_000
    lines = content.splitlines()
    ids = [json.loads(line)["id"] if ".jsonl" in suffix else int(line.split()[0]) for line in lines]
    assert ids == list(range(len(lines)))
    assert len(set(lines)) == len(lines)


@pytest.mark.slow
def test_parquet_is_sorted_by_id_and_label_and_cut_into_files(tmp_path: Path) -> None:
    files, again = (make_data("parquet", 3_000_000, tmp_path / name, file_bytes=1_200_000) for name in "ab")
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in again]
    assert len(files) == 3
    tables = [pq.ParquetFile(path).read() for path in files]
    assert np.concatenate([table["id"] for table in tables]).tolist() == list(range(sum(map(len, tables))))
    labels = [label for table in tables for label in table["label"].to_pylist()]
    assert labels == sorted(labels)


@pytest.mark.slow
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
