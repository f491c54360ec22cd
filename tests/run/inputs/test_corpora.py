"""Real files that nobody on the project wrote: each is shuffled unharmed or refused cleanly, in whole runs.

The order of a seed is known, so that a shuffled file is compared with the original taken in that order.
"""

from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import recshuf
from recshuf.errors import RecshufError
from recshuf.job.report import ShuffleReport
from recshuf.records.keys import draw_keys
from tests.support.formats.format_tools import decompress_file
from tests.support.formats.hdf5_tools import open_source, read_raw, read_values

pytestmark = pytest.mark.slow

SEED = 7
MARK = b"\xef\xbb\xbf"
OPTIONS = {"seed": SEED, "memory": "200MB", "workers": 2, "piles": 3}


def list_files(folder: Path, *suffixes: str) -> list[Path]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "LICENSE"]
    return [path for path in paths if not suffixes or path.suffix in suffixes]


def order_of(count: int) -> NDArray[np.intp]:
    return np.argsort(draw_keys(SEED, [(0, 0, count)]), kind="stable")


def shuffle_one(path: Path, output: Path, **options: object) -> ShuffleReport | RecshufError:
    """Return the report of a run, or the error it ended with; then nothing may be left."""
    output.parent.mkdir(exist_ok=True)
    try:
        report = recshuf.shuffle(path, output, **{**OPTIONS, **options})
    except RecshufError as error:
        assert list(output.parent.iterdir()) == []
        assert "\n" not in str(error)
        return error
    assert list(output.parent.iterdir()) == [output]
    return report


def split_lines(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


@pytest.mark.parametrize("name", ["json", "jsonl", "text", "zstd"])
def test_every_line_of_every_file_passes_as_text(corpora: Path, tmp_path: Path, name: str):
    passed = 0
    for index, path in enumerate(list_files(corpora / name, *(".zst" for _ in range(name == "zstd")))):
        output = tmp_path / str(index) / "out.txt"
        report = shuffle_one(path, output, format="text", compression="none")
        if isinstance(report, RecshufError):
            assert name == "zstd", report
            continue
        passed += 1
        content, found = decompress_file(path), output.read_bytes()
        lines = split_lines(content.removeprefix(MARK))
        assert report.records == len(lines)
        assert found.startswith(MARK) == (content.startswith(MARK) and bool(lines))
        assert split_lines(found.removeprefix(MARK)) == [lines[place] for place in order_of(len(lines))]
    assert passed >= (4 if name == "zstd" else 1)


CONVERSIONS = {
    "jsonl": ((".jsonl",), (".parquet", ".h5")),
    "json": ((".json",), (".parquet",)),
    "parquet": ((".parquet", ".parq"), (".jsonl", ".h5", ".txt")),
    "hdf5": ((".h5", ".hdf5"), (".jsonl", ".parquet", ".txt")),
}
"""Suffixes of the inputs and of the outputs of each folder."""


@pytest.mark.parametrize("name", CONVERSIONS)
def test_files_convert_or_are_refused(corpora: Path, tmp_path: Path, name: str):
    converted, (suffixes, outputs) = 0, CONVERSIONS[name]
    for index, path in enumerate(list_files(corpora / name, *suffixes)):
        for suffix in outputs:
            output = tmp_path / f"{index}{suffix}" / f"out{suffix}"
            given = {"format": "jsonl" if name == "json" else name, "nan_as_null": suffix == ".jsonl"}
            result = shuffle_one(path, output, **given)
            if isinstance(result, RecshufError):
                assert name != "jsonl" or str(path) in str(result) or "field" in str(result)
                continue
            converted += 1
            if suffix == ".jsonl":
                assert output.read_bytes().count(b"\n") == result.records
            elif suffix == ".parquet":
                assert pq.read_metadata(output).num_rows == result.records
    assert name == "json" or converted > 60


# Tables


def read_table(path: Path) -> pa.Table | None:
    """Return what pyarrow makes of a file; None if it cannot read it."""
    try:
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError, ValueError):
        return None


def show_columns(table: pa.Table, count: int) -> list[str]:
    """Return the values of the first columns as text: NaN equals NaN there, and every type can be shown."""
    columns = (column.combine_chunks() for column in table.columns[:count])
    return [column.to_string(window=10**6, container_window=10**6) for column in columns]


def test_every_parquet_file_passes_or_is_refused(corpora: Path, tmp_path: Path):
    refused = []
    paths = list_files(corpora / "parquet", ".parquet", ".parq", ".encrypted")
    for index, path in enumerate(paths):
        output = tmp_path / str(index) / "out.parquet"
        result = shuffle_one(path, output, format="parquet")
        before = read_table(path)
        if isinstance(result, RecshufError):
            assert str(path) in str(result)
            # pyarrow reads these, but not as they were written; and rows without columns cannot be moved.
            is_lossy = any(word in str(result) for word in ("checksum", "INT96"))
            assert before is None or not before.num_columns or is_lossy, result
            refused.append(path)
        elif before is not None:
            after = pq.ParquetFile(output).read()
            expected = before.take(order_of(len(before)))
            # Behind a file's own columns come those of hive partition folders in its path.
            count = before.num_columns
            assert show_columns(after, count) == show_columns(expected, count), path
    assert len(refused) < 30


# HDF5


def holds_objects(dataset: h5py.Dataset) -> bool:
    try:
        return dataset.dtype.hasobject
    except (TypeError, ValueError):  # a type that NumPy lacks
        return False


def values_of(dataset: h5py.Dataset) -> list[bytes]:
    """Return the bytes of each row; the values of variable length are read one by one."""
    if holds_objects(dataset):
        values = read_values(dataset)
        width = len(values) // max(1, dataset.shape[0])
        return [b"\0".join(values[row * width : (row + 1) * width]) for row in range(dataset.shape[0])]
    raw = read_raw(dataset)
    width = len(raw) // max(1, dataset.shape[0])
    return [raw[row * width : (row + 1) * width] for row in range(dataset.shape[0])]


def test_every_hdf5_file_passes_or_is_refused(corpora: Path, tmp_path: Path):
    shuffled = 0
    for index, path in enumerate(list_files(corpora / "hdf5", ".h5", ".hdf5")):
        output = tmp_path / str(index) / "out.h5"
        result = shuffle_one(path, output, format="hdf5")
        if isinstance(result, RecshufError):
            assert str(path) in str(result)
            continue
        shuffled += 1
        with h5py.File(path) as before, h5py.File(output) as after:
            for name in open_source(path).schema.names:
                assert after[name].shape == before[name].shape
                rows = values_of(before[name])
                assert values_of(after[name]) == [rows[place] for place in order_of(len(rows))], (path, name)
    assert shuffled > 60
