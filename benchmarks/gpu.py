"""Measures images and tokens a second into a GPU, beside PyTorch's own loader on the same data in memory.

    python -m benchmarks.gpu [FOLDER] [--records 30000] [--seconds 4] [--workers 0,2,4] [--budget 8]

makes a store of images and one of sequences of tokens in FOLDER, and removes them afterwards. Loaders pin their batches. A
stream of its own copies the next batch while the model computes on one.

- arriving: no model, as many records as arrive on the device in a second.
- training: a model that takes so long for a batch as `--compute` says, and what share of the time it computes: 1 if it never
  waits for a batch.

`PileDataLoader` reads a store from the page cache, shuffles it and checks it. The others have all records in memory:
`DataLoader` of single records, which it collates, of whole batches by random index, and one batch that is copied again and
again, which is what the link allows. What does not fit into `--budget` minutes is left out, and named. Without a GPU, the
CPU stands in for one: that shows that this runs, and no more.
"""

from __future__ import annotations

import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np
import pyarrow as pa

import recshuf
from benchmarks.markdown import format_table
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

WRITTEN_ROWS = 4096
UNTIMED_BATCHES = 8
START_SECONDS = 6.0
"""Reserved for a loader to start its workers."""
SIDE = 1024
"""Of the square matrices that stand for a model."""


class Kind(NamedTuple):
    """What a record is."""

    name: str
    units: str
    units_of_record: int
    batch_size: int
    make: Callable[[int], NDArray[Any]]
    """Returns so many records, one a row."""


KINDS = (
    Kind("images of 64 x 64", "images", 1, 256, lambda count: _draw(count, 3 * 64 * 64, np.uint8)),
    Kind("sequences of 2,048 tokens", "tokens", 2048, 64, lambda count: _draw(count, 2048, np.int32)),
)


def _draw(count: int, width: int, kind: Any) -> NDArray[Any]:
    words = np.random.default_rng(1).integers(0, 2**63, count * width * np.dtype(kind).itemsize // 8 + 1)
    return words.view(kind)[: count * width].reshape(count, width)


def write_store(path: Path, records: NDArray[Any]) -> None:
    """Write records as lists of a fixed size."""
    with recshuf.PileWriter(path, "records", seed=1, piles=max(4, records.nbytes >> 23)) as writer:
        for first in range(0, len(records), WRITTEN_ROWS):
            rows = records[first : first + WRITTEN_ROWS]
            writer.write(
                {"x": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), records.shape[1])}
            )


class InMemory:
    """Records in memory as a data set of single records."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": self.records[row]}


class InMemoryBatches(InMemory):
    """Records in memory as a data set that takes all of a batch at once."""

    def __getitems__(self, rows: list[int]) -> dict[str, Any]:
        return {"x": self.records[rows]}


def make_loader(name: str, kind: Kind, store: Path, records: Any, workers: int, pin: bool) -> Iterable[Any]:
    """Return a loader of batches, over which one may iterate again and again."""
    from torch.utils.data import DataLoader

    from recshuf.torch import PileDataLoader, PileDataset

    options: dict[str, Any] = {
        "num_workers": workers,
        "pin_memory": pin,
        "persistent_workers": workers > 0,
    }
    if name == LOADERS[0]:
        return PileDataLoader(PileDataset(store, kind.batch_size), **options)
    if name == LOADERS[-1]:
        first = {"x": records[: kind.batch_size].clone()}
        return [{"x": first["x"].pin_memory()} if pin else first]
    dataset: Any = InMemory(records)
    if name == LOADERS[2]:
        dataset, options["collate_fn"] = InMemoryBatches(records), _return_unchanged
    return DataLoader(dataset, batch_size=kind.batch_size, shuffle=True, drop_last=True, **options)


LOADERS = (
    "PileDataLoader, from a store",
    "DataLoader of records in memory",
    "DataLoader of batches in memory",
    "one batch again and again",
)


def _return_unchanged(batch: Any) -> Any:
    return batch


def repeat(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield batches, epoch after epoch."""
    for epoch in cycle(range(1 << 20)):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        yield from loader


def copy_ahead(batches: Iterator[Any], device: Any) -> Iterator[Any]:
    """Yield batches on a device; a stream of its own copies the next one meanwhile."""
    import torch

    if device.type != "cuda":
        for batch in batches:
            yield {name: column.to(device, copy=True) for name, column in batch.items()}
        return
    stream = torch.cuda.Stream(device)

    def move(batch: Any) -> Any:
        with torch.cuda.stream(stream):
            return {name: column.to(device, non_blocking=True) for name, column in batch.items()}

    following = move(next(batches))
    while True:
        torch.cuda.current_stream(device).wait_stream(stream)
        batch = following
        for column in batch.values():
            column.record_stream(torch.cuda.current_stream(device))
        following = move(next(batches))
        yield batch


