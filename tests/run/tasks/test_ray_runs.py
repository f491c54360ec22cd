"""Runs on a Ray cluster give the bytes of a run in one process, though machines die and join."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import EngineError, InputError
from recshuf.job import parts as task_plan
from tests.support.effort import some
from tests.support.numbered_files import FORMATS, make_inputs
from tests.support.objects.object_server import Bucket
from tests.support.processes.task_runs import Moment, divide_small, read_all, shuffle
from tests.support.small_runs import read_files

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'recshuf[ray]'")

# Ray leaves sockets and child processes to the garbage collector, and warns of what it will change.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default::ResourceWarning", "default::FutureWarning:ray"),
    pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"),
]

COUNTS = (700, 200, 0, 950)
OBJECT_STORE_BYTES = 80 << 20


class Machines:
    """A cluster on this machine, with a head that runs no tasks."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        settings = {
            "num_cpus": 0,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
            "_system_config": {"health_check_period_ms": 200, "health_check_failure_threshold": 6},
        }
        self._cluster = Cluster(initialize_head=True, head_node_args=settings)
        self._nodes: list[Any] = []
        self.address: str = self._cluster.address

    def add(self) -> None:
        self._nodes.append(self._cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES))

    def kill(self) -> None:
        self._cluster.remove_node(self._nodes.pop(0), allow_graceful=False)

    def replace(self) -> None:
        self.kill()
        self.add()

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    made = Machines()
    made.add()
    made.add()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small(monkeypatch, block_bytes=3000)


def compare(inputs: list[Path], folder: Path, machines: Machines, **options: Any) -> None:
    progress = options.pop("progress", None)
    shuffle(inputs, folder / "here" / "out", **options)
    there = {"engine": "ray", "ray_address": machines.address, "progress": progress}
    shuffle(inputs, folder / "there" / "out", **options, **there)
    assert read_all(folder / "there") == read_all(folder / "here")
    assert sorted(os.listdir(folder / "there")) == [".out.recshuf.json", "out"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize("name", [*some(FORMATS, 2)])
def test_machines_write_the_same_bytes(folder: Path, name: str, machines: Machines):
    compare(make_inputs(folder / "in", name, COUNTS), folder, machines)


DIVIDED = {"to": "parquet", "shards": 6}
MANY = DIVIDED | {"shards": 60}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("act", "stage", "first", "times", "counts", "options"),
    [
        *some([("replace", "scatter", count, 1, COUNTS, DIVIDED) for count in (9, 1, 20)], 2),
        ("replace", "gather", 1, 1, COUNTS, DIVIDED),
        ("add", "scatter", 3, 1, COUNTS, {}),
        pytest.param("replace", "scatter", 1, 50, [2500] * 3, MANY, id="one_after_the_other-scatter"),
        pytest.param("replace", "gather", 1, 50, [900], MANY, id="one_after_the_other-gather"),
    ],
    ids=str,
)
def test_machines_die_and_join(
    folder: Path,
    machines: Machines,
    monkeypatch: pytest.MonkeyPatch,
    act: str,
    stage: str,
    first: int,
    times: int,
    counts: Sequence[int],
    options: dict[str, Any],
):
    """One of two dies, perhaps with each of the first 50 tasks of many: that which has been there longest, in a task if it has one.

    Of the few tasks of a scatter 10 count.
    """
    if times > 1:
        monkeypatch.setattr(task_plan, "LEAST_RUNS", 1)
    moment = Moment(stage, getattr(machines, act), first, times)
    compare(make_inputs(folder / "in", "jsonl", counts), folder, machines, progress=moment, **options)
    assert moment.has_come
    if act == "add":
        machines.kill()


def test_an_error_of_a_task_is_that_of_a_run_in_one_process(folder: Path, machines: Machines):
    (path,) = make_inputs(folder / "in", "jsonl", [900])
    lines = path.read_bytes().splitlines(keepends=True)
    lines[777] = b'{"id"\n'
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError) as here:
        shuffle([path], folder / "out.parquet")
    with pytest.raises(InputError) as there:
        shuffle([path], folder / "out.parquet", engine="ray", ray_address=machines.address)
    assert str(there.value) == str(here.value)
    assert there.value.place == here.value.place == "line 778"
    assert sorted(os.listdir(folder)) == ["here", "in", "there"]


@pytest.mark.parametrize("place", ["shared", "bucket"])
def test_machines_read_and_write_a_bucket(
    folder: Path, s3_bucket: Bucket, machines: Machines, place: str
) -> None:
    """Pile sets are in a shared folder, or in the bucket, too; then the machines share no folder."""
    for path in make_inputs(folder / "in", "jsonl", COUNTS):
        s3_bucket.put(f"in/{path.name}", path.read_bytes())
    shuffle([folder / "in"], folder / "here" / "out", to="parquet", memory="600MB")
    keys = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
    there = {"engine": "ray", "ray_address": machines.address, "to": "parquet", "memory": "600MB"}
    there |= {"endpoint_url": s3_bucket.proxy.url, "storage_options": keys}
    (folder / "shared").mkdir()
    there["temp_dir"] = {"shared": str(folder / "shared"), "bucket": f"{s3_bucket.url}/tmp"}[place]
    recshuf.shuffle(f"{s3_bucket.url}/in/", f"{s3_bucket.url}/out/", seed=5, piles=64, shards=3, **there)
    found = {key.rpartition("/")[2]: s3_bucket.read(key) for key in s3_bucket.list_keys("out")}
    shards = {
        name: content for name, content in read_all(folder / "here").items() if name.endswith(".parquet")
    }
    assert {name: content for name, content in found.items() if name.endswith(".parquet")} == shards
    assert len(shards) == 3
    assert [
        key for key in s3_bucket.list_keys() if not key.startswith(("in/", "out/", ".out.recshuf.json"))
    ] == []
    assert s3_bucket.list_uploads() == []
    assert os.listdir(folder / "shared") == []


# Machines of a Ray cluster that have another version of recshuf

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
