"""Bad records, set aside: in one part for each input while the run goes on, in one file at its end.

A part is a sequence of blocks in the order in which threads came with them:

    first line (8 bytes)  records (8)  bytes of text (8)  xxh3 of the text (8)  text: a JSON line for each record

The records of a block follow each other in the input, with nothing of another block between them. So sorting blocks
by their first lines sorts records, and the text is only copied.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
import xxhash

from recshuf.errors import PileError, UsageError
from recshuf.system.atomic import sync
from recshuf.system.paths import real_path, write_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.interfaces import BadRecords

_HEADER = struct.Struct("<QQQQ")
_PIECE_BYTES = 4 << 20
_COPY_BYTES = 1 << 20


class _Block(NamedTuple):
    first_line: int
    record_count: int
    byte_count: int
    checksum: int
    place: int
    """Where its text begins in the part."""


class Quarantine:
    """Bad records of one run. Written to from many threads.

    Parameters
    ----------
    path
        The file to make of them.
    folder
        Where the parts lie; made if need be. A later run of the same job can go on with them.
    names
        The inputs as messages show them.
    header_lines
        Lines of each input before its row 0.
    separator_bytes
        Length of what ends each record.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        names: Sequence[str],
        *,
        header_lines: int = 0,
        separator_bytes: int = 1,
    ) -> None:
        self.path = path
        self.counts = [0] * len(names)
        """Records set aside, for each input."""
        self._target = real_path(path)
        self._folder = folder
        self._names = names
        self._header_lines = header_lines
        self._separator_bytes = separator_bytes
        self._lock = threading.Lock()
        # The same in a later run that goes on from this one, another one for any other run.
        token = f"{xxhash.xxh3_64_intdigest(os.fsencode(real_path(folder))):016x}"
        self._unfinished = self._target.with_name(f".{self._target.name}.{token}.part")
        self._previous = self._target.with_name(f".{self._target.name}.{token}.old")
        self._is_placed = False
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self._error(error, folder.parent) from error

    def put(self, input_index: int, first_row: int, bad: BadRecords, batch: pa.RecordBatch) -> None:
        """Set aside records of a batch, whose first record is row `first_row` of input `input_index`.

        Raises
        ------
        OutputError
            When they cannot be written.
        """
        import pyarrow as pa

        records = _strip(batch.column(0).take(pa.array(bad.index)), self._separator_bytes)
        lines = bad.index + (first_row + self._header_lines + 1)
        for start, stop in _cut(records):
            text = _encode(
                self._names[input_index],
                lines[start:stop],
                bad.reasons[start:stop],
                records.slice(start, stop - start),
            )
            header = _HEADER.pack(lines[start], stop - start, len(text), xxhash.xxh3_64_intdigest(text))
            self._append(input_index, header, text, stop - start)

    def _append(self, input_index: int, header: bytes, text: memoryview, count: int) -> None:
        try:
            with self._lock, self._part(input_index).open("ab", buffering=0) as part:
                _write_all(part, header)
                _write_all(part, text)
                self.counts[input_index] += count
        except OSError as error:
            raise self._error(error, self._folder) from error

    def discard(self, input_index: int) -> None:
        """Forget what was set aside of an input.

        Raises
        ------
        OutputError
            When that fails.
        """
        try:
            self._part(input_index).unlink(missing_ok=True)
        except OSError as error:
            raise self._error(error, self._folder) from error
        self.counts[input_index] = 0

    def finish(self) -> None:
        """Put the file in place: all that was set aside, in the order of inputs and lines.

        It replaces what is there, until `withdraw`.

        Raises
        ------
        OutputError
            When it cannot be written.
        PileError
            When a part does not read back as it was written.
        """
        try:
            self._merge()
            if self._target.exists() and not self._previous.exists():
                _link(self._target, self._previous)
            self._unfinished.rename(self._target)
            self._is_placed = True
            sync(self._target.parent)
        except OSError as error:
            raise self._error(error, self._target.parent) from error

    def _merge(self) -> None:
        self._unfinished.unlink(missing_ok=True)
        with self._unfinished.open("xb") as whole:
            for index, count in enumerate(self.counts):
                if not count:
                    continue
                with self._part(index).open("rb") as part:
                    for block in sorted(_read_blocks(part)):
                        _copy(part, block, whole)
            whole.flush()
            os.fsync(whole.fileno())

    def settle(self) -> None:
        """Keep the file, since the run has come to its end."""
        self._is_placed = False
        with suppress(OSError):
            self._previous.unlink()

    def remove(self) -> None:
        """Delete the parts. Idempotent."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def withdraw(self) -> None:
        """Bring back what stood in the place of the file, unless the run has come to its end. Idempotent.

        The parts stay, for a later run.
        """
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

    def _part(self, input_index: int) -> Path:
        return self._folder / f"input-{input_index}"

    def _error(self, error: OSError, folder: Path) -> OSError:
        return write_error(error, str(self.path), folder)


def check_path(path: Path, inputs: Sequence[Path], output: Path | None, *, overwrite: bool) -> None:
    """Make sure that bad records can go to a file.

    Parameters
    ----------
    inputs
        All that are read.
    output
        File or directory of the shards; None for a stream.

    Raises
    ------
    UsageError
        When it is an input or the output, exists and may not be replaced, or can be no file.
    """
    option, target = f"--on-bad-record quarantine:{path}", real_path(path)
    if not target.parent.is_dir():
        raise UsageError(f"{option}: folder {target.parent} does not exist; create it first")
    if any(one.exists() and target.exists() and one.samefile(target) for one in inputs):
        raise UsageError(f"{option} is one of the inputs; name another file")
    if output is not None and real_path(output) in (target, *target.parents):
        raise UsageError(f"{option} is or lies in the output; name another file")
    if target.exists() and not target.is_file():
        raise UsageError(f"{option} is no regular file; name another one")
    if target.exists() and not overwrite:
        raise UsageError(f"{option} exists already; name another file, or replace it with --overwrite")


def _strip(records: pa.Array, ending_bytes: int) -> pa.Array:
    """Return records without their last bytes."""
    import pyarrow as pa

    ends = np.frombuffer(records.buffers()[1], np.int64, len(records) + 1, records.offset * 8)
    data = np.frombuffer(records.buffers()[2], np.uint8)[ends[0] : ends[-1]]
    is_kept = np.ones(len(data), np.bool_)
    for place in range(1, ending_bytes + 1):
        is_kept[ends[1:] - ends[0] - place] = False
    offsets = ends - ends[0] - np.arange(len(ends)) * ending_bytes
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[is_kept])]
    return pa.Array.from_buffers(pa.large_binary(), len(records), buffers)


def _cut(records: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield bounds of pieces that are not larger than need be."""
    ends = np.frombuffer(records.buffers()[1], np.int64, len(records) + 1, records.offset * 8)
    start = 0
    while start < len(records):
        stop = int(np.searchsorted(ends, ends[start] + _PIECE_BYTES, side="right")) - 1
        yield start, max(stop, start + 1)
        start = max(stop, start + 1)


