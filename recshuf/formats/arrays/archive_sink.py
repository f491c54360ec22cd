"""Shards that are archives of arrays, as `numpy.savez` writes them."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from recshuf.formats.arrays.sink import ArchiveLayout, make_header, view_rows
from recshuf.interfaces import Sink, Target
from recshuf.system.page_cache import BehindFile

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from recshuf.interfaces import WriteOptions


_COPY_BYTES = 1 << 20
_LONG = (1 << 31) - 1
"""ZIP needs longer sizes from here on, which not every reader of archives knows."""


class ArchiveTarget(Target):
    """Shards of one layout."""

    suffix = ".npz"

    def __init__(self, layout: ArchiveLayout, options: WriteOptions, *, is_table: bool) -> None:
        self._layout, self._is_table = layout, is_table
        self._is_packed = (options.compression or layout.compression) != "none"
        self._level = options.compression_level

    def sink_bytes(self, threads: int) -> int:  # noqa: ARG002 - one thread writes
        return 2 * _COPY_BYTES + sum(map(len, self._layout.others.values()))

    def open(self, path: Path, threads: int) -> Sink:  # noqa: ARG002 - as above
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = BehindFile(os.open(path, flags, 0o666), "wb")
        try:
            return ArchiveSink(file, path.parent, self)
        except BaseException:
            file.close()
            raise

    def open_archive(self, file: BehindFile) -> zipfile.ZipFile:
        method = zipfile.ZIP_DEFLATED if self._is_packed else zipfile.ZIP_STORED
        return zipfile.ZipFile(file, "w", method, compresslevel=self._level)

    @property
    def layout(self) -> ArchiveLayout:
        return self._layout

    @property
    def is_table(self) -> bool:
        """Whether batches are tables; else they are native."""
        return self._is_table


class ArchiveSink(Sink):
    """One archive being written. As an array stands in it as a whole, each is written to a file without a name first."""

    def __init__(self, file: BehindFile, folder: Path, target: ArchiveTarget) -> None:
        self._file, self._target, self._count = file, target, 0
        self._parts: list[IO[bytes]] = []
        try:
            for _ in target.layout.arrays:
                self._parts.append(tempfile.TemporaryFile(dir=folder, buffering=0))  # noqa: SIM115 - `abort` closes it
        except BaseException:
            self.abort()
            raise

    @property
    def record_count(self) -> int:
        return self._count

    def write(self, batch: pa.RecordBatch) -> None:
        for place, part in enumerate(self._parts):
            view = view_rows(batch, place, encodes=self._target.is_table)
            while view:
                view = view[part.write(view) :]
        self._count += batch.num_rows

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            layout = self._target.layout
            with self._target.open_archive(self._file) as archive:
                for name, array, part in zip(layout.names, layout.arrays, self._parts, strict=True):
                    header = make_header(array, self._count)
                    is_long = len(header) + part.tell() >= _LONG
                    part.seek(0)
                    with archive.open(f"{name}.npy", "w", force_zip64=is_long) as member:
                        member.write(header)
                        shutil.copyfileobj(part, member, _COPY_BYTES)
                for name, content in layout.others.items():
                    with archive.open(f"{name}.npy", "w") as member:
                        member.write(content)
        finally:
            self.abort()

    def abort(self) -> None:
        for file in (*self._parts, self._file):
            with suppress(OSError):
                file.close()
