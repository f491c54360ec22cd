"""The classes of frameworks around `PileDataset`: which epoch, which records, where the state is found."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

import recshuf
from recshuf.errors import UsageError
from recshuf.torch import PileDataLoader, PileDataset
from recshuf.train.loader import PileLoader
from tests.support.stores.small_stores import batch_ids, write

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
]
COLUMNS = ["id", "vector"]


def expect(store: Path, *epochs: int) -> list[list[int]]:
    return [ids for epoch in epochs for ids in batch_ids(PileLoader(store, 16, epoch=epoch))]


@pytest.fixture
def stateful() -> Any:
    module = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    return partial(module.StatefulDataLoader, batch_size=None)


@pytest.mark.parametrize(("workers", "every"), [(0, 3), (2, 1), pytest.param(2, 3, marks=pytest.mark.slow)])
def test_a_stateful_loader_resumes_three_times(store: Path, stateful: Any, workers: int, every: int) -> None:
    """And its workers, which persist, follow the epoch then."""
    options = {"num_workers": workers, "persistent_workers": workers > 0, "snapshot_every_n_steps": every}
    found, state = [], None
    for count in (7, 1, 12, 10**6):
        loader = stateful(PileDataset(store, 16, epoch=2), **options)
        if state is not None:
            loader.load_state_dict(state)
        found += batch_ids(islice(loader, count))
        state = loader.state_dict()
    assert found == expect(store, 2)
    assert batch_ids(loader) == expect(store, 2)
    loader.dataset.set_epoch(3)
    found, state = batch_ids(islice(loader, 7)), loader.state_dict()
    loader = stateful(PileDataset(store, 16), **options)
    loader.load_state_dict(state)
    assert found + batch_ids(loader) == expect(store, 3)


def test_a_stateful_loader_of_another_number_of_workers_is_refused(store: Path, stateful: Any) -> None:
    loader = stateful(PileDataset(store, 16), num_workers=2)
    assert len(list(islice(loader, 5))) == 5
    state = loader.state_dict()
    for workers in (1, 3):
        resumed = stateful(PileDataset(store, 16), num_workers=workers)
        resumed.load_state_dict(state)
        with pytest.raises(UsageError, match="same number of workers, or call seek or load_state_dict"):
            list(resumed)
    resumed = stateful(PileDataset(store, 8), num_workers=2)
    resumed.load_state_dict(state)
    with pytest.raises(UsageError, match="'batch' is 16 in the state and 8 here"):
        list(resumed)
    dataset = PileDataset(store, 16)
    dataset.seek(0, 5)
    assert batch_ids(stateful(dataset, num_workers=3)) == expect(store, 0)[5:]


@pytest.fixture
def accelerator() -> Any:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    return accelerate.Accelerator(cpu=True)


@pytest.mark.parametrize("workers", [2, pytest.param(0, marks=pytest.mark.slow)])
def test_accelerate_sets_the_epoch(store: Path, accelerator: Any, workers: int) -> None:
    dataset = PileDataset(store, 16, columns=COLUMNS)
    loader = accelerator.prepare(DataLoader(dataset, batch_size=None, num_workers=workers))
    found = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        found += batch_ids(loader)
    assert found == expect(store, 0, 1, 2)


def test_accelerate_leaves_a_loader_that_counts_as_it_is(store: Path, accelerator: Any) -> None:
    loader = PileDataLoader(PileDataset(store, 16))
    assert accelerator.prepare(loader) is loader


def test_accelerate_does_not_shard_in_silence(store: Path, accelerator: Any) -> None:
    from accelerate.data_loader import prepare_data_loader

    loader = DataLoader(PileDataset(store, 8, rank=1, world_size=2), batch_size=None)
    sharded = prepare_data_loader(loader, num_processes=2, process_index=1, dispatch_batches=False)
    with pytest.raises(TypeError):
        next(iter(sharded))


class Model(torch.nn.Module):
    """Notes the records that it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen: list[list[int]] = []

    def forward(self, id: torch.Tensor, vector: torch.Tensor) -> dict[str, torch.Tensor]:  # noqa: A002
        self.seen.append(id.tolist())
        return {"loss": self.layer(vector).sum() * 0}


