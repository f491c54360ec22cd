"""Whoever is stopped at any call of the system while others change a store: all is as if one had come after the other."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import OutputError
from recshuf.piles.kept.folder import StoreFolder
from recshuf.piles.kept.upkeep import drop_store
from tests.support.effort import some
from tests.support.stores.small_stores import append, expire, read_ids, write

Job = tuple[str, int]
"""What to do, and the first id of new records."""
CALLS = ((os, "link"), (os, "listdir"), (os, "unlink"), (fcntl, "flock"))
"""What commits and deletions are made of."""
OTHERS = (
    ("compact",),
    ("expire",),
    ("write", "write"),
    ("append", "compact"),
    ("compact", "clear"),
    ("remake",),
)


def write_five(store: Path, first: int) -> None:
    write(store, f"writer-{first}", {"id": range(first, first + 5)}, piles=1)


def remake(store: Path, first: int) -> None:
    drop_store(store)
    for number in (first, first + 10, first + 20):
        write_five(store, number)


JOBS: dict[str, Callable[[Path, int], object]] = {
    "write": write_five,
    "append": lambda store, first: append(store, {"id": range(first, first + 5)}, time=first),
    "expire": lambda store, _: expire(store, records=9),
    "clear": lambda store, _: expire(store, records=0),
    "compact": lambda store, _: recshuf.compact(store, sets=1),
    "remake": remake,
}


def do(store: Path, job: Job) -> bool:
    """Do a job, and tell whether it succeeded; one that others make impossible changes nothing."""
    try:
        JOBS[job[0]](store, job[1])
    except OutputError as error:
        assert str(error).endswith(("run again", "wait for its end"))
        return False
    return True


@contextmanager
def stop_before(
    call: int, jobs: Sequence[Job], store: Path, monkeypatch: pytest.MonkeyPatch, of: Any = CALLS
) -> Iterator[list[bool]]:
    """Do jobs before the call of the system with a number; gives a list of which have succeeded."""
    calls, done = count(), []

    def replace(holder: Any, name: str) -> None:
        real = getattr(holder, name)

        def stopped(*args: Any, **options: Any) -> Any:
            if next(calls) == call:
                done.extend([do(store, job) for job in jobs])
            return real(*args, **options)

        patch.setattr(holder, name, stopped)

    with monkeypatch.context() as patch:
        for holder, name in of:
            replace(holder, name)
        yield done


def list_pairs() -> list[Any]:
    """Return each job with each of those that overtake it; by default each comes about once."""
    names = [name for name in JOBS if name != "remake"]
    return [
        pytest.param(name, others, marks=() if (row - column) % len(OTHERS) == 0 else pytest.mark.slow)
        for row, name in enumerate(names)
        for column, others in enumerate(OTHERS)
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "others"), list_pairs())
def test_a_job_that_others_overtake_at_any_call_is_done_once(
    tmp_path: Path, name: str, others: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recshuf.piles.kept.folder.time.sleep", lambda _: None)
    begun, store = tmp_path / "begun", tmp_path / "store"
    for first in (0, 10):
        write_five(begun, first)
    job, rest = (name, 100), [(other, 200 + 100 * number) for number, other in enumerate(others)]

    @cache
    def list_outcomes(is_done: bool, *are_done: bool) -> list[list[int]]:
        done = [one for one, succeeded in zip(rest, are_done, strict=True) if succeeded]
        places = [[*done[:place], job, *done[place:]] for place in range(len(done) + 1)]
        return [do_all(begun, tmp_path / "serial", jobs) for jobs in (places if is_done else [done])]

    for call in some(count(), 5):
        shutil.copytree(begun, store)
        with stop_before(call, rest, store, monkeypatch) as are_done:
            is_done = do(store, job)
        if not are_done:
            assert call > 10
            return
        assert sorted(read_ids(store)) in list_outcomes(is_done, *are_done), call
        check_nothing_is_left(store)
        shutil.rmtree(store)


def test_a_commit_is_not_lost_whose_number_others_take_and_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_five(tmp_path / "store", 0)
    others = [("append", 100), ("append", 200)]
    with stop_before(0, others, tmp_path / "store", monkeypatch, CALLS[:1]) as are_done:
        write_five(tmp_path / "store", 300)
    assert are_done == [True, True]
    assert sorted(read_ids(tmp_path / "store")) == [100 * k + row for k in range(4) for row in range(5)]


def do_all(begun: Path, store: Path, jobs: Sequence[Job]) -> list[int]:
    """Return what a store holds after jobs that follow each other."""
    shutil.copytree(begun, store)
    assert all(do(store, job) for job in jobs)
    found = sorted(read_ids(store))
    shutil.rmtree(store)
    return found


def check_nothing_is_left(store: Path) -> None:
    """Check that a store has no more files than its newest snapshot needs, after one more commit."""
    newest = StoreFolder(store).commit(lambda newest: newest)
    files = {path.name for path in store.rglob("*") if path.is_file()}
    assert files == {f"snapshot-{newest.number:06d}.json", *(f"{one.name}.piles" for one in newest.sets)}
