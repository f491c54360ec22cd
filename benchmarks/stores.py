"""Measures what fills and moves a pile store, as ratios of medians.

    python -m benchmarks.stores [FOLDER] [--size 300MB] [--rounds 5]

- append: 1 % appended to a store, over the same appended to an almost empty store. About 1 means that the cost is
  that of the append, whatever the store holds.
- writer: `PileWriter` over a Parquet file of the same rows with Snappy and an fsync.

The two sides of a ratio take turns. The data needs three times its size in FOLDER, and is removed afterwards. Beyond
512 MB, which are in memory, it repeats.
"""

from __future__ import annotations

import os
import tempfile
import time
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import recshuf
from benchmarks.option_types import SIZE
from recshuf.piles.kept.upkeep import drop_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROW_BYTES = 750
BATCH_ROWS = 4096
PILE_BYTES = 8 << 20
MOST_IN_MEMORY = 512 << 20


class Cost(NamedTuple):
    """What a job took."""

    seconds: float
    cpu_seconds: float


def make_batches(size: int) -> list[pa.RecordBatch]:
    """Return so many bytes of text that compresses about as a page of random letters does."""
    chance = np.random.default_rng(1)
    letters = chance.choice(np.frombuffer(b"etaoinshrdlu    ", np.uint8), 1 << 20).tobytes().decode()
    count = size // ROW_BYTES
    starts = chance.integers(0, len(letters) - 2 * ROW_BYTES, count)
    lengths = chance.integers(1, 2 * ROW_BYTES, count)
    texts = [letters[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    table = pa.table({"id": np.arange(count), "text": texts}).combine_chunks()
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=BATCH_ROWS)
    return batches


def repeat(batches: list[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield batches again and again, up to so many bytes."""
    written = 0
    for batch in cycle(batches):
        if written >= size:
            return
        yield batch
        written += batch.nbytes


def write_store(path: Path, batches: list[pa.RecordBatch], size: int) -> None:
    """Write a store of so many bytes."""
    piles = max(1, size // PILE_BYTES)
    with recshuf.PileWriter(path, "writer", seed=1, piles=piles) as writer:
        for batch in repeat(batches, size):
            writer.write(batch)


def write_parquet(path: Path, batches: list[pa.RecordBatch], size: int) -> None:
    """Write a Parquet file to disk."""
    with path.open("wb") as file:
        with pq.ParquetWriter(file, batches[0].schema, compression="snappy") as writer:
            for batch in repeat(batches, size):
                writer.write_batch(batch, row_group_size=4 * BATCH_ROWS)
        os.fsync(file.fileno())


def append(path: Path, batches: list[pa.RecordBatch], number: int) -> None:
    """Append batches to a store as a slice."""
    with recshuf.PileStore(path).update() as update:
        update.append(iter(batches), time=number)


def measure(job: Callable[[], None]) -> Cost:
    """Run a job, and return what it took."""
    os.sync()  # so that it does not wait for what was written before
    start, cpu_start = time.perf_counter(), time.process_time()
    job()
    return Cost(time.perf_counter() - start, time.process_time() - cpu_start)


def compare(name: str, pairs: list[tuple[Cost, Cost]]) -> str:
    """Return a line with the median of the ratios."""
    wall = median(first.seconds / second.seconds for first, second in pairs)
    cpu = median(first.cpu_seconds / second.cpu_seconds for first, second in pairs)
    first, second = (median(pair[side].seconds for pair in pairs) for side in (0, 1))
    return f"{name}: {wall:.2f} x wall ({first:.3f} s over {second:.3f} s), {cpu:.2f} x CPU"


def measure_writer(folder: Path, batches: list[pa.RecordBatch], size: int, rounds: int) -> str:
    """Compare the writer with Parquet."""
    pairs = []
    for number in range(rounds):
        store, file = folder / f"store-{number}", folder / "file.parquet"
        pairs.append(
            (
                measure(lambda: write_store(store, batches, size)),  # noqa: B023
                measure(lambda: write_parquet(file, batches, size)),  # noqa: B023
            )
        )
        drop_store(store)
        file.unlink()
    return compare("writer over Parquet", pairs)


def measure_append(folder: Path, batches: list[pa.RecordBatch], size: int, rounds: int) -> str:
    """Compare an append to a full store with one to a store that holds one batch."""
    full, empty = folder / "full", folder / "empty"
    write_store(full, batches, size)
    piles = recshuf.PileStore(full).piles()
    with recshuf.PileWriter(empty, "writer", seed=1, piles=piles.info.pile_count) as writer:
        writer.write(batches[0])
    piles.close()
    new = list(repeat(batches, size // 100))
    pairs = [
        (measure(lambda: append(full, new, number)), measure(lambda: append(empty, new, number)))  # noqa: B023
        for number in range(1, rounds + 1)
    ]
    return compare("append of 1 % to a full store over an empty one", pairs)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path), default=Path("build/benchmarks"))
@click.option("--size", type=SIZE, default="300MB", show_default=True, help="Bytes of the data.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Pairs of runs.")
def main(folder: Path, size: int, rounds: int) -> None:
    """Print the ratios."""
    folder.mkdir(parents=True, exist_ok=True)
    batches = make_batches(min(size, MOST_IN_MEMORY))
    with tempfile.TemporaryDirectory(prefix="stores-", dir=folder) as work:
        click.echo(measure_writer(Path(work), batches, size, rounds))
        click.echo(measure_append(Path(work), batches, size, rounds))


if __name__ == "__main__":
    main()
