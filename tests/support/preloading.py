"""Imports for servers that fork: what is imported before a fork, no child imports again."""

from __future__ import annotations

import gc
import importlib
import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
_LIBRARIES = (
    "pyarrow.compute",
    "pyarrow.json",
    "pyarrow.parquet",
    "h5py",
    "hdf5plugin",
    "zstandard",
    "psutil",
)

WITHOUT_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MIMALLOC_PURGE_DELAY": "0",
}
"""Environment of a server: threads of a parent do not survive a fork, so that no library may begin one."""


def import_all() -> None:
    """Import all modules of recshuf and what they import when they run; needs the environment `WITHOUT_THREADS`."""
    for name in _LIBRARIES:
        importlib.import_module(name)
    for path in sorted((PROJECT / "recshuf").rglob("*.py")):
        name = ".".join(path.relative_to(PROJECT).with_suffix("").parts)
        if path.stem not in ("__main__", "__init__", "torch"):  # PyTorch starts threads
            importlib.import_module(name)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads) - 1} threads would be lost by a fork"
    # A collection in a child would copy the memory of all objects.
    gc.freeze()
