"""The check of a loader: uniform epochs pass, and what is wrong with an epoch is found."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import CheckError, UsageError
from recshuf.piles.epochs import EpochOrder
from recshuf.records.provenance import FILE_SHIFT
from recshuf.train import check
from tests.support.stores.small_stores import write


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of four sets in 16 piles."""
    folder = tmp_path_factory.mktemp("checked")
    path = folder / "store"
    for index in range(4):
        write(path, f"w{index}", pa.table({"id": range(2000 + index)}), seed=7, piles=16)
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
    if mix > 1:  # another seed is another order; once is enough
        assert recshuf.check_loader(store, mix=mix, seed=8).scores != done.scores


def spoil(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, int], Any]) -> None:
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


SHIFT = int(FILE_SHIFT)
ONCE = "a loader does not yield every record once: in epoch"
UNKNOWN = rf"{ONCE} 1 8,006 of 8,006, 0 twice, [1-9][\d,]* with a source and row that the store does not hold"
FAULTS: dict[str, tuple[Callable[[Any, int], Any], str]] = {
    "a lost record": (lambda ids, epoch: ids[1:] if epoch == 1 else ids, f"{ONCE} 1 8,005 of"),
    "a lost record of the second epoch": (lambda ids, epoch: ids[epoch - 1 :], f"{ONCE} 2 8,005 of"),
    "a doubled record": (lambda ids, _: np.append(ids[1:], ids[1]), f"{ONCE} 1 8,006 of 8,006, 1 twice"),
    "exchanged sources": (lambda ids, _: (ids + (1 << SHIFT)) % (4 << SHIFT), UNKNOWN),
    "other rows": (lambda ids, _: ids + 1_000_000, UNKNOWN),
    "another record": (lambda ids, _: np.where(ids == 5, (7 << SHIFT) + 123456, ids), UNKNOWN),
    "a row after the last": (lambda ids, _: np.where(ids == 5, 2000, ids), UNKNOWN),
    "one order twice": (
        lambda ids, _: np.sort(ids),
        "reshuffle='rotate' yields one order in epochs 1 and 2; report",
    ),
}


@pytest.mark.parametrize(
    ("fault", "is_compacted"), [(fault, number % 2 > 0) for number, fault in enumerate(FAULTS)]
)
def test_epochs_of_other_records_and_equal_orders_are_errors(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, is_compacted: bool
) -> None:
    if is_compacted:
        store = Path(shutil.copytree(store, tmp_path / "store"))
        recshuf.compact(store, sets=2)
        assert recshuf.check_loader(store, mix=4).is_uniform
    change, message = FAULTS[fault]
    spoil(monkeypatch, lambda ids, epoch: change(ids.astype(np.int64), epoch).astype(np.uint64))
    with pytest.raises(CheckError, match=message):
        recshuf.check_loader(store, mix=4)


def test_epochs_that_are_to_be_one_order_and_are_not_are_an_error(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, lambda ids, epoch: ids[::-1] if epoch == 2 else ids)
    with pytest.raises(CheckError, match="reshuffle='none' yields two orders in epochs 1 and 2; report"):
        recshuf.check_loader(store, reshuffle="none")


def test_bad_arguments_are_named(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^mix=0"):
        recshuf.check_loader(store, mix=0)
    with pytest.raises(UsageError, match=r"^epoch=4294967295: give an integer from 0 to 4,294,967,294$"):
        recshuf.check_loader(store, epoch=2**32 - 1)
    with pytest.raises(UsageError, match="no such pile store"):
        recshuf.check_loader(tmp_path / "none")
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "few.parquet")
    recshuf.scatter(tmp_path / "few.parquet", tmp_path / "few")
    with pytest.raises(UsageError, match="too few"):
        recshuf.check_loader(tmp_path / "few")
