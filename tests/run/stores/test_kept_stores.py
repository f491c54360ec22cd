"""Gathers of one kept store: killed and continued, two at once, and by a user who may only read it."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from signal import SIGKILL

import numpy as np
import pytest

import recshuf
from recshuf.errors import AlreadyCompleteError, OutputError
from tests.support.output_trees import list_tree
from tests.support.stores.killed_stores import fork, join

ROWS = 8_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "store"
    for name in ("a", "b"):
        with recshuf.PileWriter(path, name, seed=3, piles=24) as writer:
            writer.write({"id": np.arange(ROWS), "text": [f"row {row} of {name}" for row in range(ROWS)]})
    return path


def gather(store: Path, output: Path, *, resume: bool = False, epoch: int = 0) -> None:
    recshuf.gather(store, f"{output}/", shards=12, workers=1, epoch=epoch, resume=resume)


def read_shards(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(output.iterdir())}


@pytest.mark.parametrize(
    ("kills", "epoch"),
    [
        pytest.param(4, 1, id="short"),
        pytest.param(30, 0, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_a_killed_gather_is_continued_to_the_same_bytes(
    store: Path, tmp_path: Path, kills: int, epoch: int
) -> None:
    files = list_tree(store)
    started = time.perf_counter()
    assert join(fork(lambda: gather(store, tmp_path / "expected", epoch=epoch))) == 0
    longest, moments = 1.1 * (time.perf_counter() - started), random.Random(epoch)
    expected = read_shards(tmp_path / "expected")
    for kill in range(kills):
        output = tmp_path / f"{kill}"
        child = fork(lambda output=output: gather(store, output, epoch=epoch))
        assert join(child, moments.uniform(0, longest)) in (0, -SIGKILL)
        if output.exists():
            assert read_shards(output) == expected
        try:
            gather(store, output, epoch=epoch, resume=True)
        except AlreadyCompleteError:
            assert output.exists()
        assert read_shards(output) == expected
    assert list_tree(store) == files
    left = {path.name for path in tmp_path.iterdir() if path.name.startswith(".")}
    assert left == {f".{name}.recshuf.json" for name in ("expected", *range(kills))}


def test_two_gathers_into_one_output_write_it_once(store: Path, tmp_path: Path) -> None:
    """The one that comes second is refused."""

    def try_to_gather() -> None:
        try:
            gather(store, tmp_path / "out")
        except OutputError:
            os._exit(3)

    children = [fork(try_to_gather) for _ in range(2)]
    assert sorted(map(join, children)) == [0, 3]
    gather(store, tmp_path / "expected")
    assert read_shards(tmp_path / "out") == read_shards(tmp_path / "expected")


def test_a_user_who_may_only_read_a_store_can_gather_and_load_it(store: Path) -> None:
    if os.getuid():
        pytest.skip("only root can become another user")
    nobody = 65534

    def read() -> None:
        os.setuid(nobody)
        gather(kept, folder / "out")
        assert sum(len(batch["id"]) for batch in recshuf.PileLoader(kept, 100)) == 2 * ROWS

    # pytest makes its own folders private whenever it starts, also beside this one.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        kept = Path(shutil.copytree(store, folder / "store"))
        for path in (kept, *kept.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        gather(kept, folder / "expected")
        files = list_tree(kept)
        assert join(fork(read)) == 0
        assert read_shards(folder / "out") == read_shards(folder / "expected")
        assert list_tree(kept) == files
