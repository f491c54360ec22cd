"""The HDF5 adapter keeps the promises of every format, also for cells with the rows of sparse matrices."""

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest

from recshuf.formats.hdf5 import FORMAT
from recshuf.interfaces import InputFile, ReadOptions
from recshuf.testing import FormatSuite
from tests.support.formats.hdf5_tools import read_values
from tests.support.formats.sparse_tools import read_cells, write_anndata

DATASETS = ("image", "image name", "label", "meta/weight")  # in the order in which HDF5 lists them
Record = tuple[bytes, ...]


class TestHdf5(FormatSuite):
    format = FORMAT

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        inputs = []
        for index, count in enumerate(row_counts):
            path = folder / f"input {index}.h5"
            rows = np.arange(count)
            image = (rows[:, None, None] * 7 + np.arange(24).reshape(2, 12)).astype(np.float32)
            with h5py.File(path, "w") as file:
                file.create_dataset(
                    DATASETS[0], data=image, chunks=(50, 2, 12), maxshape=(None, 2, 12), compression=4
                )
                file.create_dataset(DATASETS[2], data=index * 1_000_000 + rows)
                file.create_dataset(
                    DATASETS[3], data=rows.astype(np.float16) / 8, chunks=(64,), maxshape=(None,)
                )
                # By the size of a small file it would hold longer texts.
                names = [f"{row}" * (row % 5) if count > 1 else "long" * 1000 for row in range(count)]
                file.create_dataset(DATASETS[1], data=names, dtype=h5py.string_dtype())
                file["image"].attrs["unit"] = "counts"
            inputs.append(InputFile(name=str(path), path=path))
        return inputs

    def read_back(self, path: Path) -> list[Record]:
        with h5py.File(path) as file:
            columns = [
                read_values(file[name]) if name == DATASETS[1] else [row.tobytes() for row in file[name][:]]
                for name in DATASETS
            ]
        return list(zip(*columns, strict=True))

    def records_of(self, batch: pa.RecordBatch) -> list[Record]:
        return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


@pytest.mark.slow  # a second form of HDF5
class TestAnnData(FormatSuite):
    format = FORMAT
    read_options = ReadOptions(refuses_foreign=True)

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        first, inputs = 0, []
        groups, storage = ("X", "layers/counts"), {"chunks": (100,), "compression": 4}
        for index, count in enumerate(row_counts):
            path = write_anndata(folder / f"input {index}.h5", count, first, groups, names="S12", **storage)
            inputs.append(InputFile(name=str(path), path=path))
            first += count
        return inputs

    def read_back(self, path: Path) -> list[Record]:
        return read_cells(path)

    def records_of(self, batch: pa.RecordBatch) -> list[Record]:
        names = batch.schema.names
        ordered = ["obs/_index", *(name for name in names if name.endswith(("/data", "/indices")))]
        columns = [batch.column(names.index(name)).to_pylist() for name in ordered]
        return [(name.rstrip(b"\0"), *rest) for name, *rest in zip(*columns, strict=True)]
