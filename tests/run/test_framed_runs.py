"""Records of several lines, elements of arrays and frames take the roads that all records take."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.formats.tfrecord.test_suite import frame
from tests.support.processes.killed_runs import run, run_and_die
from tests.support.small_runs import read_files, spill

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.objects.object_server import Bucket

ROWS = [[{"id": 100 * index + row, "t": "]\n\\" * (row % 4)} for row in range(40)] for index in range(4)]
FORMS: dict[str, tuple[str, list[bytes], dict[str, Any]]] = {
    "counted lines": (".fastq", [b"".join(b"@%d\nAC\n+\nII\n" % row["id"] for row in rows) for rows in ROWS], {"record_lines": 4}),
    "marked lines": (".fa", [b"".join(b">%d\nAC\nG\n" % row["id"] for row in rows) for rows in ROWS], {"record_start": ">"}),
    "elements": (".json", [json.dumps(rows, indent=2).encode() for rows in ROWS], {}),
    "frames": (".tfrecord", [b"".join(frame(json.dumps(row).encode()) for row in rows) for rows in ROWS], {}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_killed_run_is_continued_and_a_bucket_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_bucket: Bucket, form: str
) -> None:
    suffix, contents, options = FORMS[form]
    inputs = []
    for index, content in enumerate(contents):
        packed = gzip.compress(content) if index == 2 else content
        name = f"{index}{suffix}{'.gz' if index == 2 else ''}"
        (tmp_path / name).write_bytes(packed)
        s3_bucket.put(f"in/{name}", packed)
        inputs.append(tmp_path / name)
    run(inputs, tmp_path / "whole", **options)
    expected = read_files(tmp_path / "whole")
    bucket = [f"{s3_bucket.url}/in/{path.name}" for path in inputs]
    run(bucket, tmp_path / "fetched", workers=3, **options)
    assert read_files(tmp_path / "fetched") == expected
    spill(monkeypatch)
    run_and_die(5, inputs, tmp_path / "out", **options)
    run(inputs, tmp_path / "out", resume=True, verify=True, memory="64MB", **options)
    assert read_files(tmp_path / "out") == expected
    assert len(expected) == 3