class Model:
    """Products of matrices that take about so many seconds for a batch, after a look at each of its values."""

    def __init__(self, device: Any, seconds: float) -> None:
        import torch

        self._device, self._torch = device, torch
        side = SIDE if device.type == "cuda" else SIDE // 16
        self._matrix = torch.ones((side, side), device=device) / side
        self._count = 1
        if seconds:
            self._multiply(8)
            self._count = max(1, round(32 * seconds / self._measure(32)))
        self.seconds = self._measure(self._count)
        """What a batch takes, measured."""

    def _measure(self, count: int) -> float:
        begin = time.perf_counter()
        self._multiply(count)
        return time.perf_counter() - begin

    def _multiply(self, count: int) -> None:
        for _ in range(count):
            self._matrix = self._matrix @ self._matrix
        self.wait()

    def compute(self, batch: Any) -> None:
        """Compute on a batch; does not wait for the end."""
        batch["x"].to(self._torch.float32).sum()
        for _ in range(self._count):
            self._matrix = self._matrix @ self._matrix

    def wait(self) -> None:
        """Wait until the device has nothing to do."""
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)


def measure(loader: Iterable[Any], device: Any, model: Model | None, seconds: float) -> float:
    """Return how many batches a second arrive on a device, or are computed on."""
    batches = repeat(loader)
    arriving = copy_ahead(batches, device)
    idle = Model(device, 0) if model is None else model
    for batch in islice(arriving, UNTIMED_BATCHES):
        if model is not None:
            model.compute(batch)
    idle.wait()
    begin, count = time.perf_counter(), 0
    for batch in arriving:
        if model is not None:
            model.compute(batch)
        count += 1
        if count % 16 == 0:
            idle.wait()  # else the queue of the device grows without end
            if time.perf_counter() - begin > seconds:
                break
    idle.wait()
    rate = count / (time.perf_counter() - begin)
    arriving.close()  # type: ignore[attr-defined]
    batches.close()  # type: ignore[attr-defined]
    return rate


def find_device() -> tuple[Any, str]:
    """Return the device to copy to, and what it is."""
    try:
        import torch
    except ImportError as error:
        raise UsageError(
            "benchmarks.gpu needs PyTorch, which is not installed; install recshuf[torch]"
        ) from error
    if torch.cuda.is_available():
        return torch.device("cuda", 0), torch.cuda.get_device_name(0)
    return torch.device("cpu"), "NO GPU: the CPU stands in for one, and these figures say nothing about a GPU"


@click.command(help=__doc__)
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--records", default=30_000, help="Records of each kind.")
@click.option("--seconds", default=4.0, help="For each figure.")
@click.option("--compute", default=5.0, help="Milliseconds that the model takes for a batch.")
@click.option("--workers", default="0,2,4", help="Numbers of worker processes.")
@click.option("--budget", default=8.0, help="Minutes for all.")
def main(
    folder: Path | None, records: int, seconds: float, compute: float, workers: str, budget: float
) -> None:
    """Print a table for each kind of records."""
    end = time.monotonic() + 60 * budget
    device, shown = find_device()
    import torch

    click.echo(f"{shown}; PyTorch {torch.__version__}; recshuf {recshuf.__version__}")
    left_out = []
    with tempfile.TemporaryDirectory(dir=folder) as made:
        for number, kind in enumerate(KINDS):
            values, store = kind.make(records), Path(made) / f"{number}"
            write_store(store, values)
            held, model = torch.from_numpy(values), Model(device, compute / 1000)
            rows = []
            for name in LOADERS:
                for count in map(int, workers.split(",")) if name != LOADERS[-1] else [0]:
                    if time.monotonic() + 2 * seconds + START_SECONDS > end:
                        left_out.append(f"{name}, {kind.units}, {count} workers")
                        continue
                    loader = make_loader(name, kind, store, held, count, device.type == "cuda")
                    arriving = measure(loader, device, None, seconds)
                    training = measure(loader, device, model, seconds)
                    per_batch = kind.batch_size * kind.units_of_record
                    rows.append(
                        (
                            name,
                            str(count),
                            f"{arriving * per_batch:,.0f}",
                            f"{training * per_batch:,.0f}",
                            f"{min(1.0, training * model.seconds):.2f}",
                        )
                    )
                    del loader
            heads = (
                kind.name,
                "workers",
                f"{kind.units} a second arriving",
                f"training, {1000 * model.seconds:.1f} ms a batch",
                "share computing",
            )
            click.echo(f"\n{format_table(heads, rows)}")
    for one in left_out:
        click.echo(f"left out, since --budget is {budget:g} minutes: {one}")


if __name__ == "__main__":
    main()
