"""A rank of a training loop over a mix, as torchrun starts it: writes the records of its batches, and the state.

torchrun --nproc-per-node N -m tests.support.stores.mix_process FOLDER BATCH COUNT [STATE]
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from torch import distributed

from recshuf.torch import PileDataLoader, PileDataset


def make_dataset(folder: Path, batch_size: int, **options: Any) -> PileDataset:
    """Return the mix of the stores of a folder, whose weights change."""
    small, large = sorted(folder.glob("store-*"))
    weights = {0: {small: 1, large: 3}, 7: {small: 2, large: 1}}
    return PileDataset(weights, batch_size, weight_by="text", lanes=4, columns=["_store", "id"], **options)


def list_records(batch: dict[str, Any]) -> list[list[int]]:
    return [list(one) for one in zip(batch["_store"].tolist(), batch["id"].tolist(), strict=True)]


def main() -> None:
    folder, batch, count, *state = sys.argv[1:]
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    loader = PileDataLoader(make_dataset(Path(folder), int(batch) // world), num_workers=1)
    if state:
        loader.load_state_dict(json.loads(state[0]))
    found = [list_records(one) for one in islice(loader, int(count))]
    (Path(folder) / f"rank-{rank}.json").write_text(json.dumps([found, loader.state_dict()]))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
