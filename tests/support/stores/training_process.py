"""A training loop as a process of its own: prints the records and the state after each batch.

python -m tests.support.stores.training_process STORE WORKERS START_METHOD [STATE]
"""

import json
import multiprocessing
import sys


def main() -> None:
    from recshuf.torch import PileDataLoader, PileDataset

    multiprocessing.set_forkserver_preload(["torch"])  # else each worker imports it
    store, workers, method, *state = sys.argv[1:]
    loader = PileDataLoader(
        PileDataset(store, 16, epoch=1), num_workers=int(workers), multiprocessing_context=method
    )
    if state:
        loader.load_state_dict(json.loads(state[0]))
    for batch in loader:
        sys.stdout.write(json.dumps([batch["id"].tolist(), loader.state_dict()]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