def _encode(name: str, lines: NDArray[np.int64], reasons: Sequence[str], records: pa.Array) -> memoryview:
    """Return a JSON line for each record."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from recshuf.formats.jsonl.encoding import encode_lines
    from recshuf.formats.lines.utf8 import find_invalid

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
    ends = np.frombuffer(whole.buffers()[1], np.int64, len(whole) + 1, whole.offset * 8)
    return memoryview(whole.buffers()[2])[ends[0] : ends[-1]]


def _quote(name: str) -> str:
    """Return a name as JSON; bytes of it that are no UTF-8, which Python carries as surrogates, as escapes."""
    text = json.dumps(name, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(name)


def _link(path: Path, other: Path) -> None:
    """Give a file a second name; where files have only one, the other one."""
    try:
        os.link(path, other)
    except OSError:
        path.rename(other)


def _write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _read_blocks(part: BinaryIO) -> Iterator[_Block]:
    size = os.fstat(part.fileno()).st_size
    place = 0
    while place < size:
        part.seek(place)
        header = part.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise _damage(part.name)
        first_line, record_count, byte_count, checksum = _HEADER.unpack(header)
        block = _Block(first_line, record_count, byte_count, checksum, place + _HEADER.size)
        place = block.place + block.byte_count
        if place > size:
            raise _damage(part.name)
        yield block


def _copy(part: BinaryIO, block: _Block, target: BinaryIO | None) -> None:
    """Copy the text of a block, and make sure that it is as it was written."""
    part.seek(block.place)
    digest, left = xxhash.xxh3_64(), block.byte_count
    while left and (text := part.read(min(left, _COPY_BYTES))):
        digest.update(text)
        left -= len(text)
        if target is not None:
            target.write(text)
    if left or digest.intdigest() != block.checksum:
        raise _damage(part.name)


def _damage(name: str) -> PileError:
    return PileError(
        f"{name}: records set aside do not read back as they were written; check the disk and start anew"
    )
