"""The adapter of WebDataset keeps the promises of every format; archives are written and read by the standard library."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import zstandard

from recshuf.formats.webdataset import FORMAT
from recshuf.interfaces import WriteOptions
from tests.support.formats.file_suite import FileSuite
from tests.support.formats.format_tools import decompress_file


class Sample(NamedTuple):
    """What an archive holds of a record."""

    key: str
    members: tuple[tuple[str, int, int, bytes], ...]
    """Suffix, mode, time and content of each."""


def make_tar(members: Iterable[tuple[str, bytes]], kind: int = tarfile.GNU_FORMAT, **fields: Any) -> bytes:
    """Return an archive of members with these names."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime, info.uname = len(content), 0o640, 10**9 + len(content), "who"
            for field, value in fields.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def list_members(first: int, count: int, tag: str = "") -> list[tuple[str, bytes]]:
    """Return the members of so many records: an image, a text, and sometimes no text."""
    members = []
    for row in range(first, first + count):
        members.append((f"d.x/{tag}{row:06d}.Img.JPG", bytes([row % 256]) * (row * 37 % 1500)))
        if row % 5:
            members.append((f"d.x/{tag}{row:06d}.txt", f"{tag} {row}".encode()))
    return members


def read_samples(content: bytes) -> list[Sample]:
    """Return the records of an archive, whose members without a suffix are left out."""
    samples: list[Sample] = []
    with tarfile.open(fileobj=io.BytesIO(content), ignore_zeros=True) as archive:
        for info in archive:
            folder, _, base = info.name.rpartition("/")
            stem, dot, suffix = base.partition(".")
            if not (info.isreg() and dot and stem) or info.name.startswith("__"):
                continue
            file = archive.extractfile(info)
            assert file is not None
            key, member = f"{folder}/{stem}", (suffix, info.mode, int(info.mtime), file.read())
            before = samples.pop() if samples and samples[-1].key == key else Sample(key, ())
            samples.append(Sample(key, (*before.members, member)))
    return samples


def read_tar(path: Path) -> list[Sample]:
    """Return the records of a file, compressed or not; raise if it is damaged."""
    return read_samples(decompress_file(path))


class TestWebDataset(FileSuite):
    format = FORMAT
    kind, tag = tarfile.GNU_FORMAT, ""
    compress = staticmethod(bytes)
    bulk_rows = 400

    def write_input(self, path: Path, index: int, count: int) -> None:
        first, tag = 10_000 * index, path.parent.name + self.tag
        members = list_members(first, count, tag)
        if count:  # a suffix that no other input has
            members.append((f"d.x/{tag}{first + count - 1:06d}.only{index}", b"x"))
        path.write_bytes(self.compress(make_tar(members, self.kind)))

    def read_back(self, path: Path) -> list[Sample]:
        return read_tar(path)

    def records_of(self, batch: pa.RecordBatch) -> list[Sample]:
        return [sample for record in batch.column(0).to_pylist() for sample in read_samples(record)]

    def meaning_of(self, record: Any) -> Any:
        return record.key, sorted((suffix.lower(), content) for suffix, _, _, content in record.members)


@pytest.mark.slow
class TestPaxInZstd(TestWebDataset):
    kind, tag = tarfile.PAX_FORMAT, "é" * 90
    compressed, compress = ".zst", staticmethod(zstandard.ZstdCompressor().compress)
    row_counts = (80, 1, 20)
    write_options = WriteOptions(compression="gzip")
