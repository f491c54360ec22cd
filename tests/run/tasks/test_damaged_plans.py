"""What is no plan is refused by every command, and so is a plan that was changed, but for its storage options."""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recshuf.api import runs
from recshuf.errors import OutputError, UsageError
from recshuf.job.parts import STAGES
from tests.conftest import Run
from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import (
    SavedPlan,
    die_after,
    divide_small,
    flip,
    read_all,
    replace_by_folder,
    shuffle,
)

COUNTS = (300, 200, 0, 250)
OPTIONS: dict[str, Any] = {"seed": 5, "shards": 4, "workers": 1, "piles": 64, "memory": "300MB"}
DAMAGED = "the plan is damaged; make it again"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return a plan as it is read from its file."""
    folder = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        divide_small(patch, block_bytes=4400)
        run = SavedPlan(make_inputs(folder / "in", "text", COUNTS), f"{folder}/out/", **OPTIONS).run
    values: dict[str, Any] = json.loads(json.dumps(run))
    assert len(values["tasks"]["sets"]) > 3
    return values


def refuse(run: Any, said: str = DAMAGED, stages: Sequence[str] = STAGES) -> None:
    for stage in stages:
        with pytest.raises(UsageError, match=said):
            runs.list_tasks(run, stage)
    with pytest.raises(UsageError, match=said):
        runs.run_task(run, 0)


# Changed plans


def find_values(inside: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value of JSON values."""
    items: Any = ()
    if isinstance(inside, dict):
        items = inside.items()
    elif isinstance(inside, list):
        items = enumerate(inside)
    for key, value in items:
        yield (*path, key)
        yield from find_values(value, (*path, key))


def get(inside: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        inside = inside[key]
    return inside


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(st.data())
def test_a_plan_with_another_value_or_order_is_damaged(saved: dict[str, Any], data: st.DataObject):
    paths = [path for path in find_values(saved) if path[0] not in ("storage", "format")]
    *parents, last = data.draw(st.sampled_from(paths))
    run = copy.deepcopy(saved)
    inner = get(run, tuple(parents))
    harm = data.draw(st.sampled_from(["deleted", "changed", *(["moved"] if isinstance(inner, list) else [])]))
    if harm == "deleted":
        del inner[last]
    elif harm == "changed":
        inner[last] = data.draw(st.integers(-9, 9) | JSON)
    else:
        inner[:] = data.draw(st.permutations(inner) | st.lists(st.sampled_from(inner)))
    if json.dumps(run, sort_keys=True) != json.dumps(saved, sort_keys=True):
        refuse(run, stages=["scatter"])


def test_storage_options_that_are_none_are_refused(saved: dict[str, Any]):
    none = {"endpoint_url": None, "options": {}}
    for storage in (
        *(None, 5, "x", {}, {"endpoint_url": None}, none | {"unknown": "x"}, none | {"endpoint_url": 5}),
        *(none | {"options": "x"}, none | {"options": {"region": 5}}),
    ):
        refuse(saved | {"storage": storage})


def test_storage_options_may_change(saved: dict[str, Any]):
    run = saved | {"storage": {"endpoint_url": "http://localhost:9", "options": {"region": "there"}}}
    assert runs.list_tasks(run, "scatter") == runs.list_tasks(saved, "scatter")
    with pytest.raises(UsageError, match="'there' is no URL of a server"):
        runs.list_tasks(saved | {"storage": {"endpoint_url": "there", "options": {}}}, "scatter")


def test_the_plan_of_another_version_is_refused():
    for values in ({}, {"format": 1}, {"format": 99, "storage": {}}, [], "x"):
        refuse(values, "the plan is of another version of recshuf; make it again")


# The file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"run": {"format": 1}}', "the plan is of another version of recshuf; make it again\n"),
        ('{"run": {"format": 4}}', "the plan is damaged; make it again\n"),
        *(
            (text, "is no plan; make it with --plan --report 'a plan.json' --engine tasks\n")
            for text in ("", "{", "\0", "[" * 100_000, '{"run": ' * 100_000)
        ),
    ],
    ids=["other version", "damaged", "empty", "cut", "binary", "deep", "deep run"],
)
def test_the_command_names_the_file_of_a_wrong_plan(
    tmp_path: Path, call: Run, text: str, said: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a plan.json").write_text(text)
    for what in ("0", "count"):
        done = call("task", "a plan.json", what)
        assert done.returncode == 2
        assert done.stderr.decode().startswith(f"recshuf: error: a plan.json: {said}")


# The files of a run that has begun


def change(path: Path) -> None:
    """Make a file other JSON, as an edit would."""
    values = json.loads(path.read_bytes())
    path.write_text(json.dumps(values | {"records": 7}))


DAMAGE, UNREADABLE = "is damaged; delete it", "cannot be read: Is a directory; make it readable, or delete it"


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        ("run.json", flip, DAMAGE),
        ("task-*-000005.json", change, DAMAGE),
        ("task-*-000002.json", lambda path: path.write_bytes(b""), DAMAGE),
        ("task-*-000004.json", replace_by_folder, UNREADABLE),
    ],
)
def test_a_file_of_a_run_that_is_damaged_is_named_and_made_again(
    tmp_path: Path, inputs: list[Path], name: str, harm: Callable[[Path], object], said: str
):
    shuffle(inputs, tmp_path / "whole")
    die_after(9, inputs, tmp_path / "out")
    (path,) = (tmp_path / ".out.recshuf" / "tasks").glob(name)
    harm(path)
    with pytest.raises(OutputError) as raised:
        shuffle(inputs, tmp_path / "out", engine="threads", resume=True)
    assert str(raised.value).splitlines()[0] == f"{path}: {said}"
    path.rmdir() if path.is_dir() else path.unlink()
    shuffle(inputs, tmp_path / "out", engine="threads", resume=True)
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


def test_inputs_that_cannot_be_read_may_be_deleted(tmp_path: Path, inputs: list[Path]):
    run = SavedPlan(inputs, f"{tmp_path}/out/", **OPTIONS)
    run.do(0)
    (path,) = (tmp_path / ".out.recshuf" / "tasks").glob("inputs-*.pickle")
    replace_by_folder(path)
    with pytest.raises(OutputError) as raised:
        run.do(1)
    assert str(raised.value) == f"{path}: {UNREADABLE}"
    path.rmdir()
    run.do(1)
    assert path.is_file()


def test_a_bit_flip_in_what_is_known_of_the_inputs_is_seen_wherever_it_is(tmp_path: Path, inputs: list[Path]):
    run = SavedPlan(inputs, f"{tmp_path}/out/", **OPTIONS)
    run.do(0)
    (path,) = (tmp_path / ".out.recshuf" / "tasks").glob("inputs-*.pickle")
    whole = path.read_bytes()
    for place in range(0, len(whole), 50):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(OutputError) as raised:
            run.do(1)
        assert str(raised.value) == f"{path}: is damaged; delete it"
