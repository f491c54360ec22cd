"""A run beside an unfinished one: it is refused before it does anything, and each way out that is named works."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import OutputError, OutputExistsError, RecshufError, UsageError
from recshuf.job.options import ENGINES
from recshuf.system.locks import lock_folder
from tests.support.processes.deaths import dies_after_notes
from tests.support.processes.task_runs import SavedPlan, ThreadEngine, cut

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from tests.conftest import Run
    from tests.support.objects.object_server import Bucket, ProxiedRequest

OPTIONS: dict[str, Any] = {"seed": 5, "workers": 1, "piles": 64, "memory": "300MB"}


class Place:
    """An output, and the options of runs into it."""

    def __init__(self, output: str, folder: Path, call: Run, bucket: Bucket | None = None) -> None:
        self.output = output
        self.is_local = bucket is None
        self._call, self._bucket = call, bucket
        cut = {"shards": 4} if output.endswith("/") else {}
        self.options = OPTIONS | cut | {"temp_dir": folder}
        self._work = folder / "data" / f".{output.rstrip('/').rpartition('/')[2]}.recshuf"

    @property
    def work(self) -> str:
        """What an unfinished run left."""
        return str(self._work) if self.is_local else f"{self.output.removesuffix('out/')}.out.recshuf/"

    def remove_work(self) -> None:
        if self.is_local:
            shutil.rmtree(self._work)
        else:
            assert self._call("clean", self.output, "--yes").returncode == 0

    def plan(self, inputs: list[Path]) -> SavedPlan:
        return SavedPlan(inputs, self.output, **self.options)

    def shuffle(self, inputs: list[Path], **options: Any) -> recshuf.ShuffleReport:
        return recshuf.shuffle(inputs, self.output, **self.options | options)

    def leave(self, inputs: list[Path], entries: int) -> None:
        """Have a run die when its journal has so many entries."""
        if self._bucket is None:
            assert dies_after_notes(lambda: self.shuffle(inputs), entries)
            return
        left = iter(range(entries, -(10**6), -1))

        def strike(request: ProxiedRequest) -> bool:
            is_entry = request.command == "PUT" and ".entry" in request.path
            return (next(left) <= 0 if is_entry else left.__length_hint__() < 10**6) and request.answer(
                400, "Expired"
            )

        self._bucket.proxy.add("", strike, 10**6)
        with pytest.raises(RecshufError):
            self.shuffle(inputs)
        self._bucket.proxy.clear()


@pytest.fixture
def place(output: str, request: pytest.FixtureRequest, tmp_path: Path, call: Run) -> Place:
    """Return where runs write several shards, one file, or objects."""
    bucket: Bucket | None = request.getfixturevalue("s3_bucket") if "://" in output else None
    return Place(output, tmp_path, call, bucket)


# Tasks beside a run in one process


@pytest.mark.parametrize(("entries", "is_removed"), [(1, True), (2, False)], ids=["removed", "continued"])
def test_every_task_beside_an_unfinished_run_is_refused(
    place: Place, inputs: list[Path], entries: int, is_removed: bool
):
    if entries == 2 and place.output.endswith("jsonl"):
        pytest.skip("one file in memory has no finished parts")
    run = place.plan(inputs)
    place.leave(inputs, entries)
    for stage in ("count", "scatter", "gather", "commit"):
        with pytest.raises(OutputError) as raised:
            run.do(run.list(stage)[0])
        assert (
            f"an unfinished run left parts in {place.work}; continue it with its own command and --resume, or "
            in str(raised.value)
        )
    if is_removed:
        place.remove_work()
        run.do_all()
        return
    place.shuffle(inputs, resume=True)
    with pytest.raises(OutputExistsError, match="make the plan again"):
        run.do(0)


@pytest.mark.parametrize("output", ["out/"], indirect=True)
def test_a_task_beside_a_run_that_is_alive_is_told_to_wait(tmp_path: Path, place: Place, inputs: list[Path]):
    run = place.plan(inputs)
    place.leave(inputs, 2)
    lock = lock_folder(tmp_path / "data" / ".out.recshuf", "out")
    for stage in ("count", "commit"):
        with pytest.raises(OutputError, match=r"another run is writing it .*; wait for its end"):
            run.do(run.list(stage)[0])
    os.close(lock)


# A run in one process beside tasks


@pytest.mark.parametrize(
    ("output", "way"),
    [
        ("out/", "removed"),
        ("out/", "tasks"),
        ("out.jsonl", "engine"),
        pytest.param("bucket", "tasks", marks=pytest.mark.slow),
        pytest.param("bucket", "removed", marks=pytest.mark.slow),
        pytest.param("bucket", "engine", marks=pytest.mark.slow),
    ],
    indirect=["output"],
)
def test_a_run_that_may_not_continue_tasks_names_only_ways_that_work(
    place: Place, inputs: list[Path], way: str
):
    run = place.plan(inputs)
    run.do(0)
    with pytest.raises(
        UsageError, match="continue it with engine processes or ray, or run the tasks that are left"
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
        run.do_all()


class LosingEngine(ThreadEngine):
    """Loses shards, or their ends, as a bad disk or another program would."""

    lose: Callable[[], object]

    def run(self, *given: Any) -> Generator[Any, None, None]:
        for result in super().run(*given):
            LosingEngine.lose()
            yield result


def test_a_shard_that_is_lost_again_and_again_is_an_error_that_says_how_to_start_anew(
    place: Place,
    inputs: list[Path],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
):
    def lose() -> None:
        for path in (tmp_path / "data").glob(".*/tasks/shards-*/*"):
            cut(path) if place.output.endswith("/") else path.unlink()
        if not place.is_local:
            bucket: Bucket = request.getfixturevalue("s3_bucket")
            for _ in bucket.list_uploads():
                bucket.abort_one()

    monkeypatch.setitem(ENGINES, "losing", f"{__name__}:LosingEngine")
    monkeypatch.setattr(LosingEngine, "lose", lose, raising=False)
    with pytest.raises(OutputError) as raised:
        place.shuffle(inputs, engine="losing")
    removal = (
        f"delete {place.work}" if place.is_local else f"remove them with recshuf clean {place.output} --yes"
    )
    assert str(raised.value).endswith(f": is missing or damaged; to start anew, {removal}")
    place.remove_work()
    place.shuffle(inputs, engine="threads")


@pytest.mark.parametrize(
    "content", [b'{"run": 3}', *(pytest.param(one, marks=pytest.mark.slow) for one in (b"[]", b"{}"))]
)
@pytest.mark.parametrize("output", ["bucket"], indirect=True)
def test_a_damaged_run_in_a_bucket_can_be_removed(
    s3_bucket: Bucket, place: Place, inputs: list[Path], content: bytes
):
    run = place.plan(inputs)
    run.do(0)
    s3_bucket.put("data/.out.recshuf/tasks/run.json", content)
    with pytest.raises(OutputError, match=r"/tasks/run\.json: is damaged; delete it"):
        run.do(1)
    place.remove_work()
    run.do(0)


def test_a_run_with_other_options_names_only_ways_that_work(place: Place, inputs: list[Path]):
    if not place.output.endswith("/"):
        pytest.skip("one file in memory has no finished parts")
    place.leave(inputs, 2)
    with pytest.raises(UsageError, match="give it as before, or start anew\n") as raised:
        place.shuffle(inputs, seed=6, resume=True)
    (note,) = raised.value.__notes__
    assert note.startswith(f"finished parts are kept in {place.work}: to start anew, ")
    place.remove_work()
    place.shuffle(inputs, seed=6)
