"""The adapters of fixed records keep the promises of every format."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from recshuf.formats.arrays import BINARY, NPY, NPZ
from recshuf.interfaces import InputFile, ReadOptions, Stamp
from recshuf.testing import FormatSuite

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def list_input(path: Path) -> InputFile:
    return InputFile(name=str(path), path=path, stamp=Stamp.of(path.stat()))


class TestNpy(FormatSuite):
    """Inputs are in Fortran's order, and shards, which are read again, are not."""

    format = NPY
    dtype = ">f4"

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        inputs = []
        for index, count in enumerate(row_counts):
            path = folder / f"input {index}.npy"
            values = np.arange(6 * count).reshape(count, 2, 3) * 4 + index
            np.save(path, np.asfortranarray(values.astype(self.dtype)))
            inputs.append(list_input(path))
        return inputs

    def read_back(self, path: Path) -> list[bytes]:
        array = np.load(path, mmap_mode="r")
        assert (array.dtype.newbyteorder("="), array.shape[1:]) == (
            np.dtype(self.dtype).newbyteorder("="),
            (2, 3),
        )
        return [row.tobytes() for row in array.astype(self.dtype)]

    def records_of(self, batch: pa.RecordBatch) -> list[bytes]:
        return batch.column(0).to_pylist()

    def meaning_of(self, record: bytes) -> list[float]:
        return np.frombuffer(record, self.dtype).tolist()


class TestNpz(FormatSuite):
    """An array in Fortran's order beside one in C's."""

    format = NPZ
    save = staticmethod(np.savez)

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        inputs = []
        for index, count in enumerate(row_counts):
            path = folder / f"input {index}.npz"
            numbers = np.arange(3 * count).reshape(count, 3) * 4 + index
            values = np.asfortranarray(numbers.astype(">i4"))
            self.save(path, values=values, half=values[:, 0] / 2)
            inputs.append(list_input(path))
        return inputs

    def read_back(self, path: Path) -> list[bytes]:
        with np.load(path) as archive:
            assert archive.files == ["values", "half"]
            rows = archive["values"].reshape(-1, 3).astype(">i4")
            return [row.tobytes() + half.tobytes() for row, half in zip(rows, archive["half"], strict=True)]

    def records_of(self, batch: pa.RecordBatch) -> list[bytes]:
        return [values + half for values, half in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)]

    def meaning_of(self, record: bytes) -> list[float]:
        return np.frombuffer(record[:12], ">i4").tolist()


@pytest.mark.slow
class TestPackedNpz(TestNpz):
    save = staticmethod(np.savez_compressed)


class TestBinary(FormatSuite):
    format = BINARY
    read_options = ReadOptions(own=(("record_bytes", 12),))
    run_options = MappingProxyType({"format": "binary", "record_bytes": 12})

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        inputs = []
        for index, count in enumerate(row_counts):
            path = folder / f"input {index}.bin"
            path.write_bytes(b"".join(b"%02d%010d" % (index, row) for row in range(count)))
            inputs.append(list_input(path))
        return inputs

    def read_back(self, path: Path) -> list[bytes]:
        content = path.read_bytes()
        assert len(content) % 12 == 0
        return [content[place : place + 12] for place in range(0, len(content), 12)]

    def records_of(self, batch: pa.RecordBatch) -> list[bytes]:
        return batch.column(0).to_pylist()
