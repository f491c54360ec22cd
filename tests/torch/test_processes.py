"""Processes that are killed, left or fail: nothing of them stays, and a new loader goes on."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader, IterableDataset

import recshuf
from recshuf.torch import PileDataLoader, PileDataset
from recshuf.train.loader import PileLoader
from tests.support.formats.format_tools import find_open_files
from tests.support.processes.command_line import DEADLINE
from tests.support.stores import training_process
from tests.support.stores.small_stores import batch_ids, write

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores

METHODS = ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))]
SHARED = Path("/dev/shm")
EPOCH = 1


def expect(store: Path) -> list[list[int]]:
    return batch_ids(PileLoader(store, 16, epoch=EPOCH))


def make_loader(store: Path, state: str | None = None, method: str = "fork") -> PileDataLoader:
    loader = PileDataLoader(
        PileDataset(store, 16, epoch=EPOCH), num_workers=2, multiprocessing_context=method
    )
    if state is not None:
        loader.load_state_dict(json.loads(state))
    return loader


def list_workers() -> list[psutil.Process]:
    """Return the loaders' workers among the descendants of this process."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            found += [one] * (one.name() == "pt_data_worker")
    return found


def list_leftovers() -> set[str]:
    """Return the threads of loaders, the maps and files of tensors, and the files in shared memory that are not those of others."""
    gc.collect()
    threads = {one.name for one in threading.enumerate() if one.name.startswith("recshuf")}
    maps = {line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:recshuf" in line}
    maps |= {str(path) for path in find_open_files(Path("/")) if "memfd:recshuf" in path.name}
    return threads | maps | {name for name in os.listdir(SHARED) if not is_of_others(name)}


def is_of_others(name: str) -> bool:
    """Tell whether a file in shared memory may be that of a program that runs beside this one."""
    found = re.match(r"torch_(\d+)_", name)
    if found is None:  # other names tell nothing
        return True
    if not psutil.pid_exists(int(found[1])):
        return False
    me = psutil.Process()
    return int(found[1]) not in {one.pid for one in (me, *me.children(recursive=True))}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of 3000 records in 27 piles, each of which is sent alone."""
    folder = tmp_path_factory.mktemp("large")
    columns = {"id": range(3000), "payload": pa.array([bytes(40_000)] * 3000, pa.binary(40_000))}
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    recshuf.scatter(folder / "rows.parquet", folder / "store", seed=7, piles=27)
    return folder / "store"


@pytest.fixture(autouse=True)
def nothing_is_left(store: Path) -> Iterator[None]:
    before = list_leftovers()
    yield
    assert not psutil.wait_procs(list_workers(), timeout=DEADLINE)[1]
    assert list_leftovers() <= before
    for path in store.rglob("*"):  # no process reads the store
        if path.is_file():
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def note_until_it_fails(batches: Iterable[dict[str, Any]], found: list[list[int]]) -> None:
    for batch in batches:
        found.append(batch["id"].tolist())  # noqa: PERF401 - what came before the error counts


# PyTorch tells of a killed worker in whatever runs at the time, also in a `__del__`.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("method", METHODS)
def test_workers_can_be_killed_three_times(store: Path, method: str) -> None:
    found, state = [], None
    for killed in range(3):
        loader = make_loader(store, state, method)
        batches = iter(loader)
        found += batch_ids(islice(batches, 5 + killed))
        os.kill(list_workers()[killed % 2].pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"DataLoader worker .* (killed|exited)"):
            note_until_it_fails(batches, found)  # some may have arrived
        state = json.dumps(loader.state_dict())
        del batches, loader
    found += batch_ids(make_loader(store, state, method))
    assert found == expect(store)


def train_and_die(store: Path, method: str, count: int, *state: str) -> list[tuple[list[int], str]]:
    """Return records and states of some batches of a trainer that is killed then, with which its workers end."""
    command = [sys.executable, "-m", training_process.__name__, str(store), "2", method, *state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        lines = [json.loads(line) for line in islice(trainer.stdout, count)]
        children = psutil.Process(trainer.pid).children(recursive=True) if len(lines) == count else []
        trainer.kill()
    assert not psutil.wait_procs(children, timeout=DEADLINE)[1]
    return [(ids, json.dumps(latest)) for ids, latest in lines]


@pytest.mark.parametrize("method", METHODS)
def test_the_trainer_can_be_killed_twice(store: Path, method: str) -> None:
    found: list[tuple[list[int], str]] = []
    for count in (5, 1, 10**6):
        found += train_and_die(store, method, count, *(state for _, state in found[-1:]))
    assert [ids for ids, _ in found] == expect(store)


@pytest.mark.parametrize("method", METHODS)
def test_workers_without_a_request_end_with_a_killed_trainer(tmp_path: Path, method: str) -> None:
    write(tmp_path / "store", "a", {"id": range(20_000)})  # one group for two workers
    train_and_die(tmp_path / "store", method, 1)


@pytest.mark.parametrize("kind", [partial(DataLoader, batch_size=None), PileDataLoader])
def test_an_iteration_can_be_left(store: Path, kind: Any) -> None:
    """Its batches lie in memory without a name."""
    for batch in kind(PileDataset(store, 16, epoch=EPOCH), num_workers=2):
        assert len(batch["id"]) == 16
        assert "memfd:recshuf" in Path("/proc/self/maps").read_text()
        break


class Failing(IterableDataset):
    """Fails in the worker after some batches."""

    def __init__(self, dataset: PileDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        yield from islice(self.dataset, 4)
        raise ArithmeticError("of the transform")


def test_a_worker_can_fail(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # After an error PyTorch waits so long for each worker, which does not end by itself.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)
    loader = DataLoader(Failing(PileDataset(store, 16, epoch=EPOCH)), batch_size=None, num_workers=2)
    found: list[list[int]] = []
    with pytest.raises(ArithmeticError, match="of the transform"):
        note_until_it_fails(loader, found)
    assert found == expect(store)[:8]
    gc.collect()  # the error holds the iterator


def test_the_training_loop_can_fail(store: Path) -> None:
    def train() -> None:
        for _ in make_loader(store):
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        train()


CHILD = """
import sys
import torch  # keeps modules alive beyond those of recshuf
import recshuf
from recshuf.torch import PileDataLoader, PileDataset

store = sys.argv[1]
batches = iter({iterable})
next(batches)
"""


@pytest.mark.parametrize(
    "iterable",
    [
        "PileDataLoader(PileDataset(store, 4, columns=['row']), num_workers=2)",
        "recshuf.PileLoader(store, 4).packed(8, column='tokens')",
        *(
            pytest.param(iterable, marks=pytest.mark.slow)
            for iterable in (
                "recshuf.PileLoader(store, 4)",
                "recshuf.PileLoader(store, 4).records()",
                "recshuf.MixLoader({store: 1.0}, 4)",
                "PileDataLoader(PileDataset(store, 4, columns=['row']))",
            )
        ),
    ],
)
def test_an_unfinished_iterator_ends_with_the_program_in_silence(tmp_path: Path, iterable: str):
    write(tmp_path / "store", "a", {"row": range(2000), "tokens": [[1, 2, 3]] * 2000})
    code = CHILD.replace("{iterable}", iterable)
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True)
    assert (found.returncode, found.stderr) == (0, b"")
