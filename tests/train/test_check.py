"""The check of a loader: uniform epochs pass, and what is wrong with an epoch is found."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import CheckError, UsageError
from recshuf.piles.epochs import EpochOrder
from recshuf.records.provenance import FILE_SHIFT
from recshuf.train import check

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of four sets in 16 piles."""
    folder = tmp_path_factory.mktemp("checked")
    path = folder / "store"
    for index in range(4):
        with recshuf.PileWriter(path, name=f"w{index}", seed=7, piles=16) as writer:
            writer.write(pa.table({"id": range(2000 + index)}))
    return path


@pytest.mark.parametrize(
    ("reshuffle", "mix", "meetings"),
    [
        ("rotate", 1, 1 + 15 / 4),
        ("rotate", 4, 1 + 9 / 60),
        ("piles", 1, 16),
        ("none", 1, 16),
    ],
)
def test_every_reshuffle_passes_with_the_meetings_of_the_formula(
    store: Path, reshuffle: str, mix: int, meetings: float
) -> None:
    done = recshuf.check_loader(store, reshuffle=reshuffle, mix=mix)
    assert done.is_uniform, [score for score in done.scores if score.is_flagged]
    assert done.records == 2 * 8006
    (again,) = [score for score in done.scores if score.name == "meetings"]
    assert again.expectation == pytest.approx(meetings, rel=0.02)


def spoil(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Change the order of the epochs that the check reads."""
    read = check._read_origins
    monkeypatch.setattr(check, "_read_origins", lambda *given: change(read(*given), given[1].epoch))


def test_an_order_that_is_not_random_is_found(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(
        monkeypatch, lambda origins, _: np.concatenate([np.sort(part) for part in np.split(origins, [4000])])
    )
    assert not recshuf.check_loader(store).is_uniform


def test_groups_that_stay_together_are_found(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of "piles" under the name of "rotate"."""

    def find_slots(self: EpochOrder, names: Any, count: int) -> Any:
        if self.seed == 7:
            self = EpochOrder(7, self.epoch, "piles", 7)
        return slots(self, names, count)

    slots = EpochOrder.find_slots
    monkeypatch.setattr(EpochOrder, "find_slots", find_slots)
    done = recshuf.check_loader(store)
    assert [score.name for score in done.scores if score.is_flagged] == ["meetings"]


@pytest.mark.parametrize("change", [lambda ids: ids[1:], lambda ids: np.append(ids[1:], ids[1])])
def test_records_that_come_twice_or_never_are_an_error(
    store: Path, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    for wrong in (1, 2):
        with monkeypatch.context() as patch:
            spoil(patch, lambda ids, epoch, wrong=wrong: change(ids) if epoch == wrong else ids)
            with pytest.raises(CheckError, match="every record once"):
                recshuf.check_loader(store)


SHIFT = int(FILE_SHIFT)
FAULTS: dict[str, Callable[[Any], Any]] = {
    "exchanged sources": lambda ids: (ids + (1 << SHIFT)) % (4 << SHIFT),
    "other rows": lambda ids: ids + 1_000_000,
    "another record": lambda ids: np.where(ids == 5, (7 << SHIFT) + 123456, ids),
    "a row after the last": lambda ids: np.where(ids == 5, 2000, ids),
}


@pytest.mark.parametrize(
    ("fault", "is_compacted"), [(fault, number % 2 > 0) for number, fault in enumerate(FAULTS)]
)
def test_records_that_the_store_does_not_hold_are_an_error(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, is_compacted: bool
) -> None:
    """Both epochs hold the same records, and as many as the store."""
    if is_compacted:
        store = Path(shutil.copytree(store, tmp_path / "store"))
        recshuf.compact(store, sets=2)
        assert recshuf.check_loader(store, mix=4).is_uniform
    spoil(monkeypatch, lambda ids, _: FAULTS[fault](ids.astype(np.int64)).astype(np.uint64))
    with pytest.raises(
        CheckError, match=r"in epoch 1 8,006 of 8,006, 0 twice, [1-9][\d,]* with a source and row"
    ):
        recshuf.check_loader(store, mix=4)


@pytest.mark.parametrize(("reshuffle", "mix"), [("rotate", 1), ("piles", 16)])
def test_an_epoch_that_comes_again_is_an_error(
    store: Path, monkeypatch: pytest.MonkeyPatch, reshuffle: str, mix: int
) -> None:
    epochs: list[Any] = []
    spoil(monkeypatch, lambda ids, _: epochs[0] if epochs else epochs.append(ids) or ids)
    with pytest.raises(
        CheckError, match=f"reshuffle='{reshuffle}' yields one order in epochs 1 and 2; report"
    ):
        recshuf.check_loader(store, reshuffle=reshuffle, mix=mix)


def test_bad_arguments_are_named(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^mix=0"):
        recshuf.check_loader(store, mix=0)
    with pytest.raises(UsageError, match="no such pile store"):
        recshuf.check_loader(tmp_path / "none")
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "few.parquet")
    recshuf.scatter(tmp_path / "few.parquet", tmp_path / "few")
    with pytest.raises(UsageError, match="too few"):
        recshuf.check_loader(tmp_path / "few")
