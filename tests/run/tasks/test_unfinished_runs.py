"""Runs and tasks beside others, unfinished or at it: each way out that is named works, and nobody harms what is there."""

import json
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from recshuf.errors import AlreadyCompleteError, OutputError, OutputExistsError, RecshufWarning, UsageError
from recshuf.job.options import ENGINES
from recshuf.system.files import lock_folder
from tests.conftest import Run
from tests.run.tasks.conftest import Place
from tests.support.effort import mostly_slow
from tests.support.numbered_files import make_inputs
from tests.support.objects.object_outputs import check_whole, shuffle_locally
from tests.support.objects.object_server import Bucket, ProxiedRequest
from tests.support.processes.task_runs import SavedPlan, ThreadEngine, cut

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


# A run in one process beside tasks, or the remains of another


@pytest.mark.parametrize(
    ("output", "way"),
    mostly_slow(
        [
            (output, way)
            for output in ("out/", "out.jsonl", "bucket")
            for way in ("removed", "tasks", "engine")
        ],
        ("out/", "removed"),
        ("out/", "tasks"),
        ("out.jsonl", "engine"),
    ),
    indirect=["output"],
)
def test_a_run_that_may_not_continue_tasks_names_only_ways_that_work(
    place: Place, inputs: list[Path], way: str
):
    run = place.plan(inputs)
    run.do(*range(8))  # all of the count, and some of the scatter
    with pytest.raises(UsageError) as raised:
        place.shuffle(inputs, seed=None, resume=True)
    assert str(raised.value) == (
        "resume=True: the engine was processes, ray or tasks in the unfinished run; continue it with engine processes or ray, or run the tasks "
        "that are left"
    )
    (note,) = raised.value.__notes__
    assert note.startswith(f"finished parts are kept in {place.work}: to start anew, ")
    with pytest.raises(OutputError, match=r"an unfinished run left .*; give resume=True") as left:
        place.shuffle(inputs)
    named = "give resume=True with engine processes or ray, or run the tasks that are left, to"
    assert place.bucket or named in str(left.value)
    if way == "removed":
        place.remove_work()
        place.shuffle(inputs)
    elif way == "engine":
        assert place.shuffle(inputs, engine="threads", resume=True, seed=None).seed == 5
    else:
        run.do_all()


def test_a_run_with_other_options_names_only_ways_that_work(place: Place, inputs: list[Path]):
    if not place.has_shards:
        pytest.skip("one file in memory has no finished parts")
    place.leave(inputs, 2)
    with pytest.raises(UsageError, match="give it as before, or start anew\n") as raised:
        place.shuffle(inputs, seed=6, resume=True)
    (note,) = raised.value.__notes__
    assert note.startswith(f"finished parts are kept in {place.work}: to start anew, ")
    place.remove_work()
    place.shuffle(inputs, seed=6)


class LosingEngine(ThreadEngine):
    """Loses shards, or their ends, as a bad disk or another program would."""

    lose: Callable[[], object]

    def run(self, *given: Any) -> Generator[Any, None, None]:
        for result in super().run(*given):
            LosingEngine.lose()
            yield result


