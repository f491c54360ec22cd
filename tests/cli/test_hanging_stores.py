"""A signal ends a run within seconds that waits for a store which takes requests and never answers."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.processes.command_line import COMMAND, DEADLINE, assert_one_line, numbers, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.objects.object_server import Bucket


@pytest.mark.parametrize(
    ("number", "request_name"),
    [(signal.SIGINT, "GET"), pytest.param(signal.SIGTERM, "HEAD", marks=pytest.mark.slow)],
)
def test_a_run_that_reads(tmp_path: Path, s3_bucket: Bucket, request_name: str, number: signal.Signals):
    s3_bucket.put("in.txt", numbers(1000))
    s3_bucket.proxy.hang(f"{request_name} .*/in.txt")
    command = [*COMMAND, f"{s3_bucket.url}/in.txt", "-o", tmp_path / "out.txt"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as child:
        wait_until(lambda: s3_bucket.proxy.count(f"{request_name} .*/in.txt") > 0)
        child.send_signal(number)
        assert child.wait(DEADLINE) == 128 + number
        assert child.stderr is not None
        assert_one_line(child.stderr.read(), number.name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("spills_to_store", [False, True])
def test_a_run_that_writes(tmp_path: Path, s3_bucket: Bucket, spills_to_store: bool):
    """The upload is open, so it is to be aborted, and the journal to be deleted."""
    source = tmp_path / "in.txt"
    source.write_bytes(numbers(1000))
    s3_bucket.proxy.call("POST .*uploads", lambda: s3_bucket.proxy.hang(""))
    temp_dir = f"{s3_bucket.url}/tmp/" if spills_to_store else tmp_path
    command = [*COMMAND, source, "-o", f"{s3_bucket.url}/out/", "--temp-dir", temp_dir]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as child:
        wait_until(lambda: s3_bucket.proxy.count("PUT .*partNumber") > 0)
        child.send_signal(signal.SIGTERM)
        assert child.wait(DEADLINE) == 128 + signal.SIGTERM
        assert child.stderr is not None
        assert b"stopped by SIGTERM" in child.stderr.read()
    assert list(tmp_path.iterdir()) == [source]
