"""Real HDF5 files: what can be read comes out unharmed, the rest is refused cleanly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h5py
import pytest

import recshuf
from recshuf.errors import InputError, RecshufError
from tests.support.formats.hdf5_tools import copy_through, open_source, read_raw, read_values

if TYPE_CHECKING:
    from pathlib import Path

FEWEST_READ = 55


def holds_objects(dataset: h5py.Dataset) -> bool:
    try:
        return dataset.dtype.hasobject
    except (TypeError, ValueError):  # a type that NumPy lacks
        return False


def check_same(path: Path, out: Path, names: list[str]) -> None:
    with h5py.File(path) as before, h5py.File(out) as after:
        for name in names:
            assert after[name].shape == before[name].shape
            assert after[name].id.get_type().equal(before[name].id.get_type())
            read = read_values if holds_objects(before[name]) else read_raw
            assert read(after[name]) == read(before[name])


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_every_file_is_read_or_refused(corpora: Path, tmp_path: Path, every: int) -> None:
    """Copied row by row, shuffled beside copies of its other datasets, and converted."""
    counts = dict.fromkeys(("copied", "kept", "converted"), 0)
    options = {"kept": {"keep_others": True, "verify": True}, "converted": {"verify": True}}
    files = sorted((corpora / "hdf5").rglob("*.h*5"))
    for index, path in enumerate(files[::every]):
        for kind in counts:
            out = tmp_path / f"{index}.{'parquet' if kind == 'converted' else 'h5'}"
            try:
                if kind == "copied":
                    copy_through(path, out, block_bytes=1000)
                    check_same(path, out, open_source(path).schema.names)
                else:
                    recshuf.shuffle(path, out, seed=1, memory="200MB", **options[kind])
            except InputError as error:
                assert str(path) in str(error)
            except RecshufError:
                assert kind == "converted"
            else:
                counts[kind] += 1
            out.unlink(missing_ok=True)
    assert min(counts.values()) >= FEWEST_READ // every - 1, counts
