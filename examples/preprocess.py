"""Three processes tokenise text into one pile store, while a fourth trains on what is there.

    python examples/preprocess.py FOLDER [--documents 3000] [--rounds 3]

In each round every worker writes its documents to a set of its own, while the trainer trains an epoch on the snapshot that is
the newest when it begins. A set counts once its writer closes it. The next round begins when all of them are done.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import nn

import recshuf

WORKERS = 3
TOKENS = 256  # the tokens are bytes
LENGTH = 32
BATCH = 100
SCHEMA = pa.schema([("tokens", pa.list_(pa.uint8()))])


def read_documents(worker: int, part: int, count: int) -> list[str]:
    """Return some documents; each worker has its own subject."""
    rng = np.random.default_rng([worker, part])
    words = (["cat", "purrs", "naps"], ["dog", "barks", "runs"], ["bird", "sings", "flies"])[worker]
    return [" ".join(rng.choice(words, rng.integers(3, 30))) for _ in range(count)]


def tokenise(worker: int, part: int, count: int, store: Path) -> None:
    """Write a part of a worker's documents to the store."""
    with recshuf.PileWriter(store, f"worker-{worker}-part-{part}", SCHEMA, seed=7, piles=8) as writer:
        texts = read_documents(worker, part, count)
        for start in range(0, count, BATCH):
            writer.write({"tokens": [list(text.encode()) for text in texts[start : start + BATCH]]})


def train_epoch(
    network: nn.Module, optimiser: torch.optim.Optimizer, store: Path, epoch: int
) -> dict[str, float]:
    """Train on the newest snapshot, and return what was seen."""
    loader = recshuf.PileLoader(store, 16, epoch=epoch, drop_last=False)
    steps = max(
        1, sum(len(part) for batch in loader for part in batch["tokens"].to_pylist()) // (16 * LENGTH)
    )
    sequences = loader.packed(tokens=LENGTH, column="tokens")
    total = 0.0
    for _, batch in zip(range(steps), sequences, strict=False):
        tokens = torch.from_numpy(batch["tokens"].astype(np.int64))
        loss = nn.functional.cross_entropy(network(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.item()
    return {"snapshot": loader.state_dict()["snapshot"], "steps": steps, "loss": total / steps}


def main() -> None:
    """Tokenise and train at the same time, and print each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="new folder")
    parser.add_argument("--documents", type=int, default=3000, help="documents of each worker in a round")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    store, context = given.folder / "store", multiprocessing.get_context("fork")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = nn.Sequential(nn.Embedding(TOKENS, 32), nn.Linear(32, TOKENS))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    seen = []
    for part in range(given.rounds):
        writers = [
            context.Process(target=tokenise, args=(worker, part, given.documents, store))
            for worker in range(WORKERS)
        ]
        for writer in writers:
            writer.start()
        if part:
            seen.append(train_epoch(network, optimiser, store, part))
            print(seen[-1])
        for writer in writers:
            writer.join()
            if writer.exitcode:
                raise SystemExit(f"a writer failed with exit code {writer.exitcode}")
    seen.append(train_epoch(network, optimiser, store, given.rounds))
    print(seen[-1], recshuf.PileStore(store).num_records, "documents")
    (given.folder / "epochs.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
