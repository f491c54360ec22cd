"""Shards of lines: the records and nothing else, however they are written."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.formats import text
from recshuf.formats.compression import COMPRESSIONS
from recshuf.formats.lines.cutting import SCHEMA
from recshuf.interfaces import Target, WriteOptions
from recshuf.system.files import BehindFile
from tests.support.effort import examples
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


def open_target(folder: Path, **options: Any) -> Target:
    """Return the target for plain lines."""
    source = open_text(give(folder / "in.txt", b"x\n"))
    return text.FORMAT.open_target(source.schema, source.layout, WriteOptions(**options))


def to_batches(*contents: bytes) -> list[pa.RecordBatch]:
    """Return a batch of one record for each content."""
    return [pa.record_batch([pa.array([one], pa.large_binary())], schema=SCHEMA) for one in contents]


@settings(same_folder, max_examples=examples(100))
@given(
    records=st.lists(st.binary(max_size=50) | st.just(b"x" * (1 << 18)), max_size=30),
    compression=st.sampled_from(COMPRESSIONS),
    threads=st.integers(1, 3),
)
def test_records_are_written_as_they_are_in_any_batches(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], compression: str, threads: int
) -> None:
    target = open_target(tmp_path_factory.mktemp("in"), compression=compression)
    folder = tmp_path_factory.mktemp("out")
    assert write(folder / f"one{target.suffix}", records, target, threads) == b"".join(records)
    write_all(target, folder / f"many{target.suffix}", to_batches(*records))
    assert decompress_file(folder / f"many{target.suffix}") == b"".join(records)


@pytest.mark.parametrize(
    ("compression", "size"),
    [("gzip", 3 << 20), ("lz4", 5 << 20), pytest.param("zstd", 18 << 20, marks=pytest.mark.slow)],
)
def test_compressed_shards_do_not_depend_on_threads_or_cuts(
    tmp_path: Path, compression: str, size: int
) -> None:
    data = np.random.default_rng(3).integers(0, 40, size + 7).astype(np.uint8).tobytes()
    target = open_target(tmp_path, compression=compression, compression_level=1)
    contents = set()
    for threads, cut in ((1, 100_000), (3, 3 << 20), (8, 32 << 20)):
        path = tmp_path / f"{threads}{target.suffix}"
        with target.open(path, threads) as sink:
            for batch in to_batches(*(data[at : at + cut] for at in range(0, len(data), cut))):
                sink.write(batch)
        assert decompress_file(path) == data
        contents.add(path.read_bytes())
    assert len(contents) == 1


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = BehindFile.write
    monkeypatch.setattr(BehindFile, "write", lambda file, view: real(file, view[:100_000]))
    batches = read_input(open_text(give(tmp_path / "in.txt", HOSTILE * 2000)), 0, 400_000)
    target = open_target(tmp_path)
    write_all(target, tmp_path / "out.txt", batches)
    assert (tmp_path / "out.txt").read_bytes() == b"".join(split_records(HOSTILE * 2000))

    class Short(OneWayWriter):
        def write(self, data: Any) -> int:
            return super().write(data[:999])

    stream = Short()
    with target.open_stream(stream, 1) as sink:  # type: ignore[attr-defined]
        for batch in batches:
            sink.write(batch)
    assert stream.content == (tmp_path / "out.txt").read_bytes()
    assert sink.record_count == sum(batch.num_rows for batch in batches)


@pytest.mark.parametrize(("compression", "failing"), [("none", 0), ("zstd", 1), ("gzip", 2)])
def test_a_write_that_fails_reaches_the_caller_and_releases_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, failing: int
) -> None:
    target = open_target(tmp_path, compression=compression, compression_level=None)
    batches = to_batches(*[os.urandom(1 << 20)] * 18)
    real, calls = BehindFile.write, iter(range(1000))

    def fail(file: BehindFile, view: memoryview) -> int:
        if view and next(calls) >= failing:
            raise OSError(28, "No space left on device")
        return real(file, view)

    monkeypatch.setattr(BehindFile, "write", fail)
    with pytest.raises(OSError, match="No space"):
        write_all(target, tmp_path / "out", batches)
    assert not [path for path in find_open_files(tmp_path) if path.name == "out"]


@pytest.mark.parametrize("change", [-1, 1])
def test_a_shard_of_another_size_than_was_written_is_an_error(tmp_path: Path, change: int) -> None:
    path = tmp_path / "out.txt"
    sink = open_target(tmp_path).open(path, 1)
    sink.write(to_batches(b"x" * (1 << 20))[0])
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(OSError, match=r"holds \d+ bytes after 1048576 were written"):
        sink.close()
    assert not [one for one in find_open_files(tmp_path) if one.name == "out.txt"]
