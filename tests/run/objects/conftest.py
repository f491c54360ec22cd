"""Fixtures of runs that read or write objects."""

from pathlib import Path

import pytest

from tests.support.objects.object_outputs import STORES, AnyBucket, Output, write_lines


@pytest.fixture(params=[STORES[0], *(pytest.param(one, marks=pytest.mark.slow) for one in STORES[1:])])
def bucket(request: pytest.FixtureRequest) -> AnyBucket:
    """Return a new bucket of S3, and in slow tests of each store; `in_each_store` has all at once."""
    found: AnyBucket = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a file of lines."""
    return write_lines(tmp_path / "in.txt")


@pytest.fixture
def output(bucket: AnyBucket, source: Path) -> Output:
    """Return where it is shuffled to in the bucket."""
    return Output(bucket, source)
