"""The adapters of fixed records keep the promises of every format."""

from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pytest

from recshuf.formats.arrays import BINARY, NPY, NPZ
from recshuf.interfaces import InputFile, ReadOptions
from tests.support.formats.file_suite import FileSuite


class TestNpy(FileSuite):
    """Inputs are in Fortran's order, and shards, which are read again, are not."""

    format = NPY
    dtype = np.dtype(">f4")

    def write_input(self, path: Path, index: int, count: int) -> None:
        values = np.arange(6 * count).reshape(count, 2, 3) * 4 + index
        np.save(path, np.asfortranarray(values.astype(self.dtype)))

    def make_other_input(self, folder: Path) -> InputFile:
        np.save(folder / "other.npy", np.zeros((5, 2, 3), "<f4"))
        return InputFile("other.npy", folder / "other.npy")

    def read_back(self, path: Path) -> list[bytes]:
        array = np.load(path, mmap_mode="r")
        assert array.dtype in (self.dtype, self.dtype.newbyteorder("="))
        assert array.shape[1:] == (2, 3)
        return [row.tobytes() for row in array.astype(self.dtype)]

    def records_of(self, batch: pa.RecordBatch) -> list[bytes]:
        return batch.column(0).to_pylist()

    def meaning_of(self, record: bytes) -> list[float]:
        return np.frombuffer(record, self.dtype).tolist()


class TestNpz(FileSuite):
    """An array in Fortran's order beside one in C's."""

    format = NPZ
    save = staticmethod(np.savez)

    def write_input(self, path: Path, index: int, count: int) -> None:
        numbers = np.arange(3 * count).reshape(count, 3) * 4 + index
        values = np.asfortranarray(numbers.astype(">i4"))
        self.save(path, values=values, half=values[:, 0] / 2)

    def make_other_input(self, folder: Path) -> InputFile:
        self.save(folder / "other.npz", values=np.zeros((5, 3), ">i4"))
        return InputFile("other.npz", folder / "other.npz")

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


class TestBinary(FileSuite):
    format = BINARY
    read_options = ReadOptions(own=(("record_bytes", 12),))
    run_options = MappingProxyType({"format": "binary", "record_bytes": 12})

    def write_input(self, path: Path, index: int, count: int) -> None:
        path.write_bytes(b"".join(b"%02d%010d" % (index, row) for row in range(count)))

    def read_back(self, path: Path) -> list[bytes]:
        content = path.read_bytes()
        assert len(content) % 12 == 0
        return [content[place : place + 12] for place in range(0, len(content), 12)]

    def records_of(self, batch: pa.RecordBatch) -> list[bytes]:
        return batch.column(0).to_pylist()
