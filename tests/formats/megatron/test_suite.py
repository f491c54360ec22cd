"""Data sets of Megatron: documents keep their sequences and modes, and two files make a shard."""

import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recshuf.formats.megatron import FORMAT
from recshuf.interfaces import InputFile
from tests.support.formats.file_suite import FileSuite

TYPES = dict(enumerate(("u1", "i1", "i2", "i4", "i8", "f8", "f4", "u2"), start=1))
Document = list[tuple[Any, ...]]
"""Sequences, each of its tokens; with modes, the last number is the mode."""


def make_index(code: int, lengths: Any, ends: Any, modes: Any = (), pointers: Any = None) -> bytes:
    """Return an index, as Megatron's documentation has it."""
    lengths = np.array(lengths, "<i4")
    if pointers is None:
        pointers = np.cumsum([0, *lengths.tolist()])[:-1] * np.dtype(TYPES[code]).itemsize
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), len(ends))
    parts = (lengths, np.array(pointers, "<i8"), np.array(ends, "<i8"), np.array(modes, "i1"))
    return head + b"".join(part.tobytes() for part in parts)


def write_pair(path: Path, documents: Sequence[Document], code: int = 8, *, has_modes: bool = False) -> Path:
    sequences = [one for document in documents for one in document]
    tokens = [one[:-1] if has_modes else one for one in sequences]
    ends = np.cumsum([0, *map(len, documents)])
    path.write_bytes(b"".join(np.array(one, TYPES[code]).tobytes() for one in tokens))
    modes = [one[-1] for one in sequences] if has_modes else ()
    path.with_suffix(".idx").write_bytes(make_index(code, list(map(len, tokens)), ends, modes))
    return path


def read_pair(path: Path, *, has_modes: bool = False) -> list[Document]:
    """Return the documents of a data set; the oracle."""
    index, data = path.with_suffix(".idx").read_bytes(), path.read_bytes()
    magic, version, code, count, ends = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version) == (b"MMIDIDX\0\0", 1)
    assert len(index) == 34 + 12 * count + 8 * ends + has_modes * count
    lengths = np.frombuffer(index, "<i4", count, 34)
    pointers = np.frombuffer(index, "<i8", count, 34 + 4 * count)
    edges = np.frombuffer(index, "<i8", ends, 34 + 12 * count).tolist()
    modes = np.frombuffer(index, "i1", has_modes * count, 34 + 12 * count + 8 * ends).tolist()
    assert (edges[0], edges[-1]) == (0, count)
    sequences = [
        tuple(np.frombuffer(data, TYPES[code], length, at).tolist())
        for length, at in zip(lengths.tolist(), pointers.tolist(), strict=True)
    ]
    if has_modes:
        sequences = [(*one, mode) for one, mode in zip(sequences, modes, strict=True)]
    return [sequences[begin:end] for begin, end in pairwise(edges)]


class PairSuite(FileSuite):
    format = FORMAT
    code, has_modes = 8, False

    def make_document(self, number: int) -> Document:
        return [(*range(number % 60_000, number % 60_000 + 1 + number % 5), number // 60_000)]

    def write_input(self, path: Path, index: int, count: int) -> None:
        documents = [self.make_document(20_000 * index + row) for row in range(count)]
        write_pair(path, documents, self.code, has_modes=self.has_modes)

    def make_other_input(self, folder: Path) -> InputFile:
        path = write_pair(folder / "other.bin", [self.make_document(1)], 3, has_modes=self.has_modes)
        return InputFile(str(path), path)

    def read_back(self, path: Path) -> list[Any]:
        return read_pair(path, has_modes=self.has_modes)

    def records_of(self, batch: pa.RecordBatch) -> list[Any]:
        records = []
        for row in batch.to_pylist():
            lengths = np.frombuffer(row["lengths"], "<i4")
            tokens = np.frombuffer(row["tokens"], TYPES[self.code]).tolist()
            edges = np.cumsum([0, *lengths]).tolist()
            parts = [tuple(tokens[begin:end]) for begin, end in pairwise(edges)]
            modes = np.frombuffer(row["modes"], "i1").tolist() if self.has_modes else []
            records.append([(*one, mode) for one, mode in zip(parts, modes, strict=True)] if modes else parts)
        return records


class TestPlain(PairSuite):
    """A document is one sequence."""


@pytest.mark.slow
class TestSequencesAndModes(PairSuite):
    """A document is any number of sequences with modes, none included."""

    code, has_modes = 4, True

    def make_document(self, number: int) -> Document:
        return [(number, *range(number % 4), number % 3), *[(number % 7, part) for part in range(number % 3)]]
