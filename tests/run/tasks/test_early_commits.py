"""A commit that lacks tasks names them and touches nothing; one that lacks only the file of the run writes it again."""

from __future__ import annotations

import os
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from recshuf.errors import OutputError, UsageError
from tests.support.numbered_files import make_inputs
from tests.support.objects.object_outputs import check_whole, shuffle_locally
from tests.support.processes.task_runs import SavedPlan, cut, read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.objects.object_server import Bucket

OPTIONS: dict[str, Any] = {"seed": 5, "workers": 1, "piles": 16, "memory": "300MB"}
MISSING = r"^task \d.*: not done; run recshuf task with these numbers, then this one$"


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    return make_inputs(tmp_path / "in", "jsonl", (60, 40))


def plan(inputs: list[Path], output: str, **options: Any) -> SavedPlan:
    return SavedPlan(inputs, output, **OPTIONS | {"shards": count_shards(output)} | options)


def count_shards(output: str) -> int | None:
    return 2 if output.endswith("/") else None


def commit_early(run: SavedPlan) -> None:
    with pytest.raises(UsageError, match=MISSING) as raised:
        run.commit()
    assert not hasattr(raised.value, "__notes__")


# Beside other tasks

BESIDE: dict[str, Callable[[SavedPlan], object]] = {
    "a task": lambda run: run.do(0),
    "all tasks but one": lambda run: run.do_before_the_commit(short=1),
    "a commit": commit_early,
}


def commit_beside(bucket: Bucket, step: int, beside: Callable[[], object], run: SavedPlan) -> bool:
    """Commit early, do something before one of its requests, and return whether there was such a request."""
    left: list[list[str]] = []

    def strike() -> None:
        beside()
        left.append(bucket.list_keys())

    bucket.proxy.add("", lambda _: False, step)
    bucket.proxy.call("", strike)
    commit_early(run)
    bucket.proxy.clear()
    assert bucket.list_keys() == (left[0] if left else [])
    return bool(left)


@pytest.mark.parametrize(
    "beside",
    [pytest.param(one, marks=pytest.mark.slow) for one in BESIDE],
)
def test_a_commit_that_lacks_tasks_leaves_what_others_write_before_each_of_its_requests(
    tmp_path: Path, s3_bucket: Bucket, inputs: list[Path], beside: str
):
    for step in count():
        run = plan(inputs, f"{s3_bucket.url}/data/out/", temp_dir=f"{s3_bucket.url}/tmp")
        s3_bucket.proxy.clear()
        if not commit_beside(s3_bucket, step, partial(BESIDE[beside], run), run):
            break
        if step == 1:  # between the first look at the folder of tasks and the last one
            run.do_all()
            check_whole(s3_bucket, shuffle_locally(inputs, tmp_path / "local", **OPTIONS, shards=2))
        for _ in s3_bucket.list_uploads():
            s3_bucket.abort_one()
        for key in s3_bucket.list_keys():
            s3_bucket.delete(key)
    assert step > 2


def test_a_commit_that_lacks_all_tasks_leaves_nothing(tmp_path: Path, output: str, inputs: list[Path]):
    run = plan(inputs, output, temp_dir=tmp_path)
    for _ in range(2):
        commit_early(run)
    assert sorted(os.listdir(tmp_path)) == ["data", "in"]
    assert os.listdir(tmp_path / "data") == []
    run.do_all()


# Without the file of the run


class RunFile:
    """The file of a run in the folder of its tasks."""

    def __init__(self, output: str, request: pytest.FixtureRequest) -> None:
        self._name = output.rstrip("/").rpartition("/")[2]
        self._bucket: Bucket | None = request.getfixturevalue("s3_bucket") if "://" in output else None
        self._path = Path(output).parent / f".{self._name}.recshuf" / "tasks" / "run.json"
        self._key = f"data/.{self._name}.recshuf/tasks/run.json"

    def cut(self) -> None:
        if self._bucket is None:
            cut(self._path)
        else:
            self._bucket.put(self._key, self._bucket.read(self._key)[:-9])

    def delete(self) -> None:
        if self._bucket is None:
            self._path.unlink()
        else:
            self._bucket.delete(self._key)


@pytest.fixture
def run_file(output: str, request: pytest.FixtureRequest) -> RunFile:
    return RunFile(output, request)


def check_shards(output: str, request: pytest.FixtureRequest, whole: dict[str, bytes]) -> None:
    """Compare the bytes of all shards with those of a run in one process."""
    found = {} if "://" in output else read_all(Path(output))
    if "://" in output:
        found = request.getfixturevalue("s3_bucket").read_all("data/out/")
    expected = [content for name, content in sorted(whole.items()) if "/out/" in name]
    assert [found[name] for name in sorted(found)] == expected


def test_a_commit_goes_on_when_the_damaged_file_of_the_run_is_deleted_as_told(
    tmp_path: Path, output: str, inputs: list[Path], run_file: RunFile, request: pytest.FixtureRequest
):
    run = plan(inputs, output, temp_dir=tmp_path)
    run.do_before_the_commit()
    run_file.cut()
    with pytest.raises(OutputError, match=r"/tasks/run\.json: is damaged; delete it$"):
        run.commit()
    run_file.delete()
    run.commit()
    check_shards(
        output,
        request,
        shuffle_locally(inputs, tmp_path / "whole", **OPTIONS, shards=count_shards(output) or 1),
    )
    assert not [name for name in os.listdir(tmp_path) if name.startswith("recshuf-piles")]
    if "://" not in output:
        assert not list((tmp_path / "data").glob(".*.recshuf"))


def test_a_commit_is_refused_when_another_plan_has_begun_in_place_of_its_lost_run(
    tmp_path: Path, output: str, inputs: list[Path], run_file: RunFile, request: pytest.FixtureRequest
):
    run, other = (plan(inputs, output, temp_dir=tmp_path, seed=seed) for seed in (5, 6))
    run.do_before_the_commit()
    run_file.delete()
    other.do_before_the_commit()
    with pytest.raises(UsageError, match="holds tasks of another plan; finish them, or ") as raised:
        run.commit()
    assert not hasattr(raised.value, "__notes__")
    other.commit()
    given = OPTIONS | {"seed": 6, "shards": count_shards(output) or 1}
    check_shards(output, request, shuffle_locally(inputs, tmp_path / "whole", **given))
