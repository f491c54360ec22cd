"""The quarantine: bad records as lines of JSON, unnamed during the run, the user's file in input order at its end."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from recshuf.errors import PileError, UsageError
from recshuf.formats.jsonl.encoding import encode_lines
from recshuf.formats.texts import find_invalid
from recshuf.output.manifest import check_beside
from recshuf.records.arrays import cut_ranges, view_bytes, view_offsets
from recshuf.system.files import sync
from recshuf.system.paths import naming_errors, real_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from recshuf.interfaces import BadRecords


_PIECE_BYTES = 4 << 20


def encode_records(
    name: str, lines: NDArray[np.int64], reasons: Sequence[str], records: pa.Array, ending_bytes: int
) -> Iterator[tuple[int, memoryview]]:
    """Yield JSON lines in pieces of about 4 MiB, each with the line number of its first record.

    `lines` are the line numbers of all records, from 1. The last `ending_bytes` of each record, its separator, are left out.
    """
    texts = pc.binary_slice(records, 0, -ending_bytes) if ending_bytes else records
    for start, stop in cut_ranges(view_offsets(texts), _PIECE_BYTES):
        piece = texts.slice(start, stop - start)
        yield int(lines[start]), _encode(name, lines[start:stop], reasons[start:stop], piece)


def _encode(name: str, lines: NDArray[np.int64], reasons: Sequence[str], records: pa.Array) -> memoryview:
    is_text = np.ones(len(records), np.bool_)
    is_text[find_invalid(records)] = False
    known = {"line": pa.array(lines), "reason": pa.array(reasons, pa.large_string())}
    groups = []
    for chosen, field, kind in (
        (np.flatnonzero(is_text), "record", pa.large_string()),
        (np.flatnonzero(~is_text), "record_base64", pa.large_binary()),
    ):
        index = pa.array(chosen)
        columns = {key: column.take(index) for key, column in known.items()}
        columns[field] = records.take(index).cast(kind)
        groups.append(encode_lines(pa.record_batch(columns), nan_as_null=False))
    order = np.argsort(np.concatenate([np.flatnonzero(is_text), np.flatnonzero(~is_text)]))
    made = pa.concat_arrays(groups).take(pa.array(order))
    whole = pc.binary_replace_slice(made, 0, 1, f'{{"input":{_quote(name)},'.encode())
    return view_bytes(whole).data


def _quote(name: str) -> str:
    """Return a name as a JSON string; bytes that are not UTF-8 are escaped."""
    text = json.dumps(name, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(name)


_COPY_BYTES = 1 << 20


class _Block(NamedTuple):
    """Consecutive JSON lines of bad records of one input."""

    input_index: int
    first_line: int
    offset: int
    """Byte offset in the unnamed file."""
    byte_count: int
    checksum: int


class Quarantine:
    """The bad records of one run. Many threads may call `put`.

    A continued run, which has the same identifier, observes all records again, so that nothing is kept for it.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        names: Sequence[str],
        run: str,
        *,
        header_lines: int = 0,
        separator_bytes: int = 1,
    ) -> None:
        self.path = path
        self.counts = [0] * len(names)
        """Number of bad records of each input."""
        self._target = real_path(path)
        self._folder = folder
        self._names = names
        self._header_lines = header_lines
        self._separator_bytes = separator_bytes
        self._lock = threading.Lock()
        self._blocks: list[_Block] = []
        self._byte_count = 0
        token = f"{xxhash.xxh3_64_intdigest(os.fsencode(run)):016x}"
        self._unfinished = self._target.with_name(f".{self._target.name}.{token}.part")
        self._previous = self._target.with_name(f".{self._target.name}.{token}.old")
        self._is_placed = False
        with naming_errors(str(path), folder):
            self._parts = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 - see `close`

    def put(self, input_index: int, first_row: int, bad: BadRecords, batch: pa.RecordBatch) -> None:
        """Set aside records of a batch, whose first record is row `first_row` of input `input_index`."""
        records = batch.column(0).take(pa.array(bad.index))
        lines = bad.index + (first_row + self._header_lines + 1)
        name = self._names[input_index]
        for first_line, text in encode_records(name, lines, bad.reasons, records, self._separator_bytes):
            checksum = xxhash.xxh3_64_intdigest(text)
            with self._lock:
                self._blocks.append(_Block(input_index, first_line, self._byte_count, len(text), checksum))
                self._write(text)
        with self._lock:
            self.counts[input_index] += len(bad.index)

    def take(self, path: Path, counts: Iterable[tuple[int, int]]) -> None:
        """Take over the file of another quarantine.

        Called for files in the order of their inputs and lines, and not together with `put`.
        """
        digest, offset = xxhash.xxh3_64(), self._byte_count
        with path.open("rb", buffering=0) as file:
            while text := file.read(_COPY_BYTES):
                digest.update(text)
                self._write(memoryview(text))
        first_line = len(self._blocks)
        self._blocks.append(_Block(0, first_line, offset, self._byte_count - offset, digest.intdigest()))
        for index, count in counts:
            self.counts[index] += count

    def _write(self, text: memoryview) -> None:
        self._byte_count += len(text)
        with naming_errors(str(self.path), self._folder):
            while text:
                text = text[self._parts.write(text) :]

    def finish(self) -> None:
        """Write all bad records to the file, in the order of inputs and lines.

        Replaces an existing file; `withdraw` restores it.
        """
        with naming_errors(str(self.path), self._target.parent):
            self._merge()
            if self._target.exists() and not self._previous.exists():
                _link(self._target, self._previous)
            self._unfinished.rename(self._target)
            self._is_placed = True
            sync(self._target.parent)

    def _merge(self) -> None:
        self._unfinished.unlink(missing_ok=True)
        with self._unfinished.open("xb") as whole:
            for block in sorted(self._blocks):
                self._copy(block, whole)
            whole.flush()
            os.fsync(whole.fileno())

    def _copy(self, block: _Block, whole: BinaryIO) -> None:
        """Append a block, and verify its checksum."""
        self._parts.seek(block.offset)
        digest, left = xxhash.xxh3_64(), block.byte_count
        while left and (text := self._parts.read(min(left, _COPY_BYTES))):
            digest.update(text)
            left -= len(text)
            whole.write(text)
        if left or digest.intdigest() != block.checksum:
            raise PileError(
                f"{self._folder}: records set aside do not read back as they were written; check the disk and start anew"
            )

    def settle(self) -> None:
        """Keep the file: the run has succeeded."""
        self._is_placed = False
        with suppress(OSError):
            self._previous.unlink()

    def close(self) -> None:
        """Delete the unnamed file. Idempotent."""
        self._parts.close()

    def withdraw(self) -> None:
        """Restore the previous file, unless `settle` was called. Idempotent."""
        with suppress(OSError):
            self._unfinished.unlink(missing_ok=True)
        if not self._is_placed:
            return
        self._is_placed = False
        with suppress(OSError):
            if self._previous.exists():
                self._previous.replace(self._target)
            else:
                self._target.unlink()


def check_path(path: Path, inputs: Sequence[Path], output: Path | None, *, overwrite: bool) -> None:
    """Check that bad records can be written to a file. `output` is the file or folder of the output; None for a stream."""
    option, target = f"--on-bad-record quarantine:{path}", real_path(path)
    check_beside(option, path, output)
    if any(one.exists() and target.exists() and one.samefile(target) for one in inputs):
        raise UsageError(f"{option} is one of the inputs; name another file")
    if target.exists() and not target.is_file():
        raise UsageError(f"{option} is not a regular file; name another file")
    if target.exists() and not overwrite:
        raise UsageError(f"{option} exists already; name another file, or replace it with --overwrite")


def _link(path: Path, other: Path) -> None:
    """Hard-link a file to another name, or rename it if the file system has no hard links."""
    try:
        os.link(path, other)
    except OSError:
        path.rename(other)
