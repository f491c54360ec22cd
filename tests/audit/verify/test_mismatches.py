"""Hashes that differ are counted exactly, in bounded memory, in piles or not; rows are numbered across batches."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.audit.verify import mismatches
from recshuf.audit.verify.comparison import open_comparison, open_inputs, open_stores
from recshuf.audit.verify.mismatches import Mismatch
from recshuf.job.arguments import make_job
from recshuf.job.report import SilentProgress
from recshuf.piles.set_folder import SetFolder
from tests.support.formats.format_tools import find_open_files


def test_one_of_many_equal_records_is_missed(tmp_path: Path):
    (tmp_path / "in.txt").write_bytes(b"same\n" * 300_000 + b"other\n")
    (tmp_path / "out.txt").write_bytes(b"other\n" + b"same\n" * 299_999)
    report = recshuf.verify(tmp_path / "in.txt", tmp_path / "out.txt", memory="64MB", workers=2)
    assert (report.missing, report.extra) == (1, 0)
    assert (report.missing_places[0].index, report.missing_places[0].copies) == (0, 1)


def test_a_search_that_spills_finds_the_same(tmp_path: Path):
    random_hashes = np.random.default_rng(0).integers(0, 2**64, (2, 60_000, 2), np.uint64)
    random_hashes[1, :59_000] = random_hashes[0, 1000:]
    found = []
    for memory_bytes in (1 << 16, 1 << 30):
        wanted = np.ones(mismatches.BUCKETS, np.bool_)
        search = mismatches.Search(wanted, 3000, SetFolder(tmp_path), memory_bytes)
        for set_index, hashes in enumerate(random_hashes):
            for start in range(0, len(hashes), 7000):
                search.add(set_index, hashes[start : start + 7000], 3, start)
        assert bool(find_open_files(tmp_path)) == (memory_bytes == 1 << 16)
        found.append(search.run())
        search.close()
    assert found[0] == found[1]
    assert (found[0].missing, found[0].extra) == (1000, 1000)
    assert found[0].first_missing == tuple(Mismatch(3, row, 1) for row in range(10))
    assert found[0].first_extra == tuple(Mismatch(3, row, 1) for row in range(59_000, 59_010))


@pytest.mark.parametrize("name", ["in.txt", "in.txt.gz", "in.parquet"])
def test_rows_are_numbered_across_blocks_and_the_batches_of_a_fragment(tmp_path: Path, name: str):
    """In two blocks; row groups are larger than a batch."""
    count, lost = 200_000, 152_345
    table = pa.table({"text": [f"{number:08}" for number in range(count)]})
    if name.endswith("parquet"):
        pq.write_table(table, tmp_path / name, row_group_size=count // 2)
    else:
        content = "".join(f"{line}\n" for line in table["text"].to_pylist()).encode()
        (tmp_path / name).write_bytes(gzip.compress(content, 1) if name.endswith("gz") else content)
    pq.write_table(table.filter(np.arange(count) != lost), tmp_path / "out.parquet")
    report = recshuf.verify(tmp_path / name, tmp_path / "out.parquet", workers=4)
    assert ([record.index for record in report.missing_places], report.extra) == ([lost], 0)


@pytest.mark.parametrize("columns", [1, 300, pytest.param(1000, marks=pytest.mark.slow)])
def test_blocks_of_verify_are_as_large_as_the_records_of_a_shuffle_allow(tmp_path: Path, columns: int):
    """And a second thread that would leave little of a column to each block is not started."""
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({f"c{column}": [1] for column in range(columns)}), path)
    blocks = []
    for memory in (64, 300, 450, 2000):
        options = {"memory": memory * 10**6, "workers": 2}
        job = make_job(str(path), str(path), options)
        stores = open_stores(job, SilentProgress())
        inputs = open_inputs(job, stores, SilentProgress())
        plan = open_comparison(job, str(path), None, SilentProgress(), inputs, stores).inputs.plan
        blocks.append(plan.block_bytes)
        assert plan.workers == 1 or plan.block_bytes >= columns * 16_384
        assert (
            plan.max_record_bytes >= recshuf.plan(path, tmp_path / "out.parquet", **options).max_record_bytes
        )
    assert blocks[0] == 1 << 20 < blocks[-1]
    assert blocks == sorted(blocks)
