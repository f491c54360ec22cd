"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

PROJECT = Path(__file__).resolve().parent.parent

# `tests.*` and `benchmarks.*` come from the checkout; recshuf itself from wherever it is installed.
if str(PROJECT) not in sys.path:
    sys.path.append(str(PROJECT))

pytest.register_assert_rewrite("tests.format_suite", "tests._format_tools", "tests.fake_format")


class Run(Protocol):
    """Runs the command line in a child process."""

    def __call__(
        self,
        *arguments: str | Path,
        stdin: bytes | None = None,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]: ...


@pytest.fixture(scope="session")
def run() -> Run:
    """Return a function that runs `python -m recshuf` and returns exit code, stdout and stderr as bytes."""

    def run_command(
        *arguments: str | Path,
        stdin: bytes | None = None,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        given = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        command = [sys.executable, "-m", "recshuf", *map(str, arguments)]
        environment = {**os.environ, **(env or {})}
        return subprocess.run(
            command, capture_output=True, check=False, cwd=cwd, env=environment, timeout=120, **given
        )

    return run_command


@pytest.fixture(params=[1, 4], ids=["serial", "parallel"])
def cores(request: pytest.FixtureRequest) -> int:
    """Return the number of workers: every test that asks for it runs serial and parallel."""
    return request.param


@pytest.fixture(scope="session")
def corpora() -> Path:
    """Return the folder of real inputs, named by RECSHUF_CORPORA."""
    folder = Path(os.environ.get("RECSHUF_CORPORA", PROJECT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real inputs: {folder} does not exist; RECSHUF_CORPORA names another folder")
    return folder
