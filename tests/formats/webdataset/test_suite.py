"""The adapter of WebDataset keeps the promises of every format."""

from __future__ import annotations

import gzip
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from recshuf.formats.compression import split_suffix
from recshuf.formats.webdataset import FORMAT
from recshuf.interfaces import InputFile, Stamp, WriteOptions
from recshuf.testing import FormatSuite
from tests.formats.webdataset.tar_tools import list_members, make_tar, read_samples, read_tar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tests.formats.webdataset.tar_tools import Sample


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


class TestWebDataset(FormatSuite):
    format = FORMAT
    kind = tarfile.GNU_FORMAT
    compression = "none"
    suffix = ".tar"
    tag = ""
    row_counts = (150, 1, 40)
    bulk_rows = 400

    def make_inputs(self, folder: Path, row_counts: Sequence[int]) -> list[InputFile]:
        inputs = []
        for index, count in enumerate(row_counts):
            path = folder / f"input {index}{self.suffix}"
            content = make_tar(list_members(10_000 * index, count, folder.name + self.tag), self.kind)
            path.write_bytes(COMPRESS[self.compression](content))
            stamp, suffix = Stamp.of(path.stat()), split_suffix(path.name)
            inputs.append(InputFile(name=str(path), path=path, stamp=stamp, suffix=suffix))
        return inputs

    def read_back(self, path: Path) -> list[Sample]:
        return read_tar(path)

    def records_of(self, batch: pa.RecordBatch) -> list[Sample]:
        return [sample for record in batch.column(0).to_pylist() for sample in read_samples(record)]

    def meaning_of(self, record: Any) -> Any:
        return record.key, sorted((suffix.lower(), content) for suffix, _, _, content in record.members)


@pytest.mark.slow
class TestPaxInZstd(TestWebDataset):
    kind = tarfile.PAX_FORMAT
    tag = "é" * 90
    suffix, compression = ".tar.zst", "zstd"
    row_counts = (80, 1, 20)
    write_options = WriteOptions(compression="gzip")