@pytest.mark.parametrize("workers", [2, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_transformers_sets_the_epoch(store: Path, tmp_path: Path, workers: int) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> DataLoader:
            loader = DataLoader(self.train_dataset, batch_size=None, num_workers=workers)
            return self.accelerator.prepare(loader)

    model, dataset = Model(), PileDataset(store, 16, columns=COLUMNS)
    options = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True
    )
    Trainer(model, options, train_dataset=dataset).train()
    assert model.seen == expect(store, 0, 1)


@pytest.fixture
def lightning() -> Any:
    return pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")


def make_module(lightning: Any, folder: Path | None = None) -> Any:
    """Return a module that notes what it is trained with, for each rank in a file of a folder."""

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def on_train_end(self) -> None:
            if folder is not None:
                (folder / f"{self.global_rank}.json").write_text(json.dumps(self.model.seen))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def make_trainer(lightning: Any, folder: Path, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(accelerator="cpu", default_root_dir=folder, **quiet, **options)


@pytest.mark.parametrize("workers", [2, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")
def test_lightning_saves_the_state_and_sets_the_epoch(
    store: Path, tmp_path: Path, lightning: Any, workers: int
) -> None:
    trainer = partial(make_trainer, lightning, tmp_path, max_epochs=3)
    steps = len(PileLoader(store, 16))
    first, second = make_module(lightning), make_module(lightning)

    def make_loader() -> PileDataLoader:
        return PileDataLoader(PileDataset(store, 16, columns=COLUMNS), num_workers=workers)

    loader = make_loader()
    saving = lightning.callbacks.ModelCheckpoint(tmp_path, "saved", every_n_train_steps=steps + 9)
    trainer(max_steps=steps + 9, callbacks=[saving]).fit(first, loader)
    assert first.model.seen == expect(store, 0, 1)[: steps + 9]
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["epoch"], state["step"]) == (1, 9)
    resumed = trainer(enable_checkpointing=False)
    resumed.fit(second, make_loader(), ckpt_path=tmp_path / "saved.ckpt", weights_only=False)
    assert second.model.seen == expect(store, 0, 1, 2)[steps + 9 :]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore")
def test_lightning_overfits_some_batches(store: Path, tmp_path: Path, lightning: Any, workers: int) -> None:
    """It makes a loader like the given one, of the class that is given."""
    loader = PileDataLoader(PileDataset(store, 16, columns=COLUMNS, reshuffle="none"), num_workers=workers)
    module = make_module(lightning)
    make_trainer(lightning, tmp_path, max_epochs=2, overfit_batches=3, enable_checkpointing=False).fit(
        module, loader
    )
    assert module.model.seen == expect(store, 0)[:3] * 2


@pytest.mark.filterwarnings("ignore")
def test_lightning_divides_a_loader_that_was_made_before_it(
    store: Path, tmp_path: Path, lightning: Any
) -> None:
    loader = PileDataLoader(PileDataset(store, 8, columns=COLUMNS), num_workers=1)
    options = {"devices": 2, "strategy": "ddp_fork", "max_epochs": 2, "enable_checkpointing": False}
    make_trainer(lightning, tmp_path, **options).fit(make_module(lightning, tmp_path), loader)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [first + second for first, second in zip(*ranks, strict=True)] == expect(store, 0, 1)


# `PileWriter` takes tensors: in samples and as columns, also of floats that NumPy lacks, and on a graph


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (torch.float32, pa.float32()),
        (torch.bfloat16, pa.float32()),
        (torch.float8_e4m3fn, pa.float32()),
        (torch.int16, pa.int16()),
        (torch.bool, pa.bool_()),
    ],
)
def test_tensors_are_kept(tmp_path: Path, dtype: torch.dtype, kind: pa.DataType) -> None:
    expected, tables = [], []
    for shape in ((), (3,), (2, 3)):
        values = (torch.arange(4).reshape(4, *[1] * len(shape)).expand(4, *shape) % 2).to(dtype)
        values.requires_grad = dtype.is_floating_point
        samples = [{"n": number, "x": value} for number, value in enumerate(values)]
        for data in ({"n": range(4), "x": values}, samples):
            store = tmp_path / str(len(tables))
            write(store, "a", data, piles=1)
            tables.append(pa.Table.from_batches(recshuf.PileLoader(store, 4, output="arrow")).sort_by("n"))
            expected.append(values.float().tolist())
    assert [found["x"].to_pylist() for found in tables] == expected
    for found in tables:
        inner = found.schema.field("x").type
        while pa.types.is_list(inner) or pa.types.is_fixed_size_list(inner):
            inner = inner.value_type
        assert inner == kind


def test_tensors_that_are_no_arrays_are_refused_in_one_line(tmp_path: Path) -> None:
    for number, value in enumerate((torch.eye(2).to_sparse(), torch.ones(2, 2, dtype=torch.complex64))):
        with (
            recshuf.PileWriter(tmp_path / str(number), "a") as writer,
            pytest.raises(
                UsageError, match=r"^column 'x': [^\n]*; convert the values, or give an Arrow array$"
            ),
        ):
            writer.write([{"x": value}])
