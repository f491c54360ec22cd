"""Folders of small inputs of the formats that are no lines of text and no tables on disk, and the options that they need."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import recshuf

COUNTS = (300, 200, 0, 250)


def _ids(first: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(first, first + count)


def _write_arrow(path: Path, first: int, count: int, *, is_stream: bool = False) -> None:
    table = pa.table({"id": _ids(first, count), "text": [f"{row}" * (row % 9) for row in range(count)]})
    make = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with make(str(path), table.schema) as writer:
        writer.write_table(table, 64)


def _write_tar(path: Path, first: int, count: int) -> None:
    with tarfile.open(path, "w") as archive:
        for number in range(first, first + max(count, 1)):
            for suffix, data in (("txt", b"%d" % number), ("cls", b"x" * (number % 700))):
                member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def _write_tfrecord(path: Path, first: int, count: int) -> None:
    values = [b"%d" % number * (number % 5) for number in range(first, first + count)]
    table = pa.table({"v": pa.array(values, pa.binary())})
    recshuf.shuffle(table, path, seed=0)


def _write_json(path: Path, first: int, count: int) -> None:
    path.write_text(json.dumps([{"id": number} for number in range(first, first + count)], indent=1))


def _make_fastq(first: int, count: int) -> bytes:
    return b"".join(
        b"@%d\n%s\n+\n!!\n" % (number, b"A" * (number % 40)) for number in range(first, first + count)
    )


KINDS: dict[str, tuple[str, Callable[[Path, int, int], object], dict[str, Any]]] = {
    "arrow": (".arrow", _write_arrow, {}),
    "arrow stream": (".arrows", lambda path, *rows: _write_arrow(path, *rows, is_stream=True), {"format": "arrow"}),
    "npy": (".npy", lambda path, *rows: np.save(path, np.outer(_ids(*rows), [1, -1]).astype(">i4")), {}),
    "npz": (".npz", lambda path, *rows: np.savez(path, a=_ids(*rows), b=np.outer(_ids(*rows), [1, 2])), {}),
    "binary": (".bin", lambda path, *rows: path.write_bytes(b"head" + _ids(*rows).tobytes()), {"record_bytes": 8, "header_bytes": 4}),
    "typed binary": (".dat", lambda path, *rows: _ids(*rows).tofile(path), {"dtype": "u4", "record_shape": 2}),
    "tfrecord": (".tfrecord", _write_tfrecord, {}),
    "webdataset": (".tar", _write_tar, {"rename_keys": True}),
    "json": (".json", _write_json, {}),
    "json to json": (".json", _write_json, {"to": "json"}),
    "record lines": (".fq", lambda path, *rows: path.write_bytes(_make_fastq(*rows)), {"record_lines": 4}),
    "packed record start": (".fq.gz", lambda path, *rows: path.write_bytes(gzip.compress(_make_fastq(*rows), mtime=0)), {"record_start": "@"}),
}  # fmt: skip
"""Suffix, what writes a file of so many records from a number on, and options of `recshuf.shuffle`, by the kind of file."""


def make_folder(folder: Path, kind: str) -> dict[str, Any]:
    """Write files, one of them without records, and return their options."""
    suffix, write, options = KINDS[kind]
    folder.mkdir()
    first = 0
    for index, count in enumerate(COUNTS):
        write(folder / f"{index}{suffix}", first, count)
        first += max(count, 1)
    return options
