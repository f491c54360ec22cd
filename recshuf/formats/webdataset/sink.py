"""Shards as tar archives. No two records of a run may have one key, as readers would take neighbours for one record."""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tarfile import TarError
from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.errors import ConversionError, InputError
from recshuf.formats.lines.cutting import SCHEMA, view_records
from recshuf.formats.lines.sink import LineTarget
from recshuf.formats.lines.source import LineLayout
from recshuf.formats.webdataset.keys import KEYS_BYTES, KeySet, hash_key
from recshuf.formats.webdataset.members import find_key, list_records, rename, show
from recshuf.formats.webdataset.source import find_key_of, look_at
from recshuf.formats.webdataset.table import check_schema, encode
from recshuf.interfaces import InputFile, Sink, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from recshuf.formats.webdataset.source import TarLayout
    from recshuf.interfaces import WriteOptions


_PART_BYTES, _ENCODED_PART = 4 << 20, 4
_END_BYTES, _MULTIPLE_BYTES = 1024, 10240
"""Zeros at the end of an archive, and what the size of those of tar is a multiple of."""


class TarTarget(Target):
    """Shards of one run. They give records keys of their own if the layout says so."""

    def __init__(self, schema: pa.Schema, layout: TarLayout | None, options: WriteOptions) -> None:
        if layout is None:
            check_schema(schema)
        compression = layout.compression if layout else "none"
        self._lines = LineTarget(".tar", LineLayout(b"\n", b"", compression), options, None)
        self.suffix = self._lines.suffix
        self.is_table = layout is None
        self.sees_all = layout is None or not layout.renames
        self._lock, self._keys = threading.Lock(), KeySet()
        self._paths: list[Path] = []
        self._names = layout.names if layout else ()

    def sink_bytes(self, threads: int) -> int:
        return self._lines.sink_bytes(threads) + KEYS_BYTES + _ENCODED_PART * _PART_BYTES

    def open(self, path: Path, threads: int) -> Sink:
        sink = TarSink(self._lines.open(path, threads), self, path.name.removesuffix(self.suffix))
        with self._lock:
            self._keys.folder = path.parent
            self._paths.append(path)
        return sink

    def note_keys(self, keys: Sequence[bytes]) -> None:
        self._check(self._keys.add(map(hash_key, keys)))

    def check_shards(self) -> None:
        self._check(self._keys.finish())

    def _check(self, twice: bytes | None) -> None:
        if twice is None:
            return
        found = [*islice(_find_key([*self._names, *map(str, self._paths)], twice), 2)]
        names = " and ".join(name for name, _ in found if name in self._names)
        key, places = f"the key {found[0][1]}" if found else "a key", f" (in {names})" if names else ""
        raise ConversionError(
            f"{key} is that of several records{places}, which readers would take for one where they are neighbours",
            remedy="give each record a __key__ of its own" if self.is_table else "give --rename-keys",
        )


def _find_key(names: Iterable[str], twice: bytes) -> Iterator[tuple[str, str]]:
    for name in names:  # some may not be complete, or uploaded and gone
        with suppress(InputError, OSError, TarError):
            yield name, show(find_key_of(look_at(InputFile(name, Path(name))), twice)[0])


class TarSink(Sink):
    """One archive being written; keys that it makes begin with the name of the shard."""

    def __init__(self, inner: Sink, target: TarTarget, name: str) -> None:
        self._inner, self._target = inner, target
        self._stem = re.sub(r"[^\w-]", "-", name, flags=re.ASCII)
        self._count = self._bytes = 0
        self._is_open = True

    @property
    def record_count(self) -> int:
        return self._count

    def write(self, batch: pa.RecordBatch) -> None:
        # In parts, so that what is made of a large batch is never all in memory.
        part_count = -(-batch.nbytes // _PART_BYTES) or 1
        row_count = -(-batch.num_rows // part_count) or 1
        for first in range(0, batch.num_rows, row_count):
            part = batch.slice(first, row_count)
            self._write(encode(part) if self._target.is_table else part.column(0))

    def _write(self, records: pa.LargeBinaryArray) -> None:
        parts, first = list_records(records), self._count
        if self._target.sees_all:
            self._target.note_keys([find_key(part) for part in parts])
        else:
            made = [rename(one, f"{self._stem}_{first + row:09d}".encode()) for row, one in enumerate(parts)]
            records = pa.array(made, pa.large_binary())
        self._append(records)
        self._count += len(parts)

    def _append(self, records: pa.LargeBinaryArray) -> None:
        self._inner.write(pa.RecordBatch.from_arrays([records], schema=SCHEMA))
        self._bytes += view_records(records)[0].size

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            zeros = bytes(_END_BYTES + -(self._bytes + _END_BYTES) % _MULTIPLE_BYTES)
            self._append(pa.array([zeros], pa.large_binary()))
        self._inner.close()

    def abort(self) -> None:
        self._is_open = False
        self._inner.abort()
