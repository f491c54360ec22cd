"""A run beside an unfinished one: it is refused before it does anything, and each way out that is named works."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.api import runs
from recshuf.errors import OutputError, OutputExistsError, UsageError
from recshuf.output.local.log import FileJournal
from recshuf.output.local.stage import WorkFolder
from recshuf.output.objects.log import ObjectJournal
from recshuf.output.objects.remains import Remains
from recshuf.output.objects.stage import UploadTransaction
from recshuf.storage.settings import StorageOptions
from recshuf.storage.urls import Url
from recshuf.system.locks import lock_folder
from tests.support.numbered_files import make_inputs
from tests.support.processes.killed_runs import Killed
from tests.support.processes.task_runs import divide_small

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.objects.object_server import Bucket

COUNTS = (300, 200, 0, 250)
OPTIONS: dict[str, Any] = {"seed": 5, "workers": 1, "piles": 64, "memory": "300MB"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small(monkeypatch, block_bytes=4400)


class Place:
    """An output, and the options of runs into it."""

    def __init__(self, output: str, folder: Path) -> None:
        self.output = output
        self.is_local = "://" not in output
        cut = {"shards": 4} if output.endswith("/") else {}
        self.options = OPTIONS | cut | {"temp_dir": folder}
        self._work = folder / "data" / f".{output.rstrip('/').rpartition('/')[2]}.recshuf"

    @property
    def work(self) -> str:
        """What an unfinished run left."""
        bucket = self.output.removesuffix("out/")
        return str(self._work) if self.is_local else f"{bucket}.out.recshuf/"

    def remove_work(self) -> None:
        if self.is_local:
            shutil.rmtree(self._work)
        else:
            remains = Remains(Url.parse(self.output), StorageOptions())
            assert remains.find()
            remains.remove()

    def plan(self, inputs: list[Path]) -> dict[str, Any]:
        return runs.plan_tasks(inputs, self.output, **self.options)[1]

    def shuffle(self, inputs: list[Path], **options: Any) -> recshuf.ShuffleReport:
        return recshuf.shuffle(inputs, self.output, **self.options | options)


@pytest.fixture(params=["out/", "out.jsonl", pytest.param("bucket", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return where runs write several shards, one file, or objects."""
    (tmp_path / "data").mkdir()
    if request.param == "bucket":
        bucket: Bucket = request.getfixturevalue("s3_bucket")
        return Place(f"{bucket.url}/data/out/", tmp_path)
    return Place(f"{tmp_path}/data/{request.param}", tmp_path)


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    return make_inputs(tmp_path / "in", "jsonl", COUNTS)


def leave(run: Callable[[], object], entries: int) -> None:
    """Have a run die when its journal has so many entries."""
    left = iter(range(entries - 1, -1, -1))

    def noting(note: Callable[..., None]) -> Callable[..., None]:
        def note_and_die(*given: Any) -> None:
            note(*given)
            if next(left, 0) == 0:  # other threads may note more until the run ends
                raise Killed

        return note_and_die

    with pytest.MonkeyPatch.context() as patch:
        for journal in (FileJournal, ObjectJournal):
            patch.setattr(journal, "note", noting(journal.note))
        for transaction in (WorkFolder, UploadTransaction):
            patch.setattr(transaction, "remove", transaction.release)
        with pytest.raises(Killed):
            run()


def run_all(run: dict[str, Any]) -> None:
    for number in range(runs.list_tasks(run, "commit")[0] + 1):
        runs.run_task(run, number)


# Tasks beside a run in one process


@pytest.mark.parametrize(("entries", "is_removed"), [(1, True), (2, False)], ids=["removed", "continued"])
def test_every_task_beside_an_unfinished_run_is_refused(
    place: Place, inputs: list[Path], entries: int, is_removed: bool
):
    if entries == 2 and place.output.endswith("jsonl"):
        pytest.skip("one file in memory has no finished parts")
    run = place.plan(inputs)
    leave(lambda: place.shuffle(inputs), entries)
    for stage in ("count", "scatter", "gather", "commit"):
        with pytest.raises(OutputError) as raised:
            runs.run_task(run, runs.list_tasks(run, stage)[0])
        assert (
            f"an unfinished run left parts in {place.work}; continue it with its own command and --resume, or "
            in str(raised.value)
        )
    if is_removed:
        place.remove_work()
        run_all(run)
        return
    place.shuffle(inputs, resume=True)
    with pytest.raises(OutputExistsError, match="make the plan again"):
        runs.run_task(run, 0)


