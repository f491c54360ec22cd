"""Shards of lines: the records and nothing else, however they are written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from recshuf.errors import UsageError
from recshuf.formats import text
from recshuf.formats.compression import COMPRESSIONS
from recshuf.formats.lines import cutting
from recshuf.interfaces import WriteOptions
from tests.support.formats.format_tools import OneWayWriter, decompress_file, find_open_files, read_input
from tests.support.formats.line_tools import (
    HOSTILE,
    give,
    open_text,
    same_folder,
    split_records,
    write,
    write_all,
)

if TYPE_CHECKING:
    from pathlib import Path


@given(
    records=st.lists(st.binary(max_size=50), max_size=30),
    compression=st.sampled_from(COMPRESSIONS),
    threads=st.integers(1, 3),
)
@same_folder
def test_records_are_written_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], compression: str, threads: int
) -> None:
    layout = open_text(give(tmp_path_factory.mktemp("in") / "in.txt", b"x\n")).layout
    target = text.FORMAT.open_target(cutting.SCHEMA, layout, WriteOptions(compression=compression))
    path = tmp_path_factory.mktemp("out") / f"out{target.suffix}"
    assert write(path, records, target, threads) == b"".join(records)


def test_compressed_shards_do_not_depend_on_threads_or_cuts(tmp_path: Path) -> None:
    data = np.random.default_rng(3).integers(0, 40, 18 << 20).astype(np.uint8)
    source = open_text(give(tmp_path / "in.txt", data.tobytes()), separator=b"\0")
    for compression in ("zstd:1", "gzip:1", "lz4:0"):
        name, level = compression.split(":")
        options = WriteOptions(compression=name, compression_level=int(level))
        target = text.FORMAT.open_target(source.schema, source.layout, options)
        contents = set()
        for threads, block_bytes in ((1, 100_000), (3, 3 << 20), (8, 32 << 20)):
            path = tmp_path / f"{threads}{target.suffix}"
            with target.open(path, threads) as sink:
                for batch in read_input(source, 0, block_bytes):
                    sink.write(batch)
            contents.add(path.read_bytes())
        assert len(contents) == 1
        expected = data.tobytes().rstrip(b"\0") + b"\0" if data[-1] else data.tobytes()
        assert decompress_file(path).rstrip(b"\0") == expected.rstrip(b"\0")


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, view: real(descriptor, view[:100_000]))
    source = open_text(give(tmp_path / "in.txt", HOSTILE * 2000))
    target = text.FORMAT.open_target(source.schema, source.layout, WriteOptions())
    write_all(target, tmp_path / "out.txt", read_input(source, 0, 400_000))
    assert (tmp_path / "out.txt").read_bytes() == b"".join(split_records(HOSTILE * 2000))

    class Short(OneWayWriter):
        def write(self, data: Any) -> int:
            return super().write(data[:999])

    stream = Short()
    with target.open_stream(stream, 1) as sink:
        for batch in read_input(source, 0, 400_000):
            sink.write(batch)
    assert stream.content == (tmp_path / "out.txt").read_bytes()


@pytest.mark.parametrize("compression", ["none", "zstd", "gzip"])
@pytest.mark.parametrize("failing", range(3))
def test_a_write_that_fails_reaches_the_caller_and_releases_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, failing: int
) -> None:
    source = open_text(give(tmp_path / "in.txt", os.urandom(20 << 20)))
    batches = read_input(source, 0, 1 << 20)
    target = text.FORMAT.open_target(source.schema, source.layout, WriteOptions(compression=compression))
    real, calls = os.write, iter(range(1000))

    def fail(descriptor: int, view: memoryview) -> int:
        if view and next(calls) >= failing:
            raise OSError(28, "No space left on device")
        return real(descriptor, view)

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="No space"):
        write_all(target, tmp_path / "out", batches)
    assert not [path for path in find_open_files(tmp_path) if path.name == "out"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    source = open_text(give(tmp_path / "in.txt", b"x\n"))
    target = text.FORMAT.open_target(source.schema, source.layout, WriteOptions())
    (tmp_path / "out.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        target.open(tmp_path / "out.txt", 1)
    assert not (tmp_path / "elsewhere").exists()


def test_compression_is_that_of_the_inputs_unless_asked(tmp_path: Path) -> None:
    source = open_text(give(tmp_path / "in.txt.zst", zstandard.compress(b"x\n")))
    suffixes = {
        compression: text.FORMAT.open_target(
            source.schema, source.layout, WriteOptions(compression=compression)
        ).suffix
        for compression in (None, "none", "gzip")
    }
    assert suffixes == {None: ".txt.zst", "none": ".txt", "gzip": ".txt.gz"}
    with pytest.raises(UsageError, match="snappy"):
        text.FORMAT.open_target(source.schema, source.layout, WriteOptions(compression="snappy"))