def test_a_shard_that_is_lost_again_and_again_is_an_error_that_says_how_to_start_anew(
    place: Place, inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def lose() -> None:
        for path in (tmp_path / "data").glob(".*/tasks/shards-*/*"):
            cut(path) if place.has_shards else path.unlink()
        if place.bucket is not None:
            for _ in place.bucket.list_uploads():
                place.bucket.abort_one()

    monkeypatch.setitem(ENGINES, "losing", f"{__name__}:LosingEngine")
    monkeypatch.setattr(LosingEngine, "lose", lose, raising=False)
    with pytest.raises(OutputError) as raised:
        place.shuffle(inputs, engine="losing")
    sets = "".join(f" and {path}" for path in tmp_path.glob("recshuf-piles-*"))
    removal = (
        f"remove them with recshuf clean {place.output} --yes"
        if place.bucket
        else f"delete {place.work}{sets}"
    )
    assert str(raised.value).endswith(f": is missing or damaged; to start anew, {removal}")
    place.remove_work()
    place.shuffle(inputs, engine="threads")


@pytest.mark.parametrize("output", ["out/"], indirect=True)
def test_pile_sets_elsewhere_are_part_of_what_tasks_left(place: Place, inputs: list[Path], tmp_path: Path):
    run = place.plan(inputs)
    run.do(*run.list("count"), run.list("scatter")[0])
    (sets,) = tmp_path.glob("recshuf-piles-*")
    with pytest.raises(UsageError) as told:
        place.plan(inputs).do(0)
    assert str(told.value).endswith(f"finish them, or delete {place.work} and {sets}")
    with pytest.raises(OutputError, match=f", or delete that folder and {sets} to start anew$"):
        place.shuffle(inputs)
    for result in (tmp_path / "data").glob(".*/tasks/task-*.json"):
        result.unlink()
    with pytest.warns(RecshufWarning, match="removed; it was left by a run that died before any part"):
        place.shuffle(inputs)
    assert sorted(os.listdir(tmp_path)) == ["data", "in"]


@pytest.mark.parametrize("output", ["out/"], indirect=True)
def test_an_empty_work_folder_is_removed_without_a_word(
    place: Place, tmp_path: Path, recwarn: pytest.WarningsRecorder
):
    """It is what a run leaves that is killed while it removes its remains."""
    inputs, folder = make_inputs(tmp_path / "in", "text", (60,)), tmp_path / "data"
    for is_complete in (False, True):
        for options in ({"resume": True}, {"overwrite": True}):
            if is_complete:
                place.shuffle(inputs)
            (folder / ".out.recshuf").mkdir(mode=0o700)
            ends = is_complete and "resume" in options
            with pytest.raises(AlreadyCompleteError) if ends else nullcontext():
                place.shuffle(inputs, **options)
            assert sorted(os.listdir(folder)) == [".out.recshuf.json", "out"]
            assert not recwarn.list
            shutil.rmtree(folder)
            folder.mkdir()


# A commit that lacks tasks names them and touches nothing


def commit_early(run: SavedPlan) -> None:
    with pytest.raises(
        UsageError, match=r"^task \d.*: not done; run recshuf task with these numbers, then this one$"
    ) as raised:
        run.commit()
    assert not hasattr(raised.value, "__notes__")


def test_a_commit_that_lacks_all_tasks_leaves_nothing(tmp_path: Path, place: Place, inputs: list[Path]):
    run = place.plan(inputs)
    for _ in range(2):
        commit_early(run)
    assert sorted(os.listdir(tmp_path)) == ["data", "in"]
    assert os.listdir(tmp_path / "data") == []
    run.do_all()


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


@pytest.mark.parametrize("beside", mostly_slow(BESIDE, "a task"))
@pytest.mark.parametrize("output", ["bucket"], indirect=True)
def test_a_commit_that_lacks_tasks_leaves_what_others_write_before_each_of_its_requests(
    tmp_path: Path, s3_bucket: Bucket, place: Place, beside: str
):
    inputs = make_inputs(tmp_path / "small", "jsonl", (60, 40))
    for step in count():
        run = place.plan(inputs, temp_dir=f"{s3_bucket.url}/tmp", piles=16)
        s3_bucket.proxy.clear()
        if not commit_beside(s3_bucket, step, partial(BESIDE[beside], run), run):
            break
        if step == 1:  # between the first look at the folder of tasks and the last one
            run.do_all()
            place.check(inputs, piles=16)
        for _ in s3_bucket.list_uploads():
            s3_bucket.abort_one()
        for key in s3_bucket.list_keys():
            s3_bucket.delete(key)
    assert step > 2


# A commit without the file of the run


@pytest.mark.parametrize("content", [b'{"run": 3}', b"[]"])
@pytest.mark.parametrize("output", ["bucket"], indirect=True)
def test_a_damaged_run_in_a_bucket_can_be_removed(place: Place, inputs: list[Path], content: bytes):
    run = place.plan(inputs)
    run.do(0)
    place.change_run_file(lambda _: content)
    with pytest.raises(OutputError, match=r"/tasks/run\.json: is damaged; delete it"):
        run.do(1)
    place.remove_work()
    run.do(0)


def test_a_commit_goes_on_when_the_damaged_file_of_the_run_is_deleted_as_told(
    tmp_path: Path, place: Place, inputs: list[Path]
):
    run = place.plan(inputs)
    run.do_before_the_commit()
    place.change_run_file(lambda content: content[:-9])
    with pytest.raises(OutputError, match=r"/tasks/run\.json: is damaged; delete it$"):
        run.commit()
    place.change_run_file(None)
    run.commit()
    place.check(inputs)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("recshuf-piles")]
    assert not list((tmp_path / "data").glob(".*.recshuf"))


def test_a_commit_is_refused_when_another_plan_has_begun_in_place_of_its_lost_run(
    place: Place, inputs: list[Path]
):
    run, other = (place.plan(inputs, seed=seed) for seed in (5, 6))
    run.do_before_the_commit()
    place.change_run_file(None)
    other.do_before_the_commit()
    with pytest.raises(UsageError, match="holds tasks of another plan; finish them, or ") as raised:
        run.commit()
    assert not hasattr(raised.value, "__notes__")
    other.commit()
    place.check(inputs, seed=6)


# Two commits of one plan at once


def die_in_commit(bucket: Bucket, run: SavedPlan, claim: int) -> None:
    """Have the commit of a plan die when it claims the output under a number: the store does nothing more for it."""

    def strike(request: ProxiedRequest) -> bool:
        bucket.proxy.answer("", 400, "ExpiredToken", 10**6)
        return request.answer(400, "ExpiredToken")

    bucket.proxy.add(rf"PUT .*/0000{claim}\.run", strike, 1)
    with pytest.raises(OutputError, match="expired"):
        run.commit()
    bucket.proxy.clear()


@pytest.mark.parametrize("moment", mostly_slow(["begin", "claim"], "begin"))
@pytest.mark.parametrize("output", ["bucket"], indirect=True)
def test_the_commit_that_comes_second_is_told_only_to_wait(
    tmp_path: Path, s3_bucket: Bucket, place: Place, call: Run, moment: str
):
    """The other one takes over when it begins to continue a third one, or to put the output in place."""
    inputs = make_inputs(tmp_path / "small", "text", (30, 20))
    run = place.plan(inputs, temp_dir=f"{s3_bucket.url}/tmp", piles=4)
    (tmp_path / "plan.json").write_text(json.dumps({"run": run.run}))
    run.do_before_the_commit()
    if moment == "begin":
        die_in_commit(s3_bucket, run, 2)
    s3_bucket.proxy.call(s3_bucket.requests["claim"], lambda: die_in_commit(s3_bucket, run, 3))
    told = call("task", tmp_path / "plan.json", str(run.last))
    assert told.returncode == 1
    assert told.stderr.decode() == (
        f"recshuf: error: {place.work}: another run is writing this output, or has taken it over; wait for its end\n"
    )
    run.commit()
    options = place.options | {"temp_dir": None, "piles": 4}
    check_whole(s3_bucket, shuffle_locally(inputs, tmp_path / "local", **options))