def test_a_task_beside_a_run_that_is_alive_is_told_to_wait(tmp_path: Path, inputs: list[Path]):
    place = Place(f"{tmp_path}/data/out/", tmp_path)
    (tmp_path / "data").mkdir()
    run = place.plan(inputs)
    leave(lambda: place.shuffle(inputs), 2)
    lock = lock_folder(tmp_path / "data" / ".out.recshuf", "out")
    for stage in ("count", "commit"):
        with pytest.raises(OutputError, match=r"another run is writing it .*; wait for its end"):
            runs.run_task(run, runs.list_tasks(run, stage)[0])
    os.close(lock)


# A run in one process beside tasks


@pytest.mark.parametrize(
    ("place", "way"),
    [
        ("out/", "removed"),
        ("out/", "tasks"),
        ("out.jsonl", "engine"),
        pytest.param("bucket", "tasks", marks=pytest.mark.slow),
        pytest.param("bucket", "removed", marks=pytest.mark.slow),
        pytest.param("bucket", "engine", marks=pytest.mark.slow),
    ],
    indirect=["place"],
)
def test_a_run_that_may_not_continue_tasks_names_only_ways_that_work(
    place: Place, inputs: list[Path], way: str
):
    run = place.plan(inputs)
    runs.run_task(run, 0)
    with pytest.raises(
        UsageError, match="continue it with engine ray, or run the tasks that are left"
    ) as raised:
        place.shuffle(inputs, resume=True)
    (note,) = raised.value.__notes__
    assert note.startswith(f"finished parts are kept in {place.work}: to start anew, ")
    if way == "removed":
        place.remove_work()
        place.shuffle(inputs)
    elif way == "engine":
        place.shuffle(inputs, engine="threads", resume=True)
    else:
        run_all(run)


def test_a_shard_that_is_lost_again_and_again_is_an_error_that_says_how_to_start_anew(
    place: Place, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        for transaction in (WorkFolder, UploadTransaction):
            patch.setattr(transaction, "adopt", lambda _, entries: [entries[0]["name"]])
        with pytest.raises(OutputError) as raised:
            place.shuffle(inputs, engine="threads")
    removal = (
        f"delete {place.work}" if place.is_local else f"remove them with recshuf clean {place.output} --yes"
    )
    assert str(raised.value).endswith(f": is missing or damaged; to start anew, {removal}")
    place.remove_work()
    place.shuffle(inputs, engine="threads")


@pytest.mark.parametrize(
    "content", [b'{"run": 3}', *(pytest.param(one, marks=pytest.mark.slow) for one in (b"[]", b"{}"))]
)
def test_a_damaged_run_in_a_bucket_can_be_removed(
    s3_bucket: Bucket, inputs: list[Path], tmp_path: Path, content: bytes
):
    place = Place(f"{s3_bucket.url}/data/out/", tmp_path)
    run = place.plan(inputs)
    runs.run_task(run, 0)
    s3_bucket.put("data/.out.recshuf/tasks/run.json", content)
    with pytest.raises(OutputError, match=r"/tasks/run\.json: is damaged; delete it"):
        runs.run_task(run, 1)
    place.remove_work()
    runs.run_task(run, 0)


def test_a_run_with_other_options_names_only_ways_that_work(place: Place, inputs: list[Path]):
    if not place.output.endswith("/"):
        pytest.skip("one file in memory has no finished parts")
    leave(lambda: place.shuffle(inputs), 2)
    with pytest.raises(UsageError, match="give it as before, or start anew\n") as raised:
        place.shuffle(inputs, seed=6, resume=True)
    (note,) = raised.value.__notes__
    assert note.startswith(f"finished parts are kept in {place.work}: to start anew, ")
    place.remove_work()
    place.shuffle(inputs, seed=6)
