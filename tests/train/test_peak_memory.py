"""Peak memory of a loader, in a process of its own, above what that held before."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import recshuf

MB = 10**6

CHILD = """
import json, sys
from pathlib import Path
import numpy as np
import pyarrow.compute
import recshuf

store, options = json.loads(sys.argv[1])
loader = recshuf.PileLoader(store, 256, **options)
largest = int(loader.reader.source.piles.byte_counts.sum(axis=0).max())
before = len([next(iter(loader))])
matrix = np.ones((256, 256))
matrix @ matrix
status = Path("/proc/self/status")

def read(name):
    return int(status.read_text().partition(name + ":")[2].split()[0]) * 1024

Path("/proc/self/clear_refs").write_text("5")
before = read("VmRSS")
for batch in loader:
    matrix @ matrix  # meanwhile threads load ahead, as for a model that trains
print(json.dumps([largest, read("VmHWM") - before]))
"""


KINDS = {"one set": (1, 64), "many sets": (16, 64), "text": (2, 1), "tokens": (2, 0)}
"""Number of sets, and of floats in a record; without any there are tokens, else also text."""


def make_store(path: Path, piles: int, sets: int, width: int) -> Path:
    """Return a store of 8 MB a pile."""
    chance = np.random.default_rng(1)
    for number in range(sets):
        with recshuf.PileWriter(path, f"{number}", seed=1, piles=piles) as writer:
            for _ in range(max(1, piles * 4 // 5 // sets)):
                vectors = chance.standard_normal((10_000, width), np.float32)
                texts = [f"{row:06}" * (165 - width * 2 // 3) for row in range(len(vectors))]
                tokens = pa.array([np.arange(250, dtype=np.int32)] * len(vectors))
                writer.write({"vector": vectors, "text": texts} if width else {"tokens": tokens})
    return path


DEFAULT = [("tokens", "arrow", 1)]


@pytest.mark.parametrize(
    ("kind", "output", "mix"),
    [
        pytest.param(*case, marks=() if case in DEFAULT else pytest.mark.slow)
        for case in product(KINDS, ["numpy", "arrow"], [1, 4])
    ],
)
def test_a_loader_holds_few_piles(tmp_path: Path, kind: str, output: str, mix: int) -> None:
    store = make_store(tmp_path / "store", 10 if mix == 1 else 20, *KINDS[kind])
    call = json.dumps([str(store), {"output": output, "mix": mix}])
    # Threads that wait for the next product would keep all cores busy.
    options = {"env": os.environ | {"OPENBLAS_NUM_THREADS": "1"}, "timeout": 100}
    done = subprocess.run([sys.executable, "-c", CHILD, call], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    largest, peak = json.loads(done.stdout)
    assert largest > 7 * MB
    assert peak <= 2 * (mix + 1) * largest + 30 * MB
