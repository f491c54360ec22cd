"""Real HDF5 files: what can be read comes out unharmed, the rest is refused cleanly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h5py

import recshuf
from recshuf.errors import ConversionError, InputError
from tests.support.formats.hdf5_tools import (
    open_source,
    read_all,
    read_raw,
    read_values,
    write_shard,
    write_table,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from recshuf.interfaces import Source

FEWEST_READ = 60


def convert(source: Source, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    decoder = source.decoder()
    first_row = 0
    for batch in batches:
        decoder.observe(batch, 0, first_row)
        first_row += batch.num_rows
    decoder.finish()
    decoded = [decoder.decode(batch) for batch in batches]
    for batch in decoded:
        batch.validate(full=True)
    return decoded


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


def check_file(path: Path, folder: Path) -> str:
    """Take a file through everything, and return how far it came."""
    try:
        source = open_source(path)
        batches = read_all(source, 1000)
        write_shard(source, folder / "out.h5", batches)
    except InputError as error:
        assert str(path) in str(error)
        return "refused"
    check_same(path, folder / "out.h5", source.schema.names)
    try:
        decoded = convert(source, batches)
        write_table(folder / "table.h5", decoded, source.decoder().finish())
    except (InputError, ConversionError):
        return "read"
    again = open_source(folder / "table.h5")
    assert sum(batch.num_rows for batch in read_all(again)) == sum(batch.num_rows for batch in batches)
    return "converted"


def test_every_file_is_read_or_refused(corpora: Path, tmp_path: Path) -> None:
    results = []
    for index, path in enumerate(sorted((corpora / "hdf5").rglob("*"))):
        if path.is_file():
            folder = tmp_path / str(index)
            folder.mkdir()
            results.append(check_file(path, folder))
    assert len(results) - results.count("refused") >= FEWEST_READ
    assert results.count("converted") >= FEWEST_READ


def test_every_file_is_shuffled_beside_copies_or_refused(corpora: Path, tmp_path: Path) -> None:
    shuffled = 0
    for path in sorted((corpora / "hdf5").rglob("*.h5")):
        try:
            recshuf.shuffle(path, tmp_path / "out.h5", seed=1, keep_others=True, verify=True, overwrite=True)
        except InputError as error:
            assert str(path) in str(error)
        else:
            shuffled += 1
    assert shuffled >= FEWEST_READ
