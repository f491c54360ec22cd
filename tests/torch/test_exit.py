"""A program may end while an iterator of a loader is alive."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import recshuf

pytest.importorskip("torch", reason="PyTorch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

CHILD = """
import sys
import torch  # keeps modules alive beyond those of recshuf
import recshuf
from recshuf.torch import PileDataLoader, PileDataset

store = sys.argv[1]
batches = iter({iterable})
next(batches)
"""


@pytest.mark.parametrize(
    "iterable",
    [
        "PileDataLoader(PileDataset(store, 4, columns=['row']), num_workers=2)",
        "recshuf.PileLoader(store, 4).packed(8, column='tokens')",
        *(
            pytest.param(iterable, marks=pytest.mark.slow)
            for iterable in (
                "recshuf.PileLoader(store, 4)",
                "recshuf.PileLoader(store, 4).records()",
                "recshuf.MixLoader({store: 1.0}, 4)",
                "PileDataLoader(PileDataset(store, 4, columns=['row']))",
            )
        ),
    ],
)
def test_an_unfinished_iterator_ends_with_the_program_in_silence(tmp_path: Path, iterable: str):
    with recshuf.PileWriter(tmp_path / "store", name="a", seed=1) as writer:
        writer.write({"row": np.arange(2000), "tokens": [[1, 2, 3]] * 2000})
    code = CHILD.replace("{iterable}", iterable)
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True)
    assert (found.returncode, found.stderr) == (0, b"")
