"""Shards, samples and headers: every shard holds the records that the options say, in the order of the seed."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import recshuf
from recshuf.errors import InputError
from tests.support.numbered_files import FORMATS, SUFFIXES, make_inputs, order_of, read_ids
from tests.support.output_trees import list_shards

if TYPE_CHECKING:
    from pathlib import Path


def test_a_header_is_kept_once_in_every_shard(tmp_path: Path):
    for index in range(2):
        rows = [b"%d" % number for number in range(index * 50, index * 50 + 50)]
        (tmp_path / f"{index}.csv").write_bytes(b"\n".join([b"id", *rows]))
    inputs = sorted(tmp_path.glob("*.csv"))
    recshuf.shuffle(inputs, tmp_path / "out/", format="text", header=1, shards=3, seed=1)
    shards = [shard.read_bytes().splitlines() for shard in list_shards(tmp_path / "out")]
    assert [shard[0] for shard in shards] == [b"id"] * 3
    assert [int(row) for shard in shards for row in shard[1:]] == order_of([50, 50], 1)


def test_headers_that_differ_are_an_error(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"id\n1\n")
    (tmp_path / "b.txt").write_bytes(b"no\n1\n")
    with pytest.raises(InputError, match=r"b\.txt"):
        recshuf.shuffle([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out.txt", header=1)
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", [0, 1, 77, 5000])
def test_a_sample_is_the_first_records_of_the_whole(tmp_path: Path, name: str, count: int):
    inputs = make_inputs(tmp_path / "in", name, [900, 100])
    output = tmp_path / f"out{SUFFIXES[name]}"
    report = recshuf.shuffle(inputs, output, seed=6, head_count=count, piles=40, workers=3)
    assert read_ids(output) == order_of([900, 100], 6)[:count]
    assert (report.records, report.records_written) == (1000, min(count, 1000))


@pytest.mark.parametrize("name", FORMATS)
def test_shards_follow_the_options(tmp_path: Path, name: str):
    inputs = make_inputs(tmp_path / "in", name, [1003])
    expected = order_of([1003], 0)
    for label, options, sizes in (
        ("n", {"shards": 4}, [251, 251, 251, 250]),
        ("records", {"shard_records": 400}, [400, 400, 203]),
        ("many", {"shards": 1005}, [1] * 1003 + [0] * 2),
    ):
        recshuf.shuffle(inputs, tmp_path / label, seed=0, **options)
        shards = list_shards(tmp_path / label)
        assert [len(read_ids(shard)) for shard in shards] == sizes
        assert [number for shard in shards for number in read_ids(shard)] == expected
        assert sorted(os.listdir(tmp_path / label)) == sorted(shard.name for shard in shards)


def test_shard_bytes_cut_lines_into_files_of_that_size(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "jsonl", [4000])
    recshuf.shuffle(inputs, tmp_path / "out", seed=0, shard_bytes=20_000)
    sizes = [shard.stat().st_size for shard in list_shards(tmp_path / "out")]
    assert len(sizes) == -(-inputs[0].stat().st_size // 20_000)
    assert all(15_000 < size < 21_000 for size in sizes)


def test_a_directory_gets_one_shard_for_each_input(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "jsonl", [10, 20, 30])
    recshuf.shuffle(tmp_path / "in", f"{tmp_path}/out/", seed=0)
    assert [len(read_ids(shard)) for shard in list_shards(tmp_path / "out")] == [20, 20, 20]
    assert len(inputs) == 3


def test_records_of_shards_differ_by_at_most_one_and_keep_every_record(tmp_path: Path):
    inputs = make_inputs(tmp_path / "in", "text", [101])
    for shards in (1, 2, 7, 100):
        report = recshuf.shuffle(inputs, f"{tmp_path}/{shards}/", shards=shards, seed=3)
        sizes = [shard.records for shard in report.shards]
        assert sum(sizes) == 101
        assert all(left - right in (0, 1) for left, right in pairwise(sizes))
