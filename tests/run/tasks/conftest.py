"""Fixtures of runs that are divided into tasks, and places that they write to."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import RecshufError
from tests.conftest import Run
from tests.support.numbered_files import make_inputs
from tests.support.objects.object_outputs import shuffle_locally
from tests.support.objects.object_server import Bucket, ProxiedRequest
from tests.support.processes.deaths import dies_after_notes
from tests.support.processes.task_runs import SavedPlan, divide_small, read_all


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small inputs divided into some tasks."""
    divide_small(monkeypatch, block_bytes=4400)


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    return make_inputs(tmp_path / "in", "jsonl", (300, 200, 0, 250))


@pytest.fixture(params=["out/", "out.jsonl", pytest.param("bucket", marks=pytest.mark.slow)])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where runs write several shards, one file, or objects."""
    (tmp_path / "data").mkdir()
    if request.param == "bucket":
        bucket: Bucket = request.getfixturevalue("s3_bucket")
        return f"{bucket.url}/data/out/"
    return f"{tmp_path}/data/{request.param}"


class Place:
    """An output, and the options of runs into it."""

    def __init__(self, output: str, folder: Path, call: Run, bucket: Bucket | None) -> None:
        self.output, self.bucket = output, bucket
        self.has_shards = output.endswith("/")
        self.options: dict[str, Any] = {"seed": 5, "workers": 1, "piles": 64, "memory": "300MB"}
        self.options |= {"temp_dir": folder} | ({"shards": 4} if self.has_shards else {})
        self._call, self._folder = call, folder
        self._name = f".{output.rstrip('/').rpartition('/')[2]}.recshuf"

    @property
    def work(self) -> str:
        """What an unfinished run left."""
        if self.bucket is None:
            return str(self._folder / "data" / self._name)
        return f"{self.bucket.url}/data/{self._name}/"

    def remove_work(self) -> None:
        if self.bucket is None:
            shutil.rmtree(self.work)
        else:
            assert self._call("clean", self.output, "--yes").returncode == 0

    def change_run_file(self, change: Callable[[bytes], bytes] | None) -> None:
        """Change the file of the run in the folder of its tasks, or delete it."""
        path, key = Path(self.work) / "tasks" / "run.json", f"data/{self._name}/tasks/run.json"
        if self.bucket is None:
            path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))
        elif change is None:
            self.bucket.delete(key)
        else:
            self.bucket.put(key, change(self.bucket.read(key)))

    def plan(self, inputs: Any, **options: Any) -> SavedPlan:
        return SavedPlan(inputs, self.output, **self.options | options)

    def shuffle(self, inputs: list[Path], **options: Any) -> recshuf.ShuffleReport:
        return recshuf.shuffle(inputs, self.output, **self.options | options)

    def leave(self, inputs: list[Path], entries: int) -> None:
        """Have a run die when its journal has so many entries."""
        if self.bucket is None:
            assert dies_after_notes(lambda: self.shuffle(inputs), entries)
            return
        left = iter(range(entries, -(10**6), -1))

        def strike(request: ProxiedRequest) -> bool:
            is_entry = request.command == "PUT" and ".entry" in request.path
            return (next(left) <= 0 if is_entry else left.__length_hint__() < 10**6) and request.answer(
                400, "Expired"
            )

        self.bucket.proxy.add("", strike, 10**6)
        with pytest.raises(RecshufError):
            self.shuffle(inputs)
        self.bucket.proxy.clear()

    def check(self, inputs: list[Path], **options: Any) -> None:
        """Compare the bytes of all shards with those of a run in one process."""
        given = {"shards": 1} | self.options | options
        whole = shuffle_locally(inputs, self._folder / "whole", **given)
        found = self.bucket.read_all("data/out/") if self.bucket else read_all(Path(self.output))
        expected = [content for name, content in sorted(whole.items()) if "/out/" in name]
        assert [found[name] for name in sorted(found)] == expected


@pytest.fixture
def place(output: str, request: pytest.FixtureRequest, tmp_path: Path, call: Run) -> Place:
    bucket: Bucket | None = request.getfixturevalue("s3_bucket") if "://" in output else None
    return Place(output, tmp_path, call, bucket)
