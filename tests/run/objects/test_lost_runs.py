"""Tasks whose run is forgotten: `recshuf clean` says what it cannot find, and how that is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from recshuf.api import runs
from recshuf.output.objects.log import ObjectTaskFolder
from recshuf.output.run_log import RUN
from tests.support.objects.object_outputs import SHARDS, check_whole

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_outputs import AnyBucket

RUN_FILE = "data/.out.recshuf/tasks/run.json"


def scatter(source: Path, output: str, temp_dir: str) -> None:
    """Run the tasks before those that write shards."""
    run = runs.plan_tasks(source, output, shards=SHARDS, temp_dir=temp_dir)[1]
    for number in range(runs.list_tasks(run, "gather")[0]):
        runs.run_task(run, number)


@pytest.mark.parametrize("content", [None, b"{}"])
def test_clean_says_that_sets_of_a_lost_run_stay_and_how_to_remove_them(
    bucket: AnyBucket, source: Path, call: Run, content: bytes | None
) -> None:
    output, temp_dir = f"{bucket.url}/data/out/", f"{bucket.url}/tmp"
    scatter(source, output, temp_dir)
    if content is None:
        bucket.delete(RUN_FILE)
    else:
        bucket.put(RUN_FILE, content)
    found = call("clean", output, "--yes").stdout.decode()
    assert "tasks/run.json: is missing or damaged, so the spilled records of these tasks stay" in found
    assert "recshuf clean of the URL that was their --temp-dir" in found
    assert all(key.startswith("tmp/recshuf-piles-") for key in bucket.list_keys())
    assert bucket.list_keys()
    assert call("clean", temp_dir, "--yes").returncode == 0
    check_whole(bucket, {})


class Killed(BaseException):
    """Ends a task as no error of its own would."""


def test_clean_removes_what_a_first_task_that_died_has_left(
    bucket: AnyBucket, source: Path, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no result yet."""
    place = ObjectTaskFolder.place

    def place_run(folder: ObjectTaskFolder, name: str, values: dict[str, Any]) -> Any:
        if name != RUN:
            raise Killed
        return place(folder, name, values)

    monkeypatch.setattr(ObjectTaskFolder, "place", place_run)
    output = f"{bucket.url}/data/out/"
    with pytest.raises(Killed):
        scatter(source, output, f"{bucket.url}/tmp")
    assert RUN_FILE in bucket.list_keys()
    assert call("clean", output, "--yes").stdout.endswith(b"results of tasks: 0\nremoved\n")
    check_whole(bucket, {})


def test_clean_says_nothing_of_it_where_the_run_is_known(bucket: AnyBucket, source: Path, call: Run) -> None:
    output = f"{bucket.url}/data/out/"
    scatter(source, output, f"{bucket.url}/tmp")
    assert b"run.json" not in call("clean", output, "--yes").stdout
    check_whole(bucket, {})
