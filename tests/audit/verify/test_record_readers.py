"""Rows are numbered across blocks and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.audit.verify import comparison as record_readers
from recshuf.audit.verify.comparison import open_comparison
from recshuf.errors import MemoryLimitError
from recshuf.job.arguments import make_job
from recshuf.job.report import SilentProgress
from tests.support.formats.format_tools import decompress_file
from tests.support.formats.line_comparisons import write_lines

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_are_numbered_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record_readers, "BLOCKS", [4096])
    lines = [b"%08d" % number for number in range(20_000)]
    for suffix in ("", ".gz"):
        path = tmp_path / f"in.txt{suffix}"
        write_lines(tmp_path / "in.txt", lines)
        if suffix:
            recshuf.shuffle(tmp_path / "in.txt", path, seed=1)
        made = write_lines(tmp_path / "out.txt", lines[:12_345] + lines[12_346:])
        report = recshuf.verify(path, made, workers=4)
        assert report.missing == 1
        assert decompress_file(path).split(b"\n")[report.missing_places[0].index] == lines[12_345]


def test_rows_are_numbered_across_the_batches_of_a_fragment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record_readers, "BLOCKS", [4096])
    table = pa.table({"n": np.arange(20_000)})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=10_000)
    pq.write_table(table.filter(np.arange(20_000) != 12_345), tmp_path / "out.parquet")
    report = recshuf.verify(tmp_path / "in.parquet", tmp_path / "out.parquet", workers=3)
    assert [record.index for record in report.missing_places] == [12_345]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("memory", ["64MB", "100MB", "300MB", "1GB"])
def test_verify_reads_records_as_long_as_a_shuffle_does(
    tmp_path: Path, suffix: str, workers: int, memory: str
):
    path, output = tmp_path / "in.jsonl", tmp_path / f"out.{suffix}"
    path.write_text('{"a": 1}\n')
    options = {"memory": memory, "workers": workers}
    if suffix == "parquet" and memory in ("64MB", "100MB"):
        with pytest.raises(MemoryLimitError):
            recshuf.plan(path, output, **options)
        return
    taken = recshuf.plan(path, output, **options).max_record_bytes
    recshuf.shuffle(path, output)
    job = make_job([path], output, options)
    assert open_comparison(job, str(output), None, SilentProgress()).inputs.max_record_bytes >= taken
