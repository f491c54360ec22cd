"""Real HDF5 files: what can be read comes out unharmed, the rest is refused cleanly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import InputError, RecshufError

if TYPE_CHECKING:
    from pathlib import Path

FEWEST_READ = 55
KINDS: dict[str, dict[str, Any]] = {".h5": {"keep_others": True}, ".parquet": {}}


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_every_file_is_read_or_refused(corpora: Path, tmp_path: Path, every: int) -> None:
    """Shuffled beside copies of its other datasets, and converted."""
    counts = dict.fromkeys(KINDS, 0)
    for path in sorted((corpora / "hdf5").rglob("*.h*5"))[::every]:
        for suffix, options in KINDS.items():
            out = tmp_path / f"out{suffix}"
            try:
                recshuf.shuffle(path, out, seed=1, memory="200MB", verify=True, **options)
            except InputError as error:
                assert str(path) in str(error)
            except RecshufError:
                assert suffix == ".parquet"
            else:
                counts[suffix] += 1
            out.unlink(missing_ok=True)
    assert min(counts.values()) >= FEWEST_READ // every - 1, counts
