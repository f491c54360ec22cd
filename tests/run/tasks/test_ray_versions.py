"""Machines of a Ray cluster that have another version of recshuf."""

from __future__ import annotations

import logging
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import EngineError
from tests.support.numbered_files import make_inputs
from tests.support.small_runs import read_files

if TYPE_CHECKING:
    from collections.abc import Iterator

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'recshuf[ray]'")

# See `test_ray_runs`.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default::ResourceWarning", "default::FutureWarning:ray"),
    pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"),
]

OPTIONS: dict[str, Any] = {"seed": 5, "shards": 2, "workers": 1, "memory": "300MB"}


@contextmanager
def start_cluster() -> Iterator[None]:
    """Run a cluster on this machine, whose processes look for packages in the present folder first."""
    ray.init(
        "local",  # not that of a test which runs beside this one
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=80 << 20,
    )
    try:
        yield
    finally:
        ray.shutdown()


def write_oldest(folder: Path) -> None:
    """Make a package without anything that tasks need."""
    (folder / "recshuf").mkdir(parents=True)
    (folder / "recshuf/__init__.py").touch()
    (folder / "recshuf/version.py").write_text('__version__ = "0.0.1"\n')


def write_newest(folder: Path) -> None:
    """Make a package with all that tasks need."""
    shutil.copytree(Path(recshuf.__file__).parent, folder / "recshuf")
    (folder / "recshuf/version.py").write_text('__version__ = "0.0.1"\n')


def write_broken(folder: Path) -> None:
    """Have every import fail, as where recshuf is not installed."""
    (folder / "recshuf").mkdir(parents=True)
    (folder / "recshuf/__init__.py").write_text('raise ImportError("not installed")\n')


@pytest.mark.parametrize(
    ("write", "named"),
    [(write_oldest, "recshuf 0.0.1"), (write_newest, "recshuf 0.0.1"), (write_broken, "no recshuf")],
)
def test_a_machine_with_another_version_is_named_and_the_run_continues_when_it_has_this_one(
    tmp_path: Path, write: Any, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(tmp_path / "in", "text", (300, 200))
    recshuf.shuffle(inputs, f"{tmp_path}/here/", **OPTIONS)
    write(tmp_path / "packages")
    there = OPTIONS | {"engine": "ray"}
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "packages")
        with start_cluster(), pytest.raises(EngineError) as raised:
            recshuf.shuffle(inputs, f"{tmp_path}/there/", **there)
    version = recshuf.__version__
    assert str(raised.value) == (
        f"engine ray: a machine of the cluster has {named}, and this one {version}; install {version} on all of them"
    )
    with start_cluster():
        recshuf.shuffle(inputs, f"{tmp_path}/there/", resume=True, **there)
    assert read_files(tmp_path / "there") == read_files(tmp_path / "here")
