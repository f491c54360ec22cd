"""The check of a loader: uniform epochs pass, and what is wrong with an epoch is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import CheckError, UsageError
from recshuf.piles.order.epochs import EpochOrder
from recshuf.train import check

if TYPE_CHECKING:
    from pathlib import Path


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
        ("rotate", 4, 1 + 3 / 16),
        ("piles", 1, 16),
        ("exact", 1, 1),
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
    assert again.expectation == pytest.approx(meetings, rel=0.1)


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


@pytest.mark.parametrize("records", [1024, 1025])
def test_groups_of_one_record_are_an_error(tmp_path: Path, records: int) -> None:
    with recshuf.PileWriter(tmp_path / "store", name="w", seed=1) as writer:
        writer.write(pa.table({"id": range(records)}))
    with pytest.raises(
        UsageError, match=r"^mix=1: makes groups in which no two of the 1,02\d records meet twice; raise it"
    ):
        recshuf.check_loader(tmp_path / "store", reshuffle="exact")
    assert recshuf.check_loader(tmp_path / "store", reshuffle="exact", mix=64).is_uniform


def test_bad_arguments_are_named(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^mix=0"):
        recshuf.check_loader(store, mix=0)
    with pytest.raises(UsageError, match="no such pile store"):
        recshuf.check_loader(tmp_path / "none")
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "few.parquet")
    recshuf.scatter(tmp_path / "few.parquet", tmp_path / "few")
    with pytest.raises(UsageError, match="too few"):
        recshuf.check_loader(tmp_path / "few")
