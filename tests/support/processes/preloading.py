"""Imports for servers that fork: what is imported before a fork, no child imports again."""

from __future__ import annotations

import gc
import importlib
import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
_LIBRARIES = (
    "pyarrow.compute",
    "pyarrow.json",
    "pyarrow.parquet",
    "h5py",
    "hdf5plugin",
    "zstandard",
    "psutil",
)

_OF_PYTORCH = "recshuf.torch."
"""Beginning of the names of modules that import PyTorch, which starts threads and may be missing."""

WITHOUT_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MIMALLOC_PURGE_DELAY": "0",
}
"""Environment of a server: threads of a parent do not survive a fork, so that no library may begin one.

mimalloc would reserve 1 GB of addresses, which limits of children would count."""


def list_modules() -> list[str]:
    """Return the names of all modules of recshuf, and of the libraries that some of them import as they run."""
    paths = (
        path.relative_to(PROJECT).with_suffix("") for path in sorted((PROJECT / "recshuf").rglob("*.py"))
    )
    names = (".".join(path.parts) for path in paths if path.stem not in ("__main__", "__init__"))
    return [*_LIBRARIES, *(name for name in names if not name.startswith(_OF_PYTORCH))]


def import_all() -> None:
    """Import these modules; needs the environment `WITHOUT_THREADS`."""
    for name in list_modules():
        importlib.import_module(name)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads) - 1} threads would be lost by a fork"
    # A collection in a child would copy the memory of all objects.
    gc.freeze()
