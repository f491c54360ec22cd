"""Headers, and what is known of lines before they are read."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from recshuf.errors import InputError
from recshuf.formats import text
from recshuf.formats.lines import census
from recshuf.interfaces import InputFile, WriteOptions
from tests.support.formats.format_tools import read_input
from tests.support.formats.line_tools import give, open_text, records_in, split_records, write

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("block_bytes", [1, 7, 1000])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.parametrize("separator", [b"\n", b"\r\n"])
def test_headers_are_no_records_and_top_each_shard(
    tmp_path: Path, block_bytes: int, suffix: str, separator: bytes
) -> None:
    pack = gzip.compress if suffix == ".csv.gz" else bytes
    header = b"a,b" + separator + b"--" + separator
    bodies = [b"1,2\n\n3,4" + separator, b"", b"5,6"]
    files = [give(tmp_path / f"{i}{suffix}", pack(header + body)) for i, body in enumerate(bodies)]
    files.insert(0, give(tmp_path / f"empty{suffix}", b""))
    source = open_text(files, header_lines=2, separator=separator)
    assert source.layout.header == header
    batches = [read_input(source, index, block_bytes) for index in range(4)]
    assert [records_in(part) for part in batches] == [
        [],
        *(split_records(body, separator) for body in bodies),
    ]
    assert [one.record_count for one in source.inputs] == [len(records_in(part)) for part in batches]
    target = text.FORMAT.open_target(source.schema, source.layout, WriteOptions())
    assert target.suffix == (".txt.gz" if suffix == ".csv.gz" else ".txt")
    shard = tmp_path / f"out{target.suffix}"
    assert write(shard, [b"x"], target) == header + b"x"
    shard.unlink()
    assert write(shard, [], target) == header


def test_headers_that_differ_name_both_inputs(tmp_path: Path) -> None:
    files = [give(tmp_path / f"{name}.csv", name.encode() + b"\n1\n") for name in ("one", "two")]
    with pytest.raises(InputError, match=r"two.csv: its header differs from that of one.csv"):
        open_text(files, header_lines=1)


def test_a_header_without_its_newline_is_completed(tmp_path: Path) -> None:
    source = open_text(give(tmp_path / "in.csv", b"a\nb"), header_lines=2)
    assert source.layout.header == b"a\nb\n"
    assert records_in(read_input(source, 0, 10)) == []


def test_an_input_shorter_than_its_header_is_refused(tmp_path: Path) -> None:
    for content in (b"a\nb\n", b"a\nb", b"a", b"\n"):
        with pytest.raises(InputError, match=r"in.csv: has fewer lines than its header, 3"):
            open_text(give(tmp_path / "in.csv", content), header_lines=3)
    with pytest.raises(InputError, match=r"byte 2: .*--max-record-bytes"):
        open_text(give(tmp_path / "in.csv", b"a\n" + b"x" * 200_000), header_lines=3, max_record_bytes=1000)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_of_many_inputs_some_tell_what_the_others_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(census, "_MOST_SAMPLES", 20)
    pack = (lambda data: gzip.compress(data, 1)) if suffix == ".csv.gz" else bytes
    rng = np.random.default_rng(1)
    counts = [0, *rng.integers(200, 300, 99).tolist()]
    bodies = [b"".join(b"%012d\n" % number for number in rng.integers(0, 10**9, count)) for count in counts]
    files = [give(tmp_path / f"{i}{suffix}", pack(b"head\n" + body)) for i, body in enumerate(bodies)]
    files.append(give(tmp_path / f"empty{suffix}", b""))
    source = open_text(files, header_lines=1)
    assert sum(one.record_count_is_exact for one in source.inputs) == len(range(0, 101, 6)) + 1, (
        "each sixth and the empty one"
    )
    assert sum(one.record_count or 0 for one in source.inputs) == pytest.approx(sum(counts), rel=0.02)
    assert [one.record_count for one in source.inputs[5:]] == pytest.approx([*counts[5:], 0], rel=0.1, abs=1)
    records = [records_in(read_input(source, index, 1000)) for index in (0, 1, 5, 99, 100)]
    assert list(map(len, records)) == [0, counts[1], counts[5], counts[99], 0]
    native = sum(len(body) + 8 * count for body, count in zip(bodies, counts, strict=True))
    assert sum(one.native_bytes or 0 for one in source.inputs) == pytest.approx(native, rel=0.02)


def test_of_many_plain_inputs_most_are_judged_by_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census, "_MOST_SAMPLES", 5)
    opened: list[str] = []
    find = census.open_input
    monkeypatch.setattr(census, "open_input", lambda given: opened.append(given.name) or find(given))
    counts = [100 + 7 * index for index in range(19)]
    files = [give(tmp_path / f"{index:02}.txt", b"line\n" * count) for index, count in enumerate(counts)]
    files[3:3] = [give(tmp_path / "empty.txt", b"")]
    counts.insert(3, 0)
    source = open_text(files)
    assert [name for name in opened if name not in (files[index].name for index in range(0, 20, 4))] == []
    assert [one.record_count for one in source.inputs] == counts
    assert [one.native_bytes for one in source.inputs] == [13 * count for count in counts]
    assert [len(records_in(read_input(source, index, 1000))) for index in range(20)] == counts


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Path.unlink, "No such file"),
        (lambda path: (path.unlink(), path.mkdir()), "is a folder"),
        (lambda path: (path.unlink(), path.symlink_to(path.name)), "symbolic links"),
    ],
    ids=["missing", "folder", "link"],
)
def test_among_many_inputs_what_is_no_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], said: str
) -> None:
    monkeypatch.setattr(census, "_MOST_SAMPLES", 2)
    files = [give(tmp_path / f"{index}.txt", b"line\n") for index in range(5)]
    path = tmp_path / "5.txt"
    path.touch()
    make(path)
    with pytest.raises(InputError, match=rf"5.txt: .*{said}"):
        open_text([*files, InputFile(path.name, path)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Path.unlink, "No such file"),
        (lambda path: (path.unlink(), path.mkdir()), "is a folder"),
        (lambda path: path.write_bytes(b"more\nlines\n"), "changed while it was read"),
    ],
    ids=["gone", "folder", "written"],
)
def test_what_happens_to_a_file_judged_by_its_size_is_noticed_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], said: str
) -> None:
    monkeypatch.setattr(census, "_MOST_SAMPLES", 2)
    files = [give(tmp_path / f"{index}.txt", b"line\n") for index in range(6)]
    source = open_text(files)
    assert files[5].path is not None
    change(files[5].path)
    with pytest.raises(InputError, match=rf"5.txt: .*{said}"):
        read_input(source, 5, 1000)


@pytest.mark.parametrize("name", ["x.txt.gz", "x"])
def test_a_compressed_input_among_many_plain_ones_is_not_judged_by_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(census, "_MOST_SAMPLES", 2)
    files = [give(tmp_path / f"{index}.txt", b"line\n" * 100) for index in range(5)]
    files.append(give(tmp_path / name, gzip.compress(b"line\n" * 7000)))
    source = open_text(files)
    assert source.inputs[5].record_count == 7000
    assert len(records_in(read_input(source, 5, 1000))) == 7000


def test_a_pipe_among_many_inputs_is_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "_MOST_SAMPLES", 2)
    files = [give(tmp_path / f"{index}.txt", b"line\n") for index in range(5)]
    pipe = tmp_path / "5.txt"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(b"a\nb\n"))
    writer.start()
    source = open_text([*files, InputFile(pipe.name, pipe)])
    assert source.inputs[5].record_count is None
    assert records_in(read_input(source, 5, 1000)) == [b"a\n", b"b\n"]
    writer.join()


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_small_inputs_are_counted_and_large_ones_estimated(tmp_path: Path, suffix: str) -> None:
    pack = (lambda data: gzip.compress(data, 1)) if suffix == ".txt.gz" else bytes
    rng = np.random.default_rng(1)
    lines = [rng.bytes(size).replace(b"\n", b" ") + b"\n" for size in rng.integers(10, 400, 50_000)]
    for part, is_exact in ((lines[:100], True), (lines, False)):
        source = open_text(give(tmp_path / f"in{suffix}", pack(b"".join(part))))
        [summary] = source.inputs
        assert summary.record_count_is_exact == is_exact
        tolerance = 0 if is_exact else 0.1
        assert summary.record_count == pytest.approx(len(part), rel=tolerance)
        assert summary.native_bytes == pytest.approx(len(b"".join(part)) + 8 * len(part), rel=tolerance)
        assert summary.file_bytes == (tmp_path / f"in{suffix}").stat().st_size


def test_the_census_looks_beyond_the_beginning_of_a_plain_file(tmp_path: Path) -> None:
    content = b"x" * (1 << 20) + b"line\n" * 2_000_000
    [summary] = open_text(give(tmp_path / "in.txt", content)).inputs
    assert summary.record_count is not None
    assert summary.record_count > 500_000
