"""Trains a small network on cats, then dogs, in three orders, and draws loss and accuracy.

    python examples/train.py FOLDER [--picture curves.png] [--records 20000] [--epochs 2]

The records lie in Parquet files as many data sets do: all cats first, then all dogs. Each order trains the same network
from the same start: as stored; through a shuffle buffer of 5 % of the records; from piles.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import recshuf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = 64
SIDE = 16
FILES = 4
BUFFER_SHARE = 0.05
TEST_RECORDS = 2000
CAT, DOG = 0, 1


def draw_animals(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a noisy picture of each animal, shape ``(n, SIDE, SIDE)``: cats have pointed ears, dogs hanging ones."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    face = (rows - 10) ** 2 + (columns - 7.5) ** 2 < 26
    pointed = (np.abs(np.abs(columns - 7.5) - 4) < (rows - 1) / 2) & (rows < 6)
    hanging = (np.abs(np.abs(columns - 7.5) - 6) < 1.5) & (rows > 6) & (rows < 13)
    shapes = np.stack([face | pointed, face | hanging]).astype(np.float32)
    return shapes[labels] + rng.normal(0, 1.2, (len(labels), SIDE, SIDE)).astype(np.float32)


def write_animals(folder: Path, count: int) -> None:
    """Write Parquet files with all cats before all dogs."""
    rng = np.random.default_rng(1)
    labels = np.repeat([CAT, DOG], count // 2)
    for number, part in enumerate(np.array_split(labels, FILES)):
        pixels = pa.FixedSizeListArray.from_arrays(draw_animals(part, rng).reshape(-1), SIDE * SIDE)
        pq.write_table(pa.table({"pixels": pixels, "label": part}), folder / f"animals-{number}.parquet")


def iterate_as_stored(folder: Path, _: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the records as they lie in the files."""
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(BATCH):
            pixels = batch.column("pixels").flatten().to_numpy(zero_copy_only=False)
            yield {
                "pixels": torch.tensor(pixels).reshape(-1, SIDE * SIDE),
                "label": torch.tensor(batch.column("label").to_numpy(zero_copy_only=False)),
            }


def iterate_buffer(folder: Path, epoch: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield records drawn from a buffer that the files fill from the other end."""
    rng = np.random.default_rng(epoch)
    pool: list[tuple[torch.Tensor, torch.Tensor]] = []
    picked: list[tuple[torch.Tensor, torch.Tensor]] = []
    size = int(BUFFER_SHARE * sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet")))
    for batch in iterate_as_stored(folder, epoch):
        for record in zip(batch["pixels"], batch["label"], strict=True):
            if len(pool) < size:
                pool.append(record)
                continue
            place = int(rng.integers(size))
            picked.append(pool[place])
            pool[place] = record
            if len(picked) == BATCH:
                yield _stack(picked)
                picked = []
    rng.shuffle(pool)  # type: ignore[arg-type] # a list will do
    picked += pool
    for start in range(0, len(picked), BATCH):
        yield _stack(picked[start : start + BATCH])


def _stack(records: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    pixels, labels = zip(*records, strict=True)
    return {"pixels": torch.stack(pixels), "label": torch.stack(labels)}


def open_piles(folder: Path) -> Callable[[Path, int], Iterator[dict[str, torch.Tensor]]]:
    """Scatter the files into a pile store, and return what iterates over its epochs."""
    store = folder / "store"
    if not store.exists():
        recshuf.scatter(folder / "*.parquet", store, seed=7, piles=16)
    loader = recshuf.PileLoader(store, BATCH, output="torch", drop_last=False)

    def iterate(_: Path, epoch: int) -> Iterator[dict[str, torch.Tensor]]:
        loader.set_epoch(epoch)
        return iter(loader)

    return iterate


def train(batches_of: Callable[[int], Iterator[dict[str, torch.Tensor]]], epochs: int) -> list[list[float]]:
    """Train the network, and return step, loss of the batch and accuracy on the test records, every few steps."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Unflatten(1, (1, SIDE, SIDE)),
        nn.Conv2d(1, 8, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(2),
    )
    labels = np.random.default_rng(2).integers(0, 2, TEST_RECORDS)
    pixels = torch.tensor(draw_animals(labels, np.random.default_rng(3))).reshape(-1, SIDE * SIDE)
    network(pixels[:1])
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    curve, step = [], 0
    for epoch in range(epochs):
        for batch in batches_of(epoch):
            loss = nn.functional.cross_entropy(network(batch["pixels"]), batch["label"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % 5 == 0:
                with torch.no_grad():
                    right = (network(pixels).argmax(1).numpy() == labels).mean()
                curve.append([step, loss.item(), float(right)])
            step += 1
    return curve


def draw_curves(curves: dict[str, list[list[float]]], path: Path) -> None:
    """Draw loss and accuracy of each order."""
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for name, curve in curves.items():
        steps, losses, accuracies = zip(*curve, strict=True)
        panels[0].plot(steps, losses, label=name, linewidth=1)
        panels[1].plot(steps, accuracies, label=name, linewidth=1)
    for panel, title in zip(panels, ("loss of each batch", "accuracy on unseen records"), strict=True):
        panel.set(title=title, xlabel="step")
        panel.grid(alpha=0.3)
    panels[0].set(yscale="log", ylim=(1e-3, 20))
    panels[1].set(ylim=(0.45, 1.0))
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=len(curves))
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train in each order, and print and draw what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="new or earlier folder of this program")
    parser.add_argument("--picture", type=Path, help="PNG with the curves; needs matplotlib")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=2)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not list(given.folder.glob("*.parquet")):
        write_animals(given.folder, given.records)
    orders = {
        "as stored": iterate_as_stored,
        f"shuffle buffer, {BUFFER_SHARE:.0%}": iterate_buffer,
        "recshuf piles": open_piles(given.folder),
    }
    torch.set_num_threads(1)
    curves = {}
    for name, iterate in orders.items():
        curves[name] = train(lambda epoch, iterate=iterate: iterate(given.folder, epoch), given.epochs)
        accuracies = [accuracy for *_, accuracy in curves[name]]
        print(f"{name}: accuracy at the end {accuracies[-1]:.3f}, mean {np.mean(accuracies):.3f}")
    (given.folder / "curves.json").write_text(json.dumps(curves))
    if given.picture:
        draw_curves(curves, given.picture)


if __name__ == "__main__":
    main()
