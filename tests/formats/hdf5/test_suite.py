"""The HDF5 adapter keeps the promises of every format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h5py
import numpy as np

from recshuf.formats.hdf5 import FORMAT
from recshuf.interfaces import InputFile
from recshuf.testing import FormatSuite

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

DATASETS = ("image", "label", "meta/weight")  # in the order in which HDF5 lists them
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
                file.create_dataset(DATASETS[1], data=index * 1_000_000 + rows)
                file.create_dataset(
                    DATASETS[2], data=rows.astype(np.float16) / 8, chunks=(64,), maxshape=(None,)
                )
                file["image"].attrs["unit"] = "counts"
            inputs.append(InputFile(name=str(path), path=path))
        return inputs

    def read_back(self, path: Path) -> list[Record]:
        with h5py.File(path) as file:
            columns = [[row.tobytes() for row in file[name][:]] for name in DATASETS]
        return list(zip(*columns, strict=True))

    def records_of(self, batch: pa.RecordBatch) -> list[Record]:
        return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
